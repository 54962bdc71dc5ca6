"""Build a node's free capacity (`NodeCapacity`) from its devices and their use, and check requested devices against it.

Search and reservation use this one definition of *free*.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from central.assignment.model import Part, Taken
from central.ledger.model import CardCapacity, NodeCapacity, VfCapacity
from central.ledger.usage import UNUSED, CardUse, Usage
from lading.devices.isolation import IsolationName, isolation_names, most_containers
from lading.devices.share import FULL_CORE, Amounts, left_of_card
from lading.nodedevices import Cordon, Gpu, NodeDevices, Partition, Pf, Vf
from lading.vocabulary import CORDON


class ReportedDevices(NamedTuple):
    """Hold the devices of a node's report, and the cordons that a person set."""

    gpus: tuple[Gpu, ...] = ()
    pfs: tuple[Pf, ...] = ()
    partitions: tuple[Partition, ...] = ()
    isolations: tuple[IsolationName, ...] = ()  # isolations of shares, the default first; empty: only `none`
    cordon: Cordon = Cordon()
    reported: bool = False
    reconciled: bool = False
    boot_id: str = ""  # boot id in the report; empty: unknown


def inventory_of(report: NodeDevices) -> ReportedDevices:
    return ReportedDevices(
        gpus=report.status.gpus,
        pfs=report.status.pfs,
        partitions=report.status.partitions,
        isolations=isolation_names(report.status.isolations),
        cordon=Cordon.parse(report.metadata.annotations.get(CORDON, "")),
        reported=True,
        reconciled=report.status.reconciled,
        boot_id=report.status.boot_id,
    )


def card_capacities(
    inventory: ReportedDevices, usage: Usage, last: NodeCapacity | None, changed: Collection[str]
) -> tuple[CardCapacity, ...]:
    """Return the cards. Unchanged cards are taken from an earlier `NodeCapacity` of the same inventory (`last`)."""
    cards = usage.cards
    if last is None:
        return tuple(_card_capacity(gpu, cards.get(gpu.uuid, UNUSED), inventory) for gpu in inventory.gpus)
    return tuple(
        _card_capacity(capacity.gpu, cards.get(capacity.gpu.uuid, UNUSED), inventory)
        if capacity.gpu.uuid in changed
        else capacity
        for capacity in last.cards
    )


def vf_capacities(
    inventory: ReportedDevices, usage: Usage, last: NodeCapacity | None, changed: Collection[str]
) -> tuple[VfCapacity, ...]:
    held = usage.vfs
    if last is None:
        return tuple(_vf_capacity(pf, vf, vf.bdf in held, inventory) for pf in inventory.pfs for vf in pf.vfs)
    return tuple(
        _vf_capacity(capacity.pf, capacity.vf, capacity.vf.bdf in held, inventory) if capacity.vf.bdf in changed else capacity
        for capacity in last.vfs
    )


def _card_capacity(gpu: Gpu, use: CardUse, inventory: ReportedDevices) -> CardCapacity:
    isolations = use.isolations
    most = min((most_containers(isolation, gpu.max_shares) for isolation in isolations), default=gpu.max_shares)
    in_parts = not gpu.mig_enabled and not use.whole and not use.mig and use.containers < most
    free = left_of_card(gpu.usable_mib, Amounts(use.memory_mib, use.core_percent)) if in_parts else Amounts()
    return CardCapacity(
        gpu=gpu,
        free_mib=free.memory_mib,
        free_core=free.core_percent,
        pods=use.pods,
        containers=use.containers,
        usable=not (gpu.unhealthy or gpu.used_by or gpu.dirty) and not inventory.cordon.covers(gpu.uuid, gpu.bdf),
        free_mig=() if use.whole or not gpu.mig else _free_instances(gpu, use, inventory),
        sharers=use.sharers,
        isolations=isolations,
    )


def emptied(capacity: NodeCapacity, *, healthy: bool = False) -> NodeCapacity:
    """Return the free capacity as if no pod held a device; with `healthy`, as if all devices were in order too."""
    vfs = tuple(replace(vf, usable=True, free=True) if healthy else replace(vf, free=vf.usable) for vf in capacity.vfs)
    cards = tuple(_emptied_card(card) if healthy or card.usable else card for card in capacity.cards)
    return replace(capacity, cards=cards, vfs=vfs)


