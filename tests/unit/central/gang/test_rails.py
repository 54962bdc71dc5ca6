"""Test on which rails the members of a gang are: equal ones, unless that takes more nodes or more distant VFs."""

from collections.abc import Callable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from central.assignment.model import Taken
from central.gang import rails as searched
from central.ledger.model import NodeCapacity
from central.ledger.overlay import rails_of
from lading.vocabulary import GANG_PREFERRED_TOPOLOGY, RESOURCE_GPU, RESOURCE_RDMA
from tests.fakes.capacities import CARD_MIB, MODEL
from tests.fakes.kube_objects import Json, devices_path, gpu_uuid, node, node_path
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.led import Led
from tests.unit.central.gang.members import nodes_of, put_gang, put_member

RACK = "topology.kubernetes.io/rack"
LOW, HIGH = {0, 1, 2, 3}, {4, 5, 6, 7}

Rail = Callable[[int], int | None]


def in_order(nic: int) -> int:
    return nic


def unknown(nic: int) -> None:
    return None


def place(number: int, sockets: int) -> Json:
    """Return a place with a switch for each card and its NIC."""
    socket = number * sockets // 8
    return {"path": [f"pci0000:{number:02x}", f"0000:{number:02x}:01.0"], "numa": socket, "socket": socket}


async def put_node(cluster: Led, name: str, *, rail: Rail = in_order, vfs: int = 1, rack: str = "", sockets: int = 2) -> None:
    """Create a node with 8 cards and 8 NICs of so many VFs each."""
    kind = {"model": MODEL, "memoryMiB": CARD_MIB}
    cards = [
        {"uuid": gpu_uuid(name, n), "bdf": f"0000:{0x10 + n:02x}:00.0", "place": place(n, sockets), **kind} for n in range(8)
    ]
    pfs: list[Json] = []
    for nic in range(8):
        bus = f"0000:{0x60 + nic:02x}"
        functions = [{"bdf": f"{bus}:00.{vf + 1}"} for vf in range(vfs)]
        known = {} if rail(nic) is None else {"rail": rail(nic)}
        pfs.append({"bdf": f"{bus}:00.0", "place": place(nic, sockets), "vfs": functions, **known})
    await cluster.server.put(node_path(name), node(name, labels={RACK: rack} if rack else None))
    report = {"metadata": {"name": name}, "status": {"reconciled": True, "gpus": cards, "pfs": pfs}}
    await cluster.server.put(devices_path(name), report)
    await cluster.pause()


def devices(count: int) -> dict[str, str]:
    """Return limits of so many cards and as many VFs."""
    return {RESOURCE_GPU: str(count), RESOURCE_RDMA: str(count)}


async def take(cluster: Led, node: str, rails: Set[int]) -> None:
    """Have another pod hold these rails of the node: its first ones, or all after those."""
    await cluster.place(f"{node}-first", devices(min(rails) or len(rails)), on=node)
    if min(rails):
        await cluster.place(f"{node}-last", devices(len(rails)), on=node)
        await cluster.remove_pod(f"{node}-first")


FOUR = devices(4)


def taken_by(cluster: Led, name: str) -> tuple[NodeCapacity, Taken]:
    """Return the capacity of the pod's node, and what the pod holds of it."""
    record = cluster.leadership.ledger.pod(cluster.uid(name))
    assert record is not None
    assert record.taken is not None
    return cluster.leadership.ledger.capacity(record.node), record.taken


def rails(cluster: Led, *names: str) -> list[set[int]]:
    return [{*rails_of(capacity, taken.vfs)} for capacity, taken in (taken_by(cluster, name) for name in names)]


def beside(cluster: Led, name: str) -> bool:
    """Return whether each card of the pod has a VF of its own switch."""
    capacity, taken = taken_by(cluster, name)
    cards = {card.gpu.place.path for card in capacity.cards if card.gpu.uuid in taken.gpus}
    return cards == {vf.pf.place.path for vf in capacity.vfs if vf.vf.bdf in taken.vfs}


RACKS = {"n1": {"rack": "a"}, "n2": {"rack": "a"}, "n3": {"rack": "b"}, "n4": {"rack": "b"}}
PREFER = {GANG_PREFERRED_TOPOLOGY: RACK}


class Case(NamedTuple):
    nodes: Mapping[str, Any]  # options of `put_node` by name
    taken: Mapping[str, Set[int]]  # the rails that other pods hold, by node
    on: Set[str] | int  # the nodes of the members, or how many nodes they are on
    rails: Sequence[Set[int]]  # each member's, in any order
    cards: int = 4  # each member's, with as many VFs
    says: Mapping[str, str] = MappingProxyType({})


