"""Find cards in use by pods without a grant: pods from before Lading was installed, pods of a device plugin, or privileged
pods.

`read_cgroups` asks the kernel which cgroup each GPU process is in; `decide_foreign` tells pods from host processes and leaves
out those that hold the card by a grant. A process that ended meanwhile holds nothing. kubelet's part of a path is
taken from the outside in, so that a cgroup which a container made for itself cannot name another pod.

Source: kubelet's pkg/kubelet/cm/cgroup_manager_linux.go (cgroupfs and systemd names), containerd's and CRI-O's scopes,
proc_pid_cgroup(5).
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hooks.host.attributes import read_attribute
from hooks.model.grant import Grant
from hooks.model.inventory import Gpu, Inventory
from lading.devices.identity import shown
from lading.errors import HostError
from lading.vocabulary import ContainerId, GpuUuid, PodUid

_POD = re.compile(r"pod([0-9A-Za-z][0-9A-Za-z.-]*)")  # cgroupfs: kubepods/burstable/pod<uid>
_POD_SLICE = re.compile(r"(?:[^/]+-)?kubepods(?:-burstable|-besteffort)?-pod([0-9A-Za-z_.]+)\.slice")  # systemd: "_" for "-"
_ROOT = re.compile(r"kubepods|(?:[^/]+-)?kubepods\.slice")
_CONTAINER = re.compile(r"(?:[a-z-]+-)?([0-9a-f]{64})(?:\.scope)?")  # cri-containerd-<id>.scope, crio-<id>.scope, <id>


class PodProcess(NamedTuple):
    pod: PodUid
    container: ContainerId | None  # None: in the pod's cgroup, in no container's that we recognise


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    held: Mapping[GpuUuid, str] = field(default_factory=dict)  # by whom, in words
    host: Mapping[GpuUuid, tuple[int, ...]] = field(default_factory=dict)  # processes of no pod: reported, not held


def read_cgroups(host_root: Path, pids: Iterable[int]) -> dict[int, str]:
    """Return `/proc/<pid>/cgroup` of each process that still exists."""
    texts = {}
    for pid in pids:
        path = host_root / "proc" / str(pid) / "cgroup"
        try:
            texts[pid] = path.read_bytes().decode("utf-8", "replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError as e:
            raise HostError(f"cannot read {path}: {e.strerror}") from e
    return texts


def find_foreign(host_root: Path, inventory: Inventory, grants: Collection[Grant]) -> Foreign:
    """Find cards held without a grant, and by whom, at this moment: a process of the inventory may have ended, and its pod's
    grant too."""
    pids = [pid for gpu in inventory.gpus for pid in gpu.process_ids]
    return decide_foreign(inventory.gpus, read_cgroups(host_root, pids), grants)


def name_processes(host_root: Path, pids: Iterable[int]) -> list[str]:
    """Return `process 42 (python3)` for each that still exists."""
    names = ((pid, read_attribute(host_root / "proc" / str(pid) / "comm")) for pid in pids)
    return [f"process {pid} ({shown(name)})" for pid, name in names if name is not None]


def decide_foreign(gpus: Iterable[Gpu], cgroups: Mapping[int, str], grants: Collection[Grant]) -> Foreign:
    if not cgroups:
        return Foreign()
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
    return Foreign(held=held, host=host)


def parse_cgroup(text: str) -> PodProcess | None:
    """Return the pod and container of a process, from the content of /proc/<pid>/cgroup (v1: a line per hierarchy; v2: one
    `0::` line)."""
    for line in text.splitlines():
        _, _, path = line.partition(":")[2].partition(":")
        if process := _parse_path(path.removesuffix(" (deleted)")):
            return process
    return None


def _parse_path(path: str) -> PodProcess | None:
    below_root = False
    # containerd without SystemdCgroup under a systemd kubelet makes one name of it: <slice>:cri-containerd:<id>
    names = re.split("[/:]", path)
    for position, name in enumerate(names):
        pod = _pod_of(name, below_root=below_root)
        if pod is not None:
            containers = filter(None, map(_CONTAINER.fullmatch, names[position + 1 : position + 3]))
            return PodProcess(pod, next((ContainerId(c[1]) for c in containers), None))
        below_root = below_root or _ROOT.fullmatch(name) is not None
    return None


def _pod_of(name: str, *, below_root: bool) -> PodUid | None:
    if match := _POD_SLICE.fullmatch(name):
        return PodUid(match[1].replace("_", "-"))
    match = _POD.fullmatch(name)
    return PodUid(match[1]) if match and below_root else None
