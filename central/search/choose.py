"""Choose the devices of every container of a pod on one node, or return the reason why there are none.

Take the free capacity of a node (`NodeCapacity`) for which `find_shortage` found nothing missing, and a demand. Cards that are
unusable, of another model, or in MIG mode are never chosen.

Tests: tests/unit/central/search/test_fit.py
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Final, NamedTuple, assert_never

from central.assignment.model import PlacedContainer, PlacedGpu, PlacedVf
from central.ledger.capacity import emptied
from central.ledger.model import NodeCapacity
from central.request.model import PartitionPolicy, Policy, RdmaPolicy, Scope
from central.search.cards import Card
from central.search.container_search import Chosen, SearchDevices, SearchEndedError, places_of, search_containers
from central.search.demand import Demand, Wanted
from central.search.placement import Missing, PlacedDevices
from central.search.shortage import is_requested
from central.search.topology import Layout, bits, lay_out, worst_of
from central.search.vfs import FreeVfs, in_pairs
from lading.devices.isolation import IsolationName, most_containers
from lading.nodedevices import Gpu


def choose(capacity: NodeCapacity, demand: Demand, *, policy: Policy, steps: int) -> PlacedDevices | Missing:
    """Choose the pod's devices on the node. `steps` is the maximum number of tried choices."""
    try:
        return _search(capacity, demand, policy, steps) or _why_not(capacity, demand, policy, steps)
    except SearchEndedError as e:
        return e.missing


def choose_briefly(capacity: NodeCapacity, demand: Demand, *, policy: Policy) -> PlacedDevices | Missing:
    """Give each container its best choice in turn, without backtracking. A result equals that of `choose`; NOT_REACHED means
    that only the more expensive `choose` can decide."""
    try:
        return _search(capacity, demand, policy, len(demand.wanted)) or Missing.NOT_REACHED
    except SearchEndedError:
        return Missing.NOT_REACHED


def _search(capacity: NodeCapacity, demand: Demand, policy: Policy, steps: int) -> PlacedDevices | None:
    if len(capacity.cards) == len(demand.wanted) == 1 and not demand.vfs_peak and not demand.bound:
        return _only_choice(capacity.cards[0].gpu, demand.wanted[0], _written_isolation(capacity, demand))
    layout = lay_out(capacity, vfs=demand.vfs_peak > 0)
    chosen = search_containers(_devices(capacity, demand, layout), demand, policy, steps=steps)
    if chosen is None:
        return None
    by_name = {one.wanted.container: one for one in chosen}
    isolation = _written_isolation(capacity, demand)
    return PlacedDevices(
        containers={name: _placed(capacity, layout, by_name[name], isolation) for name, _ in demand.roles},
        distances=worst_of(one.distances for one in chosen),
    )


def _written_isolation(capacity: NodeCapacity, demand: Demand) -> IsolationName | None:
    """Return the isolation that the assignment names, so that a later change of the node's default does not change its meaning.
    Return None for a node that offers only the isolation `none`, or whose report is too old to list isolations."""
    return capacity.isolation_of(demand.isolation) if capacity.isolations else None


def _only_choice(gpu: Gpu, wanted: Wanted, isolation: IsolationName | None) -> PlacedDevices:
    """Return the only choice for one container and one card, where `find_shortage` is already exact; the policy fragmentation
    uses it for each share."""
    return PlacedDevices(containers={wanted.container: PlacedContainer(gpus=(_placed_gpu(gpu, wanted, isolation),))})


def _devices(capacity: NodeCapacity, demand: Demand, layout: Layout) -> SearchDevices:
    cards, untouched = [], 0
    at_most = most_containers(capacity.isolation_of(demand.isolation), sys.maxsize)
    for number, index in enumerate(layout.cards):
        card = capacity.cards[index]
        untouched |= card.free << number
        if card.usable and is_requested(card, demand):
            cards.append(Card(card, demand.phases, number, at_most))
    return SearchDevices(layout.topology, cards, untouched, _free_vfs(capacity, layout), places_of(layout.topology, demand))


def _free_vfs(capacity: NodeCapacity, layout: Layout) -> FreeVfs:
    """Return the free VFs, and the load of each PF. An unusable VF does not count as load."""
    port_of = layout.topology.port_of
    taken = [0] * (max(port_of, default=-1) + 1)
    free = ports = 0
    for number, index in enumerate(layout.vfs):
        vf = capacity.vfs[index]
        if vf.usable:
            port = port_of[number]
            ports |= 1 << port
            if vf.free:
                free |= 1 << number
            else:
                taken[port] += 1
    return FreeVfs(free, 0, tuple(taken), ports)


