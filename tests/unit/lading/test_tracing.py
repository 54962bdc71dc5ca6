"""Test traces: none without an endpoint, and with one the data that a collector receives over real OTLP/HTTP."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lading.errors import ConfigError
from lading.log import Event
from lading.tracing import OFF, Tracing, open_tracing
from tests.fakes.collector import Collector, attributes_of
from tests.fakes.records import Records

KEPT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
NOT_KEPT = KEPT[:-1] + "0"


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def close(tracing: Tracing) -> None:
    asyncio.run(tracing.close())


def test_without_an_endpoint_the_callers_own_trace_goes_on() -> None:
    assert open_tracing("lading-hooks", "", Records().log) is OFF
    with OFF.begin("CRI CreateContainer", parent=KEPT) as span:
        span.note(k8s_pod_name="train-0")
        assert span.traceparent == KEPT
    close(OFF)


def test_a_span_is_sent_as_its_callers_child(collector: Collector) -> None:
    tracing = open_tracing("lading-hooks", collector.endpoint, Records().log)
    with tracing.begin("Adjust CREATE_CONTAINER", parent=KEPT) as span:
        span.note(k8s_pod_name="train-0", lading_reason="")
    span.end()
    close(tracing)
    (sent,) = collector.spans
    assert (sent.trace_id.hex(), sent.parent_span_id.hex()) == ("a" * 32, "b" * 16)
    assert span.traceparent == f"00-{'a' * 32}-{sent.span_id.hex()}-01"
    assert attributes_of(sent) == {"k8s.pod.name": "train-0"}
    assert collector.services == {"lading-hooks"}


def test_whether_it_is_kept_is_its_callers_to_say(collector: Collector) -> None:
    tracing = open_tracing("lading-hooks", collector.endpoint, Records().log)
    with tracing.begin("Adjust CREATE_CONTAINER", parent=NOT_KEPT) as span:
        assert span.traceparent.startswith(NOT_KEPT[:36])
        assert span.traceparent.endswith("-00")
    close(tracing)
    assert collector.spans == []


@pytest.mark.parametrize("parent", ["", "nonsense", "00-zz-yy-01", KEPT + "-more", "00-" + "0" * 32 + "-" + "b" * 16 + "-01"])
def test_without_a_caller_that_traces_it_begins_here(collector: Collector, parent: str) -> None:
    tracing = open_tracing("lading-central", collector.endpoint, Records().log)
    tracing.begin("filter", parent=parent).end()
    close(tracing)
    (sent,) = collector.spans
    assert not sent.parent_span_id


def test_an_error_is_noted_by_its_type_alone(collector: Collector) -> None:
    tracing = open_tracing("lading-central", collector.endpoint, Records().log)
    with pytest.raises(ValueError, match="secret"), tracing.begin("bind"):
        raise ValueError("secret")
    close(tracing)
    (sent,) = collector.spans
    assert attributes_of(sent) == {"error.type": "ValueError"}
    assert b"secret" not in sent.SerializeToString()


ENDS = """
import asyncio, sys
from lading.log import Level, open_log
from lading.tracing import open_tracing
tracing = open_tracing("lading-central", sys.argv[1], open_log("lading-central", Level.INFO))
tracing.begin("bind").end()
asyncio.run(tracing.close())
"""


def end_with(endpoint: str) -> str:
    """Return the log of a process that ends: the library's threads would continue for half a minute, and the process does not
    wait for them."""
    argv, env = [sys.executable, "-c", ENDS, endpoint], {**os.environ, "JOURNAL_STREAM": ""}
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=20, env=env).stderr


def test_a_collector_that_is_not_there_costs_spans_and_is_reported() -> None:
    assert end_with("http://127.0.0.1:9/v1/traces").count(f"event={Event.TRACES_FAILED}") == 1


def test_a_collector_that_never_answers_does_not_hold_up_the_end_of_the_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel takes connections, and no one reads
        end_with(f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces")


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "ftp://collector/v1/traces", "http://"])
def test_what_is_no_endpoint(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="otlp_endpoint"):
        open_tracing("lading-central", endpoint, Records().log)


def test_without_opentelemetrys_packages_it_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError) as caught:
        open_tracing("lading-central", "http://127.0.0.1:4318/v1/traces", Records().log)
    assert "lading[otlp]" in caught.value.hint
