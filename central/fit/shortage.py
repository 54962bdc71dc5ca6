"""Find what a node clearly lacks for a demand, by counting: no search, no text. A node that lacks nothing here may fit.

It takes a room and a demand. It returns a Missing (what can never fit comes before what does not fit now), or None. Exact for a
pod of one container that asks for cards, and for VFs of any number of containers.
"""

from collections.abc import Collection, Mapping, Sequence

from central.fit.demand import Demand, Wanted
from central.fit.model import Missing
from central.ledger.model import CardRoom, NodeRoom, VfRoom
from central.request.model import RdmaPolicy
from lading.devices.isolation import IsolationName
from lading.vocabulary import PciAddress


def find_shortage(room: NodeRoom, demand: Demand) -> Missing | None:
    if not room.reported:
        return Missing.NO_REPORT
    if not room.reachable:
        return Missing.UNREACHABLE
    if room.rebooted:
        return Missing.REBOOTED
    if not room.reconciled:
        return Missing.NOT_RECONCILED
    if not _offers_isolation(room, demand):
        return Missing.NO_ISOLATION
    missing = None
    if demand.needs:
        cards = requested_cards(room, demand)
        if not cards:
            return Missing.NO_MODEL if demand.models and not _has_model(room, demand.models) else Missing.TOO_FEW_GPUS
        for need in demand.needs:
            short = short_of_cards(cards, need)
            if short is not None:
                if short.unresolvable:
                    return short
                missing = missing or short
    if demand.vfs_peak:
        short = short_of_vfs(room, demand)
        if short is not None and (missing is None or short.unresolvable):
            return short
    return missing


def _offers_isolation(room: NodeRoom, demand: Demand) -> bool:
    """Return whether the node can give the shares as asked. By MPS, a container reaches one card (hooks/isolation/mps.py)."""
    if demand.isolation is not None and demand.isolation not in room.offered:
        return False
    return room.isolation_of(demand.isolation) is not IsolationName.MPS or not with_several_shares(demand)


def with_several_shares(demand: Demand) -> bool:
    """Return whether a container asks for shares of several cards."""
    return any(not one.whole and one.count > 1 for one in demand.wanted)


def requested_cards(room: NodeRoom, demand: Demand) -> Sequence[CardRoom]:
    """Return the cards that could serve the demand if no pod held them and nothing were wrong with them; a card in MIG mode
    could not."""
    return [card for card in room.cards if is_requested(card, demand)]


def is_requested(card: CardRoom, demand: Demand) -> bool:
    return not card.gpu.mig_enabled and (not demand.models or card.gpu.model in demand.models)


def _has_model(room: NodeRoom, models: Collection[str]) -> bool:
    return any(card.gpu.model in models for card in room.cards)


def short_of_cards(cards: Sequence[CardRoom], need: Wanted) -> Missing | None:
    """Return what is missing of `requested_cards`, for one need by itself."""
    large = usable = now = 0  # enough; and may be given; and is free
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


def short_of_vfs(room: NodeRoom, demand: Demand) -> Missing | None:
    """Return what is missing of VFs. With a VF on each switch, whose number follows from the cards: for one switch."""
    count = demand.vfs_peak
    if demand.rdma is RdmaPolicy.PER_PF:
        return _short_of_each(room, count)
    if len([vf for vf in room.vfs if vf.free]) >= count:
        return None
    if len(room.vfs) < count:
        return Missing.TOO_FEW_VFS
    if sum(vf.usable for vf in room.vfs) < count:
        return Missing.UNHEALTHY
    return Missing.TOO_FEW_FREE_VFS


def vfs_by_pf(room: NodeRoom) -> Mapping[PciAddress, Sequence[VfRoom]]:
    """Return the VFs that may be given, by PF, of each PF that has one."""
    ports: dict[PciAddress, list[VfRoom]] = {}
    for vf in room.vfs:
        if vf.usable:
            ports.setdefault(vf.pf.bdf, []).append(vf)
    return ports


def _short_of_each(room: NodeRoom, count: int) -> Missing | None:
    ports = vfs_by_pf(room).values()
    if not ports:
        return Missing.UNHEALTHY if room.vfs else Missing.TOO_FEW_VFS
    if any(len(vfs) < count for vfs in ports):
        return Missing.TOO_FEW_VFS_OF_PF
    if any(sum(vf.free for vf in vfs) < count for vfs in ports):
        return Missing.TOO_FEW_FREE_VFS_OF_PF
    return None
