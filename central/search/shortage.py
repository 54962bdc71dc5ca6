"""Find the clear shortage of a node for a demand by counting, without a search. A node without a shortage may still not fit.

Take a node's free capacity (`NodeCapacity`) and a demand. Return a `Missing`, or None; permanent reasons come before temporary
ones. The result is exact for a pod of one container that requests cards, and for VFs of any number of containers.

Tests: tests/unit/central/search/test_fit.py
"""

from collections.abc import Collection, Mapping, Sequence

from central.ledger.model import CardCapacity, NodeCapacity, VfCapacity
from central.request.model import RdmaPolicy
from central.search.demand import Demand, Wanted
from central.search.placement import Missing
from lading.devices.isolation import IsolationName
from lading.vocabulary import PciAddress


def find_shortage(capacity: NodeCapacity, demand: Demand) -> Missing | None:
    if not capacity.reported:
        return Missing.NO_REPORT
    if not capacity.reachable:
        return Missing.UNREACHABLE
    if capacity.rebooted:
        return Missing.REBOOTED
    if not capacity.reconciled:
        return Missing.NOT_RECONCILED
    if not _offers_isolation(capacity, demand):
        return Missing.NO_ISOLATION
    missing = None
    if demand.needs:
        cards = requested_cards(capacity, demand)
        if not cards:
            return Missing.NO_MODEL if demand.models and not _has_model(capacity, demand.models) else Missing.TOO_FEW_GPUS
        for need in demand.needs:
            short = short_of_cards(cards, need)
            if short is not None:
                if short.unresolvable:
                    return short
                missing = missing or short
    if demand.vfs_peak:
        short = short_of_vfs(capacity, demand)
        if short is not None and (missing is None or short.unresolvable):
            return short
    return missing


def _offers_isolation(capacity: NodeCapacity, demand: Demand) -> bool:
    """Return whether the node offers the requested isolation of shares. By MPS, a container reaches one card
    (hooks/isolation/mps.py)."""
    if demand.isolation is not None and demand.isolation not in capacity.offered:
        return False
    return capacity.isolation_of(demand.isolation) is not IsolationName.MPS or not with_several_shares(demand)


def with_several_shares(demand: Demand) -> bool:
    """Return whether a container requests shares of several cards."""
    return any(not one.whole and one.count > 1 for one in demand.wanted)


def requested_cards(capacity: NodeCapacity, demand: Demand) -> Sequence[CardCapacity]:
    """Return the cards that could serve the demand if they were free and healthy; cards in MIG mode are left out."""
    return [card for card in capacity.cards if is_requested(card, demand)]


def is_requested(card: CardCapacity, demand: Demand) -> bool:
    return not card.gpu.mig_enabled and (not demand.models or card.gpu.model in demand.models)


def _has_model(capacity: NodeCapacity, models: Collection[str]) -> bool:
    return any(card.gpu.model in models for card in capacity.cards)


def short_of_cards(cards: Sequence[CardCapacity], need: Wanted) -> Missing | None:
    """Return the reason why the `requested_cards` do not satisfy this one need; None if they do."""
    large = usable = now = 0  # cards that are large enough; of these, usable ones; of these, free ones
    count, whole, core = need.count, need.whole, need.core_percent or 0
    for card in cards:
        mib = 0
        if not whole:
            size = card.gpu.usable_mib
            mib = need.mib_of(size)
            if not 1 <= mib <= size:
                continue
        large += 1
        usable += card.usable
        now += card.free if whole else card.has_free(mib, core)
        if now == count:
            return None
    if len(cards) < count:
        return Missing.TOO_FEW_GPUS
    if large < count:
        return Missing.NO_CARD_LARGE_ENOUGH
    if usable < count:
        return Missing.UNHEALTHY
    return Missing.TOO_FEW_FREE_GPUS if whole else Missing.NO_CARD_WITH_ROOM


def short_of_vfs(capacity: NodeCapacity, demand: Demand) -> Missing | None:
    """Return the reason for too few VFs; None if there are enough. With a VF on each switch, the check covers one switch only,
    because the number of switches follows from the cards."""
    count = demand.vfs_peak
    if demand.rdma is RdmaPolicy.PER_PF:
        return _short_of_each(capacity, count)
    if len([vf for vf in capacity.vfs if vf.free]) >= count:
        return None
    if len(capacity.vfs) < count:
        return Missing.TOO_FEW_VFS
    if sum(vf.usable for vf in capacity.vfs) < count:
        return Missing.UNHEALTHY
    return Missing.TOO_FEW_FREE_VFS


def vfs_by_pf(capacity: NodeCapacity) -> Mapping[PciAddress, Sequence[VfCapacity]]:
    """Return the usable VFs of each PF; a PF without a usable VF is left out."""
    ports: dict[PciAddress, list[VfCapacity]] = {}
    for vf in capacity.vfs:
        if vf.usable:
            ports.setdefault(vf.pf.bdf, []).append(vf)
    return ports


def _short_of_each(capacity: NodeCapacity, count: int) -> Missing | None:
    ports = vfs_by_pf(capacity).values()
    if not ports:
        return Missing.UNHEALTHY if capacity.vfs else Missing.TOO_FEW_VFS
    if any(len(vfs) < count for vfs in ports):
        return Missing.TOO_FEW_VFS_OF_PF
    if any(sum(vf.free for vf in vfs) < count for vfs in ports):
        return Missing.TOO_FEW_FREE_VFS_OF_PF
    return None
