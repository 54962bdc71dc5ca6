"""A second dialect of requests, in a folder of its own and registered by one line."""

import msgspec
import pytest

from central.ask import parse
from central.ask.model import Ask, BadAsk
from central.ask.parse import managed_resources, mentions_devices, parse_ask
from central.ask.pod import Pod
from lading.vocabulary import RESOURCE_GPU
from tests.ports.dialect.requests import RESOURCE, CardRequests


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the line of its registration."""
    monkeypatch.setattr(parse, "DIALECTS", (*parse.DIALECTS, CardRequests()))


def pod(**limits: str) -> Pod:
    resources = {"limits": {name.replace("__", "/").replace("_", "."): amount for name, amount in limits.items()}}
    containers = [{"name": "train", "resources": resources}]
    metadata = {"name": "p", "namespace": "n", "uid": "u"}
    return msgspec.convert({"metadata": metadata, "spec": {"containers": containers}}, Pod)


def test_a_pod_asks_in_either() -> None:
    for asked in (pod(cards_example_com__gpu="2"), pod(lading_dev__gpu="2")):
        ask = parse_ask(asked)
        assert isinstance(ask, Ask)
        assert [container.gpus for container in ask.containers] == [2]
        assert mentions_devices(asked)
    assert parse_ask(pod(cpu="1")) is None


def test_a_pod_that_asks_in_both_is_refused() -> None:
    refused = parse_ask(pod(cards_example_com__gpu="2", lading_dev__gpu="2"))
    assert isinstance(refused, BadAsk)
    assert RESOURCE in refused.message
    assert RESOURCE_GPU in refused.message


def test_kube_scheduler_leaves_the_resources_of_both_to_the_extender() -> None:
    assert {RESOURCE, RESOURCE_GPU} <= managed_resources()
