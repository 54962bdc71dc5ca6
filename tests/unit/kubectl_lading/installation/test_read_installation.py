"""Test what is read of an installation beside objects: kube-scheduler's configuration, and what central's replicas say."""

import json

import pytest

from central.request.parse import OWN_ONLY
from kubectl_lading.installation.installation import Replica, SchedulerConfig
from kubectl_lading.installation.read_installation import parse_replica, parse_scheduler_config
from kubectl_lading.objects import Unread
from tests.docs import ROOT

METRICS = b"""# TYPE lading_build_info gauge
lading_build_info{version="0.2.0"} 1.0
# TYPE lading_central_leader gauge
lading_central_leader 1.0
# TYPE lading_central_bindings_open gauge
lading_central_bindings_open 3.0
# TYPE lading_central_gpus gauge
lading_central_gpus{state="free"} 12.0
"""


def ready(*conditions: tuple[str, bool]) -> bytes:
    text = [{"name": name, "ok": ok, "why": "" if ok else "not yet", "required": True} for name, ok in conditions]
    return json.dumps({"ready": True, "conditions": text}).encode()


def test_the_configuration_of_deploy_asks_central_about_every_resource() -> None:
    """Check that the second extender of deploy/, which is called for all pods and has no bind verb, is accepted."""
    text = (ROOT / "deploy/scheduler/config.yaml").read_text()
    assert parse_scheduler_config(text) == SchedulerConfig(profiles=("lading",), asks_central=OWN_ONLY.resources)


@pytest.mark.parametrize("verb", ["filterVerb", "bindVerb"])
def test_an_extender_without_one_of_its_verbs_does_not_give_devices(verb: str) -> None:
    text = (ROOT / "deploy/scheduler/config.yaml").read_text().replace(f"{verb}: ", f"{verb}Not: ")
    config = parse_scheduler_config(text)
    assert isinstance(config, SchedulerConfig)
    assert config.asks_central == frozenset()


@pytest.mark.parametrize(
    "text", ["", "[1]", "a: [", "extenders: [3]", "extenders: [{filterVerb: f, bindVerb: b, managedResources: [x]}]"]
)
def test_a_configuration_that_is_none(text: str) -> None:
    assert isinstance(parse_scheduler_config(text), Unread)


def test_a_replica_is_read_from_its_metrics_and_readiness() -> None:
    replica = parse_replica(METRICS, ready(("lists-read", True)))
    assert replica == Replica(version="0.2.0", leads=True, bindings_open=3, unready=())


def test_a_replica_that_waits_has_no_bindings_to_tell_of() -> None:
    replica = parse_replica(b"lading_central_leader 0\n", ready(("lists-read", False)))
    assert replica == Replica(leads=False, bindings_open=None, unready=("lists-read: not yet",))


@pytest.mark.parametrize(("metrics", "page"), [(b"{", b"{}"), (METRICS, b"not ready"), (b"\xff", b"{}")])
def test_pages_that_are_none(metrics: bytes, page: bytes) -> None:
    assert isinstance(parse_replica(metrics, page), Unread)
