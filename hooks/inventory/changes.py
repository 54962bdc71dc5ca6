"""Compare two inventories, and return the changes as values: for the log, and for the code that acts on unhealthy devices.

A device's own numbers (index, minor, ibdev, netdev) may change, and its processes often do: neither is a change here.
"""

from dataclasses import dataclass
from enum import StrEnum

from hooks.model.inventory import Inventory


class ChangeKind(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    UNHEALTHY = "unhealthy"  # also a device that is unhealthy when first seen, and one whose reason changed
    HEALTHY = "healthy"
    PROBLEM = "problem"
    SOLVED = "solved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    kind: ChangeKind
    device: str = ""  # UUID of a GPU or MIG instance, PCI address of a PF or VF
    reason: str = ""  # why it is unhealthy, or the problem in words


def decide_changes(old: Inventory, new: Inventory) -> tuple[Change, ...]:
    """Return the changes of devices, in the order of the inventories, then those of problems."""
    before, after = _health(old), _health(new)
    changes = [Change(kind=ChangeKind.REMOVED, device=device) for device in before if device not in after]
    for device, reason in after.items():
        if device not in before:
            changes.append(Change(kind=ChangeKind.ADDED, device=device))
        if reason and reason != before.get(device):
            changes.append(Change(kind=ChangeKind.UNHEALTHY, device=device, reason=reason))
        elif not reason and before.get(device):
            changes.append(Change(kind=ChangeKind.HEALTHY, device=device))
    changes += [Change(kind=ChangeKind.PROBLEM, reason=text) for text in new.problems if text not in old.problems]
    changes += [Change(kind=ChangeKind.SOLVED, reason=text) for text in old.problems if text not in new.problems]
    return tuple(changes)


def _health(inventory: Inventory) -> dict[str, str]:
    health: dict[str, str] = {}
    for gpu in inventory.gpus:
        health[gpu.uuid] = gpu.unhealthy
        health.update((instance.uuid, gpu.unhealthy) for instance in gpu.mig)
    for pf in inventory.pfs:
        health[pf.bdf] = pf.unhealthy
        health.update((vf.bdf, vf.unhealthy) for vf in pf.vfs)
    return health
