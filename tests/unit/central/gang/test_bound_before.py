"""Test pods that are already bound when they name a gang: they count for its minimum, and do not change otherwise."""

import msgspec
import pytest

from central.controllers.gangs import FINISH_S
from central.gang.life import Phase
from lading.vocabulary import ASSIGNMENT, GANG, GANG_MIN
from tests.fakes.kube_objects import pod_path
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.kube_server import Fault
from tests.fakes.led import Led, is_binding
from tests.unit.central.gang.members import bound, end_evicted, gang_of, put_gang, put_member


async def annotate(cluster: Led, name: str, text: dict[str, str]) -> None:
    pod = cluster.json(name)
    pod["metadata"]["annotations"] |= text
    await cluster.server.put(pod_path(name), pod)
    await cluster.pause()


async def join(cluster: Led, name: str, least: int) -> None:
    await annotate(cluster, name, {GANG: "g", GANG_MIN: str(least)})


@pytest.mark.parametrize("leader", ["the same leader", "a new leader"])
async def test_a_pod_that_was_bound_before_it_named_a_gang_is_not_evicted_for_it(
    cluster: Led, scheduler: KubeScheduler, leader: str
) -> None:
    await cluster.report("n1", 2)
    await cluster.put_pod("runs")
    await scheduler.run(1)
    assert bound(cluster) == ["runs"]
    await join(cluster, "runs", 99)
    if leader == "a new leader":
        await cluster.lead_again()
    await scheduler.run(2 * FINISH_S)
    assert bound(cluster) == ["runs"]
    assert gang_of(cluster, "runs").phase is Phase.GATHERING


@pytest.mark.parametrize("older", [False, True], ids=["the gang alone", "beside an older gang"])
async def test_a_pod_that_was_bound_before_counts_for_the_minimum_and_not_for_the_order_of_gangs(
    cluster: Led, scheduler: KubeScheduler, older: bool
) -> None:
    await cluster.report("n1", 3)
    await cluster.put_pod("runs")
    await scheduler.run(1)
    await join(cluster, "runs", 3)
    for number in range(2):
        await put_member(cluster, f"g{number}", "g", "3", age=20)
    if older:
        await put_gang(cluster, "older", 2)
    await scheduler.run(5)
    assert sorted(bound(cluster)) == (["older0", "older1", "runs"] if older else ["g0", "g1", "runs"])


@pytest.mark.parametrize("gang", [False, True], ids=["for a pod", "for a gang"])
async def test_a_pod_that_was_bound_before_is_not_protected_from_pods_of_higher_priority(
    cluster: Led, scheduler: KubeScheduler, gang: bool
) -> None:
    await cluster.put_pod("runs")
    await scheduler.run(1)
    await join(cluster, "runs", 99)
    if gang:
        await put_gang(cluster, "high", 1, priority=10)
    else:
        await cluster.put_pod("high", priority=10)
    await scheduler.run(5)
    assert await end_evicted(cluster) == ["runs"]


@pytest.mark.parametrize("written", [True, False], ids=["by this version", "by a version that did not write the gang"])
async def test_a_new_leader_knows_which_members_were_bound_with_their_gang(
    cluster: Led, scheduler: KubeScheduler, written: bool
) -> None:
    await cluster.report("n1", 3)
    cluster.server.fail(Fault(status=409), when=lambda request: is_binding(request) and "/g2/" in request.path, times=99)
    await put_gang(cluster, "g", 3)
    await scheduler.run(2)
    assert bound(cluster) == ["g0", "g1"]
    for name in ("g0", "g1"):
        text = cluster.json(name)["metadata"]["annotations"][ASSIGNMENT]
        message = msgspec.json.decode(text)
        assert message.pop("gang") == "lading:default/g"
        if not written:
            await annotate(cluster, name, {ASSIGNMENT: msgspec.json.encode(message).decode()})
    await cluster.lead_again()
    assert gang_of(cluster, "g0").phase is Phase.BINDING
    await scheduler.run(FINISH_S + 10)
    assert bound(cluster) == []
