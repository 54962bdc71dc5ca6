"""Test gangs from plan to last Binding on a real control plane: after a failure, no half gang stays bound for long."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from simnode.control_plane import ControlPlane
from tests.cluster.scheduling.fleet import CARDS
from tests.cluster.scheduling.gang_world import GangWorld, gang_world, of_gang
from tests.logs import LOGS

pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]

NODES: Final = ("n0", "n1")
KOORDINATOR: Final = "gang.scheduling.koordinator.sh"
WAITING_S: Final = 20
PORT: Final = 8080


@pytest.fixture(scope="module")
def whole(assets: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[GangWorld]:
    plane = ControlPlane(tmp_path_factory.mktemp("binding"), assets=assets)
    logs = pytestconfig.stash.setdefault(LOGS, [])
    logs.extend(plane.logs)
    with plane, gang_world(plane, NODES, {}) as world:
        logs.extend(world.scheduling.logs)
        yield world


@pytest.fixture
def world(whole: GangWorld) -> Iterator[GangWorld]:
    with whole.empty_in_the_end():
        yield whole


def koordinators(gang: str, **says: str) -> dict[str, Any]:
    """Create a gang of three pods that states how long its members wait for each other."""
    text = {"name": gang, "min-available": "3", "waiting-time": f"{WAITING_S}s", **says}
    return {"annotations": {f"{KOORDINATOR}/{key}": value for key, value in text.items()}}


def test_a_pod_that_replaces_a_member_which_was_never_bound_gets_its_place(world: GangWorld) -> None:
    world.run("hold", gpus=4)
    members = {"g-0", "g-1"}
    with world.unbindable("g-2"):
        world.create_gang("g", 3, gpus=4)
        world.await_bound(members)
        world.create("single", 1)
        world.await_refused("single")  # the room of the third is kept
    world.delete("g-2")
    world.await_deleted({"g-2"})
    world.sit_out(10)
    assert world.bound() == {"hold", *members}
    world.create("g-2", 4, metadata=of_gang("g", 3))
    world.await_bound({"g-2"})
    assert world.cards({"g-0", "g-1", "g-2"}) == 12


@pytest.mark.parametrize("mode", ["Strict", "NonStrict"])
def test_members_that_are_bound_without_the_others_go_when_the_time_of_the_gang_is_over(world: GangWorld, mode: str) -> None:
    """Check that the bound members are deleted after that time, unless the gang allows them to stay."""
    world.run("hold", gpus=4)
    gang = f"g-{mode.lower()}"
    first = [f"{gang}-{number}" for number in range(2)]
    with world.unbindable(f"{gang}-2"):
        for number in range(3):
            world.create(f"{gang}-{number}", 4, metadata=koordinators(gang, mode=mode))
        world.await_bound(first)
        world.create("single", 4)
        world.await_refused("single")
        world.delete(f"{gang}-2")
        world.await_bound({"single"}, within_s=WAITING_S + 60)  # no pod replaced the third
    if mode == "Strict":
        world.await_deleted(first)
        assert world.blamed("GangIncomplete") == {*first}
        world.run("other-0", "other-1", gpus=4)  # all cards of the gang are free but those of the single pod
    else:
        world.sit_out(10)
        assert {*first} <= world.bound()
        assert not world.blamed("GangIncomplete") & {*first}


@contextmanager
def stuck_gang(world: GangWorld, gang: str) -> Iterator[set[str]]:
    """Create a gang of four pods whose last member fits on no node, because another pod has its port on each node. Central does
    not learn of ports, and plans for all four. The ports are free after the block. Yield the members."""
    porters = [f"porter-{node}" for node in NODES]
    for name, node in zip(porters, NODES, strict=True):
        world.create(name, 0, port=PORT, nodeName=node)
    members = world.create_gang(gang, 4, cpu="25", last={"port": PORT})
    yield members
    for name in porters:
        world.delete(name)


def test_no_member_is_bound_or_holds_cpu_while_one_of_them_is_not_sent_to_bind(world: GangWorld) -> None:
    """Give each member 25 of the 64 cores of a node: while three members are about to be bound, no node has 60 cores free."""
    with stuck_gang(world, "stuck") as members:
        world.plane.eventually(
            lambda: "gang-incomplete" in world.refusals("stuck-0"), "a member that was refused at the barrier"
        )
        world.create("busy", 0, cpu="60")
        world.await_bound({"busy"})
        assert not members & world.bound()
        world.delete("busy")
    world.await_bound(members)
    assert world.cards(members) == 4


def test_a_leader_that_dies_before_the_first_binding_leaves_nothing_to_the_next_one(world: GangWorld) -> None:
    with stuck_gang(world, "g") as members:
        world.await_said("g-0", "phase", "planned")
        with world.leader_killed():
            pass
        assert not members & world.bound()
    world.await_bound(members)
    assert world.cards(members) == 4


def test_a_gang_whose_leader_dies_between_its_bindings_is_finished_before_an_older_one_begins(world: GangWorld) -> None:
    world.run("hold", gpus=CARDS)
    world.run("rest", gpus=CARDS - 4)
    world.create("older-0", 1, metadata=of_gang("older", 2))
    world.await_refused("older-0")
    with world.unbindable("g-2", "g-3"):
        members = world.create_gang("g", 4)
        world.await_bound({"g-0", "g-1"})
        with world.cordoned("n0"), world.cordoned("n1"):  # no card is free until both gangs wait for two
            with world.leader_killed():
                world.create("older-1", 1, metadata=of_gang("older", 2))
            world.await_said("older-0", "reason", "gang-no-room")
            world.await_said("g-2", "phase", "binding")
    world.await_bound(members)
    assert world.bound() == {"hold", "rest", *members}
    assert world.cards(members) == 4
