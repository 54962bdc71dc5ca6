"""Test how often kube-scheduler has to ask about the members of a gang, and how many writes reach the API server at once."""

import asyncio

from central.controllers.binder import AT_ONCE
from central.controllers.gangs import ARRIVED_S, BARRIER_S, SCAN_S
from lading.vocabulary import GANG_ROLE
from tests.fakes.kube_objects import pod_path
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.led import REFUSED, Led, is_binding, is_touch
from tests.unit.central.gang.members import bindings, bound, claims, nodes_of, put_gang, put_member, reasons


async def test_a_member_without_a_call_is_planned_on_the_nodes_of_equal_members(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 8)
    names = await put_gang(cluster, "g", 8)
    assert scheduler.ask("g0") == REFUSED
    await cluster.pause(2 * SCAN_S)
    assert claims(cluster) == 8
    await scheduler.run(2)
    assert bound(cluster) == names
    assert scheduler.asked == {name: 2 if name == "g0" else 1 for name in names}
    assert [request.path for request in cluster.server.requests if is_touch(request)] == [f"{pod_path('g0')}/status"]


async def test_a_role_without_a_call_about_a_member_is_not_planned(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 8)
    for number in range(2):
        await put_member(cluster, f"w{number}", "g", "ps=1,worker=2", says={GANG_ROLE: "worker"})
    await put_member(cluster, "ps", "g", "ps=1,worker=2", gpus=2, says={GANG_ROLE: "ps"})
    for name in ("w0", "w1"):
        scheduler.ask(name)
    await cluster.pause(2 * SCAN_S)
    assert claims(cluster) == 0
    assert not any(map(is_touch, cluster.server.requests))
    scheduler.ask("ps")
    await cluster.pause(2 * SCAN_S)
    assert claims(cluster) == 3


async def test_a_member_that_may_not_run_on_the_nodes_of_equal_members_ends_the_plan(
    cluster: Led, scheduler: KubeScheduler
) -> None:
    await cluster.put_node("n1", 8)
    await cluster.put_node("n2", 8)
    possible = {"g0": ["n1"], "g1": ["n1"], "g2": ["n2"]}
    scheduler.possible = possible.__getitem__
    names = await put_gang(cluster, "g", 3)
    scheduler.ask("g0")
    await cluster.pause(2 * SCAN_S)
    assert scheduler.ask("g1") == "n1"
    assert scheduler.ask("g2") == REFUSED
    assert (claims(cluster), bindings(cluster)) == (0, 0)
    await scheduler.run(BARRIER_S + 5)
    assert nodes_of(cluster, *names) == ["n1", "n1", "n2"]


async def test_a_gang_with_a_member_that_has_no_node_is_not_planned_again(cluster: Led, scheduler: KubeScheduler) -> None:
    """Check a member for which kube-scheduler has no node at all: it asks central only about pods that have one."""
    await cluster.report("n1", 2)
    await put_gang(cluster, "g", 2)
    scheduler.ask("g0")
    await cluster.pause(2 * SCAN_S)
    assert claims(cluster) == 2
    await cluster.pause(ARRIVED_S + 2)
    assert claims(cluster) == 0
    await cluster.put_pod("single")
    assert scheduler.ask("single") == "n1"
    await cluster.pause(60)
    assert (claims(cluster), scheduler.ask("g0")) == (0, REFUSED)
    assert reasons(scheduler, "g0") == {"gang-waits-for-members"}


async def test_a_plan_stays_while_members_arrive_one_by_one(cluster: Led) -> None:
    await cluster.report("n1", 6)
    names = await put_gang(cluster, "g", 6)
    for name in names:
        cluster.filter(name)
    await cluster.pause(2 * SCAN_S)
    text = []
    for name in names:
        assert cluster.filter(name) == ["n1"]
        text.append(await cluster.bind(name, "n1"))
        await cluster.pause(ARRIVED_S / 2)
    assert (len(set(text[:-1])), text[-1]) == (5, "")
    assert bound(cluster) == ["g5"]
    assert [await cluster.bind(name, "n1") for name in names[:-1]] == [""] * 5


async def test_a_plan_is_dropped_when_no_other_member_arrives(cluster: Led) -> None:
    await cluster.report("n1", 2)
    await put_gang(cluster, "g", 2)
    for name in ("g0", "g1"):
        cluster.filter(name)
    await cluster.pause(2 * SCAN_S)
    assert "1 of 2 members are ready" in await cluster.bind("g0", "n1")
    await cluster.pause(ARRIVED_S - BARRIER_S + 1)
    assert claims(cluster) == 0
    assert "no place for the pod on n1 any more" in await cluster.bind("g1", "n1")


async def test_a_bounded_number_of_bindings_is_sent_at_once(cluster: Led) -> None:
    size = 2 * AT_ONCE
    await cluster.report("n1", size)
    names = await put_gang(cluster, "g", size)
    for name in names:
        cluster.filter(name)
    await cluster.pause(2 * SCAN_S)
    cluster.server.slowness = lambda request: (1.0 if is_binding(request) else 0.0, 0.0)
    binds = [asyncio.create_task(cluster.bind(name, "n1")) for name in names]
    await cluster.pause(0.5)
    assert bindings(cluster) == AT_ONCE
    sent = {request.path.split("/")[-2] for request in cluster.server.requests if is_binding(request)}
    for name in set(names) - sent:  # kube-scheduler gave up, and says so in the pod's status
        await cluster.server.put(pod_path(name), cluster.json(name) | {"status": {"phase": "Pending"}})
    assert await asyncio.gather(*binds) == [""] * size
    assert bindings(cluster) == size
