"""Test how often kube-scheduler has to ask about the members of a gang, and how many writes reach the API server at once."""

import asyncio
from pathlib import Path

from central.controllers.binder import AT_ONCE
from central.controllers.gangs import ARRIVED_S, BARRIER_S, SCAN_S
from lading.vocabulary import GANG_ROLE
from tests.fakes.kube_objects import pod_path
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.led import REFUSED, Led, is_binding, is_touch, play
from tests.unit.central.gang.stories import bindings, bound, claims, nodes_of, put_gang, put_member, reasons


def test_members_that_kube_scheduler_has_not_come_to_are_planned_where_others_like_them_may_be(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 8)
        scheduler = KubeScheduler(one)
        names = await put_gang(one, "g", 8)
        assert scheduler.ask("g0") == REFUSED
        await one.pause(2 * SCAN_S)
        assert claims(one) == 8
        await scheduler.run(2)
        assert bound(one) == names
        assert scheduler.asked == {name: 2 if name == "g0" else 1 for name in names}
        assert [request.path for request in one.server.requests if is_touch(request)] == [f"{pod_path('g0')}/status"]
        await scheduler.end()

    play(story, tmp_path)


def test_a_role_of_which_no_member_was_asked_about_is_not_planned(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 8)
        scheduler = KubeScheduler(one)
        for number in range(2):
            await put_member(one, f"w{number}", "g", "ps=1,worker=2", says={GANG_ROLE: "worker"})
        await put_member(one, "ps", "g", "ps=1,worker=2", gpus=2, says={GANG_ROLE: "ps"})
        for name in ("w0", "w1"):
            scheduler.ask(name)
        await one.pause(2 * SCAN_S)
        assert claims(one) == 0
        assert not any(map(is_touch, one.server.requests))
        scheduler.ask("ps")
        await one.pause(2 * SCAN_S)
        assert claims(one) == 3
        await scheduler.end()

    play(story, tmp_path)


def test_a_member_that_may_not_be_where_others_like_it_are_ends_the_plan_before_a_binding(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_node("n1", 8)
        await one.put_node("n2", 8)
        possible = {"g0": ["n1"], "g1": ["n1"], "g2": ["n2"]}
        scheduler = KubeScheduler(one, possible=possible.__getitem__)
        names = await put_gang(one, "g", 3)
        scheduler.ask("g0")
        await one.pause(2 * SCAN_S)
        assert scheduler.ask("g1") == "n1"
        assert scheduler.ask("g2") == REFUSED
        assert (claims(one), bindings(one)) == (0, 0)
        await scheduler.run(BARRIER_S + 5)
        assert nodes_of(one, *names) == ["n1", "n1", "n2"]
        await scheduler.end()

    play(story, tmp_path)


def test_a_plan_for_a_member_that_is_never_asked_about_is_not_made_again(tmp_path: Path) -> None:
    """Check a member for which kube-scheduler has no node at all: it asks central only about pods that have one."""

    async def story(one: Led) -> None:
        await one.report("n1", 2)
        scheduler = KubeScheduler(one)
        await put_gang(one, "g", 2)
        scheduler.ask("g0")
        await one.pause(2 * SCAN_S)
        assert claims(one) == 2
        await one.pause(ARRIVED_S + 2)
        assert claims(one) == 0
        await one.put_pod("single")
        assert scheduler.ask("single") == "n1"
        await one.pause(60)
        assert (claims(one), scheduler.ask("g0")) == (0, REFUSED)
        assert reasons(scheduler, "g0") == {"gang-waits-for-members"}
        await scheduler.end()

    play(story, tmp_path)


def test_members_are_remembered_as_long_as_others_arrive(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 6)
        names = await put_gang(one, "g", 6)
        for name in names:
            one.filter(name)
        await one.pause(2 * SCAN_S)
        text = []
        for name in names:
            assert one.filter(name) == ["n1"]
            text.append(await one.bind(name, "n1"))
            await one.pause(ARRIVED_S / 2)
        assert (len(set(text[:-1])), text[-1]) == (5, "")
        assert bound(one) == ["g5"]
        assert [await one.bind(name, "n1") for name in names[:-1]] == [""] * 5

    play(story, tmp_path)


def test_a_plan_is_dropped_when_no_other_member_arrives(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        await put_gang(one, "g", 2)
        for name in ("g0", "g1"):
            one.filter(name)
        await one.pause(2 * SCAN_S)
        assert "1 of 2 members are ready" in await one.bind("g0", "n1")
        await one.pause(ARRIVED_S - BARRIER_S + 1)
        assert claims(one) == 0
        assert "no place for the pod on n1 any more" in await one.bind("g1", "n1")

    play(story, tmp_path)


def test_the_api_server_gets_a_bounded_number_of_bindings_at_once_each_for_the_pod_as_it_is_then(tmp_path: Path) -> None:
    size = 2 * AT_ONCE

    async def story(one: Led) -> None:
        await one.report("n1", size)
        names = await put_gang(one, "g", size)
        for name in names:
            one.filter(name)
        await one.pause(2 * SCAN_S)
        one.server.slowness = lambda request: (1.0 if is_binding(request) else 0.0, 0.0)
        binds = [asyncio.create_task(one.bind(name, "n1")) for name in names]
        await one.pause(0.5)
        assert bindings(one) == AT_ONCE
        sent = {request.path.split("/")[-2] for request in one.server.requests if is_binding(request)}
        for name in set(names) - sent:  # kube-scheduler gave up, and says so in the pod's status
            await one.server.put(pod_path(name), one.json(name) | {"status": {"phase": "Pending"}})
        assert await asyncio.gather(*binds) == [""] * size
        assert bindings(one) == size

    play(story, tmp_path)
