"""Test gangs on a simulated cluster: they start whole or not at all, for any order of requests, failures and ends."""

from typing import Any

import pytest

from central.controllers.gangs import FINISH_S
from lading.vocabulary import GANG_MODE, GANG_ROLE, RESOURCE_GANG_MEMBER
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.kube_server import Fault
from tests.fakes.led import REFUSED, Led, is_binding
from tests.unit.central.gang.members import bound, claims, gang_of, put_gang, put_member, reasons

WITHOUT_DEVICES = {RESOURCE_GANG_MEMBER: "1"}


async def test_of_two_gangs_that_do_not_fit_together_the_older_starts_first(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 4)
    for number in range(3):  # two controllers create pods at the same time
        await put_member(cluster, f"a{number}", "a", "3", age=0)
        await put_member(cluster, f"b{number}", "b", "3", age=1)
    await scheduler.run(5)
    assert bound(cluster) == ["a0", "a1", "a2"]
    assert cluster.free_cards() == 1
    assert reasons(scheduler, "b0") == {"gang-no-room"}
    for name in ("a0", "a1", "a2"):
        await cluster.remove_pod(name)
    await scheduler.run(5)
    assert bound(cluster) == ["b0", "b1", "b2"]
    assert claims(cluster) == 0


async def test_a_gang_that_does_not_fit_holds_nothing_however_often_it_is_tried(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 3)
    names = await put_gang(cluster, "g", 4)
    await scheduler.run(2)
    for _ in range(10):
        assert {scheduler.ask(name) for name in names} == {REFUSED}
        assert claims(cluster) == 0
        await cluster.pause(1)
    await cluster.put_pod("single")
    assert scheduler.ask("single") == "n1"


@pytest.mark.parametrize("how", [{"taints": ["team"]}, {"cordoned": True}, {"labels": {"pool": "other"}}])
async def test_a_gang_is_not_planned_on_a_node_that_its_node_rules_forbid(cluster: Led, how: dict[str, Any]) -> None:
    """Check a node that kube-scheduler named at its last request."""
    for name in ("n1", "n2", "n3"):
        await cluster.put_node(name, 4, labels={"pool": "gpu"})
    names = await put_gang(cluster, "g", 2, gpus=4, rules={"nodeSelector": {"pool": "gpu"}})
    for name in names:
        cluster.filter(name)
    await cluster.put_node("n1", 4, **{"labels": {"pool": "gpu"}, **how})
    await cluster.pause(1)
    gang = gang_of(cluster, names[0])
    assert gang.life.nodes == {"n2", "n3"}


async def test_a_gang_holds_nothing_while_members_are_missing(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 8)
    for number in range(3):
        await put_member(cluster, f"g{number}", "g", "4")
    await scheduler.run(3)
    assert bound(cluster) == []
    assert scheduler.refusals["g0"] == ["gang default/g: 3 of 4 members exist (gang-waits-for-members)"]
    assert cluster.free_cards() == 8
    await put_member(cluster, "g3", "g", "4")
    await scheduler.run(2)
    assert bound(cluster) == ["g0", "g1", "g2", "g3"]


async def test_no_pod_is_evicted_for_a_member_without_a_plan(cluster: Led) -> None:
    await cluster.report("n1", 2)
    await put_member(cluster, "g0", "g", "2")
    result = cluster.leadership.scheduler.filter(cluster.shown("g0"), ["n1"])
    assert (result.fails, list(result.never)) == ({}, ["n1"])


@pytest.mark.parametrize(("cards", "starts"), [(4, 4), (2, 0), (5, 5)])
async def test_the_minimum_starts_together_and_more_members_where_cards_are_free(
    cluster: Led, scheduler: KubeScheduler, cards: int, starts: int
) -> None:
    await cluster.report("n1", cards)
    await put_gang(cluster, "g", 5, least=3)
    await scheduler.run(8)
    assert len(bound(cluster)) == starts