def _emptied_card(card: CardCapacity) -> CardCapacity:
    return replace(card, usable=True, pods=0, containers=0, free_mib=card.gpu.usable_mib, free_core=FULL_CORE)


def _free_instances(gpu: Gpu, use: CardUse, inventory: ReportedDevices) -> tuple[str, ...]:
    held = [mig for mig in gpu.mig if mig.uuid in use.mig]
    return tuple(
        mig.uuid
        for mig in gpu.mig
        if mig.uuid not in use.mig and not any(map(mig.overlaps, held)) and not inventory.cordon.covers(mig.uuid)
    )


def _vf_capacity(pf: Pf, vf: Vf, held: bool, inventory: ReportedDevices) -> VfCapacity:
    usable = not vf.unhealthy and not pf.unhealthy and not inventory.cordon.covers(vf.bdf, pf.bdf)
    return VfCapacity(vf=vf, pf=pf, usable=usable, free=usable and not held)


def lacking(capacity: NodeCapacity, taken: Taken) -> str | None:
    """Return a device that cannot be taken as requested; None if all can. The caller checks whether the node serves."""
    cards = {card.gpu.uuid: card for card in capacity.cards if card.gpu.uuid in taken.gpus}
    for uuid, part in taken.gpus.items():
        if uuid not in cards or not _has_room(cards[uuid], part) or not set(part.isolation).issubset(capacity.isolations):
            return uuid
    free = {vf.vf.bdf for vf in capacity.vfs if vf.free} if taken.vfs else frozenset()
    return min(taken.vfs - free, default=None)


def _has_room(card: CardCapacity, part: Part) -> bool:
    if part.whole:
        return card.free
    if not part.mig <= set(card.free_mig):
        return False
    if (part.memory_mib or part.core_percent) and not (card.admits(part.sharing) and _joins(card, part)):
        return False
    return card.has_free(part.memory_mib, part.core_percent)


def _joins(card: CardCapacity, part: Part) -> bool:
    return all(card.joins(isolation) for isolation in part.isolation or (IsolationName.NONE,))


def gained(before: NodeCapacity, after: NodeCapacity) -> bool:
    """Return whether a pod that did not fit before might fit now."""
    if not after.serving:
        return False
    if _is_described_otherwise(before, after):
        return True
    had = {card.gpu.uuid: card for card in before.cards if before.serving and card.usable}
    had_vfs = {vf.vf.bdf for vf in before.vfs if before.serving and vf.free}
    return any(vf.free and vf.vf.bdf not in had_vfs for vf in after.vfs) or any(
        card.usable and (card.free or card.free_mib or card.free_core or card.free_mig) and _more(had.get(card.gpu.uuid), card)
        for card in after.cards
    )


def _is_described_otherwise(before: NodeCapacity, after: NodeCapacity) -> bool:
    """Return whether a device moved or is of another kind, or a constraint on other devices ended, so that a refused pod may
    fit now."""
    if after.isolations != before.isolations:
        return True
    if after.partitions != before.partitions and not (after.partitions and set(after.partitions) <= set(before.partitions)):
        return True
    known = {card.gpu.uuid: card.gpu for card in before.cards}
    places = {vf.vf.bdf: vf.pf.place for vf in before.vfs}
    both = [(known[card.gpu.uuid], card.gpu) for card in after.cards if card.gpu.uuid in known]
    if any(was is not now and _is_another(was, now) for was, now in both):
        return True
    if any(places.get(vf.vf.bdf, vf.pf.place) != vf.pf.place for vf in after.vfs):
        return True
    ports, ports_now = ({vf.pf.bdf for vf in capacity.vfs if vf.usable} for capacity in (before, after))
    # The policy per-pf requests one VF of every PF, so that fewer PFs make a request possible.
    return bool(ports_now) and not ports <= ports_now


def _is_another(before: Gpu, after: Gpu) -> bool:
    """Return whether the device was replaced. Health, users and sizes are ignored, because free capacity reflects them."""
    was, now = ((gpu.model, gpu.place, gpu.module_id, gpu.links) for gpu in (before, after))
    profiles = {mig.uuid: mig.profile for mig in before.mig}
    return was != now or any(profiles.get(mig.uuid, mig.profile) != mig.profile for mig in after.mig)


def _more(before: CardCapacity | None, after: CardCapacity) -> bool:
    if before is None:
        return True
    return (
        after.free_mib > before.free_mib
        or after.free_core > before.free_core
        or not set(after.free_mig) <= set(before.free_mig)
    )
