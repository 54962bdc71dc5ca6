"""Test the way from a plan to bound members: refusals by kube-scheduler, the barrier, lost answers, leader changes,
replacements."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from central.api.watch import ABSENT_S
from central.controllers.gangs import ARRIVED_S, BARRIER_S, FINISH_S
from tests.fakes.kube_objects import pod_path
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.kube_server import Fault, Request
from tests.fakes.led import Led, is_binding, play
from tests.unit.central.gang.stories import bindings, bound, claims, created, nodes_of, put_gang, put_member, reasons


async def three_nodes(one: Led, cards: int = 4) -> None:
    for name in ("n1", "n2", "n3"):
        await one.put_node(name, cards)


def is_binding_of(*names: str) -> Callable[[Request], bool]:
    return lambda request: is_binding(request) and request.path.split("/")[-2] in names


def test_a_node_that_kube_scheduler_excludes_is_not_planned(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await three_nodes(one)
        scheduler = KubeScheduler(one, possible=lambda name: ["n2", "n3"])
        await put_gang(one, "g", 2, gpus=4)
        await scheduler.run(1)
        assert sorted(nodes_of(one, "g0", "g1")) == ["n2", "n3"]
        await scheduler.end()

    play(story, tmp_path)


def test_a_node_that_is_excluded_after_the_plan_ends_it_before_a_member_is_bound(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await three_nodes(one)
        possible: list[str] = ["n1", "n2"]
        scheduler = KubeScheduler(one, possible=lambda name: possible)
        names = await put_gang(one, "g", 2, gpus=4)
        for name in names:
            scheduler.ask(name)
        await one.pause(0.5)
        assert claims(one) == 2
        possible[:] = ["n1", "n3"]
        await scheduler.run(0.5)
        assert (bindings(one) == 0) or bound(one) == names
        await scheduler.run(5)
        assert sorted(nodes_of(one, *names)) == ["n1", "n3"]
        await scheduler.end()

    play(story, tmp_path)


def test_a_member_that_is_bound_to_one_node_by_its_volume_does_not_lose_it_to_another(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_node("n1", 8)
        await one.put_node("n2", 8)
        possible: dict[str, Sequence[str]] = {"g0": ["n1", "n2"], "g1": ["n2"]}
        scheduler = KubeScheduler(one, possible=possible.__getitem__)
        await put_gang(one, "g", 2, gpus=8)
        await scheduler.run(2)
        assert nodes_of(one, "g0", "g1") == ["n1", "n2"]
        await scheduler.end()

    play(story, tmp_path)


def test_cpu_counts_for_all_members_together(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_node("n1", 8, allocatable={"cpu": "16", "memory": "64Gi"})
        scheduler = KubeScheduler(one)
        for number in range(4):
            await put_member(one, f"a{number}", "a", "4", age=0, requests={"cpu": "3"})
            await put_member(one, f"b{number}", "b", "4", age=1, requests={"cpu": "3"})
        await scheduler.run(5)
        assert bound(one) == ["a0", "a1", "a2", "a3"]
        assert "barrier" not in str(scheduler.said)
        await scheduler.end()

    play(story, tmp_path)


def test_no_member_is_bound_before_all_of_them_were_sent_to_bind(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        scheduler.ignores.add("g3")
        names = await put_gang(one, "g", 4)
        await scheduler.run(BARRIER_S + 3)
        assert bindings(one) == 0
        assert scheduler.said["g0"].endswith("(gang-incomplete)")
        scheduler.ignores.clear()
        scheduler.ask("g3")
        await scheduler.run(5)
        assert bound(one) == names
        await scheduler.end()

    play(story, tmp_path)


def test_a_plan_whose_members_do_not_come_ends_and_frees_its_room(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        scheduler = KubeScheduler(one)
        scheduler.ignores.update({"g0", "g1"})
        await put_gang(one, "g", 2)
        await scheduler.run(1)
        assert claims(one) == 2
        await one.pause(ARRIVED_S)
        assert claims(one) == 0
        await one.put_pod("single")
        assert scheduler.ask("single") == "n1"
        await scheduler.end()

    play(story, tmp_path)


def test_a_binding_that_succeeded_and_was_not_answered_counts(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        one.server.fail(Fault(status=504, done=True), when=is_binding_of("g2"))
        names = await put_gang(one, "g", 4)
        await scheduler.run(5)
        assert bound(one) == names
        assert sum(map(is_binding_of("g2"), one.server.requests)) == 1
        assert len({card for name in names for card in one.assigned(name)}) == 4
        await scheduler.end()

    play(story, tmp_path)


def test_a_binding_that_fails_once_is_sent_again(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 3)
        scheduler = KubeScheduler(one)
        one.server.fail(Fault(status=500), when=is_binding_of("g1"))
        names = await put_gang(one, "g", 3)
        await scheduler.run(10)
        assert bound(one) == names
        assert claims(one) == 0
        await scheduler.end()

    play(story, tmp_path)


def test_a_pod_that_replaces_a_member_gets_its_place(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 3)
        scheduler = KubeScheduler(one)
        one.server.fail(Fault(status=409), when=is_binding_of("g2"), times=9)
        await put_gang(one, "g", 3)
        await scheduler.run(2)
        assert bound(one) == ["g0", "g1"]
        await one.remove_pod("g2")
        await one.put_pod("single")
        await scheduler.run(5)
        await put_member(one, "g3", "g", "3")
        await scheduler.run(5)
        assert bound(one) == ["g0", "g1", "g3"]
        await scheduler.end()

    play(story, tmp_path)


def test_a_new_leader_begins_a_gang_anew_of_which_no_member_is_bound(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        scheduler.ignores.add("g3")
        names = await put_gang(one, "g", 4)
        await scheduler.run(1)
        assert claims(one) == 4
        await scheduler.end()
        await one.leadership.end()
        await one.begin()
        assert claims(one) == 0
        scheduler.ignores.clear()
        await scheduler.run(10)
        assert bound(one) == names
        assert len({card for name in names for card in one.assigned(name)}) == 4
        await scheduler.end()

    play(story, tmp_path)


def test_a_new_leader_finishes_a_gang_before_an_older_one_begins(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        one.server.fail(Fault(status=409), when=is_binding_of("g2", "g3"), times=9)
        names = await put_gang(one, "g", 4, age=5)
        await scheduler.run(2)
        assert bound(one) == ["g0", "g1"]
        await scheduler.end()
        await one.leadership.end()
        await put_gang(one, "older", 2, age=0)
        await one.begin()
        one.server.heal()
        assert scheduler.ask("older0") == "refused"
        await scheduler.run(FINISH_S / 2)
        assert bound(one) == names
        await scheduler.end()

    play(story, tmp_path)


def test_a_gang_of_which_the_only_bound_member_goes_holds_nothing_for_the_others(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 3)
        scheduler = KubeScheduler(one)
        one.server.fail(Fault(status=409), when=is_binding_of("g1", "g2"), times=99)
        await put_gang(one, "g", 3)
        await scheduler.run(2)
        assert bound(one) == ["g0"]
        await scheduler.end()
        await one.leadership.end()
        await one.begin()
        await one.pause(1)
        assert claims(one) == 2
        await one.remove_pod("g0")
        assert claims(one) == 0

    play(story, tmp_path)


def test_a_gang_that_ran_for_long_is_not_ended_by_a_new_leader_for_a_member_that_died(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 3)
        scheduler = KubeScheduler(one)
        names = await put_gang(one, "g", 3)
        await scheduler.run(3)
        for name in names:
            pod = one.json(name)
            pod["status"] |= {"startTime": created(0), "phase": "Running"}
            await one.server.put(pod_path(name), pod)
        await one.remove_pod("g1")
        await one.leadership.end()
        await one.begin()
        await scheduler.run(2 * FINISH_S)
        assert bound(one) == ["g0", "g2"]
        await scheduler.end()

    play(story, tmp_path)


def test_a_gang_whose_cards_are_cordoned_is_not_too_large(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 3, cordon="all")
        scheduler = KubeScheduler(one)
        await put_gang(one, "g", 3)
        await scheduler.run(5)
        assert reasons(scheduler, "g0") == {"gang-no-room"}
        await one.report("n1", 3)
        await scheduler.run(2)
        assert len(bound(one)) == 3
        await scheduler.end()

    play(story, tmp_path)


def test_a_member_that_is_refused_says_what_the_gang_waits_for(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        scheduler = KubeScheduler(one)
        await put_gang(one, "g", 3)
        await scheduler.run(5)
        assert reasons(scheduler, "g0") == {"gang-too-large"}
        assert "of 3 members that start together, 2 would have room on empty nodes" in scheduler.refusals["g0"][0]
        await one.put_node("n2", 1)
        await scheduler.run(2)
        assert len(bound(one)) == 3
        await scheduler.end()

    play(story, tmp_path)


def test_no_room_is_kept_for_a_gang_without_members(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 3)
        scheduler = KubeScheduler(one)
        one.server.fail(Fault(status=409), when=is_binding_of("g2"), times=9)
        await put_gang(one, "g", 3)
        await scheduler.run(2)
        for name in ("g2", "g0", "g1"):
            await one.remove_pod(name)
        await one.pause(1)
        assert claims(one) == 0
        assert one.free_cards() == 3
        await scheduler.end()

    play(story, tmp_path)


def test_a_member_whose_owner_takes_its_gang_away_holds_nothing(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        scheduler = KubeScheduler(one)
        scheduler.ignores.update({"g0", "g1"})
        await put_gang(one, "g", 2)
        await scheduler.run(1)
        assert claims(one) == 2
        pod = one.json("g1")
        pod["metadata"]["annotations"] = {}
        await one.server.put(pod_path("g1"), pod)
        await one.pause()
        assert claims(one) == 0
        await scheduler.end()

    play(story, tmp_path)


KOORDINATOR = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups/"


@pytest.mark.parametrize("groups", ['["default/other"]', "no list"])
def test_a_pod_whose_group_of_gangs_cannot_be_read_is_refused_and_not_placed_alone(tmp_path: Path, groups: str) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        annotations = {"gang.scheduling.koordinator.sh/groups": groups}
        await one.server.put(f"{KOORDINATOR}g", {"metadata": {"annotations": annotations}, "spec": {"minMember": 1}})
        await one.pause(ABSENT_S)
        await one.put_pod("a", labels={"pod-group.scheduling.sigs.k8s.io": "g"})
        await scheduler.run(3)
        assert (bound(one), reasons(scheduler, "a")) == ([], {"request-malformed"})
        assert "default/g among them" in scheduler.refusals["a"][0]
        await scheduler.end()

    play(story, tmp_path)


def test_members_of_a_pod_group_start_together_once_it_says_how_many(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        for name in ("a", "b"):
            await one.put_pod(name, labels={"pod-group.scheduling.sigs.k8s.io": "g"})
        await scheduler.run(3)
        assert (bound(one), reasons(scheduler, "a")) == ([], {"gang-waits-for-members"})
        await one.server.put(f"{KOORDINATOR}g", {"metadata": {}, "spec": {"minMember": 2}})
        await scheduler.run(ABSENT_S + 3)
        assert bound(one) == ["a", "b"]
        await scheduler.end()

    play(story, tmp_path)


def test_members_that_have_a_place_keep_it_when_a_gang_is_planned_again(tmp_path: Path) -> None:
    """Refuse g2's Binding repeatedly, while its node would not be the first choice any more."""

    async def story(one: Led) -> None:
        await one.report("n1", 3)
        scheduler = KubeScheduler(one)
        one.server.fail(Fault(status=409), when=is_binding_of("g2", "g3"), times=99)
        names = await put_gang(one, "g", 4, requests={"cpu": "1"})
        await one.put_node("n2", 1)
        await scheduler.run(5)
        assert bound(one) == ["g0", "g1"]
        gang, _ = one.leadership.gangs.of(one.uid("g0")) or (None, None)
        assert gang is not None
        before = gang.plan[one.uid("g2")]
        await one.remove_pod("g3")
        await one.put_node("n3", 8)
        await put_member(one, "g4", "g", "4", requests={"cpu": "1"})
        await scheduler.run(3)
        assert gang.plan.get(one.uid("g2")) is before
        one.server.heal()
        await scheduler.run(5)
        assert bound(one) == [*names[:3], "g4"]
        await scheduler.end()

    play(story, tmp_path)
