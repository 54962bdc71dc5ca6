"""Test one leadership: it answers once it has read everything, reports pods without assignments, and ends all its tasks."""

import asyncio

import msgspec
import pytest

from central.controllers.event_reasons import EventReason
from central.loop import slices
from central.request.model import Policy
from lading.log import Event
from lading.vocabulary import ASSIGNMENT, GANG, GANG_MIN, POLICY, RESOURCE_GANG_MEMBER
from tests.fakes.kube_objects import node, node_path, pod_path, share
from tests.fakes.kube_server import Fault, Request
from tests.fakes.led import Led


async def test_ready_when_every_list_is_there(cluster: Led) -> None:
    for kind in ("pods", "nodes", "nodedevices"):
        await cluster.leadership.end()

        def is_list(request: Request, kind: str = kind) -> bool:
            return request.path.endswith(f"/{kind}") and "watch" not in request.query

        cluster.server.fail(Fault(status=500), when=is_list)
        cluster.leadership = cluster.make_leadership().begin()
        await cluster.pause()
        assert not cluster.leadership.ready
        await cluster.pause(2)
        assert cluster.leadership.ready


async def test_a_term_may_have_to_wait_before_it_reads(cluster: Led) -> None:
    await cluster.leadership.end()
    cluster.server.requests.clear()
    cluster.leadership = cluster.make_leadership().begin(after_s=5.0)
    await cluster.pause(4.9)
    assert (cluster.leadership.ready, cluster.server.requests) == (False, [])
    await cluster.pause(0.2)
    assert cluster.leadership.ready


async def test_a_pod_without_its_assignment_is_notified_once(cluster: Led) -> None:
    for _ in range(3):
        await cluster.put_pod("a", node="n1", scheduler="default-scheduler")
    await cluster.pause(1)
    (event,) = cluster.sent("/events")
    assert (event.body["reason"], event.body["involvedObject"]["uid"]) == (EventReason.NO_ASSIGNMENT, cluster.uid("a"))
    assert cluster.records.count(Event.POD_UNASSIGNED) == 1


async def test_why_of_who_waits_and_of_no_one_else(cluster: Led) -> None:
    await cluster.put_pod("a")
    text = await cluster.leadership.why("default", "a")
    assert text is not None
    assert msgspec.json.decode(text)["uid"] == cluster.uid("a")
    assert await cluster.leadership.why("default", "b") is None
    assert await cluster.leadership.why("other", "a") is None


async def test_others_have_their_turn_while_all_nodes_are_checked(cluster: Led, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    await cluster.put_pod("a")
    for number in range(2, 9):
        await cluster.put_node(f"n{number}", 1)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    text = await cluster.leadership.why("default", "a")
    task.cancel()
    assert text is not None
    assert turns >= len(msgspec.json.decode(text)["nodes"]) == 8


async def test_a_pod_whose_amounts_are_zero_is_bound_without_an_assignment(cluster: Led) -> None:
    await cluster.put_pod("a", {"lading.dev/gpu": "0", "lading.dev/rdma": "0"})
    assert await cluster.bind("a", "n1") == ""
    assert cluster.bound_to("a") == "n1"
    assert ASSIGNMENT not in cluster.json("a")["metadata"].get("annotations", {})
    assert cluster.free_cards() == 1


async def test_a_key_of_another_system_is_not_read(cluster: Led) -> None:
    await cluster.put_pod("a", annotations={"lading.dev/billing": "x"})
    assert cluster.leadership.pending.get(cluster.uid("a")) is None
    await cluster.leadership.end()
    cluster.foreign = frozenset({"lading.dev/billing"})
    await cluster.begin()
    assert cluster.leadership.pending.get(cluster.uid("a")) is not None


async def test_a_prediction_ends_by_itself(cluster: Led) -> None:
    await cluster.put_pod("a")
    cluster.filter("a")
    await asyncio.sleep(0)  # it is held once the answer is on its way
    assert cluster.free_cards() == 0
    await cluster.pause(6)
    assert cluster.free_cards() == 1


async def test_a_pod_is_requeued_end_to_end(cluster: Led) -> None:
    await cluster.place("a")
    await cluster.refuse("b")
    assert cluster.sent("/status") == []
    released = asyncio.get_running_loop().time()
    await cluster.remove_pod("a")
    await cluster.server.until(lambda: bool(cluster.sent(f"{pod_path('b')}/status")))
    assert asyncio.get_running_loop().time() - released < 0.5


async def test_policy_fragmentation_from_the_watch_to_the_binding(cluster: Led) -> None:
    for name in ("n1", "n2", "n3"):
        await cluster.put_node(name, 2)
        await cluster.server.put(node_path(name), node(name, allocatable={"cpu": "16", "memory": "64Gi"}))
    for name in ("a", "b", "c"):
        await cluster.place(name, share(core=50), annotations={POLICY: "fragmentation"}, requests={"cpu": "4", "memory": "1Gi"})
    assert cluster.bound_to("a") == cluster.bound_to("b")
    assert cluster.assigned("a") == cluster.assigned("b") != cluster.assigned("c")  # two halves are a whole card
    assert cluster.leadership.ledger.capacity(cluster.bound_to("a")).cpu_milli <= 8000
    assert cluster.leadership.scheduler.forecast.learned == 3


@pytest.mark.central(policy=Policy.FRAGMENTATION)
async def test_a_launcher_without_devices_waits_through_a_change_of_leader(cluster: Led) -> None:
    """Check a launcher whose workers are missing, under the policy of a new installation."""
    await cluster.report("n1", 2)
    await cluster.put_pod("launcher", {RESOURCE_GANG_MEMBER: "1"}, annotations={GANG: "mpi", GANG_MIN: "3"})
    await cluster.put_pod("small", share("10Gi"))
    for _ in range(2):
        await cluster.lead_again()
        await cluster.pause(2)
        assert not [task for task in cluster.leadership.tasks if task.done()]
    assert not cluster.leadership.faults.counts
    assert await cluster.schedule("small") == ""
    await cluster.remove_pod("small")
    await cluster.pause(2)
    assert not cluster.leadership.faults.counts