def _placed(capacity: NodeCapacity, layout: Layout, chosen: Chosen, isolation: IsolationName | None) -> PlacedContainer:
    gpus = tuple(_placed_gpu(card.gpu, chosen.wanted, isolation) for card in chosen.cards)
    if not chosen.vfs:
        return PlacedContainer(gpus=gpus)
    order = in_pairs(layout.topology, [card.number for card in chosen.cards], bits(chosen.vfs))
    vfs = (capacity.vfs[layout.vfs[number]] for number in order)
    return PlacedContainer(gpus=gpus, vfs=tuple(PlacedVf(bdf=one.vf.bdf, pf=one.pf.bdf) for one in vfs))


def _placed_gpu(gpu: Gpu, wanted: Wanted, isolation: IsolationName | None) -> PlacedGpu:
    if wanted.whole:
        return PlacedGpu(uuid=gpu.uuid, bdf=gpu.bdf)
    return PlacedGpu(
        uuid=gpu.uuid,
        bdf=gpu.bdf,
        memory_mib=wanted.mib_of(gpu.usable_mib),
        core_percent=wanted.core_percent,
        core_limit_percent=wanted.core_limit_percent,
        isolation=isolation,
    )


# Why not


def _why_not(capacity: NodeCapacity, demand: Demand, policy: Policy, steps: int) -> Missing:
    """Return the reason why the node does not fit, found by searching for any placement of one container alone and of all
    together. The node is tried as it is, with all pods removed, and with all devices healthy too."""
    never, not_now = Missing.NODE_TOO_SMALL, Missing.SHARES_DO_NOT_FIT
    if bound := find_bound(capacity, demand, policy, steps=steps):
        demand = bound.demand
        never, not_now = MISSING_OF[bound.bonds[0]]
    if _may_fit(emptied(capacity), demand, policy, steps):
        return not_now
    return Missing.UNHEALTHY if _may_fit(emptied(capacity, healthy=True), demand, policy, steps) else never


Bond = PartitionPolicy | RdmaPolicy | Scope
# Two reasons for each bond: the first if the pod does not fit on an empty node either, the second if it does.
MISSING_OF: Final[Mapping[Bond, tuple[Missing, Missing]]] = {
    PartitionPolicy.HONOR: (Missing.NO_PARTITION, Missing.NO_FREE_PARTITION),
    RdmaPolicy.PER_SWITCH: (Missing.TOO_FEW_VFS_OF_SWITCH, Missing.TOO_FEW_FREE_VFS_OF_SWITCH),
    **dict.fromkeys(Scope, (Missing.NOT_WITHIN_SCOPE, Missing.NOT_FREE_WITHIN_SCOPE)),
}


class BoundDemand(NamedTuple):
    """Represent a container that does not fit because its devices are bound to a place."""

    demand: Demand  # the demand of this container alone
    bonds: Sequence[Bond]  # the smallest set of bonds without which the container would fit


def find_bound(capacity: NodeCapacity, demand: Demand, policy: Policy, *, steps: int) -> BoundDemand | None:
    """Return the first container that fits by counting, but not in its required place; None if each container fits alone."""
    for wanted in demand.wanted if demand.bound else ():
        of_one = replace(demand, wanted=(wanted,))
        if not _may_fit(capacity, of_one, policy, steps):
            return BoundDemand(of_one, _in_the_way(capacity, of_one, policy, steps))
    return None


def _in_the_way(capacity: NodeCapacity, of_one: Demand, policy: Policy, steps: int) -> Sequence[Bond]:
    """Return the smallest set of bonds without which the container would fit; all bonds if no smaller set is enough."""
    bonds = bonds_of(of_one)
    for count in range(1, len(bonds)):
        for some in combinations(bonds, count):
            if _may_fit(capacity, _loosened(of_one, some), policy, steps):
                return some
    return bonds


def _may_fit(capacity: NodeCapacity, demand: Demand, policy: Policy, steps: int) -> bool:
    devices = _devices(capacity, demand, lay_out(capacity, vfs=demand.vfs_peak > 0))
    try:
        return search_containers(devices, demand, policy, steps=steps, first=True) is not None
    except SearchEndedError:
        return True


def bonds_of(demand: Demand) -> Sequence[Bond]:
    """Return the rules that bind the demand's devices to a place."""
    bonds: list[Bond] = [PartitionPolicy.HONOR] if demand.partition is PartitionPolicy.HONOR else []
    bonds += [RdmaPolicy.PER_SWITCH] if demand.rdma is RdmaPolicy.PER_SWITCH else []
    bonds += [demand.scope] if demand.scope is not Scope.ANY else []
    return bonds


def _loosened(demand: Demand, bonds: Sequence[Bond]) -> Demand:
    """Return the demand without these bonds, otherwise unchanged."""
    for bond in bonds:
        match bond:
            case PartitionPolicy():
                demand = replace(demand, partition=None)
            case RdmaPolicy():
                demand = replace(demand, rdma=RdmaPolicy.COUNT)
            case Scope():
                demand = replace(demand, scope=Scope.ANY)
            case _:
                assert_never(bond)
    return demand
