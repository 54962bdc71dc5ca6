"""Test the choice between nodes under every policy: linked GPUs, or one partition, come before the policy's preference."""

from collections.abc import Collection
from dataclasses import replace

import msgspec
import pytest

from central.ledger.model import CardCapacity, NodeCapacity
from central.loop.steps import exhaust
from central.rank.verdicts import Verdicts
from central.request.model import NO_CPU_MEMORY, CpuMemory, DeviceRequest, PartitionPolicy, Policy, Shape
from central.search.demand import DEFAULT_LIMITS, Limits
from lading.nodedevices import NvLink, Partition
from tests.fakes.capacities import capacity, card, gpu_uuid, held, request, share, whole

PAIR = request(whole("c", 2))
every_policy = pytest.mark.parametrize("policy", Policy)


class Nodes:
    def __init__(self, policy: Policy, *capacities: NodeCapacity, limits: Limits = DEFAULT_LIMITS) -> None:
        self.capacities = list(capacities)
        self._verdicts = Verdicts(self._since, lambda version: ([], version), policy=policy, limits=limits)

    def _since(self, version: int) -> tuple[list[tuple[str, NodeCapacity | None]], int]:
        return [(one.name, one) for one in self.capacities[max(version, 0) :]], len(self.capacities)

    def best(self, requested: DeviceRequest, requests: CpuMemory = NO_CPU_MEMORY) -> str | None:
        exhaust(self._verdicts.judging(requested))
        return self._verdicts.best(Shape(request=requested, cpu_memory=requests), [one.name for one in self.capacities])


def apart(number: int, *, linked_to: int | None = None, taken: bool = False) -> CardCapacity:
    """Return a card on a switch and a NUMA node of its own."""
    one = held(number, switch=2 * number) if taken else card(number, switch=2 * number)
    links = () if linked_to is None else (NvLink(count=4, to=gpu_uuid(linked_to)),)
    return replace(one, gpu=msgspec.structs.replace(one.gpu, links=links, module_id=number + 1))


def unlinked(name: str) -> NodeCapacity:
    return capacity(apart(0), apart(1), name=name)


def linked(name: str) -> NodeCapacity:
    return capacity(apart(0, linked_to=1), apart(1, linked_to=0), name=name)


def parted(name: str, free: Collection[int]) -> NodeCapacity:
    """Return four cards on one NVSwitch, with the first and third, and the second and fourth, in one partition."""
    cards = [apart(number, taken=number not in free) for number in range(4)]
    cards = [replace(one, gpu=msgspec.structs.replace(one.gpu, links=(NvLink(count=18),))) for one in cards]
    partitions = Partition(id=0, modules=(1, 3)), Partition(id=1, modules=(2, 4))
    return replace(capacity(*cards, name=name), partitions=partitions)


@every_policy
def test_a_linked_pair_comes_before_another_one(policy: Policy) -> None:
    nodes = Nodes(policy, unlinked("n1"), linked("n2"))
    assert nodes.best(PAIR) == "n2"
    assert nodes.best(request(whole("c"))) == "n1"  # one card has no link


@every_policy
def test_a_node_that_came_later_is_no_closer_than_it_is(policy: Policy) -> None:
    """Add a node with equal cards and other links between them."""
    nodes = Nodes(policy, linked("n3"))
    for one in (unlinked("n2"), unlinked("n1")):
        nodes.capacities.append(one)
        assert nodes.best(PAIR) == "n3"
    assert nodes.best(PAIR, CpuMemory(1000, 1024)) == "n3"
    nodes.capacities.append(linked("n0"))
    assert nodes.best(PAIR) == "n0"


@every_policy
def test_a_linked_pair_comes_before_what_a_policy_prefers(policy: Policy) -> None:
    fuller = capacity(*(apart(number, taken=number > 1) for number in range(4)), name="n1")
    emptier = capacity(*(apart(number) for number in range(6)), name="n2")
    assert Nodes(policy, fuller, emptier, linked("n3")).best(PAIR) == "n3"


@every_policy
def test_a_partition_comes_before_cards_that_are_none(policy: Policy) -> None:
    nodes = Nodes(policy, parted("n1", {0, 1}), parted("n2", {0, 2}))
    assert nodes.best(PAIR) == "n2"
    assert nodes.best(request(whole("c"))) == "n1"
    nodes.capacities.append(parted("n0", {1, 3}))
    assert nodes.best(PAIR) == "n0"


@every_policy
def test_a_node_without_partitions_is_not_split(policy: Policy) -> None:
    assert Nodes(policy, parted("n1", {0, 1}), unlinked("n2")).best(PAIR) == "n2"
    assert Nodes(policy, parted("n1", {0, 2}), unlinked("n0")).best(PAIR) == "n1"


def test_a_single_card_is_never_split() -> None:
    empty = capacity(*(apart(number) for number in range(4)), name="n2")
    assert Nodes(Policy.BINPACK, parted("n1", {0, 1}), empty).best(request(whole("c"))) == "n1"


@every_policy
def test_where_partitions_are_honored_the_links_decide(policy: Policy) -> None:
    nodes = Nodes(policy, unlinked("n0"), parted("n1", {0, 1}), parted("n2", {0, 2}))
    assert nodes.best(request(whole("c", 2), partition=PartitionPolicy.HONOR)) == "n2"


def test_shares_of_several_cards_are_closest_too() -> None:
    limits = Limits(spread_containers_per_card=2)
    nodes = Nodes(Policy.SPREAD, unlinked("n1"), linked("n2"), limits=limits)
    assert nodes.best(PAIR) == "n2"
    assert nodes.best(request(share("c", 10))) == "n1"
