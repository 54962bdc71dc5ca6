"""Test MIG instances that the node creates on demand, through filter, bind and watch: positions with common memory exclude each
other. The node is the simulated one, as its own code reports it."""

import json

import pytest

from central.decide.why_pod import why_pending
from central.search.placement import Missing
from lading.kube.objects import AnnotatedMetadata
from lading.nodedevices import NodeDevices
from simnode.reported import read_status
from tests.fakes.kube_objects import WHOLE
from tests.unit.central.world import World

TWO = {"lading.dev/gpu": "2"}


@pytest.fixture
def world() -> World:
    made = World.of(n1=0)
    metadata = AnnotatedMetadata(name="n1", resource_version=str(made.next_version()))
    made.devices_feed.changed(NodeDevices(metadata=metadata, status=read_status("mig-on-demand")))
    return made


def create(world: World, name: str, profile: str, limits: dict[str, str] = WHOLE) -> None:
    world.show(name, limits, annotations={"lading.dev/mig-profile": profile})


def fits(world: World, profile: str, limits: dict[str, str] = WHOLE) -> bool:
    tried = f"tried-{world.next_version()}"  # a pod that is gone does not come back
    create(world, tried, profile, limits)
    answer = world.filter(tried)
    world.deleted(tried)
    return answer.fitting == ["n1"]


def bind(world: World, name: str, profile: str, limits: dict[str, str] = WHOLE) -> list[str]:
    """Return the positions in its assignment."""
    reserved = world.bind(name, "n1", limits, annotations={"lading.dev/mig-profile": profile})
    gpus = json.loads(reserved.assignment)["containers"]["main"]["gpus"]
    return [gpu["uuid"].partition("/")[2] for gpu in gpus]


def test_small_instances_leave_room_for_large_ones(world: World) -> None:
    assert bind(world, "a", "1g.10gb") == ["1g.10gb@6"]
    assert fits(world, "4g.40gb")
    assert not fits(world, "7g.80gb")
    assert bind(world, "b", "2g.20gb") == ["2g.20gb@4"]
    assert bind(world, "c", "4g.40gb") == ["4g.40gb@0"]
    create(world, "d", "1g.10gb")
    assert world.filter("d").fails == {"n1": Missing.TOO_FEW_FREE_MIG.shown}
    (reason,) = why_pending(world.scheduler, world.pending_pod("d"), now=0.0).nodes
    assert "of 7 such 7 held" in reason.detail


def test_a_position_is_free_again_when_the_last_pod_that_takes_its_memory_has_ended(world: World) -> None:
    bind(world, "a", "1g.10gb")
    bind(world, "b", "1g.10gb")
    world.deleted("a")
    assert not fits(world, "7g.80gb")
    world.deleted("b")
    assert fits(world, "7g.80gb")


def test_a_pod_gets_positions_that_do_not_overlap(world: World) -> None:
    assert sorted(bind(world, "a", "3g.40gb", TWO)) == ["3g.40gb@0", "3g.40gb@4"]
    assert not any(fits(world, profile) for profile in ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"))


def test_seven_small_instances_are_one_card(world: World) -> None:
    positions = [position for number in range(7) for position in bind(world, f"p{number}", "1g.10gb")]
    assert sorted(positions) == [f"1g.10gb@{number}" for number in range(7)]
    assert not fits(world, "1g.10gb")


def test_a_profile_that_the_card_has_no_position_for_fits_nowhere(world: World) -> None:
    create(world, "a", "5g.50gb")
    assert world.filter("a").never == {"n1": Missing.TOO_FEW_MIG.shown}
