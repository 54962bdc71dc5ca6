"""Test devices that become unhealthy under pods: one condition and one Event for each change, despite failures, and for no
other pod."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from central.controllers.device_health import AT_ONCE, QUIET_S, SCAN_S
from central.controllers.events import EventReason
from central.controllers.informer import PodFeed
from central.request.pod import DEVICES_HEALTHY
from lading.log import Event
from lading.vocabulary import MANUAL_GPUS
from tests.fakes.kube_objects import WHOLE, Json, devices, devices_path, gpu_uuid, grant, pod_path, share, vf_address
from tests.fakes.kube_server import Fault, Request
from tests.fakes.led import Led, play

UNHEALTHY, HEALTHY = EventReason.DEVICE_UNHEALTHY, EventReason.DEVICE_HEALTHY
LOST = "NVML: GPU is lost"
SOON = 2 * SCAN_S


def is_patch(request: Request) -> bool:
    return request.method == "PATCH" and request.path.endswith("/status")


async def bound(one: Led, name: str, limits: Mapping[str, str] = WHOLE, **options: Any) -> None:
    await one.put_pod(name, limits, **options)
    assert await one.schedule(name) == ""
    await one.pause()


async def report(
    one: Led,
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
    status["gpus"] = [one for number, one in enumerate(status["gpus"]) if number not in lost]
    functions = [one for pf in status["pfs"] for one in (pf, *pf["vfs"])]
    for device in (*status["gpus"], *functions):
        device["unhealthy"] = ill.get(device.get("uuid", device["bdf"]), "")
    await one.server.put(devices_path("n1"), text)
    await one.pause()


async def ill_card(one: Led, name: str = "a") -> str:
    """Make a card of a pod unhealthy, and return the card."""
    (card,) = one.assigned(name)
    await report(one, {card: LOST})
    return card


def condition(one: Led, name: str = "a") -> Json:
    conditions = one.json(name)["status"].get("conditions", [])
    return next((c for c in conditions if c["type"] == DEVICES_HEALTHY), {})


def status(one: Led, name: str = "a") -> str:
    return str(condition(one, name).get("status", ""))


def told(one: Led) -> list[tuple[str, str]]:
    """Return the Kubernetes Events: the pod and the reason of each."""
    return [(request.body["involvedObject"]["name"], request.body["reason"]) for request in one.sent("/events")]


def patches(one: Led) -> list[str]:
    return [request.path.split("/")[-2] for request in one.server.requests if is_patch(request)]


def test_the_whole_way(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        await bound(one, "a")
        await bound(one, "b")
        card = await ill_card(one)
        await one.pause(SOON)
        ill = condition(one)
        assert (ill["status"], ill["reason"]) == ("False", UNHEALTHY)
        assert all(part in ill["message"] for part in (card, "n1", LOST))
        await report(one, {})
        await one.pause(QUIET_S + SOON)
        assert (condition(one)["status"], condition(one)["reason"]) == ("True", HEALTHY)
        assert told(one) == [("a", UNHEALTHY), ("a", HEALTHY)]
        events = [(request.body["type"], request.body["message"]) for request in one.sent("/events")]
        assert [kind for kind, _ in events] == ["Warning", "Normal"]
        assert events[0][1] == ill["message"]
        (first, _) = [request.body for request in one.server.requests if is_patch(request)]
        assert first["metadata"] == {"uid": one.uid("a")}
        assert condition(one, "b") == {}
        assert (one.records.count(Event.DEVICE_UNHEALTHY), one.records.count(Event.DEVICE_HEALTHY)) == (1, 1)

    play(story, tmp_path)


def test_once_for_a_change_and_not_for_a_report_or_a_scan(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        await bound(one, "a")
        for _ in range(5):
            await ill_card(one)
            await one.pause(QUIET_S)
        await one.put_pod("other")  # the node's room changes
        one.filter("other")
        await one.pause(QUIET_S)
        assert (patches(one), told(one)) == (["a"], [("a", UNHEALTHY)])

    play(story, tmp_path)


def test_a_new_leader_repeats_nothing_and_says_what_changed_meanwhile(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        await bound(one, "a")
        await bound(one, "b")
        await ill_card(one)
        await one.pause(SOON)
        await one.leadership.end()
        await one.begin()
        await one.pause(QUIET_S)
        assert told(one) == [("a", UNHEALTHY)]
        await one.leadership.end()
        await ill_card(one, "b")
        await one.begin()
        await one.pause(SOON)
        assert (status(one), status(one, "b")) == ("True", "False")
        assert sorted(told(one)[1:]) == [("a", HEALTHY), ("b", UNHEALTHY)]

    play(story, tmp_path)


def test_a_pf_a_vf_and_a_card_that_is_not_there_any_more(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2, 2)
        await bound(one, "card")
        await bound(one, "vf-0", {"lading.dev/rdma": "1"})
        await bound(one, "vf-1", {"lading.dev/rdma": "1"})
        await report(one, {"0000:60:00.0": "no active port"}, vfs=2)
        await one.pause(SOON)
        assert sorted(patches(one)) == ["vf-0", "vf-1"]
        await report(one, {vf_address(0): "no driver"}, vfs=2)
        await one.pause(QUIET_S + SOON)
        assert sorted([status(one, "vf-0"), status(one, "vf-1")]) == ["False", "True"]
        await report(one, {}, vfs=2, lost=(0, 1))
        await one.pause(QUIET_S + SOON)
        assert [status(one, name) for name in ("card", "vf-0", "vf-1")] == ["False", "True", "True"]

    play(story, tmp_path)


def test_a_pod_that_has_it_by_hand_is_notified_too(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        for name in ("a", "elsewhere"):
            await one.put_pod(name, {}, node="n1" if name == "a" else "n2", annotations={MANUAL_GPUS: "0"})
        grants = [grant(one.uid(name), "n1", 0) | {"namespace": "default", "podName": name} for name in ("a", "elsewhere")]
        await report(one, {gpu_uuid("n1", 0): LOST}, grants=grants)
        await one.pause(SOON)
        assert (patches(one), told(one)) == (["a"], [("a", UNHEALTHY)])  # a node has no say about pods that are elsewhere

    play(story, tmp_path)


@pytest.mark.parametrize("end", [{"phase": "Succeeded"}, {"deleting": True}])
def test_nothing_is_reported_to_a_pod_at_its_end(end: dict[str, Any], tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await bound(one, "a")
        (card,) = one.assigned("a")
        annotations = one.json("a")["metadata"]["annotations"]
        await one.put_pod("a", node="n1", annotations=annotations, **end)
        await report(one, {card: LOST})
        await one.pause(SOON)
        assert patches(one) == []

    play(story, tmp_path)


def test_a_pod_that_is_being_bound_is_notified_when_it_is(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        one.filter("a")  # it is predicted there
        await report(one, {gpu_uuid("n1", 0): LOST}, gpus=1)
        await one.pause(SOON)
        assert patches(one) == []
        gpu = {"uuid": gpu_uuid("n1", 0), "bdf": "0000:10:00.0"}
        text = {"v": 1, "pod": one.uid("a"), "node": "n1", "gen": 1, "containers": {"main": {"gpus": [gpu]}}}
        annotations = {"lading.dev/assignment": msgspec.json.encode(text).decode()}
        await one.put_pod("a", node="n1", annotations=annotations)
        await one.pause(SOON)
        assert told(one) == [("a", UNHEALTHY)]

    play(story, tmp_path)


def test_a_hundred_pods_are_notified_a_few_at_a_time(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 3)  # 48 pods share a card at the most
        for number in range(100):
            await bound(one, f"p{number}", share("800Mi", 1))
        begun = len(one.server.requests)
        await report(one, {gpu_uuid("n1", card): LOST for card in range(3)}, gpus=3)
        await one.pause(SCAN_S)
        assert 0 < len(patches(one)) <= AT_ONCE
        await one.pause(SCAN_S * (100 / AT_ONCE + 1))
        assert sorted(patches(one)) == sorted(f"p{number}" for number in range(100))
        assert len(told(one)) == 100
        assert len(one.server.requests) - begun < 210
        await one.pause(3 * QUIET_S)
        assert len(patches(one)) == 100

    play(story, tmp_path)


def test_a_device_that_comes_and_goes_does_not_fill_the_list_of_events(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        await bound(one, "a")
        for _ in range(30):
            await ill_card(one)
            await one.pause(1.5 * SCAN_S)
            await report(one, {})
            await one.pause(1.5 * SCAN_S)
        assert len(told(one)) <= 3 * SCAN_S * 30 / QUIET_S + 1
        await one.pause(QUIET_S + SOON)
        assert status(one) == "True"

    play(story, tmp_path)


@pytest.mark.parametrize("fault", [Fault(status=500), Fault(status=429), Fault(status=403), Fault(hang=True)])
def test_what_fails_is_tried_again_and_reported_when_it_is_done(fault: Fault, tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        await bound(one, "a")
        one.server.fail(fault, when=is_patch, times=3)
        await ill_card(one)
        await one.pause(SOON)
        assert told(one) == []
        await one.pause(60)
        assert (len(patches(one)), status(one), told(one)) == (4, "False", [("a", UNHEALTHY)])

    play(story, tmp_path)


def test_a_failure_of_one_pod_is_no_other_pods(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        await bound(one, "a")
        await bound(one, "b")
        one.server.fail(Fault(status=403), when=lambda request: is_patch(request) and "/a/" in request.path, times=100)
        await report(one, {gpu_uuid("n1", card): LOST for card in (0, 1)})
        await one.pause(600)
        assert told(one) == [("b", UNHEALTHY)]
        assert 5 < patches(one).count("a") < 30
        assert one.records.count(Event.DEVICE_UNHEALTHY) == 2  # once that it fails

    play(story, tmp_path)


@pytest.mark.parametrize("fault", [Fault(status=500, done=True), Fault(hang=True, done=True), Fault(hang=True, late_s=4.5)])
def test_an_answer_that_gets_lost_is_reported_once(fault: Fault, tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        await bound(one, "a")
        one.server.fail(fault, when=is_patch)
        await ill_card(one)
        await one.pause(60)
        assert (status(one), told(one)) == ("False", [("a", UNHEALTHY)])

    play(story, tmp_path)


def test_a_watch_that_is_late_makes_no_one_hear_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        await bound(one, "a")
        monkeypatch.setattr(PodFeed, "changed", lambda self, obj: None)
        await ill_card(one)
        await one.pause(5 * QUIET_S)
        assert (patches(one), told(one)) == (["a"], [("a", UNHEALTHY)])

    play(story, tmp_path)


def test_another_pod_of_that_name_is_reported_nothing(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        await bound(one, "a")
        one.server.fail(Fault(status=409), when=is_patch, times=2)
        await ill_card(one)
        await one.pause(SOON)
        assert (patches(one), told(one)) == (["a"], [])
        await one.remove_pod("a")
        await one.pause(60)
        assert patches(one) == ["a"]

    play(story, tmp_path)


def test_who_does_not_lead_says_nothing(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        await bound(one, "a")
        one.leads = False
        await ill_card(one)
        await one.pause(60)
        assert (patches(one), told(one)) == ([], [])

    play(story, tmp_path)


def test_a_condition_that_someone_takes_away_comes_back(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        await bound(one, "a")
        await ill_card(one)
        await one.pause(SOON)
        changed = one.json("a")
        changed["status"].pop("conditions")
        await one.server.put(pod_path("a"), changed)
        await one.pause(QUIET_S + SOON)
        assert status(one) == "False"

    play(story, tmp_path)
