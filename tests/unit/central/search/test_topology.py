from dataclasses import replace
from itertools import combinations, permutations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from central.ledger.model import CardCapacity
from central.search.topology import MOST_NVLINKS, Distance, bits, distance, lay_out, link, link_level, nvlinks
from lading.nodedevices import Gpu, NvLink, Partition, Place
from tests.fakes.capacities import capacity, card, eight_gpus, gpu_uuid, place, port, vf

NOWHERE = Place()
ON_ROOT_PORT = Place(path=("pci0000:00", "0000:00:01.0"))


def moved(one: CardCapacity, to: Place) -> CardCapacity:
    return replace(one, gpu=msgspec.structs.replace(one.gpu, place=to))


def with_module(one: CardCapacity, module: int) -> CardCapacity:
    return replace(one, gpu=msgspec.structs.replace(one.gpu, module_id=module))


def linked(number: int, *links: NvLink) -> Gpu:
    return card(number, switch=None, nvlinks=links).gpu


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (place(0, 1), place(0, 2), Distance.SWITCH),
        (place(0), place(1), Distance.BRIDGE),  # two switches below one host bridge
        (Place(path=("pci0000:00", "0000:00:01.0"), numa=0), Place(path=("pci0000:40", "0000:40:01.0"), numa=0), Distance.NUMA),
        (Place(path=("pci0000:00",), numa=0, socket=0), Place(path=("pci0000:40",), numa=1, socket=0), Distance.SOCKET),
        (place(0), place(2), Distance.CROSS),
        (Place(path=("pci0000:00",)), Place(path=("pci0000:00",)), Distance.BRIDGE),  # both on the host bridge itself
        (Place(path=("pci0000:00",)), Place(path=("pci0000:00", "0000:00:01.0")), Distance.BRIDGE),
        (ON_ROOT_PORT, ON_ROOT_PORT, Distance.SWITCH),  # functions of one card
        (ON_ROOT_PORT, Place(path=("pci0000:00", "0000:00:02.0")), Distance.BRIDGE),
        (ON_ROOT_PORT, Place(path=(*ON_ROOT_PORT.path, "0000:01:00.0", "0000:02:00.0")), Distance.SWITCHES),
        (place(0, 1), place(0, 1), Distance.SWITCH),
        (place(0, 1, behind=[4]), place(0, 2, behind=[4]), Distance.SWITCH),
        (place(0, 1, behind=[4]), place(0, 1, behind=[5]), Distance.SWITCHES),
        (place(0, 1, behind=[4]), place(0, 2), Distance.SWITCHES),  # one of them on the first switch itself
        (place(0, 1, behind=[4]), place(0, 4), Distance.SWITCHES),
        (place(0, 1, behind=[4, 6]), place(0, 2, behind=[4, 6]), Distance.SWITCH),
        (place(0, 1, behind=[4, 6]), place(0, 1, behind=[4, 7]), Distance.SWITCHES),
        (place(0, 1, behind=[4, 6]), place(0, 1, behind=[5, 6]), Distance.SWITCHES),
        (place(0, 1, behind=[4]), place(1, 1, behind=[4]), Distance.BRIDGE),
        (NOWHERE, NOWHERE, Distance.CROSS),
        (Place(numa=0), Place(numa=None), Distance.CROSS),
        (Place(numa=0), Place(numa=0), Distance.NUMA),
    ],
)
def test_distance(one: Place, other: Place, expected: Distance) -> None:
    assert distance(one, other) is distance(other, one) is expected


def test_nvlinks_count_directly_and_through_a_switch() -> None:
    to_1 = linked(0, NvLink(count=4, to=gpu_uuid(1)))
    to_switch, few_to_switch = linked(2, NvLink(count=18)), linked(3, NvLink(count=12))
    assert nvlinks(to_1, linked(1)) == nvlinks(linked(1), to_1) == 4
    assert nvlinks(to_switch, few_to_switch) == 12
    assert nvlinks(to_1, to_switch) == 0


def test_more_nvlinks_come_before_fewer_and_any_before_pcie() -> None:
    levels = [link_level(count, Distance.CROSS) for count in (MOST_NVLINKS, 4, 1)] + [link_level(0, far) for far in Distance]
    assert levels == sorted(set(levels))
    assert link_level(2 * MOST_NVLINKS, 0) == levels[0]
    far_but_linked = card(6, nvlinks=[NvLink(count=1, to=gpu_uuid(0))]).gpu
    assert link(far_but_linked, card(0).gpu) < link(card(1).gpu, card(0).gpu)


