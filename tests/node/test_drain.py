"""Send SIGTERM to the proxy: calls that end in time are not lost, others end UNAVAILABLE and are counted, also after a
restart."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from lading.log import Event
from runtimeproxy.daemon import lost_file, read_lost
from simnode.daemons import render_flat_toml
from tests.fakes.counting_runtime import COUNTED, HELD, CountingRuntime
from tests.fakes.service_manager import ServiceManager, managed
from tests.node.observe import metric

CALL_S = 60.0  # no call of a test takes that long
NO_RETRIES = (("grpc.enable_retries", 0),)


@pytest.fixture
def runtime(short_folder: Path) -> Iterator[CountingRuntime]:
    with CountingRuntime(short_folder / "runtime.sock") as runtime:
        yield runtime


def proxy(folder: Path, runtime: CountingRuntime, *, drain_timeout: float) -> list[str]:
    settings = {
        "listen": str(folder / "run" / "cri.sock"),
        "runtime_endpoint": str(runtime.path),
        "hooks_dir": str(folder / "hooks.d"),
        "metrics": "127.0.0.1:0",
        "drain_timeout": drain_timeout,
    }
    config = folder / "runtimeproxy.toml"
    config.write_text(render_flat_toml(settings))
    return [str(Path(sys.executable).with_name("lading-runtimeproxy")), "--config", str(config)]


@pytest.fixture
def patient(short_folder: Path, runtime: CountingRuntime) -> Iterator[ServiceManager]:
    argv = proxy(short_folder, runtime, drain_timeout=30)
    with managed(argv, path=short_folder / "run" / "cri.sock", log=short_folder / "proxy.log") as manager:
        manager.start()
        yield manager


@pytest.fixture
def hasty(short_folder: Path, runtime: CountingRuntime) -> Iterator[ServiceManager]:
    argv = proxy(short_folder, runtime, drain_timeout=0.3)
    with managed(argv, path=short_folder / "run" / "cri.sock", log=short_folder / "proxy.log") as manager:
        manager.start()
        yield manager


@pytest.fixture
def channel(short_folder: Path) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"unix:{short_folder}/run/cri.sock", options=NO_RETRIES) as channel:
        yield channel


def call(channel: grpc.Channel, method: str, request: bytes) -> "grpc.CallFuture[bytes]":
    return channel.unary_unary(method, bytes, bytes).future(request, timeout=CALL_S)


def lost_in(log: Path) -> list[int]:
    lines = [line for line in log.read_text().splitlines() if f"event={Event.DAEMON_STOPPED} " in line]
    return [int(re.findall(r"lost_calls=(\d+)", line)[0]) for line in lines]


def test_calls_that_end_in_time_are_not_lost(patient: ServiceManager, runtime: CountingRuntime, channel: grpc.Channel) -> None:
    open_calls = [call(channel, HELD, bytes([i])) for i in range(10)]
    for _ in open_calls:
        assert runtime.arrived.acquire(timeout=10)
    patient.terminate()
    patient.wait_for("STOPPING=1")
    assert not any(one.done() for one in open_calls)
    runtime.release.set()
    assert [one.result() for one in open_calls] == [b""] * 10
    assert patient.wait() == 0
    assert lost_in(patient.log) == [0]
    assert set(runtime.got.values()) == {1}


@pytest.fixture
def retrying_channel(short_folder: Path) -> Iterator[grpc.Channel]:
    """Open a channel with gRPC's defaults: a call that was not sent when the GOAWAY came is sent on the next connection."""
    with grpc.insecure_channel(f"unix:{short_folder}/run/cri.sock") as channel:
        yield channel


def test_a_call_made_while_the_proxy_drains_is_served_by_the_next_proxy(
    patient: ServiceManager, runtime: CountingRuntime, retrying_channel: grpc.Channel
) -> None:
    """Check that the client opens no new call on the old connection, because of GOAWAY, and that the new connection waits in
    the socket's queue."""
    channel = retrying_channel
    held = call(channel, HELD, b"held")
    assert runtime.arrived.acquire(timeout=10)
    patient.terminate()
    patient.wait_for("STOPPING=1")
    late = [call(channel, COUNTED, bytes([i])) for i in range(10)]
    runtime.release.set()
    assert held.result() == b""
    assert patient.wait() == 0
    patient.start()
    assert [one.result() for one in late] == [b""] * 10
    assert set(runtime.got.values()) == {1}


def test_longer_calls_end_unavailable_and_are_counted(
    hasty: ServiceManager, runtime: CountingRuntime, channel: grpc.Channel, short_folder: Path
) -> None:
    open_calls = [call(channel, HELD, bytes([i])) for i in range(3)]
    for _ in open_calls:
        assert runtime.arrived.acquire(timeout=10)
    hasty.terminate()
    for one in open_calls:
        error = one.exception()
        assert isinstance(error, grpc.RpcError)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "lading" in str(error.details())
    assert hasty.wait() == 0
    assert lost_in(hasty.log) == [3]
    assert read_lost(lost_file(short_folder / "run" / "cri.sock")) == 3


def test_the_next_proxy_exports_the_number_of_lost_calls(
    hasty: ServiceManager, runtime: CountingRuntime, channel: grpc.Channel
) -> None:
    for round_ in (1, 2):
        held = call(channel, HELD, bytes([round_]))
        assert runtime.arrived.acquire(timeout=10)
        hasty.restart()
        assert held.exception() is not None
        assert metric(hasty.log, "lading_proxy_lost_calls_total") == round_


def test_the_stop_is_given_as_long_as_the_drain_takes(patient: ServiceManager) -> None:
    patient.terminate()
    assert patient.wait() == 0
    patient.wait_for("STOPPING=1")
    extended = [int(text.partition("=")[2]) for text in patient.heard if text.startswith("EXTEND_TIMEOUT_USEC=")]
    assert min(extended) > 30e6
