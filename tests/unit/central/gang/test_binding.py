"""Test the way from a plan to bound members: refusals by kube-scheduler, the barrier, lost answers, leader changes,
replacements."""

from collections.abc import Callable, Sequence

import pytest

from central.api.watch import ABSENT_S
from central.controllers.gangs import ARRIVED_S, BARRIER_S, FINISH_S
from tests.fakes.kube_objects import pod_path
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.kube_server import Fault, Request
from tests.fakes.led import Led, is_binding
from tests.unit.central.gang.members import bindings, bound, claims, created, gang_of, nodes_of, put_gang, put_member, reasons


async def three_nodes(cluster: Led, cards: int = 4) -> None:
    for name in ("n1", "n2", "n3"):
        await cluster.put_node(name, cards)


def is_binding_of(*names: str) -> Callable[[Request], bool]:
    return lambda request: is_binding(request) and request.path.split("/")[-2] in names


async def test_a_node_that_kube_scheduler_excludes_is_not_planned(cluster: Led, scheduler: KubeScheduler) -> None:
    await three_nodes(cluster)
    scheduler.possible = lambda name: ["n2", "n3"]
    await put_gang(cluster, "g", 2, gpus=4)
    await scheduler.run(1)
    assert sorted(nodes_of(cluster, "g0", "g1")) == ["n2", "n3"]


async def test_a_plan_ends_before_a_binding_if_kube_scheduler_excludes_its_node(cluster: Led, scheduler: KubeScheduler) -> None:
    await three_nodes(cluster)
    possible: list[str] = ["n1", "n2"]
    scheduler.possible = lambda name: possible
    names = await put_gang(cluster, "g", 2, gpus=4)
    for name in names:
        scheduler.ask(name)
    await cluster.pause(0.5)
    assert claims(cluster) == 2
    possible[:] = ["n1", "n3"]
    await scheduler.run(0.5)
    assert (bindings(cluster) == 0) or bound(cluster) == names
    await scheduler.run(5)
    assert sorted(nodes_of(cluster, *names)) == ["n1", "n3"]


async def test_a_member_that_can_run_on_a_single_node_does_not_lose_the_node_to_another_member(
    cluster: Led, scheduler: KubeScheduler
) -> None:
    await cluster.put_node("n1", 8)
    await cluster.put_node("n2", 8)
    possible: dict[str, Sequence[str]] = {"g0": ["n1", "n2"], "g1": ["n2"]}
    scheduler.possible = possible.__getitem__
    await put_gang(cluster, "g", 2, gpus=8)
    await scheduler.run(2)
    assert nodes_of(cluster, "g0", "g1") == ["n1", "n2"]


