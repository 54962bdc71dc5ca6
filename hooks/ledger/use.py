"""Tell how much memory each container uses of the devices that it was granted: process → cgroup → grant.

The driver tells the memory of each process on a card. `lading/cgroups.py` says which pod and container a process is of, and the
ledger which of the pod's grants it uses. A process whose container is not in the ledger yet counts for the pod's only grant of
the device; where the pod has several, none of them is told. A holder without a process uses nothing.

Nothing is told of a card whose processes the driver does not tell, nor on a node that does not see the host's processes.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from hooks.host.processes import sees_host_processes
from hooks.model.grant import Grant, GrantKey
from hooks.model.inventory import Gpu, GpuProcess, Inventory
from lading.cgroups import PodProcess, parse_cgroup, read_cgroups


class Part(NamedTuple):
    """A card or MIG instance, as one container holds it."""

    device: str  # UUID
    holder: GrantKey


Uses = Mapping[Part, int]  # MiB


def find_use(host_root: Path, inventory: Inventory, grants: Collection[Grant]) -> Uses:
    """Return the memory in use of each held card and instance, where it is known. Raise HostError if /proc cannot be read."""
    if not grants or not sees_host_processes(host_root):
        return {}
    pids = [pid for gpu in inventory.gpus for pid in gpu.process_ids]
    return decide_use(inventory.gpus, read_cgroups(host_root, pids), grants)


def decide_use(gpus: Iterable[Gpu], cgroups: Mapping[int, str], grants: Iterable[Grant]) -> Uses:
    of_card: dict[str, list[tuple[Part, Grant]]] = {}
    for grant in grants:
        for granted in grant.devices.gpus:
            part = Part(granted.mig_uuid or granted.uuid, grant.key)
            of_card.setdefault(granted.uuid, []).append((part, grant))
    found: dict[Part, int | None] = {}
    for gpu in gpus:
        if gpu.processes is None:
            continue
        held = of_card.get(gpu.uuid, [])
        found.update((part, 0) for part, _ in held)
        for process in gpu.processes:
            owner = parse_cgroup(cgroups.get(process.pid, ""))
            if owner is not None:
                _count(process, _parts_of(process, owner, gpu, held), found)
    return {part: mib for part, mib in found.items() if mib is not None}


def _parts_of(process: GpuProcess, owner: PodProcess, gpu: Gpu, held: Iterable[tuple[Part, Grant]]) -> list[Part]:
    """Return the one part that the process uses, or several if it is not known which of them."""
    instance = next((mig.uuid for mig in gpu.mig if (mig.gpu_instance, mig.compute_instance) == process.instance), None)
    of_pod = [(part, grant) for part, grant in held if grant.pod == owner.pod and (instance is None or part.device == instance)]
    exact = [part for part, grant in of_pod if any(one.id == owner.container for one in grant.containers)]
    return exact or [part for part, _ in of_pod]


def _count(process: GpuProcess, parts: Collection[Part], found: dict[Part, int | None]) -> None:
    for part in parts:
        before = found[part]
        unknown = before is None or process.used_mib is None or len(parts) > 1
        found[part] = None if unknown else (before or 0) + (process.used_mib or 0)
