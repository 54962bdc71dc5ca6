"""Test devices that become unhealthy under pods: one condition and one Event for each change, despite failures, and for no
other pod."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from central.controllers.device_health import AT_ONCE, QUIET_S, SCAN_S
from central.controllers.event_reasons import EventReason
from central.controllers.informer import PodFeed
from central.request.pod import DEVICES_HEALTHY
from lading.log import Event
from lading.vocabulary import MANUAL_GPUS
from tests.fakes.kube_objects import Json, devices, devices_path, gpu_uuid, grant, pod_path, share, vf_address
from tests.fakes.kube_server import Fault, Request
from tests.fakes.led import Led

UNHEALTHY, HEALTHY = EventReason.DEVICE_UNHEALTHY, EventReason.DEVICE_HEALTHY
LOST = "NVML: GPU is lost"
SOON = 2 * SCAN_S


def is_patch(request: Request) -> bool:
    return request.method == "PATCH" and request.path.endswith("/status")


async def report(
    cluster: Led,
    ill: Mapping[str, str],
    *,
    gpus: int = 2,
    vfs: int = 0,
    lost: tuple[int, ...] = (),
    grants: list[Json] | None = None,
) -> None:
    """Report a node. `ill`: reasons by UUID or PCI address; `lost`: cards that the node does not report any more."""
    text = devices("n1", gpus, vfs, grants=grants or ())
    status = text["status"]
    status["gpus"] = [gpu for number, gpu in enumerate(status["gpus"]) if number not in lost]
    functions = [function for pf in status["pfs"] for function in (pf, *pf["vfs"])]
    for device in (*status["gpus"], *functions):
        device["unhealthy"] = ill.get(device.get("uuid", device["bdf"]), "")
    await cluster.server.put(devices_path("n1"), text)
    await cluster.pause()


async def ill_card(cluster: Led, name: str = "a") -> str:
    """Make a card of a pod unhealthy, and return the card."""
    (card,) = cluster.assigned(name)
    await report(cluster, {card: LOST})
    return card


def condition(cluster: Led, name: str = "a") -> Json:
    conditions = cluster.json(name)["status"].get("conditions", [])
    return next((c for c in conditions if c["type"] == DEVICES_HEALTHY), {})


def status(cluster: Led, name: str = "a") -> str:
    return str(condition(cluster, name).get("status", ""))


def told(cluster: Led) -> list[tuple[str, str]]:
    """Return the Kubernetes Events: the pod and the reason of each."""
    return [(request.body["involvedObject"]["name"], request.body["reason"]) for request in cluster.sent("/events")]


def patches(cluster: Led) -> list[str]:
    return [request.path.split("/")[-2] for request in cluster.server.requests if is_patch(request)]


@pytest.fixture
async def held(cluster: Led) -> Led:
    """Bind pod `a` to one of two cards of n1."""
    await cluster.report("n1", 2)
    await cluster.place("a")
    return cluster


async def test_an_unhealthy_card_is_a_condition_and_an_event_of_its_pod_until_it_is_healthy(held: Led) -> None:
    await held.place("b")
    card = await ill_card(held)
    await held.pause(SOON)
    ill = condition(held)
    assert (ill["status"], ill["reason"]) == ("False", UNHEALTHY)
    assert all(part in ill["message"] for part in (card, "n1", LOST))
    await report(held, {})
    await held.pause(QUIET_S + SOON)
    assert (condition(held)["status"], condition(held)["reason"]) == ("True", HEALTHY)
    assert told(held) == [("a", UNHEALTHY), ("a", HEALTHY)]
    events = [(request.body["type"], request.body["message"]) for request in held.sent("/events")]
    assert [kind for kind, _ in events] == ["Warning", "Normal"]
    assert events[0][1] == ill["message"]
    (first, _) = [request.body for request in held.server.requests if is_patch(request)]
    assert first["metadata"] == {"uid": held.uid("a")}
    assert condition(held, "b") == {}
    assert (held.records.count(Event.DEVICE_UNHEALTHY), held.records.count(Event.DEVICE_HEALTHY)) == (1, 1)


async def test_a_condition_is_written_once_for_a_change_and_not_for_each_report(held: Led) -> None:
    for _ in range(5):
        await ill_card(held)
        await held.pause(QUIET_S)
    await held.put_pod("other")  # the node's room changes
    held.filter("other")
    await held.pause(QUIET_S)
    assert (patches(held), told(held)) == (["a"], [("a", UNHEALTHY)])


async def test_a_new_leader_writes_only_changes_since_the_last_leader(held: Led) -> None:
    await held.place("b")
    await ill_card(held)
    await held.pause(SOON)
    await held.lead_again()
    await held.pause(QUIET_S)
    assert told(held) == [("a", UNHEALTHY)]
    await held.leadership.end()
    await ill_card(held, "b")
    await held.begin()
    await held.pause(SOON)
    assert (status(held), status(held, "b")) == ("True", "False")
    assert sorted(told(held)[1:]) == [("a", HEALTHY), ("b", UNHEALTHY)]


async def test_pods_of_an_unhealthy_pf_or_vf_and_of_a_missing_card_get_the_condition(cluster: Led) -> None:
    await cluster.report("n1", 2, 2)
    await cluster.place("card")
    await cluster.place("vf-0", {"lading.dev/rdma": "1"})
    await cluster.place("vf-1", {"lading.dev/rdma": "1"})
    await report(cluster, {"0000:60:00.0": "no active port"}, vfs=2)
    await cluster.pause(SOON)
    assert sorted(patches(cluster)) == ["vf-0", "vf-1"]
    await report(cluster, {vf_address(0): "no driver"}, vfs=2)
    await cluster.pause(QUIET_S + SOON)
    assert sorted([status(cluster, "vf-0"), status(cluster, "vf-1")]) == ["False", "True"]
    await report(cluster, {}, vfs=2, lost=(0, 1))
    await cluster.pause(QUIET_S + SOON)
    assert [status(cluster, name) for name in ("card", "vf-0", "vf-1")] == ["False", "True", "True"]


async def test_a_pod_with_cards_by_hand_gets_the_condition(cluster: Led) -> None:
    for name in ("a", "elsewhere"):
        await cluster.put_pod(name, {}, node="n1" if name == "a" else "n2", annotations={MANUAL_GPUS: "0"})
    grants = [grant(cluster.uid(name), "n1", 0) | {"namespace": "default", "podName": name} for name in ("a", "elsewhere")]
    await report(cluster, {gpu_uuid("n1", 0): LOST}, grants=grants)
    await cluster.pause(SOON)
    assert (patches(cluster), told(cluster)) == (["a"], [("a", UNHEALTHY)])  # a node has no say about pods that are elsewhere


@pytest.mark.parametrize("end", [{"phase": "Succeeded"}, {"deleting": True}])
async def test_a_pod_that_ends_gets_no_condition(cluster: Led, end: dict[str, Any]) -> None:
    await cluster.place("a")
    (card,) = cluster.assigned("a")
    annotations = cluster.json("a")["metadata"]["annotations"]
    await cluster.put_pod("a", node="n1", annotations=annotations, **end)
    await report(cluster, {card: LOST})
    await cluster.pause(SOON)
    assert patches(cluster) == []


async def test_a_pod_gets_the_condition_once_it_is_bound(cluster: Led) -> None:
    await cluster.put_pod("a")
    cluster.filter("a")  # it is predicted there
    await report(cluster, {gpu_uuid("n1", 0): LOST}, gpus=1)
    await cluster.pause(SOON)
    assert patches(cluster) == []
    gpu = {"uuid": gpu_uuid("n1", 0), "bdf": "0000:10:00.0"}
    text = {"v": 1, "pod": cluster.uid("a"), "node": "n1", "gen": 1, "containers": {"main": {"gpus": [gpu]}}}
    annotations = {"lading.dev/assignment": msgspec.json.encode(text).decode()}
    await cluster.put_pod("a", node="n1", annotations=annotations)
    await cluster.pause(SOON)
    assert told(cluster) == [("a", UNHEALTHY)]


async def test_the_conditions_of_a_hundred_pods_are_written_a_few_at_a_time(cluster: Led) -> None:
    await cluster.report("n1", 3)  # 48 pods share a card at the most
    for number in range(100):
        await cluster.place(f"p{number}", share("800Mi", 1))
    begun = len(cluster.server.requests)
    await report(cluster, {gpu_uuid("n1", card): LOST for card in range(3)}, gpus=3)
    await cluster.pause(SCAN_S)
    assert 0 < len(patches(cluster)) <= AT_ONCE
    await cluster.pause(SCAN_S * (100 / AT_ONCE + 1))
    assert sorted(patches(cluster)) == sorted(f"p{number}" for number in range(100))
    assert len(told(cluster)) == 100
    assert len(cluster.server.requests) - begun < 210
    await cluster.pause(3 * QUIET_S)
    assert len(patches(cluster)) == 100


async def test_the_events_of_a_flapping_device_are_bounded(held: Led) -> None:
    for _ in range(30):
        await ill_card(held)
        await held.pause(1.5 * SCAN_S)
        await report(held, {})
        await held.pause(1.5 * SCAN_S)
    assert len(told(held)) <= 3 * SCAN_S * 30 / QUIET_S + 1
    await held.pause(QUIET_S + SOON)
    assert status(held) == "True"


@pytest.mark.parametrize("fault", [Fault(status=500), Fault(status=429), Fault(status=403), Fault(hang=True)])
async def test_a_patch_that_fails_is_tried_again_and_the_event_follows_its_success(held: Led, fault: Fault) -> None:
    held.server.fail(fault, when=is_patch, times=3)
    await ill_card(held)
    await held.pause(SOON)
    assert told(held) == []
    await held.pause(60)
    assert (len(patches(held)), status(held), told(held)) == (4, "False", [("a", UNHEALTHY)])


async def test_a_patch_that_fails_for_a_pod_delays_no_other_pod(held: Led) -> None:
    await held.place("b")
    held.server.fail(Fault(status=403), when=lambda request: is_patch(request) and "/a/" in request.path, times=100)
    await report(held, {gpu_uuid("n1", card): LOST for card in (0, 1)})
    await held.pause(600)
    assert told(held) == [("b", UNHEALTHY)]
    assert 5 < patches(held).count("a") < 30
    assert held.records.count(Event.DEVICE_UNHEALTHY) == 2  # once that it fails


@pytest.mark.parametrize("fault", [Fault(status=500, done=True), Fault(hang=True, done=True), Fault(hang=True, late_s=4.5)])
async def test_a_patch_whose_answer_was_lost_has_one_event(held: Led, fault: Fault) -> None:
    held.server.fail(fault, when=is_patch)
    await ill_card(held)
    await held.pause(60)
    assert (status(held), told(held)) == ("False", [("a", UNHEALTHY)])


async def test_a_late_watch_causes_no_second_patch(held: Led, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PodFeed, "changed", lambda self, obj: None)
    await ill_card(held)
    await held.pause(5 * QUIET_S)
    assert (patches(held), told(held)) == (["a"], [("a", UNHEALTHY)])


async def test_another_pod_of_the_same_name_gets_no_condition(held: Led) -> None:
    held.server.fail(Fault(status=409), when=is_patch, times=2)
    await ill_card(held)
    await held.pause(SOON)
    assert (patches(held), told(held)) == (["a"], [])
    await held.remove_pod("a")
    await held.pause(60)
    assert patches(held) == ["a"]


async def test_a_replica_that_does_not_lead_writes_nothing(held: Led) -> None:
    held.leads = False
    await ill_card(held)
    await held.pause(60)
    assert (patches(held), told(held)) == ([], [])


async def test_a_removed_condition_is_written_again(held: Led) -> None:
    await ill_card(held)
    await held.pause(SOON)
    changed = held.json("a")
    changed["status"].pop("conditions")
    await held.server.put(pod_path("a"), changed)
    await held.pause(QUIET_S + SOON)
    assert status(held) == "False"
