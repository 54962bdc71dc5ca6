"""Find cards in use by pods without a grant: pods from before Lading was installed, pods of a device plugin, or privileged
pods.

`lading/cgroups.py` reads the cgroup of each GPU process. `decide_unmanaged` separates pods from host processes, and leaves out
pods that hold the card by a grant. A process that has ended meanwhile does not count.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hooks.host.attributes import read_attribute
from hooks.model.grant import Grant
from hooks.model.inventory import Gpu, Inventory
from lading.cgroups import parse_cgroup, read_cgroups
from lading.devices.identity import shown
from lading.vocabulary import GpuUuid


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmanaged:
    held: Mapping[GpuUuid, str] = field(default_factory=dict)  # user of each card, as text
    host: Mapping[GpuUuid, tuple[int, ...]] = field(default_factory=dict)  # processes in no pod: reported only


def find_unmanaged(host_root: Path, inventory: Inventory, grants: Collection[Grant]) -> Unmanaged:
    """Find the cards that are in use without a grant at this moment, and their users. A process of the inventory may have ended
    by now, and its pod's grant too."""
    pids = [pid for gpu in inventory.gpus for pid in gpu.process_ids]
    return decide_unmanaged(inventory.gpus, read_cgroups(host_root, pids), grants)


def name_processes(host_root: Path, pids: Iterable[int]) -> list[tuple[int, str]]:
    """Return each process that still exists, with its name."""
    names = ((pid, read_attribute(host_root / "proc" / str(pid) / "comm")) for pid in pids)
    return [(pid, shown(name)) for pid, name in names if name is not None]


def decide_unmanaged(gpus: Iterable[Gpu], cgroups: Mapping[int, str], grants: Collection[Grant]) -> Unmanaged:
    if not cgroups:
        return Unmanaged()
    granted = {(grant.pod, gpu.uuid) for grant in grants for gpu in grant.devices.gpus}
    held: dict[GpuUuid, str] = {}
    host: dict[GpuUuid, tuple[int, ...]] = {}
    for gpu in gpus:
        for pid in gpu.process_ids:
            if pid not in cgroups:
                continue
            process = parse_cgroup(cgroups[pid])
            if process is None:
                host[gpu.uuid] = (*host.get(gpu.uuid, ()), pid)
            elif (process.pod, gpu.uuid) not in granted:
                container = f", container {process.container[:12]}" if process.container else ""
                held.setdefault(gpu.uuid, f"process {pid} of pod {process.pod}{container}, without a grant of this node")
    return Unmanaged(held=held, host=host)
