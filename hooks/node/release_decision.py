"""Decide a person's release of a device: which VFs are moved back, which grants are freed, and which holders prevent it.

The input is the device's name, the inventory, the ledger's content, and the containers that still run by the runtime's lists.
The result is the steps in order, and the pods that can still use the device. A name of no device is refused, and so is a device
that neither exists nor is held.

A live pod keeps its devices, whatever a person requests. A device that is free in the ledger and open in a container would be
given to two pods. Besides, the next comparison with the runtime would find the holder's grant again. To free the device of a
running pod, delete the pod; a release is for leftovers of a deleted pod. A grant is freed as a whole, with all of its devices,
and not before its VFs are back.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from hooks.attach.plan import describe_release
from hooks.ledger.listing import LedgerContent
from hooks.model.assignment import GrantedDevices
from hooks.model.attachment import Attachment
from hooks.model.grant import Grant
from hooks.model.inventory import Inventory
from hooks.model.lists import ContainerState, Lists
from lading.devices.identity import parse_gpu_uuid, parse_mig_uuid, parse_pci_address, shown
from lading.errors import ConfigError
from lading.vocabulary import ContainerId, GpuUuid, PciAddress, PodUid, SandboxId

_SHORT: Final = 12  # characters of an id, as crictl shows it
_HINT: Final = "lading-hooks ledger shows what there is"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevice:
    """Identify a device. Exactly one of the fields is set."""

    gpu: GpuUuid | None = None
    mig: str | None = None
    vf: PciAddress | None = None

    def __str__(self) -> str:
        return self.gpu or self.mig or self.vf or ""

    def among(self, devices: GrantedDevices) -> bool:
        """Return whether the device is among these devices. The holder of a MIG instance also holds its card."""
        if self.vf is not None:
            return any(vf.bdf == self.vf for vf in devices.vfs)
        return any(self.gpu == gpu.uuid or self.mig == gpu.mig_uuid for gpu in devices.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """Hold the pods, sandboxes and containers that can still use devices, each with the reason as text."""

    pods: Mapping[PodUid, str] = field(default_factory=dict)
    sandboxes: Mapping[SandboxId, str] = field(default_factory=dict)
    containers: Mapping[ContainerId, str] = field(default_factory=dict)

    def uses(self, grant: Grant) -> str:
        """Return why a grant cannot be freed, or an empty string."""
        known = (self.containers.get(container.id, "") for container in grant.containers)
        return self.pods.get(grant.pod, "") or next(filter(None, known), "")

    def uses_vf(self, row: Attachment) -> str:
        """Return why a VF cannot be taken out of its sandbox, or an empty string. The pod may have another sandbox by now."""
        return self.sandboxes.get(row.sandbox, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    device: str
    attachments: tuple[Attachment, ...] = ()  # attachments to release, before the grants
    grants: tuple[Grant, ...] = ()  # grants to free
    in_use: tuple[str, ...] = ()

    @property
    def steps(self) -> list[str]:
        return [*(step for row in self.attachments for step in describe_release(row)), *map(describe_freeing, self.grants)]


def find_device(text: str, inventory: Inventory, content: LedgerContent) -> HeldDevice:
    """Return the device with this name. Raise ConfigError if there is none."""
    address = parse_pci_address(text)
    card = next((gpu.uuid for gpu in inventory.gpus if gpu.bdf == address), None)
    device = HeldDevice(gpu=parse_gpu_uuid(text) or card, mig=parse_mig_uuid(text), vf=None if card else address)
    if not str(device):
        raise ConfigError(f"cannot release {shown(text)}: no PCI address, GPU UUID or MIG UUID", hint=_HINT)
    there = {*(gpu.uuid for gpu in inventory.gpus), *(mig.uuid for gpu in inventory.gpus for mig in gpu.mig)}
    there |= {*(vf.bdf for vf in inventory.vfs), *(row.bdf for row in content.attachments)}
    if str(device) not in there and not any(device.among(grant.devices) for grant in content.grants):
        raise ConfigError(f"cannot release {device}: this node has no such GPU, MIG instance or VF", hint=_HINT)
    return device


def find_alive(lists: Lists) -> Alive:
    """Find the live pods by the runtime's lists. The lists were requested after the ledger was read, so nothing in the ledger
    is newer than the lists."""
    pods: dict[PodUid, str] = {}
    ready: dict[SandboxId, str] = {}
    running: dict[ContainerId, str] = {}
    for sandbox in lists.sandboxes:
        if sandbox.ready:
            ready[sandbox.id] = pods[sandbox.pod] = f"its sandbox {sandbox.id[:_SHORT]} is ready"
    for one in lists.containers:
        if one.state is not ContainerState.EXITED:
            reason = f"its container {one.name} ({one.id[:_SHORT]}) has not exited"
            running[one.id] = ready[one.sandbox] = pods[one.pod] = reason
    return Alive(pods=pods, sandboxes=ready, containers=running)


def decide_release(device: HeldDevice, content: LedgerContent, alive: Alive) -> Release:
    holders = [grant for grant in content.grants if device.among(grant.devices)]
    over = [grant for grant in holders if not alive.uses(grant)]
    rows = [row for row in content.attachments if row.bdf == device.vf or _of_any(row, over)]
    stuck = [row for row in rows if alive.uses_vf(row)]
    kept = [grant for grant in holders if grant not in over]
    in_use = [f"pod {g.namespace}/{g.pod_name} keeps what container {g.container} holds: {alive.uses(g)}" for g in kept]
    in_use += [f"pod {row.namespace}/{row.pod_name} has VF {row.bdf} in its sandbox: {alive.uses_vf(row)}" for row in stuck]
    return Release(
        device=str(device),
        attachments=tuple(row for row in rows if row not in stuck),
        grants=tuple(grant for grant in over if not any(_of_any(row, [grant]) for row in stuck)),
        in_use=tuple(in_use),
    )


def waiting_for(grant: Grant, rows: Iterable[Attachment]) -> Iterator[PciAddress]:
    """Yield the VFs of a grant that are not back from its pod. The grant is not freed before they are back."""
    return (row.bdf for row in rows if _of_any(row, [grant]))


def describe_freeing(grant: Grant) -> str:
    devices = ", ".join(grant.devices.names)
    return f"free what container {grant.container} of pod {grant.namespace}/{grant.pod_name} was granted: {devices}"


def _of_any(row: Attachment, grants: Iterable[Grant]) -> bool:
    """Return whether one of these grants caused the attachment: the VF is the grant's, and in the grant's pod."""
    return any(row.pod == grant.pod and row.bdf in {vf.bdf for vf in grant.devices.vfs} for grant in grants)
