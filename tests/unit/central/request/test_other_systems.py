"""Test cards that another system gave to a pod: they are not free, whether or not they are named."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations

import pytest

from central.request.other_systems import GPUSHARE, GPUSHARE_OLD, HAMI, KAI, KOORDINATOR, RESOURCES, VOLCANO
from tests.fakes.kube_objects import gpu_uuid
from tests.unit.central.world import World

SYSTEMS: dict[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
    "hami": ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2000"}, {HAMI: f"{gpu_uuid('n1', 0)},NVIDIA,2000,0:;"}),
    "koordinator": (
        {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"},
        {KOORDINATOR: json.dumps({"gpu": [{"minor": 0, "id": gpu_uuid("n1", 0), "resources": {}}]})},
    ),
    "koordinator-1.5": ({"koordinator.sh/gpu": "100"}, {KOORDINATOR: '{"gpu": [{"minor": 0, "resources": {}}]}'}),
    "volcano": ({"volcano.sh/vgpu-memory": "3000"}, {VOLCANO: f"{gpu_uuid('n1', 0)},NVIDIA,3000,0:"}),
    "hami-mig": ({"nvidia.com/gpu": "1"}, {HAMI: f"{gpu_uuid('n1', 0)}[1g.10gb-0],NVIDIA,10240,0:;"}),
    "kai": ({"nvidia.com/gpu": "1"}, {KAI: gpu_uuid("n1", 0)}),
    "gpushare": ({"aliyun.com/gpu-mem": "8"}, {GPUSHARE: json.dumps({"0": {"0": 8}})}),
    "gpushare-old": ({"aliyun.com/gpu-mem": "8"}, {GPUSHARE_OLD: "0"}),
}


OFFERED = dict.fromkeys(RESOURCES, "100") | {"aliyun.com/gpu-count": "4"}


def world_of(gpus: int = 4, offered: Mapping[str, str] = OFFERED) -> World:
    world = World.of(n1=gpus)
    world.readiness("n1", True, allocatable=offered)
    return world


@pytest.fixture
def world() -> World:
    return world_of()


def free(world: World) -> list[int]:
    return [at for at, card in enumerate(world.ledger.capacity("n1").cards) if card.free]


def test_cards_of_a_device_plugin_count_by_their_number(world: World) -> None:
    world.show("theirs", {"nvidia.com/gpu": "3"}, node="n1", scheduler="default-scheduler")
    assert len(free(world)) == 1
    world.show("theirs", {"nvidia.com/gpu": "3"}, node="n1", phase="Succeeded")
    assert len(free(world)) == 4


def test_sidecars_count_beside_the_containers_after_them(world: World) -> None:
    one = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    before = [{"name": "side", "restartPolicy": "Always", **one}, {"name": "init", **one}]
    world.show("theirs", {"nvidia.com/gpu": "1"}, node="n1", rules={"initContainers": before})
    assert len(free(world)) == 2


def test_a_pod_does_not_fit_where_another_system_has_the_cards(world: World) -> None:
    world.show("theirs", {"nvidia.com/gpu": "3"}, node="n1")
    assert world.ask("a", limits={"lading.dev/gpu": "2"}).fitting == []
    world.deleted("theirs")
    assert world.filter("a").fitting == ["n1"]


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_card_that_is_named_is_that_card(world: World, system: str) -> None:
    limits, annotations = SYSTEMS[system]
    world.show("theirs", limits, node="n1", annotations=annotations)
    assert free(world) == [1, 2, 3]


@pytest.mark.parametrize("order", list(permutations(("pod", "report", "node"))))
def test_the_order_in_which_pod_and_node_come_makes_no_difference(order: Sequence[str]) -> None:
    world = World()
    steps: dict[str, Callable[[], object]] = {
        "pod": lambda: world.show("theirs", {"nvidia.com/gpu": "3"}, node="n1"),
        "report": lambda: world.report("n1", 4),
        "node": lambda: world.readiness("n1", True, allocatable=OFFERED),
    }
    for step in order:
        steps[step]()
    assert len(free(world)) == 1


@pytest.mark.parametrize("offered", [{}, {"nvidia.com/gpu": "0"}, {"aliyun.com/gpu-mem": "8"}])
def test_a_resource_that_the_node_does_not_offer_takes_nothing(offered: Mapping[str, str]) -> None:
    """Check a pod with such a resource: kubelet admits it, and any user can create it and bind it with spec.nodeName."""
    world = world_of(offered=offered)
    world.show("forged", {"nvidia.com/gpu": "3"}, node="n1", annotations=SYSTEMS["hami"][1])
    assert free(world) == [0, 1, 2, 3]
    world.readiness("n1", True, allocatable=OFFERED)
    assert len(free(world)) == 1


def test_the_number_of_cards_that_gpushare_writes_to_a_node_gives_a_pod_none(world: World) -> None:
    world.show("theirs", {"aliyun.com/gpu-count": "4"}, node="n1")
    assert free(world) == [0, 1, 2, 3]


def test_an_annotation_without_the_resource_takes_nothing(world: World) -> None:
    world.show("forged", {"cpu": "1"}, node="n1", annotations=SYSTEMS["hami"][1])
    assert free(world) == [0, 1, 2, 3]


def test_an_annotation_names_no_more_cards_than_the_resource_counts(world: World) -> None:
    every = "".join(f"{gpu_uuid('n1', card)},NVIDIA,1,0:" for card in range(4))
    world.show("forged", {"nvidia.com/gpu": "1"}, node="n1", annotations={HAMI: f"{every};"})
    assert len(free(world)) == 3


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"gpu": 7}', '{"gpu": [7]}', '{"gpu": [{}]}', '{"gpu": [{"minor": [1]}]}', "[" * 5000, "x" * 100_000],
)
@pytest.mark.parametrize("key", [HAMI, VOLCANO, KAI, KOORDINATOR, GPUSHARE, GPUSHARE_OLD])
def test_an_annotation_that_cannot_be_read_counts_by_number(world: World, key: str, text: str) -> None:
    world.show("theirs", {"nvidia.com/gpu": "2"}, node="n1", annotations={key: text})
    assert len(free(world)) == 2


def test_pods_of_other_systems_are_no_victims() -> None:
    world = world_of(1)
    world.show("theirs", {"nvidia.com/gpu": "1"}, node="n1")
    world.ask("high", priority=9)
    assert world.plan(world.pending_pod("high"), ["n1"]) is None


def test_cards_of_other_systems_are_counted_among_free_cards_first() -> None:
    world = world_of(2)
    world.bind("a", "n1")
    world.show("theirs", {"nvidia.com/gpu": "1"}, node="n1")
    assert free(world) == []
    world.deleted("a")
    assert len(free(world)) == 1


def test_a_list_that_lacks_the_pod_ends_its_claim(world: World) -> None:
    world.show("theirs", {"nvidia.com/gpu": "3"}, node="n1")
    world.pod_feed.replaced([], str(world.next_version()))
    assert len(free(world)) == 4