async def test_a_member_beyond_the_minimum_is_an_ordinary_pod_once_the_gang_has_started(
    cluster: Led, scheduler: KubeScheduler
) -> None:
    await cluster.report("n1", 4)
    await put_gang(cluster, "g", 5, least=3)
    await scheduler.run(8)
    (left,) = {f"g{number}" for number in range(5)} - set(bound(cluster))
    assert reasons(scheduler, left) == {"too-few-free-gpus"}
    await cluster.remove_pod(bound(cluster)[0])
    await scheduler.run(3)
    assert left in bound(cluster)


@pytest.mark.parametrize(("cards", "starts"), [(4, 0), (5, 3), (9, 5)])
async def test_each_role_has_its_minimum(cluster: Led, scheduler: KubeScheduler, cards: int, starts: int) -> None:
    await cluster.report("n1", min(cards, 8))
    await cluster.put_node("n2", max(0, cards - 8))
    least = "ps=1,worker=2"
    await put_member(cluster, "ps", "g", least, says={GANG_ROLE: "ps"})
    for number in range(4):
        await put_member(cluster, f"w{number}", "g", least, gpus=2, says={GANG_ROLE: "worker"})
    await scheduler.run(8)
    assert len(bound(cluster)) == starts


async def test_a_member_without_devices_is_not_bound_before_the_others(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 1)
    least = "launcher=1,worker=2"
    await put_member(cluster, "launcher", "g", least, limits=WITHOUT_DEVICES, says={GANG_ROLE: "launcher"})
    for number in range(2):
        await put_member(cluster, f"w{number}", "g", least, says={GANG_ROLE: "worker"})
    await scheduler.run(5)
    assert bound(cluster) == []
    await cluster.report("n1", 2)
    await scheduler.run(5)
    assert bound(cluster) == ["launcher", "w0", "w1"]
    assert cluster.assigned("launcher") == []


async def test_a_member_that_is_deleted_before_the_first_binding_ends_the_plan_at_once(
    cluster: Led, scheduler: KubeScheduler
) -> None:
    await cluster.report("n1", 3)
    names = await put_gang(cluster, "g", 3)
    scheduler.ignores.update(names)
    await scheduler.run(1)
    assert claims(cluster) == 3
    await cluster.remove_pod("g2")
    assert claims(cluster) == 0
    await cluster.put_pod("single")
    assert scheduler.ask("single") == "n1"


@pytest.mark.parametrize("mode", ["strict", "non-strict"])
async def test_the_card_of_a_deleted_member_is_kept_until_the_time_of_the_gang_is_over(
    cluster: Led, scheduler: KubeScheduler, mode: str
) -> None:
    await cluster.report("n1", 3)
    await put_gang(cluster, "g", 3, says={GANG_MODE: mode})
    cluster.server.fail(Fault(status=409), when=lambda request: is_binding(request) and "/g2/" in request.path, times=99)
    await scheduler.run(2)
    assert bound(cluster) == ["g0", "g1"]
    await cluster.remove_pod("g2")
    await cluster.put_pod("single")
    await scheduler.run(10)
    assert bound(cluster) == ["g0", "g1"]
    await scheduler.run(FINISH_S)
    if mode == "strict":
        assert bound(cluster) == ["single"]
        assert cluster.leadership.scheduler.counts.evicted
    else:
        assert bound(cluster) == ["g0", "g1", "single"]


@pytest.mark.parametrize("says", [{GANG_MODE: "firm"}, {GANG_ROLE: "ps"}])
async def test_a_member_with_malformed_annotations_is_refused_and_not_placed_alone(
    cluster: Led, scheduler: KubeScheduler, says: dict[str, str]
) -> None:
    await cluster.report("n1", 4)
    await put_gang(cluster, "g", 2, says=says)
    await scheduler.run(2)
    assert (bound(cluster), reasons(scheduler, "g0")) == ([], {"request-malformed"})


async def test_a_pod_that_is_marked_as_a_member_and_names_no_gang_is_refused(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.put_pod("alone", WITHOUT_DEVICES)
    await scheduler.run(1)
    assert reasons(scheduler, "alone") == {"request-malformed"}
