"""List the holders of the node's devices, since when they hold them, and why a device is not free.

The input is the inventory (with the VFs that are in pods, `attach.overlay`), the ledger's grants, journal and tombstones, and
the processes that use cards. The result has an entry for every GPU, MIG instance and VF. Held devices that no longer exist on
the node have an entry too. `table` shows the entries.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from hooks.ledger.unmanaged import Unmanaged
from hooks.model.assignment import GrantedGpu
from hooks.model.attachment import Attachment, Step
from hooks.model.grant import Grant
from hooks.model.inventory import Gpu, Inventory, Vf
from lading.vocabulary import GpuUuid, PciAddress, SandboxId

_SHORT: Final = 12  # characters of a sandbox's id, as crictl shows it
_MISSING: Final = "the node does not have it (any more)"
_NO_PODS: Final = "the runtime lists no pod at all: free at {time} UTC if that remains so"
_STOPPED: Final = "its sandbox is stopped: free once its containers have exited and its VFs are back"


class Kind(StrEnum):
    GPU = "gpu"
    MIG = "mig"
    VF = "vf"


class State(StrEnum):
    """Represent the state of a device in `lading-hooks ledger -o json`; docs/reference.md explains each state."""

    FREE = "free"
    HELD = "held"
    SHARED = "shared"  # containers hold shares of the card
    ATTACHING = "attaching"
    ATTACHED = "attached"
    RETURNING = "returning"  # the VF is coming back from a pod, or cannot come back
    DIVIDED = "divided"  # a card in MIG mode: given by its instances only
    UNMANAGED = "unmanaged"  # a pod uses the card without a grant
    UNKNOWN_HOLDER = "unknown-holder"  # a VF's network device is in a namespace into which Lading did not put it
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerContent:
    grants: Sequence[Grant] = ()
    attachments: Sequence[Attachment] = ()
    stopped: Mapping[SandboxId, int] = field(default_factory=dict)  # Unix times of the stops
    empty_until: int | None = None  # Unix time when the runtime's empty list of pods is believed; None: the list has pods


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Represent one container's grant of a device."""

    grant: Grant
    gpu: GrantedGpu | None = None  # None: a VF
    stopped_at: int | None = None  # Unix time when its sandbox was asked to stop
    empty_until: int | None = None

    @property
    def name(self) -> str:
        return f"{self.grant.namespace}/{self.grant.pod_name} {self.grant.container}"

    @property
    def note(self) -> str:
        if self.stopped_at is None and self.empty_until is not None:
            return _NO_PODS.format(time=datetime.fromtimestamp(self.empty_until, UTC).strftime("%H:%M:%S"))
        return "" if self.stopped_at is None else _STOPPED

    @property
    def mig_uuid(self) -> str:
        return self.gpu.mig_uuid if self.gpu else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    kind: Kind
    device: str  # UUID or PCI address
    bdf: PciAddress | None  # None: the node no longer has the card
    name: str = ""  # GPU index, MIG profile or ibdev: for people, because these names change
    state: State
    holders: tuple[Holder, ...] = ()
    attachment: Attachment | None = None
    notes: tuple[str, ...] = ()  # further remarks, besides the holders

    @property
    def why(self) -> str:
        """Return why the device is not free; never empty for a device that is not free."""
        granted = [f"granted to {holder.name}" + (f" ({holder.note})" if holder.note else "") for holder in self.holders]
        row = [f"in pod {self.attachment.namespace}/{self.attachment.pod_name}"] if self.attachment else []
        return "; ".join([*granted, *row, *self.notes])

    @property
    def since(self) -> int | None:
        if self.attachment is not None:
            return self.attachment.since
        return min((holder.grant.granted_at for holder in self.holders), default=None)


def list_devices(
    inventory: Inventory, content: LedgerContent, *, unmanaged: Unmanaged, strays: Collection[PciAddress] = frozenset()
) -> tuple[Entry, ...]:
    """List cards with their instances, then VFs, in the order of the inventory. After each kind come the held devices that the
    node no longer has. `strays`: VFs whose network device another process moved away."""
    cards, vfs = _holders(content)
    rows = {row.bdf: row for row in content.attachments}
    known = {vf.bdf for vf in inventory.vfs}
    missing = [bdf for bdf in dict.fromkeys((*vfs, *rows)) if bdf not in known]
    return (
        *(entry for gpu in inventory.gpus for entry in _card(gpu, cards.pop(gpu.uuid, []), unmanaged)),
        *(entry for uuid, holders in cards.items() for entry in _missing_card(uuid, holders)),
        *(_vf(vf, vfs.get(vf.bdf, []), rows.get(vf.bdf), stray=vf.bdf in strays) for vf in inventory.vfs),
        *(_missing_vf(bdf, vfs.get(bdf, []), rows.get(bdf)) for bdf in missing),
    )


