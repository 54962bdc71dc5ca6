"""Test the order of waiting pods, fair between namespaces: the one that holds the smaller part of the devices is first."""

import random
from collections.abc import Mapping
from typing import Any

from tests.fakes.kube_objects import WHOLE, share, vfs
from tests.unit.central.world import World, uid_of

EIGHT = {"lading.dev/gpu": "8"}


def created(age: int) -> str:
    return f"2026-11-21T00:{age // 60:02d}:{age % 60:02d}Z"


def waits(world: World, name: str, namespace: str, limits: Mapping[str, str] = WHOLE, *, age: int = 0, **options: Any) -> None:
    """Let a pod wait. `age`: seconds after the oldest one."""
    world.ask(name, limits=limits, namespace=namespace, created=created(age), **options)


def in_line(world: World) -> list[str]:
    return [pod.name for pod in sorted(world.pending, key=world.scheduler.tenants.line())]


def in_turn(world: World) -> list[str]:
    return [pod.name for pod in world.scheduler.tenants.in_turn(world.pending)]


def test_the_namespace_with_less_comes_before_an_older_pod_and_after_a_higher_priority() -> None:
    world = World.of(n0=3)
    world.bind("a1", "n0", namespace="a")
    world.bind("a2", "n0", namespace="a")
    world.bind("b1", "n0", namespace="b")
    waits(world, "old", "a")
    waits(world, "young", "b", age=9)
    waits(world, "none", "c", age=10)
    waits(world, "urgent", "a", age=11, priority=5)
    assert in_line(world) == ["urgent", "none", "young", "old"]
    world.deleted("a1")
    world.deleted("a2")
    assert in_line(world) == ["urgent", "old", "none", "young"]


def test_pods_of_one_namespace_are_in_line_by_priority_and_age() -> None:
    world = World.of(n0=1)
    world.bind("holds", "n0")
    for age, priority in ((3, 0), (1, 0), (2, 7)):
        waits(world, f"p{age}", "default", age=age, priority=priority)
    assert in_line(world) == in_turn(world) == ["p2", "p1", "p3"]


def test_a_part_of_a_card_counts_as_its_part_and_vfs_by_their_part_of_all() -> None:
    world = World()
    world.node("n0", 4, 8)
    world.bind("whole", "n0", namespace="a")
    world.bind("half", "n0", share(core=50), namespace="b")
    world.bind("nics", "n0", vfs(3), namespace="c")
    for name in "abc":
        waits(world, f"of-{name}", name, EIGHT)
    assert in_line(world) == ["of-b", "of-a", "of-c"]


def test_room_that_is_kept_for_a_pod_does_not_count_and_what_is_about_to_be_bound_does() -> None:
    world = World.of(n0=2)
    waits(world, "a", "a", EIGHT)
    waits(world, "b", "b", EIGHT, age=1)
    placement = world.scheduler.placement
    world.show("kept", namespace="a")
    result = placement(world.pending_pod("kept"), "n0")
    assert result is not None
    world.ledger.claims.nominate(uid_of("a"), "n0", result.taken, 99.0, world.pending_pod("a").holder, evicts=False)
    assert in_line(world)[0] == "a"
    world.filter("kept")
    assert in_line(world)[0] == "b"


def test_admitted_pods_count_for_their_namespace() -> None:
    world = World.of(n0=1)
    for age in range(3):
        waits(world, f"large{age}", "a", {"lading.dev/gpu": "2"}, age=age)
    for age in range(4):
        waits(world, f"small{age}", "b", {"lading.dev/gpu": "4"} if age == 3 else WHOLE, age=10 + age)
    world.pending.remove(uid_of("small0"))  # a pod that fits: b has 1 card
    assert in_turn(world) == ["large0", "small1", "large1", "small2", "small3", "large2"]


def test_counted_step_by_step_and_all_at_once_is_the_same() -> None:
    chance = random.Random(7)  # noqa: S311  a seeded sequence, no secret
    world = World()
    bound: list[str] = []
    for number in range(6):
        world.node(f"n{number}", 8, 8)
    for step in range(150):
        node = f"n{chance.randrange(6)}"
        if bound and chance.random() < 0.4:
            world.deleted(bound.pop(chance.randrange(len(bound))))
        elif chance.random() < 0.1:
            world.report(node, chance.choice((8, 8, 9)), 8)
        elif world.ledger.capacity(node).cards[0].free:
            world.bind(f"p{step}", node, chance.choice((WHOLE, share(core=30), WHOLE | vfs(1))), namespace=chance.choice("abc"))
            bound.append(f"p{step}")
        fresh = type(world.scheduler.tenants)(world.ledger)
        for tenants in (fresh, world.scheduler.tenants):
            tenants.catch_up()
        assert [fresh.part(name) for name in "abc"] == [world.scheduler.tenants.part(name) for name in "abc"]


def test_a_free_card_requeues_first_the_pod_of_the_namespace_with_less() -> None:
    world = World.of(n0=3)
    for name in ("a1", "a2", "a3"):
        world.bind(name, "n0", namespace="a")
    for age in range(20):
        waits(world, f"old{age}", "a", age=age)
    waits(world, "young", "b", age=40)
    world.requeued()
    world.deleted("a1")
    assert world.requeued()[:4] == ["young", "old0", "old1", "old2"]