async def test_the_cpu_of_all_members_together_must_suffice(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.put_node("n1", 8, allocatable={"cpu": "16", "memory": "64Gi"})
    for number in range(4):
        await put_member(cluster, f"a{number}", "a", "4", age=0, requests={"cpu": "3"})
        await put_member(cluster, f"b{number}", "b", "4", age=1, requests={"cpu": "3"})
    await scheduler.run(5)
    assert bound(cluster) == ["a0", "a1", "a2", "a3"]
    assert "barrier" not in str(scheduler.said)


async def test_no_member_is_bound_before_all_members_were_sent_to_bind(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 4)
    scheduler.ignores.add("g3")
    names = await put_gang(cluster, "g", 4)
    await scheduler.run(BARRIER_S + 3)
    assert bindings(cluster) == 0
    assert scheduler.said["g0"].endswith("(gang-incomplete)")
    scheduler.ignores.clear()
    scheduler.ask("g3")
    await scheduler.run(5)
    assert bound(cluster) == names


async def test_a_plan_whose_members_are_not_sent_to_bind_ends_and_frees_its_devices(
    cluster: Led, scheduler: KubeScheduler
) -> None:
    await cluster.report("n1", 2)
    scheduler.ignores.update({"g0", "g1"})
    await put_gang(cluster, "g", 2)
    await scheduler.run(1)
    assert claims(cluster) == 2
    await cluster.pause(ARRIVED_S)
    assert claims(cluster) == 0
    await cluster.put_pod("single")
    assert scheduler.ask("single") == "n1"


async def test_a_binding_whose_answer_was_lost_counts(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 4)
    cluster.server.fail(Fault(status=504, done=True), when=is_binding_of("g2"))
    names = await put_gang(cluster, "g", 4)
    await scheduler.run(5)
    assert bound(cluster) == names
    assert sum(map(is_binding_of("g2"), cluster.server.requests)) == 1
    assert len({card for name in names for card in cluster.assigned(name)}) == 4


async def test_a_binding_that_fails_once_is_sent_again(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 3)
    cluster.server.fail(Fault(status=500), when=is_binding_of("g1"))
    names = await put_gang(cluster, "g", 3)
    await scheduler.run(10)
    assert bound(cluster) == names
    assert claims(cluster) == 0


async def test_a_pod_that_replaces_a_member_gets_the_devices_of_the_member(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 3)
    cluster.server.fail(Fault(status=409), when=is_binding_of("g2"), times=9)
    await put_gang(cluster, "g", 3)
    await scheduler.run(2)
    assert bound(cluster) == ["g0", "g1"]
    await cluster.remove_pod("g2")
    await cluster.put_pod("single")
    await scheduler.run(5)
    await put_member(cluster, "g3", "g", "3")
    await scheduler.run(5)
    assert bound(cluster) == ["g0", "g1", "g3"]


async def test_a_new_leader_plans_a_gang_without_bound_members_anew(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 4)
    scheduler.ignores.add("g3")
    names = await put_gang(cluster, "g", 4)
    await scheduler.run(1)
    assert claims(cluster) == 4
    await scheduler.end()
    await cluster.lead_again()
    assert claims(cluster) == 0
    scheduler.ignores.clear()
    await scheduler.run(10)
    assert bound(cluster) == names
    assert len({card for name in names for card in cluster.assigned(name)}) == 4


async def test_a_new_leader_finishes_a_gang_before_an_older_gang_begins(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 4)
    cluster.server.fail(Fault(status=409), when=is_binding_of("g2", "g3"), times=9)
    names = await put_gang(cluster, "g", 4, age=5)
    await scheduler.run(2)
    assert bound(cluster) == ["g0", "g1"]
    await scheduler.end()
    await cluster.leadership.end()
    await put_gang(cluster, "older", 2, age=0)
    await cluster.begin()
    cluster.server.heal()
    assert scheduler.ask("older0") == "refused"
    await scheduler.run(FINISH_S / 2)
    assert bound(cluster) == names


async def test_a_gang_whose_only_bound_member_is_deleted_holds_nothing_for_the_others(
    cluster: Led, scheduler: KubeScheduler
) -> None:
    await cluster.report("n1", 3)
    cluster.server.fail(Fault(status=409), when=is_binding_of("g1", "g2"), times=99)
    await put_gang(cluster, "g", 3)
    await scheduler.run(2)
    assert bound(cluster) == ["g0"]
    await scheduler.end()
    await cluster.lead_again()
    await cluster.pause(1)
    assert claims(cluster) == 2
    await cluster.remove_pod("g0")
    assert claims(cluster) == 0


async def test_a_gang_that_ran_for_long_is_not_ended_by_a_new_leader_for_a_member_that_died(
    cluster: Led, scheduler: KubeScheduler
) -> None:
    await cluster.report("n1", 3)
    names = await put_gang(cluster, "g", 3)
    await scheduler.run(3)
    for name in names:
        pod = cluster.json(name)
        pod["status"] |= {"startTime": created(0), "phase": "Running"}
        await cluster.server.put(pod_path(name), pod)
    await cluster.remove_pod("g1")
    await cluster.lead_again()
    await scheduler.run(2 * FINISH_S)
    assert bound(cluster) == ["g0", "g2"]


async def test_a_gang_whose_cards_are_cordoned_is_not_too_large(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 3, cordon="all")
    await put_gang(cluster, "g", 3)
    await scheduler.run(5)
    assert reasons(scheduler, "g0") == {"gang-no-room"}
    await cluster.report("n1", 3)
    await scheduler.run(2)
    assert len(bound(cluster)) == 3


async def test_the_refusal_of_a_member_says_what_its_gang_waits_for(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 2)
    await put_gang(cluster, "g", 3)
    await scheduler.run(5)
    assert reasons(scheduler, "g0") == {"gang-too-large"}
    assert "of 3 members that start together, 2 would have room on empty nodes" in scheduler.refusals["g0"][0]
    await cluster.put_node("n2", 1)
    await scheduler.run(2)
    assert len(bound(cluster)) == 3


async def test_no_devices_are_reserved_for_a_gang_without_members(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 3)
    cluster.server.fail(Fault(status=409), when=is_binding_of("g2"), times=9)
    await put_gang(cluster, "g", 3)
    await scheduler.run(2)
    for name in ("g2", "g0", "g1"):
        await cluster.remove_pod(name)
    await cluster.pause(1)
    assert claims(cluster) == 0
    assert cluster.free_cards() == 3


async def test_a_member_whose_gang_annotation_is_removed_holds_nothing(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 2)
    scheduler.ignores.update({"g0", "g1"})
    await put_gang(cluster, "g", 2)
    await scheduler.run(1)
    assert claims(cluster) == 2
    pod = cluster.json("g1")
    pod["metadata"]["annotations"] = {}
    await cluster.server.put(pod_path("g1"), pod)
    await cluster.pause()
    assert claims(cluster) == 0


KOORDINATOR = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups/"


@pytest.mark.parametrize("groups", ['["default/other"]', "no list"])
async def test_a_pod_whose_group_of_gangs_cannot_be_read_is_refused_and_not_placed_alone(
    cluster: Led, scheduler: KubeScheduler, groups: str
) -> None:
    await cluster.report("n1", 4)
    annotations = {"gang.scheduling.koordinator.sh/groups": groups}
    await cluster.server.put(f"{KOORDINATOR}g", {"metadata": {"annotations": annotations}, "spec": {"minMember": 1}})
    await cluster.pause(ABSENT_S)
    await cluster.put_pod("a", labels={"pod-group.scheduling.sigs.k8s.io": "g"})
    await scheduler.run(3)
    assert (bound(cluster), reasons(scheduler, "a")) == ([], {"request-malformed"})
    assert "default/g among them" in scheduler.refusals["a"][0]


async def test_members_of_a_pod_group_start_together_once_it_says_how_many(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 4)
    for name in ("a", "b"):
        await cluster.put_pod(name, labels={"pod-group.scheduling.sigs.k8s.io": "g"})
    await scheduler.run(3)
    assert (bound(cluster), reasons(scheduler, "a")) == ([], {"gang-waits-for-members"})
    await cluster.server.put(f"{KOORDINATOR}g", {"metadata": {}, "spec": {"minMember": 2}})
    await scheduler.run(ABSENT_S + 3)
    assert bound(cluster) == ["a", "b"]


async def test_planned_members_keep_their_devices_when_a_gang_is_planned_again(cluster: Led, scheduler: KubeScheduler) -> None:
    """Refuse g2's Binding repeatedly, while its node would not be the first choice any more."""
    await cluster.report("n1", 3)
    cluster.server.fail(Fault(status=409), when=is_binding_of("g2", "g3"), times=99)
    names = await put_gang(cluster, "g", 4, requests={"cpu": "1"})
    await cluster.put_node("n2", 1)
    await scheduler.run(5)
    assert bound(cluster) == ["g0", "g1"]
    gang = gang_of(cluster, "g0")
    before = gang.plan[cluster.uid("g2")]
    await cluster.remove_pod("g3")
    await cluster.put_node("n3", 8)
    await put_member(cluster, "g4", "g", "4", requests={"cpu": "1"})
    await scheduler.run(3)
    assert gang.plan.get(cluster.uid("g2")) is before
    cluster.server.heal()
    await scheduler.run(5)
    assert bound(cluster) == [*names[:3], "g4"]