def _holders(content: LedgerContent) -> tuple[dict[GpuUuid, list[Holder]], dict[PciAddress, list[Holder]]]:
    cards: dict[GpuUuid, list[Holder]] = {}
    vfs: dict[PciAddress, list[Holder]] = {}
    for grant in content.grants:
        holder = Holder(grant=grant, stopped_at=content.stopped.get(grant.sandbox), empty_until=content.empty_until)
        for gpu in grant.devices.gpus:
            cards.setdefault(gpu.uuid, []).append(replace(holder, gpu=gpu))
        for vf in grant.devices.vfs:
            vfs.setdefault(vf.bdf, []).append(holder)
    return cards, vfs


def _card(gpu: Gpu, holders: Sequence[Holder], unmanaged: Unmanaged) -> Iterator[Entry]:
    own = tuple(holder for holder in holders if not holder.mig_uuid)
    used = unmanaged.held.get(gpu.uuid, "")
    notes = [gpu.unhealthy, f"used by {used}" if used else ""]
    if gpu.mig_enabled:
        notes.append("in MIG mode: its instances are given" if gpu.mig else "in MIG mode, without instances")
    notes += [f"used by process {pid}, which is of no pod" for pid in unmanaged.host.get(gpu.uuid, ())]
    if own:
        state = State.HELD if any(holder.gpu and holder.gpu.whole for holder in own) else State.SHARED
    else:
        state = _unheld(gpu.unhealthy, used, otherwise=State.DIVIDED if gpu.mig_enabled else State.FREE)
    name = str(gpu.index) if gpu.index >= 0 else ""
    yield Entry(kind=Kind.GPU, device=gpu.uuid, bdf=gpu.bdf, name=name, state=state, holders=own, notes=_nonempty(notes))
    for instance in gpu.mig:
        those = tuple(holder for holder in holders if holder.mig_uuid in {"", instance.uuid})
        if not instance.is_made and not those:
            continue  # a free position for a MIG instance is no device
        yield Entry(
            kind=Kind.MIG,
            device=instance.uuid,
            bdf=gpu.bdf,
            name=instance.profile,
            state=State.HELD if those else _unheld(gpu.unhealthy, used, otherwise=State.FREE),
            holders=those,
            notes=_nonempty([gpu.unhealthy, f"its card is used by {used}" if used else ""]),
        )
    known = {instance.uuid for instance in gpu.mig}
    yield from _missing_instances([holder for holder in holders if holder.mig_uuid not in known], gpu.bdf)


def _unheld(unhealthy: str, used: str, *, otherwise: State) -> State:
    return State.UNHEALTHY if unhealthy else State.UNMANAGED if used else otherwise


def _missing_card(uuid: GpuUuid, holders: Sequence[Holder]) -> Iterator[Entry]:
    if whole := tuple(holder for holder in holders if not holder.mig_uuid):
        yield Entry(kind=Kind.GPU, device=uuid, bdf=None, state=State.HELD, holders=whole, notes=(_MISSING,))
    yield from _missing_instances(holders, None)


def _missing_instances(holders: Sequence[Holder], bdf: PciAddress | None) -> Iterator[Entry]:
    for uuid in dict.fromkeys(holder.mig_uuid for holder in holders if holder.mig_uuid):
        those = tuple(holder for holder in holders if holder.mig_uuid == uuid)
        yield Entry(kind=Kind.MIG, device=uuid, bdf=bdf, state=State.HELD, holders=those, notes=(_MISSING,))


def _vf(vf: Vf, holders: Sequence[Holder], row: Attachment | None, *, stray: bool) -> Entry:
    is_copy = row is not None and vf.unhealthy == row.failure  # the overlay copied the row's failure into the VF
    problem = "" if is_copy else vf.problem
    if row is not None:
        state = _state_of(row)
    elif holders:
        state = State.HELD
    elif problem:
        state = State.UNKNOWN_HOLDER if stray else State.UNHEALTHY
    else:
        state = State.FREE
    notes = [_journaled(row, holders) if row else "", problem]
    return Entry(
        kind=Kind.VF,
        device=vf.bdf,
        bdf=vf.bdf,
        name=vf.ibdev,
        state=state,
        holders=tuple(holders),
        attachment=row,
        notes=_nonempty(notes),
    )


def _missing_vf(bdf: PciAddress, holders: Sequence[Holder], row: Attachment | None) -> Entry:
    return Entry(
        kind=Kind.VF,
        device=bdf,
        bdf=bdf,
        state=_state_of(row) if row else State.HELD,
        holders=tuple(holders),
        attachment=row,
        notes=_nonempty([_journaled(row, holders) if row else "", _MISSING]),
    )


def _state_of(row: Attachment) -> State:
    if row.step.releasing:
        return State.RETURNING
    return State.ATTACHED if row.step is Step.ATTACHED else State.ATTACHING


def _journaled(row: Attachment, holders: Sequence[Holder]) -> str:
    others = all(holder.grant.pod != row.pod for holder in holders)
    pod = f" of pod {row.namespace}/{row.pod_name}" if holders and others else ""
    step = "" if row.step is Step.ATTACHED else f", step {row.step}"
    failure = f": {row.failure}" if row.failure else ""
    return f"{row.ifname} in sandbox {row.sandbox[:_SHORT]}{pod} (generation {row.generation}){step}{failure}"


def _nonempty(notes: Iterable[str]) -> tuple[str, ...]:
    return tuple(filter(None, notes))