def test_devices_are_numbers_in_the_order_of_their_addresses() -> None:
    where = capacity(card(2), card(1), vfs=[vf(0, pf=1), vf(1, pf=0), vf(0, pf=0)])
    layout = lay_out(where, vfs=True)
    assert (layout.cards, layout.vfs) == ((1, 0), (2, 1, 0))
    assert layout.topology.port_of == (0, 0, 1)
    assert layout.topology.distances == ((Distance.SWITCH, Distance.BRIDGE), (Distance.BRIDGE, Distance.SWITCH))


def test_groups_of_each_distance_are_a_hierarchy() -> None:
    topology = lay_out(eight_gpus(), vfs=True).topology
    cards = [[bits(site.cards) for site in sites] for sites in topology.groups]
    switches = [[0, 1], [2, 3], [4, 5], [6, 7]]
    halves = [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert cards == [switches, switches, halves, halves, halves, [list(range(8))]]
    assert [[*site.ports] for site in topology.groups[Distance.SWITCH]] == [[0], [1], [2], [3]]


HOST_BRIDGES = [
    *(("pci0000:00", 0, 0), ("pci0000:20", 0, 0), ("pci0000:40", 1, 0), ("pci0000:60", None, 0)),
    ("pci0000:80", None, None),
]


@st.composite
def somewhere(draw: st.DrawFn) -> Place:
    """Draw a place below host bridges with one NUMA node each, at any depth."""
    host, numa, socket = draw(st.sampled_from(HOST_BRIDGES))
    below = draw(st.lists(st.sampled_from("ab"), max_size=6))
    return Place(path=draw(st.sampled_from([(host, *below), (host, *below), ()])), numa=numa, socket=socket)


@given(st.lists(somewhere(), min_size=3, max_size=6))
def test_distances_are_a_hierarchy_and_groups_follow_them(where: list[Place]) -> None:
    for one, other, third in permutations(where, 3):
        assert distance(one, third) <= max(distance(one, other), distance(other, third))
    topology = lay_out(capacity(*(moved(card(n), to) for n, to in enumerate(where))), vfs=False).topology
    for level in Distance:
        group_of = {number: site.number for site in topology.groups[level] for number in bits(site.cards)}
        for (a, at), (b, there) in combinations(enumerate(where), 2):
            assert (group_of[a] == group_of[b]) == (distance(at, there) <= level)


def test_cards_below_one_root_port_are_kept_together_over_its_switches() -> None:
    cards = [card(n, switch=0, behind=[n // 2]) for n in range(4)]
    topology = lay_out(capacity(*cards), vfs=False).topology
    assert [bits(site.cards) for site in topology.groups[Distance.SWITCH]] == [[0, 1], [2, 3]]
    assert [bits(mask) for mask in topology.kept] == [[0, 1, 2, 3]]


def test_cards_below_one_bridge_are_together_although_a_numa_node_is_missing() -> None:
    one, other = (Place(path=("pci0000:00", f"0000:00:0{n}.0"), numa=numa) for n, numa in ((1, 0), (2, None)))
    third = Place(path=("pci0000:40", "0000:40:01.0"), numa=0)
    cards = [card(n) for n in range(3)]
    places = [one, other, third]
    where = capacity(*(moved(one, to) for one, to in zip(cards, places, strict=True)))
    [numa] = lay_out(where, vfs=False).topology.groups[Distance.NUMA]
    assert bits(numa.cards) == [0, 1, 2]


def test_unknown_places_are_alone_until_the_node() -> None:
    where = capacity(card(0, switch=None), card(1, switch=None), vfs=[vf(0, pf=port(0, switch=None))])
    topology = lay_out(where, vfs=True).topology
    assert [len(sites) for sites in topology.groups] == [3, 3, 3, 3, 3, 1]


def test_nodes_that_are_built_alike_have_one_topology() -> None:
    assert lay_out(eight_gpus(), vfs=True).topology is lay_out(eight_gpus(name="n2", held_cards={1}), vfs=True).topology
    assert lay_out(eight_gpus(), vfs=True).topology is not lay_out(capacity(card(0)), vfs=True).topology


def test_partitions_by_module_id_and_not_of_cards_that_are_deleted() -> None:
    cards = [with_module(card(n), module) for n, module in enumerate((3, 1, 4))]
    parts = tuple(Partition(id=n, modules=modules) for n, modules in enumerate([(1, 3), (3, 4), (1, 2), (4,)]))
    topology = lay_out(replace(capacity(*cards), partitions=parts), vfs=False).topology
    assert [bits(mask) for mask in topology.partitions] == [[0, 1], [0, 2], [2]]
    assert {tuple(bits(mask)) for mask in topology.kept} == {(0, 1), (0, 2)}  # one of them is a switch too
