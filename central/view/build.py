"""Build the `NodeView` of a node from the ledger and the node's report, and totals of many nodes.

The ledger and the report must be of nearly the same moment. The ledger decides which devices are *free*: see
central.ledger.capacity. Whenever the page is opened, all nodes are built beside the scheduling path. So devices without
holders, cordons or problems must cost almost no time.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from central.ledger.capacity import ReportedDevices, inventory_of
from central.ledger.ledger import Ledger
from central.ledger.model import CardCapacity, Claim, Clash, Held, NodeCapacity
from central.view.model import (
    DeviceState,
    GpuView,
    GroupView,
    HolderView,
    MigView,
    NodeState,
    NodeView,
    Past,
    PfView,
    Totals,
    Use,
    VfView,
)
from lading.amounts import divide
from lading.devices.identity import pci_order
from lading.devices.share import FULL_CORE
from lading.nodedevices import EVERYTHING, Gpu, GrantedGpu, NodeDevices, Pf, Place, Status, Vf
from lading.vocabulary import CORDON

Holders = Mapping[str, tuple[HolderView, ...]]  # holders by device: a GPU's or MIG instance's UUID, or a VF's PCI address

_UNKNOWN: Final = 1 << 30  # sort key of an unknown socket or NUMA node: the last
_CLAIMS: Final = tuple(Claim)
NO_INSTANCE: Final = "in MIG mode without an instance"
_IDLE_MIB: Final = 1024  # an idle context uses less memory than this


def node_view(ledger: Ledger, report: NodeDevices | None, name: str) -> NodeView:
    """Build the view of a node. Without a report there are no devices to show, and pods with an assignment there are listed as
    a problem."""
    capacity, held = ledger.capacity(name), ledger.holders(name)
    if report is None:
        return NodeView(name=name, state=NodeState.NO_REPORT, problems=_unreported(held))
    status, inventory = report.status, inventory_of(report)
    holders = _holders(held, status)
    clashes = ledger.conflicts_on(name)
    pfs = _in_order(status.pfs)
    state = _state(capacity, unschedulable=ledger.facts_of(name).unschedulable)
    gives = state is NodeState.READY
    return NodeView(
        name=name,
        state=state,
        gpus=_gpus(capacity, holders, inventory, status, gives=gives),
        pfs=tuple(_pf(pf, holders, inventory, gives=gives) for pf in pfs),
        groups=_groups(status.gpus, pfs),
        problems=(*status.problems, *_unknown_cordons(inventory), *(_clash(clash, holders) for clash in clashes)),
        reporter=status.reporter,
        driver=status.driver,
        cordon=report.metadata.annotations.get(CORDON, ""),
        isolations=status.isolations,
        past=tuple(_past(status)),
    )


def totals(views: Iterable[NodeView]) -> Totals:
    gpus: Counter[DeviceState] = Counter()
    vfs: Counter[DeviceState] = Counter()
    memory_mib = held_mib = held_percent = idle = nodes = not_ready = 0
    for node in views:
        nodes += 1
        not_ready += node.state not in (NodeState.READY, NodeState.UNSCHEDULABLE)
        gpus.update([gpu.state for gpu in node.gpus])
        vfs.update([vf.state for pf in node.pfs for vf in pf.vfs])
        for gpu in node.gpus:
            memory_mib += gpu.memory_mib
            held_mib += gpu.held_mib
            held_percent += gpu.held_percent
            idle += gpu.idle
    return Totals(
        gpus=gpus.total(),
        gpus_free=gpus[DeviceState.FREE],
        gpus_shared=gpus[DeviceState.SHARED],
        gpus_held=gpus[DeviceState.HELD],
        gpus_withheld=gpus[DeviceState.WITHHELD],
        gpus_unusable=gpus[DeviceState.UNUSABLE],
        gpus_idle=idle,
        memory_mib=memory_mib,
        held_mib=held_mib,
        core_percent=FULL_CORE * gpus.total(),
        held_percent=held_percent,
        vfs=vfs.total(),
        vfs_free=vfs[DeviceState.FREE],
        vfs_held=vfs[DeviceState.HELD],
        vfs_withheld=vfs[DeviceState.WITHHELD],
        vfs_unusable=vfs[DeviceState.UNUSABLE],
        nodes=nodes,
        nodes_not_ready=not_ready,
    )


def _state(capacity: NodeCapacity, *, unschedulable: bool) -> NodeState:
    if not capacity.reported:
        return NodeState.NO_REPORT
    if not capacity.reachable:
        return NodeState.UNREACHABLE
    if capacity.rebooted:
        return NodeState.REBOOTED
    if not capacity.reconciled:
        return NodeState.NOT_RECONCILED
    return NodeState.UNSCHEDULABLE if unschedulable else NodeState.READY


# ---- holders


def _holders(held: Iterable[Held], status: Status) -> Holders:
    containers, used = _containers(status), _used(status)
    holders: dict[str, list[HolderView]] = {}
    for one in sorted(held, key=lambda one: (one.holder.namespace, one.holder.name, one.holder.pod)):
        who = HolderView(
            uid=one.holder.pod,
            namespace=one.holder.namespace,
            pod=one.holder.name,
            created=one.since,
            claims=tuple(filter(one.claims.__contains__, _CLAIMS)),
        )
        for uuid, part in one.taken.gpus.items():
            of_card = _replace(
                who,
                containers=containers.get((one.holder.pod, uuid), ()),
                memory_mib=part.memory_mib,
                core_percent=part.core_percent,
                whole=part.whole,
                mig=tuple(sorted(part.mig)),
                isolation=", ".join(part.isolation),
                used_mib=used.get((one.holder.pod, uuid)),
            )
            holders.setdefault(uuid, []).append(of_card)
            for instance in part.mig:
                inside = containers.get((one.holder.pod, instance), ())
                of_instance = _replace(who, containers=inside, used_mib=used.get((one.holder.pod, instance)))
                holders.setdefault(instance, []).append(of_instance)
        for vf in one.taken.vfs:
            holders.setdefault(vf, []).append(_replace(who, containers=containers.get((one.holder.pod, vf), ())))
    return {device: tuple(listed) for device, listed in holders.items()}


def _replace(holder: HolderView, **changes: object) -> HolderView:
    return msgspec.structs.replace(holder, **changes)


def _containers(status: Status) -> Mapping[tuple[str, str], tuple[str, ...]]:
    """Return the names of the containers with a grant of a device, by pod uid and device."""
    names: dict[tuple[str, str], dict[str, None]] = {}
    for grant in status.grants:
        devices = [device for gpu in grant.gpus for device in _devices(gpu)]
        for device in (*devices, *grant.vfs):
            names.setdefault((grant.pod, device), {})[grant.container] = None
    return {key: tuple(listed) for key, listed in names.items()}


def _used(status: Status) -> Mapping[tuple[str, str], int]:
    """Return the memory in MiB that a pod uses of a card or MIG instance, if it is reported for each of the pod's
    containers."""
    granted: Counter[tuple[str, str]] = Counter()
    for grant in status.grants:
        granted.update((grant.pod, device) for gpu in grant.gpus for device in _devices(gpu))
    counts: Counter[tuple[str, str]] = Counter()
    used: Counter[tuple[str, str]] = Counter()
    for card in status.use:
        for one in card.containers:
            for device in filter(None, (card.uuid, one.mig_uuid)):
                counts[one.pod, device] += 1
                used[one.pod, device] += one.memory_used_mib
    return {key: mib for key, mib in used.items() if counts[key] == granted[key]}


def _devices(gpu: GrantedGpu) -> Iterable[str]:
    return filter(None, (gpu.uuid, gpu.mig_uuid))


# ---- devices


def _in_order(devices: Iterable[Pf]) -> list[Pf]:
    return sorted(devices, key=lambda one: pci_order(one.bdf))


def _gpus(
    capacity: NodeCapacity, holders: Holders, inventory: ReportedDevices, status: Status, *, gives: bool
) -> tuple[GpuView, ...]:
    use = {
        one.uuid: Use(memory_mib=one.memory_used_mib, busy_percent=one.busy_percent, at=status.used_at) for one in status.use
    }
    cards = sorted(capacity.cards, key=lambda card: pci_order(card.gpu.bdf))
    return tuple(_gpu(card, index, holders, inventory, use.get(card.gpu.uuid), gives=gives) for index, card in enumerate(cards))


def _gpu(
    card: CardCapacity, index: int, holders: Holders, inventory: ReportedDevices, use: Use | None, *, gives: bool
) -> GpuView:
    gpu = card.gpu
    cordoned = inventory.cordon.covers(gpu.uuid, gpu.bdf)
    mig = tuple(
        MigView(
            uuid=one.uuid,
            profile=one.profile,
            memory_mib=one.memory_mib,
            state=_mig_state(card, one.uuid, holders, gives=gives),
            holders=holders.get(one.uuid, ()),
        )
        for one in gpu.mig
        if not one.slices or one.uuid in holders
    )
    positions = Counter(one.profile for one in gpu.mig if one.slices and one.uuid in card.free_mig) if card.usable else {}
    of_card = holders.get(gpu.uuid, ())
    held_mib, held_percent = _held(card, of_card, mig)
    return GpuView(
        uuid=gpu.uuid,
        bdf=gpu.bdf,
        index=index,
        model=gpu.model,
        memory_mib=gpu.usable_mib,
        state=_card_state(card, of_card, gives=gives),
        held_mib=held_mib,
        held_percent=held_percent,
        why=_why(gpu, cordoned=cordoned) or (NO_INSTANCE if _lacks_instances(card, of_card) else ""),
        cordoned=cordoned,
        holders=of_card,
        mig=mig,
        mig_positions=tuple(f"{count} x {profile}" for profile, count in positions.items()),
        module_id=gpu.module_id,
        nvlinks=sum(links.count for links in gpu.links),
        use=use,
        idle=bool(of_card) and _is_unused(use),
    )


def _is_unused(use: Use | None) -> bool:
    """Return whether the node reports that no process uses this card: 0 % busy, and less than 1 GiB of memory in use."""
    if use is None or (use.memory_mib is None and use.busy_percent is None):
        return False
    return not use.busy_percent and (use.memory_mib or 0) < _IDLE_MIB


def _held(card: CardCapacity, holders: Sequence[HolderView], mig: Sequence[MigView]) -> tuple[int, int]:
    """Return the held MiB and percent of compute of a card. In MIG mode the percentage is the held instances' part of the
    memory."""
    if not holders:
        return 0, 0
    usable = card.gpu.usable_mib
    if any(holder.whole for holder in holders):
        return usable, FULL_CORE
    if mig:
        mib = min(usable, sum(one.memory_mib for one in mig if one.holders))
        return mib, divide(FULL_CORE * mib, usable) if usable else 0
    mib, percent = (sum(getattr(one, amount) for one in holders) for amount in ("memory_mib", "core_percent"))
    return min(usable, mib), min(FULL_CORE, percent)


def _card_state(card: CardCapacity, holders: Sequence[HolderView], *, gives: bool) -> DeviceState:
    if not card.usable or _lacks_instances(card, holders):
        return DeviceState.UNUSABLE
    if not holders:
        return DeviceState.FREE if gives else DeviceState.WITHHELD
    left = card.free_mig if card.gpu.mig_enabled else card.free_mib  # without memory no share fits, whatever its compute
    if not left or any(holder.whole for holder in holders):
        return DeviceState.HELD
    return DeviceState.SHARED if gives else DeviceState.WITHHELD


def _lacks_instances(card: CardCapacity, holders: Sequence[HolderView]) -> bool:
    """Return whether the card is in MIG mode, and neither has a free instance nor is held."""
    return card.gpu.mig_enabled and not card.free_mig and not holders


def _mig_state(card: CardCapacity, uuid: str, holders: Mapping[str, object], *, gives: bool) -> DeviceState:
    if uuid in card.free_mig and card.usable:
        return DeviceState.FREE if gives else DeviceState.WITHHELD
    return DeviceState.HELD if uuid in holders and card.usable else DeviceState.UNUSABLE


def _pf(pf: Pf, holders: Holders, inventory: ReportedDevices, *, gives: bool) -> PfView:
    cordoned = inventory.cordon.covers(pf.bdf)
    reason = _why(pf, cordoned=cordoned)
    free = DeviceState.FREE if gives else DeviceState.WITHHELD
    vfs = sorted(pf.vfs, key=lambda one: pci_order(one.bdf))
    return PfView(
        bdf=pf.bdf,
        ibdev=pf.ibdev,
        netdev=pf.netdev,
        link_layer=pf.link_layer,
        rail=pf.rail,
        why=reason,
        cordoned=cordoned,
        vfs=tuple(_vf(vf, reason, holders.get(vf.bdf, ()), inventory, free) for vf in vfs),
    )


def _vf(vf: Vf, why_pf: str, holders: tuple[HolderView, ...], inventory: ReportedDevices, free: DeviceState) -> VfView:
    """Build the view of a VF. `free`: the state of a healthy VF that no pod holds."""
    reason = _why(vf, cordoned=inventory.cordon.covers(vf.bdf)) or why_pf
    return VfView(
        bdf=vf.bdf, state=DeviceState.UNUSABLE if reason else DeviceState.HELD if holders else free, why=reason, holders=holders
    )


def _why(device: Gpu | Pf | Vf, *, cordoned: bool) -> str:
    used_by, dirty = (device.used_by, device.dirty) if isinstance(device, Gpu) else ("", "")
    if not (device.unhealthy or used_by or dirty or cordoned):
        return ""
    text = (
        device.unhealthy,
        used_by and f"used without a grant by {used_by}",
        dirty and f"dirty: {dirty}",
        "cordoned" if cordoned else "",
    )
    return "; ".join(filter(None, text))


# ---- groups of devices


def _groups(all_gpus: Iterable[Gpu], all_pfs: Iterable[Pf]) -> tuple[GroupView, ...]:
    """Return the GPUs and PFs in groups, one for each root port. `all_pfs` are in the order of their addresses."""
    result: dict[str, tuple[list[Gpu], list[Pf]]] = {}
    for gpu in sorted(all_gpus, key=lambda one: pci_order(one.bdf)):
        result.setdefault(_switch(gpu.place), ([], []))[0].append(gpu)
    for pf in all_pfs:
        result.setdefault(_switch(pf.place), ([], []))[1].append(pf)
    made = [_group(name, gpus, pfs) for name, (gpus, pfs) in result.items()]
    return tuple(sorted(made, key=_where))


def _switch(place: Place) -> str:
    """Return the root port above the device; without a root port its host bridge; without a known bridge its NUMA node."""
    if place.path:
        return place.path[min(1, len(place.path) - 1)]
    return "" if place.numa is None else f"numa{place.numa}"


def _group(name: str, gpus: Sequence[Gpu], pfs: Sequence[Pf]) -> GroupView:
    places = [*(gpu.place for gpu in gpus), *(pf.place for pf in pfs)]
    return GroupView(
        name=name,
        socket=next((place.socket for place in places if place.socket is not None), None),
        numa=next((place.numa for place in places if place.numa is not None), None),
        gpus=tuple(gpu.uuid for gpu in gpus),
        pfs=tuple(pf.bdf for pf in pfs),
    )


def _where(group: GroupView) -> tuple[int, int, tuple[int, str]]:
    socket, numa = (_UNKNOWN if number is None else number for number in (group.socket, group.numa))
    return socket, numa, pci_order(group.name)


# ---- texts


def _past(status: Status) -> Iterable[Past]:
    for one in status.past:
        yield Past(
            device=one.device,
            namespace=one.namespace,
            pod=one.pod_name,
            uid=one.pod,
            container=one.container,
            since=one.since,
            until=one.until,
            by=one.by,
        )


def _unreported(held: Collection[Held]) -> tuple[str, ...]:
    if not held:
        return ()
    pods = sorted(f"{one.holder.namespace}/{one.holder.name}" for one in held)
    return (f"it reports no devices, but pods hold devices of it: {', '.join(pods)}",)


def _unknown_cordons(inventory: ReportedDevices) -> list[str]:
    if not inventory.cordon.names:
        return []
    devices = {EVERYTHING}
    for gpu in inventory.gpus:
        devices.update((gpu.uuid, gpu.bdf, *(mig.uuid for mig in gpu.mig)))
    for pf in inventory.pfs:
        devices.update((pf.bdf, *(vf.bdf for vf in pf.vfs)))
    known = {device.lower() for device in devices}
    return [f"{CORDON} names {name}, which this node does not have" for name in sorted(inventory.cordon.names - known)]


def _clash(clash: Clash, holders: Holders) -> str:
    who = {holder.uid: f"{holder.namespace}/{holder.pod}" for holder in holders.get(clash.device, ())}
    pods = ", ".join(who.get(uid, uid) for uid in clash.pods)
    what = "is held by several pods, but is exclusive" if clash.exclusive else "is overcommitted"
    return f"{clash.device} {what}: {pods}"
