"""Test one leadership: it answers once it has read everything, reports pods without assignments, and ends all its tasks."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from central.controllers.events import EventReason
from central.loop import slices
from central.request.model import Policy
from lading.log import Event
from lading.vocabulary import ASSIGNMENT, GANG, GANG_MIN, POLICY, RESOURCE_GANG_MEMBER
from tests.fakes.kube_objects import node, node_path, pod_path, share
from tests.fakes.kube_server import Fault, Request
from tests.fakes.led import Led, play


def test_ready_when_every_list_is_there(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        for kind in ("pods", "nodes", "nodedevices"):
            await one.leadership.end()

            def is_list(request: Request, kind: str = kind) -> bool:
                return request.path.endswith(f"/{kind}") and "watch" not in request.query

            one.server.fail(Fault(status=500), when=is_list)
            one.leadership = one.make_leadership().begin()
            await one.pause()
            assert not one.leadership.ready
            await one.pause(2)
            assert one.leadership.ready

    play(story, tmp_path)


def test_a_term_may_have_to_wait_before_it_reads(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.leadership.end()
        one.server.requests.clear()
        one.leadership = one.make_leadership().begin(after_s=5.0)
        await one.pause(4.9)
        assert (one.leadership.ready, one.server.requests) == (False, [])
        await one.pause(0.2)
        assert one.leadership.ready

    play(story, tmp_path)


def test_a_pod_without_its_assignment_is_notified_once(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        for _ in range(3):
            await one.put_pod("a", node="n1", scheduler="default-scheduler")
        await one.pause(1)
        (event,) = one.sent("/events")
        assert (event.body["reason"], event.body["involvedObject"]["uid"]) == (EventReason.NO_ASSIGNMENT, one.uid("a"))
        assert one.records.count(Event.POD_UNASSIGNED) == 1

    play(story, tmp_path)


def test_why_of_who_waits_and_of_no_one_else(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        text = await one.leadership.why("default", "a")
        assert text is not None
        assert msgspec.json.decode(text)["uid"] == one.uid("a")
        assert await one.leadership.why("default", "b") is None
        assert await one.leadership.why("other", "a") is None

    play(story, tmp_path)


def test_others_have_their_turn_while_all_nodes_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)

    async def story(one: Led) -> None:
        await one.put_pod("a")
        for number in range(2, 9):
            await one.put_node(f"n{number}", 1)
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        text = await one.leadership.why("default", "a")
        task.cancel()
        assert text is not None
        assert turns >= len(msgspec.json.decode(text)["nodes"]) == 8

    play(story, tmp_path)


def test_a_pod_whose_amounts_are_zero_is_bound_without_an_assignment(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a", {"lading.dev/gpu": "0", "lading.dev/rdma": "0"})
        assert await one.bind("a", "n1") == ""
        assert one.bound_to("a") == "n1"
        assert ASSIGNMENT not in one.json("a")["metadata"].get("annotations", {})
        assert one.free_cards() == 1

    play(story, tmp_path)


def test_a_key_of_another_system_is_not_read(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a", annotations={"lading.dev/billing": "x"})
        assert one.leadership.pending.get(one.uid("a")) is None
        await one.leadership.end()
        one.foreign = frozenset({"lading.dev/billing"})
        await one.begin()
        assert one.leadership.pending.get(one.uid("a")) is not None

    play(story, tmp_path)


def test_a_prediction_ends_by_itself(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        one.filter("a")
        await asyncio.sleep(0)  # it is held once the answer is on its way
        assert one.free_cards() == 0
        await one.pause(6)
        assert one.free_cards() == 1

    play(story, tmp_path)


def test_a_pod_is_requeued_end_to_end(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_pod("a")
        await one.put_pod("b")
        assert await one.schedule("a") == ""
        await one.pause()
        await one.schedule("b")
        assert one.sent("/status") == []
        released = asyncio.get_running_loop().time()
        await one.remove_pod("a")
        await one.server.until(lambda: bool(one.sent(f"{pod_path('b')}/status")))
        assert asyncio.get_running_loop().time() - released < 0.5

    play(story, tmp_path)


def test_policy_fragmentation_from_the_watch_to_the_binding(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        for name in ("n1", "n2", "n3"):
            await one.put_node(name, 2)
            await one.server.put(node_path(name), node(name, allocatable={"cpu": "16", "memory": "64Gi"}))
        text = {"annotations": {POLICY: "fragmentation"}, "requests": {"cpu": "4", "memory": "1Gi"}}
        for name in ("a", "b", "c"):
            await one.put_pod(name, share(core=50), **text)
            assert await one.schedule(name) == ""
            await one.pause()
        assert one.bound_to("a") == one.bound_to("b")
        assert one.assigned("a") == one.assigned("b") != one.assigned("c")  # two halves are a whole card
        assert one.leadership.ledger.capacity(one.bound_to("a")).cpu_milli <= 8000
        assert one.leadership.scheduler.forecast.learned == 3

    play(story, tmp_path)


def test_a_launcher_without_devices_waits_through_a_change_of_leader(tmp_path: Path) -> None:
    """Check a launcher whose workers are missing, under the policy of a new installation."""

    async def story(one: Led) -> None:
        await one.report("n1", 2)
        await one.put_pod("launcher", {RESOURCE_GANG_MEMBER: "1"}, annotations={GANG: "mpi", GANG_MIN: "3"})
        await one.put_pod("small", share("10Gi"))
        for _ in range(2):
            await one.leadership.end()
            await one.begin()
            await one.pause(2)
            assert not [task for task in one.leadership.tasks if task.done()]
        assert not one.leadership.faults.counts
        assert await one.schedule("small") == ""
        await one.remove_pod("small")
        await one.pause(2)
        assert not one.leadership.faults.counts

    play(story, tmp_path, policy=Policy.FRAGMENTATION)
