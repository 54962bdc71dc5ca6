"""Test gangs on a simulated cluster: they start whole or not at all, for any order of requests, failures and ends."""

from pathlib import Path
from typing import Any

import pytest

from central.controllers.gangs import FINISH_S
from lading.vocabulary import GANG_MODE, GANG_ROLE, RESOURCE_GANG_MEMBER
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.kube_server import Fault
from tests.fakes.led import REFUSED, Led, is_binding, play
from tests.unit.central.gang.stories import bound, claims, put_gang, put_member, reasons

WITHOUT_DEVICES = {RESOURCE_GANG_MEMBER: "1"}


def test_of_two_gangs_that_do_not_fit_together_the_older_starts_and_the_other_follows(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        for number in range(3):  # in turns, as controllers create them
            await put_member(one, f"a{number}", "a", "3", age=0)
            await put_member(one, f"b{number}", "b", "3", age=1)
        await scheduler.run(5)
        assert bound(one) == ["a0", "a1", "a2"]
        assert one.free_cards() == 1
        assert reasons(scheduler, "b0") == {"gang-no-room"}
        for name in ("a0", "a1", "a2"):
            await one.remove_pod(name)
        await scheduler.run(5)
        assert bound(one) == ["b0", "b1", "b2"]
        assert claims(one) == 0
        await scheduler.end()

    play(story, tmp_path)


def test_a_gang_without_room_holds_nothing_while_it_is_tried_again_and_again(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 3)
        scheduler = KubeScheduler(one)
        names = await put_gang(one, "g", 4)
        await scheduler.run(2)
        for _ in range(10):
            assert {scheduler.ask(name) for name in names} == {REFUSED}
            assert claims(one) == 0
            await one.pause(1)
        await one.put_pod("single")
        assert scheduler.ask("single") == "n1"
        await scheduler.end()

    play(story, tmp_path)


@pytest.mark.parametrize("how", [{"taints": ["team"]}, {"cordoned": True}, {"labels": {"pool": "other"}}])
def test_a_gang_is_not_planned_on_a_node_that_its_own_rules_forbid(tmp_path: Path, how: dict[str, Any]) -> None:
    """Check a node that kube-scheduler named at its last request."""

    async def story(one: Led) -> None:
        for name in ("n1", "n2", "n3"):
            await one.put_node(name, 4, labels={"pool": "gpu"})
        names = await put_gang(one, "g", 2, gpus=4, rules={"nodeSelector": {"pool": "gpu"}})
        for name in names:
            one.filter(name)
        await one.put_node("n1", 4, **{"labels": {"pool": "gpu"}, **how})
        await one.pause(1)
        gang, _ = one.leadership.gangs.of(one.uid(names[0])) or (None, None)
        assert gang is not None
        assert gang.life.nodes == {"n2", "n3"}

    play(story, tmp_path)


def test_members_that_are_missing_are_waited_for_without_holding_anything(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 8)
        scheduler = KubeScheduler(one)
        for number in range(3):
            await put_member(one, f"g{number}", "g", "4")
        await scheduler.run(3)
        assert bound(one) == []
        assert scheduler.refusals["g0"] == ["gang default/g: 3 of 4 members exist (gang-waits-for-members)"]
        assert one.free_cards() == 8
        await put_member(one, "g3", "g", "4")
        await scheduler.run(2)
        assert bound(one) == ["g0", "g1", "g2", "g3"]
        await scheduler.end()

    play(story, tmp_path)


def test_no_pod_is_evicted_for_a_member_without_a_plan(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        await put_member(one, "g0", "g", "2")
        result = one.leadership.scheduler.filter(one.shown("g0"), ["n1"])
        assert (result.fails, list(result.never)) == ({}, ["n1"])

    play(story, tmp_path)


@pytest.mark.parametrize(("cards", "starts"), [(4, 4), (2, 0), (5, 5)])
def test_the_minimum_starts_together_and_others_where_there_is_room(tmp_path: Path, cards: int, starts: int) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", cards)
        scheduler = KubeScheduler(one)
        await put_gang(one, "g", 5, least=3)
        await scheduler.run(8)
        assert len(bound(one)) == starts
        await scheduler.end()

    play(story, tmp_path)


def test_a_member_beyond_the_minimum_is_an_ordinary_pod_once_the_gang_has_started(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        await put_gang(one, "g", 5, least=3)
        await scheduler.run(8)
        (left,) = {f"g{number}" for number in range(5)} - set(bound(one))
        assert reasons(scheduler, left) == {"too-few-free-gpus"}
        await one.remove_pod(bound(one)[0])
        await scheduler.run(3)
        assert left in bound(one)
        await scheduler.end()

    play(story, tmp_path)


@pytest.mark.parametrize(("cards", "starts"), [(4, 0), (5, 3), (9, 5)])
def test_each_role_has_its_minimum(tmp_path: Path, cards: int, starts: int) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", min(cards, 8))
        await one.put_node("n2", max(0, cards - 8))
        scheduler = KubeScheduler(one)
        least = "ps=1,worker=2"
        await put_member(one, "ps", "g", least, says={GANG_ROLE: "ps"})
        for number in range(4):
            await put_member(one, f"w{number}", "g", least, gpus=2, says={GANG_ROLE: "worker"})
        await scheduler.run(8)
        assert len(bound(one)) == starts
        await scheduler.end()

    play(story, tmp_path)


def test_a_member_without_devices_is_not_bound_before_the_others(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 1)
        scheduler = KubeScheduler(one)
        least = "launcher=1,worker=2"
        await put_member(one, "launcher", "g", least, limits=WITHOUT_DEVICES, says={GANG_ROLE: "launcher"})
        for number in range(2):
            await put_member(one, f"w{number}", "g", least, says={GANG_ROLE: "worker"})
        await scheduler.run(5)
        assert bound(one) == []
        await one.report("n1", 2)
        await scheduler.run(5)
        assert bound(one) == ["launcher", "w0", "w1"]
        assert one.assigned("launcher") == []
        await scheduler.end()

    play(story, tmp_path)


def test_a_member_that_is_deleted_before_the_first_binding_ends_the_plan_at_once(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 3)
        scheduler = KubeScheduler(one)
        names = await put_gang(one, "g", 3)
        scheduler.ignores.update(names)
        await scheduler.run(1)
        assert claims(one) == 3
        await one.remove_pod("g2")
        assert claims(one) == 0
        await one.put_pod("single")
        assert scheduler.ask("single") == "n1"
        await scheduler.end()

    play(story, tmp_path)


@pytest.mark.parametrize("mode", ["strict", "non-strict"])
def test_room_is_kept_for_a_member_that_is_deleted_until_the_time_of_the_gang_is_over(tmp_path: Path, mode: str) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 3)
        scheduler = KubeScheduler(one)
        await put_gang(one, "g", 3, says={GANG_MODE: mode})
        one.server.fail(Fault(status=409), when=lambda request: is_binding(request) and "/g2/" in request.path, times=99)
        await scheduler.run(2)
        assert bound(one) == ["g0", "g1"]
        await one.remove_pod("g2")
        await one.put_pod("single")
        await scheduler.run(10)
        assert bound(one) == ["g0", "g1"]
        await scheduler.run(FINISH_S)
        if mode == "strict":
            assert bound(one) == ["single"]
            assert one.leadership.scheduler.counts.evicted
        else:
            assert bound(one) == ["g0", "g1", "single"]
        await scheduler.end()

    play(story, tmp_path)


@pytest.mark.parametrize("says", [{GANG_MODE: "firm"}, {GANG_ROLE: "ps"}])
def test_a_member_whose_words_cannot_be_read_is_refused_and_not_placed_alone(tmp_path: Path, says: dict[str, str]) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        scheduler = KubeScheduler(one)
        await put_gang(one, "g", 2, says=says)
        await scheduler.run(2)
        assert (bound(one), reasons(scheduler, "g0")) == ([], {"request-malformed"})
        await scheduler.end()

    play(story, tmp_path)


def test_a_pod_that_is_marked_as_a_member_and_names_no_gang_is_refused(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        scheduler = KubeScheduler(one)
        await one.put_pod("alone", WITHOUT_DEVICES)
        await scheduler.run(1)
        assert reasons(scheduler, "alone") == {"request-malformed"}
        await scheduler.end()

    play(story, tmp_path)
