"""Test where a pod or a gang stands in line, what is ahead of it, and why."""

from typing import Any

from central.controllers.gangs import GangFeed
from central.decide.line import Line, gang_lines, pod_line
from central.decide.why_pod import why_gang, why_pending
from central.loop.steps import exhaust
from central.request.reasons import OfPod
from lading.vocabulary import GANG, GANG_MIN, RESOURCE_GPU
from tests.unit.central.quota.trees import quota
from tests.unit.central.state.test_tenants import created, waits
from tests.unit.central.world import World, uid_of


def full() -> World:
    world = World.of(n0=2)
    world.bind("a-runs", "n0", namespace="a")
    world.bind("b-runs", "n0", namespace="b")
    return world


def put_gang(world: World, name: str, namespace: str, *, age: int, priority: int = 0) -> None:
    feed = GangFeed(world.scheduler.starts, world.ledger)
    for number in range(2):
        text = {GANG: name, GANG_MIN: "2"}
        message: dict[str, Any] = {"namespace": namespace, "annotations": text, "created": created(age), "priority": priority}
        feed.changed(world.show(f"{name}-{number}", **message))
        world.filter(f"{name}-{number}")


def line_of(world: World, name: str) -> Line:
    result = pod_line(world.scheduler, world.pending_pod(name))
    assert result is not None
    return result


def test_the_line_of_a_pod_names_the_pods_ahead_and_why() -> None:
    world = full()
    waits(world, "old", "a")
    waits(world, "less", "c", age=5)
    waits(world, "urgent", "a", age=6, priority=3)
    waits(world, "mine", "a", age=7)
    waits(world, "last", "a", age=8)
    text = line_of(world, "mine").as_text()
    assert text == "4th of 5 pods in line; ahead: a/urgent (of higher priority), c/less (its namespace has less), a/old (older)"
    assert line_of(world, "last").as_text().endswith("a/old (older) and 1 more")
    assert line_of(world, "urgent").as_text() == "1st of 5 pods in line"
    assert why_pending(world.scheduler, world.pending_pod("mine"), 0.0).line == line_of(world, "mine")


def test_a_pod_that_is_not_refused_waits_in_no_line() -> None:
    world = World.of(n0=1)
    waits(world, "fits", "a")
    assert pod_line(world.scheduler, world.pending_pod("fits")) is None


def test_pods_that_a_quota_refuses_wait_in_its_line() -> None:
    world = full()
    world.quotas.set_quota("uid-q", quota("q", max={RESOURCE_GPU: 0}))
    exhaust(world.quotas.scan())
    waits(world, "free", "a")
    for age in (1, 2):
        waits(world, f"limited{age}", "b", age=age, labels={"quota.scheduling.koordinator.sh/name": "q"})
    assert line_of(world, "limited2").as_text() == "2nd of 2 pods in line; ahead: b/limited1 (older)"
    assert line_of(world, "free").as_text() == "1st of 1 pod in line"


def test_the_line_of_a_gang_names_the_gangs_ahead_and_why() -> None:
    world = full()
    put_gang(world, "old", "a", age=0)
    put_gang(world, "less", "c", age=5)
    put_gang(world, "urgent", "a", age=6, priority=3)
    put_gang(world, "mine", "a", age=7)
    waits(world, "alone", "a")
    result = why_gang(world.scheduler, uid_of("mine-0"))
    assert result is not None
    assert result.line is not None
    text = "4th of 4 gangs in line; ahead: a/urgent (of higher priority), c/less (its namespace has less), a/old (older)"
    assert result.line.as_text() == text
    assert text in result.as_text()
    assert pod_line(world.scheduler, world.pending_pod("mine-0")) is None
    assert line_of(world, "alone").waiting == 1


def test_a_gang_for_which_room_is_kept_is_ahead_of_a_namespace_with_less() -> None:
    world = full()
    put_gang(world, "old", "a", age=0)
    put_gang(world, "less", "c", age=5)
    taken = next(taken for uid, taken in world.ledger.holds_on("n0") if uid == uid_of("a-runs"))
    holder = world.pending_pod("old-0").holder
    world.ledger.claims.nominate(uid_of("old-0"), "n0", taken, 99.0, holder, evicts=False)
    lines = {key.name: line for key, line in gang_lines(world.scheduler).items()}
    assert (lines["old"].position, lines["less"].ahead[0].because) == (1, "room is kept for it")


def test_a_gang_without_all_members_is_in_no_line() -> None:
    world = full()
    feed = GangFeed(world.scheduler.starts, world.ledger)
    feed.changed(world.show("one", annotations={GANG: "g", GANG_MIN: "2"}))
    world.filter("one")
    result = why_gang(world.scheduler, uid_of("one"))
    assert result is not None
    assert (result.reason, result.line) == (OfPod.GANG_WAITS_FOR_MEMBERS.value, None)


def test_ordinals() -> None:
    numbers = (1, 2, 3, 4, 11, 12, 13, 21, 112)
    text = [Line(position=number, waiting=200, of="pods").as_text().split()[0] for number in numbers]
    assert text == ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "112th"]
