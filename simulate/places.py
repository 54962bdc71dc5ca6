"""Find by counting whether a pod fits by the positions of its devices: the referee of VFs, topologies and partitions.

The fit of the product searches for the best devices. For a pod of one container, counting is enough to decide whether there are
any. It counts the free cards and VFs in one of the groups of its topology, and checks its `rdma-policy` and the cluster's
partitions. So the referee counts, and checks a placement by the rules of docs/reference.md, without that search. Only the
groups themselves (the devices below one switch, or in one NUMA node) come from the product: distances within a node have one
definition (central/search/topology.py).

Take nodes, and the free parts of their cards. Return whether a pod fits, and book the VFs of placements.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from central.ledger.capacity import card_capacities, inventory_of, vf_capacities
from central.ledger.model import NodeCapacity
from central.ledger.usage import Usage
from central.request.model import PartitionPolicy, RdmaPolicy, Scope
from central.search.joint import sites_of
from central.search.topology import Layout, Site, bits, lay_out
from lading.nodedevices import NodeDevices
from lading.vocabulary import PciAddress
from simulate.objects import render_devices
from simulate.trace import TraceNode, TracePod


class _Group(NamedTuple):
    """Represent a group of devices in one place, with all cards and the usable VFs."""

    cards: frozenset[int]
    vfs: frozenset[PciAddress]


class _Board(NamedTuple):
    """Hold the groups of devices of nodes that are built alike."""

    groups: Mapping[Scope, Sequence[_Group]]
    ports: Sequence[frozenset[PciAddress]]  # usable VFs of each PF that has some
    partitions: Collection[frozenset[int]] | None  # None: partitions are not required


class Places:
    """Book the VFs of all nodes, and judge positions. A node is identified by its index in `nodes`; `partition` is the
    cluster's setting."""

    def __init__(self, nodes: Sequence[TraceNode], partition: PartitionPolicy) -> None:
        boards: dict[Hashable, _Board] = {}
        self._boards: list[_Board] = []
        for node in nodes:
            alike = id(node.devices), node.gpus, node.model
            if alike not in boards:
                boards[alike] = _board_of(node, honored=partition is PartitionPolicy.HONOR)
            self._boards.append(boards[alike])
        self._free = [set().union(*board.ports) for board in self._boards]
        self.vfs = sum(map(len, self._free))
        self.vfs_taken = 0

    def concern(self, pod: TracePod) -> bool:
        """Return whether the positions of devices also decide where the pod fits."""
        return pod.is_somewhere or (pod.whole > 0 and any(board.partitions is not None for board in self._boards))

    def fits(self, node: int, pod: TracePod, cards: Collection[int]) -> bool:
        """Return whether the pod fits on the node. Each of `cards` must have enough free; model, cpu and memory are not
        checked."""
        board, free = self._boards[node], self._free[node]
        if pod.vfs and pod.rdma_policy is RdmaPolicy.PER_SWITCH:
            switches = [switch.cards for switch in board.groups[Scope.SWITCH] if len(switch.vfs & free) >= pod.vfs]
            cards = frozenset(cards) & frozenset().union(*switches)
        if pod.vfs and pod.rdma_policy is RdmaPolicy.PER_PF:
            has_vfs = bool(board.ports) and all(len(port & free) >= pod.vfs for port in board.ports)
            return has_vfs and _suffice(board, pod, cards)  # the scope does not restrict VFs of every PF
        counted = 0 if pod.rdma_policy is RdmaPolicy.PER_SWITCH else pod.vfs
        return any(
            len(group.vfs & free) >= counted and _suffice(board, pod, group.cards.intersection(cards))
            for group in board.groups[pod.scope]
        )

    def take(self, node: int, pod: TracePod, cards: Collection[int], vfs: Collection[PciAddress]) -> bool:
        """Book the devices. Return False, and book nothing, if they are not those requested, or if VFs are not free. Whether
        the cards are free is not checked."""
        board, free, taken = self._boards[node], self._free[node], frozenset(vfs)
        if not taken <= free or len(taken) != len(vfs) or not _fits_request(board, pod, frozenset(cards), taken):
            return False
        free -= taken
        self.vfs_taken += len(taken)
        return True

    def give_back(self, node: int, vfs: Collection[PciAddress]) -> None:
        self._free[node].update(vfs)
        self.vfs_taken -= len(vfs)


def _suffice(board: _Board, pod: TracePod, cards: Collection[int]) -> bool:
    if pod.whole and board.partitions is not None:
        return any(len(partition) == pod.whole and partition.issubset(cards) for partition in board.partitions)
    return len(cards) >= pod.gpus


def _fits_request(board: _Board, pod: TracePod, cards: frozenset[int], vfs: frozenset[PciAddress]) -> bool:
    if not any(cards <= group.cards and vfs <= group.vfs for group in board.groups[pod.scope]):
        return False
    if pod.whole and board.partitions is not None and cards not in board.partitions:
        return False
    if not pod.vfs:
        return not vfs
    match pod.rdma_policy:
        case RdmaPolicy.PER_SWITCH:
            switches = board.groups[Scope.SWITCH]
            return all(len(switch.vfs & vfs) == (pod.vfs if switch.cards & cards else 0) for switch in switches)
        case RdmaPolicy.PER_PF:
            return all(len(port & vfs) == pod.vfs for port in board.ports)
        case RdmaPolicy.NEAREST | RdmaPolicy.COUNT:
            return len(vfs) == pod.vfs


def _board_of(node: TraceNode, *, honored: bool) -> _Board:
    report = msgspec.convert(render_devices(0, node), NodeDevices)
    inventory, unused = inventory_of(report), Usage()
    capacity = NodeCapacity(
        name=node.name,
        version=0,
        cards=card_capacities(inventory, unused, None, ()),
        vfs=vf_capacities(inventory, unused, None, ()),
        partitions=inventory.partitions,
    )
    layout = lay_out(capacity, vfs=True)
    ports: dict[PciAddress, set[PciAddress]] = {}
    for vf in capacity.vfs:
        if vf.usable:
            ports.setdefault(vf.pf.bdf, set()).add(vf.vf.bdf)
    groups = {scope: [_group(capacity, layout, site) for site in sites_of(layout.topology, scope)] for scope in Scope}
    partitions = {_cards(layout, mask) for mask in layout.topology.partitions} if honored and layout.topology.parted else None
    return _Board(groups, [frozenset(vfs) for vfs in ports.values()], partitions)


def _group(capacity: NodeCapacity, layout: Layout, site: Site) -> _Group:
    port_of = layout.topology.port_of
    vfs = (capacity.vfs[place] for number, place in enumerate(layout.vfs) if port_of[number] in site.ports)
    return _Group(_cards(layout, site.cards), frozenset(vf.vf.bdf for vf in vfs if vf.usable))


def _cards(layout: Layout, mask: int) -> frozenset[int]:
    return frozenset(layout.cards[number] for number in bits(mask))