CASES = {
    "members are on the rails that are free on all of their nodes": Case(
        {"n3": {}, "n4": {}}, {"n3": LOW}, {"n3", "n4"}, [HIGH, HIGH]
    ),
    "members have equal rails if all rails are free": Case(
        {"n2": {}, "n3": {}, "n4": {}}, {}, {"n2", "n3", "n4"}, [{0, 1, 2, 3, 4}] * 3, cards=5
    ),
    "common rails are not worth another node": Case({name: {} for name in RACKS}, {}, 2, [LOW, LOW, HIGH, HIGH]),
    "common rails are not worth a VF farther from its card": Case({"n1": {"vfs": 2}}, {}, {"n1"}, [LOW, HIGH]),
    "a gang is placed although no rails are common": Case(
        {"n1": {}, "n2": {}}, {"n1": LOW, "n2": HIGH}, {"n1", "n2"}, [LOW, HIGH]
    ),
    "members without common rails have as few different rails as possible": Case(  # and not the rails 2 to 5 on n3
        {name: {"sockets": 1} for name in ("n1", "n2", "n3")},
        {"n1": LOW, "n2": HIGH, "n3": {0, 1}},
        {"n1", "n2", "n3"},
        [LOW, HIGH, HIGH],
    ),
    "rails count by their numbers and not by the order of the NICs": Case(
        {"n3": {}, "n4": {"rail": lambda nic: 7 - nic}}, {"n3": LOW}, {"n3", "n4"}, [HIGH, HIGH]
    ),
    "a rack that holds the gang is preferred to common rails": Case(
        {name: RACKS[name] for name in ("n1", "n2", "n3")},
        {"n1": LOW, "n2": HIGH, "n3": LOW},
        {"n1", "n2"},
        [LOW, HIGH],
        says=PREFER,
    ),
    "of two racks that hold the gang the one with common rails is taken": Case(  # rack b has more left, and would come second
        RACKS, {"n1": LOW, "n2": HIGH, "n3": LOW}, {"n3", "n4"}, [HIGH, HIGH], says=PREFER
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_members_are_placed_by_their_rails(cluster: Led, scheduler: KubeScheduler, case: Case) -> None:
    for name, options in case.nodes.items():
        await put_node(cluster, name, **options)
    for name, held in case.taken.items():
        await take(cluster, name, held)
    names = await put_gang(cluster, "g", len(case.rails), limits=devices(case.cards), says=case.says)
    await scheduler.run(2)
    on = {*nodes_of(cluster, *names)}
    assert case.on == (len(on) if isinstance(case.on, int) else on)
    assert sorted(map(sorted, rails(cluster, *names))) == [[*each] for each in case.rails]
    assert all(beside(cluster, name) for name in names)


async def test_a_node_with_the_common_rails_is_preferred_to_a_fuller_node(cluster: Led, scheduler: KubeScheduler) -> None:
    for name in ("n1", "n2", "n3", "n4"):
        await put_node(cluster, name)
    await take(cluster, "n1", LOW)
    await take(cluster, "n2", HIGH)
    names = await put_gang(cluster, "g", 2, limits=FOUR)
    await scheduler.run(2)
    first, second = rails(cluster, *names)
    assert first == second
    assert "n1" in nodes_of(cluster, *names) or "n2" in nodes_of(cluster, *names)


@pytest.mark.parametrize("known", [(), ("n3",), ("n4",)])
async def test_nodes_with_unknown_rails_are_as_good_as_others(
    cluster: Led, scheduler: KubeScheduler, known: Sequence[str]
) -> None:
    for name in ("n3", "n4"):
        await put_node(cluster, name, rail=in_order if name in known else unknown)
    await take(cluster, "n3", LOW)
    names = await put_gang(cluster, "g", 2, limits=FOUR)
    await scheduler.run(2)
    assert sorted(nodes_of(cluster, *names)) == ["n3", "n4"]
    assert all(beside(cluster, name) for name in names)


async def half_of_n3_is_taken(cluster: Led) -> None:
    for name in ("n3", "n4"):
        await put_node(cluster, name)
    await take(cluster, "n3", LOW)


async def test_a_member_with_fewer_vfs_has_its_rails_among_those_of_the_others(cluster: Led, scheduler: KubeScheduler) -> None:
    await half_of_n3_is_taken(cluster)
    await put_member(cluster, "ps", "g", "2", limits=devices(3))
    await put_member(cluster, "worker", "g", "2", limits=FOUR, age=1)
    await scheduler.run(2)
    assert rails(cluster, "ps", "worker") == [{4, 5, 6}, HIGH]


async def test_a_later_member_is_on_the_rails_of_the_running_members(cluster: Led, scheduler: KubeScheduler) -> None:
    await half_of_n3_is_taken(cluster)
    names = await put_gang(cluster, "g", 2, limits=FOUR)
    await scheduler.run(2)
    assert rails(cluster, *names) == [HIGH, HIGH]
    await put_node(cluster, "n5")
    await cluster.place("alone", FOUR, on="n5")
    assert rails(cluster, "alone") == [LOW]
    await cluster.remove_pod("alone")
    await cluster.remove_pod("g1")
    await put_member(cluster, "later", "g", "2", limits=FOUR)
    assert cluster.filter("later", "n5") == ["n5"]
    await cluster.bind("later", "n5")
    await cluster.pause()
    assert rails(cluster, "later") == [HIGH]


async def test_a_gang_is_placed_although_the_steps_of_the_search_are_used_up(
    cluster: Led, scheduler: KubeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searched, "MOST_STEPS", 1)
    await half_of_n3_is_taken(cluster)
    names = await put_gang(cluster, "g", 2, limits=FOUR)
    await scheduler.run(2)
    assert sorted(nodes_of(cluster, *names)) == ["n3", "n4"]
