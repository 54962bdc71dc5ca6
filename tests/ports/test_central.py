"""A second dialect of requests, in a folder of its own and registered by one line."""

import msgspec
import pytest

from central.request.dialects.options import DialectName, DialectOptions
from central.request.model import DeviceRequest, MalformedRequest
from central.request.parse import DIALECTS, Dialects, mentions_devices, parse_request
from central.request.pod import Pod
from lading.vocabulary import RESOURCE_GPU
from tests.ports.dialect.requests import RESOURCE, CardRequests


@pytest.fixture
def dialects(monkeypatch: pytest.MonkeyPatch) -> Dialects:
    """Add the line of its registration, and enable it."""
    monkeypatch.setitem(DIALECTS, DialectName.KAI, lambda options: CardRequests())
    return Dialects(DialectOptions(enabled=(DialectName.KAI,)))


def pod(**limits: str) -> Pod:
    resources = {"limits": {name.replace("__", "/").replace("_", "."): amount for name, amount in limits.items()}}
    containers = [{"name": "train", "resources": resources}]
    metadata = {"name": "p", "namespace": "n", "uid": "u"}
    return msgspec.convert({"metadata": metadata, "spec": {"containers": containers}}, Pod)


def test_a_pod_asks_in_either(dialects: Dialects) -> None:
    for asked in (pod(cards_example_com__gpu="2"), pod(lading_dev__gpu="2")):
        ask = parse_request(asked, dialects)
        assert isinstance(ask, DeviceRequest)
        assert [container.gpus for container in ask.containers] == [2]
        assert mentions_devices(asked, dialects)
    assert parse_request(pod(cpu="1"), dialects) is None


def test_a_pod_that_asks_in_both_is_refused(dialects: Dialects) -> None:
    refused = parse_request(pod(cards_example_com__gpu="2", lading_dev__gpu="2"), dialects)
    assert isinstance(refused, MalformedRequest)
    assert RESOURCE in refused.message
    assert RESOURCE_GPU in refused.message


def test_kube_scheduler_leaves_the_resources_of_both_to_the_extender(dialects: Dialects) -> None:
    assert {RESOURCE, RESOURCE_GPU} <= dialects.resources
