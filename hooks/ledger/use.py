"""Find the card memory that each container with a grant uses, from its processes: process → cgroup → grant.

The driver reports the memory of each process on a card. `lading/cgroups.py` finds the process's pod and container, and the
ledger the pod's grant. A process whose container is not in the ledger yet counts for the pod's only grant of the device. If the
pod has several grants of the device, the use of each is unknown. A holder without a process uses no memory.

The use is also unknown if the driver does not report a card's processes, or on a node that does not see the host's processes.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from hooks.host.processes import sees_host_processes
from hooks.model.grant import Grant, GrantKey
from hooks.model.inventory import Gpu, GpuProcess, Inventory
from lading.cgroups import PodProcess, parse_cgroup, read_cgroups


class Part(NamedTuple):
    """Identify a card or MIG instance together with one container that holds it."""

    device: str  # UUID
    holder: GrantKey


Uses = Mapping[Part, int]  # MiB


def find_use(host_root: Path, inventory: Inventory, grants: Collection[Grant]) -> Uses:
    """Return the memory in use of each held card and MIG instance, if it is known. Raise HostError if /proc cannot be read."""
    if not grants or not sees_host_processes(host_root):
        return {}
    pids = [pid for gpu in inventory.gpus for pid in gpu.process_ids]
    return decide_use(inventory.gpus, read_cgroups(host_root, pids), grants)


def decide_use(gpus: Iterable[Gpu], cgroups: Mapping[int, str], grants: Iterable[Grant]) -> Uses:
    each = {part: sum_mib(processes) for part, processes in sort_processes(gpus, cgroups, grants).items()}
    return {part: mib for part, mib in each.items() if mib is not None}


def sum_mib(processes: Iterable[GpuProcess]) -> int | None:
    """Return the memory of the processes together, in MiB; None if the driver does not report it for one of them."""
    total = 0
    for process in processes:
        if process.used_mib is None:
            return None
        total += process.used_mib
    return total


def sort_processes(
    gpus: Iterable[Gpu], cgroups: Mapping[int, str], grants: Iterable[Grant]
) -> Mapping[Part, tuple[GpuProcess, ...]]:
    """Return the processes of each holder. Holders with unknown processes are left out."""
    of_card: dict[str, list[tuple[Part, Grant]]] = {}
    for grant in grants:
        for granted in grant.devices.gpus:
            part = Part(granted.mig_uuid or granted.uuid, grant.key)
            of_card.setdefault(granted.uuid, []).append((part, grant))
    gpu_processes: dict[Part, tuple[GpuProcess, ...]] = {}
    unknown: set[Part] = set()
    for gpu in gpus:
        if gpu.processes is None:
            continue
        held = of_card.get(gpu.uuid, [])
        gpu_processes.update((part, ()) for part, _ in held)
        for process in gpu.processes:
            owner = parse_cgroup(cgroups.get(process.pid, ""))
            parts = _parts_of(process, owner, gpu, held) if owner else []
            if len(parts) == 1:
                gpu_processes[parts[0]] += (process,)
            elif parts:
                unknown.update(parts)
    return {part: processes for part, processes in gpu_processes.items() if part not in unknown}


def _parts_of(process: GpuProcess, owner: PodProcess, gpu: Gpu, held: Iterable[tuple[Part, Grant]]) -> list[Part]:
    """Return the part that the process uses, or several parts if it is unknown which of them."""
    instance = next((mig.uuid for mig in gpu.mig if (mig.gpu_instance, mig.compute_instance) == process.instance), None)
    of_pod = [(part, grant) for part, grant in held if grant.pod == owner.pod and (instance is None or part.device == instance)]
    exact = [part for part, grant in of_pod if any(one.id == owner.container for one in grant.containers)]
    return exact or [part for part, _ in of_pod]
