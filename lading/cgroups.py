"""Find the pod and the container of a process by its cgroup.

A path is read from the root, where kubelet's part is, so that a cgroup that a container made inside its own cannot name another
pod.

Source: kubelet's pkg/kubelet/cm/cgroup_manager_linux.go (cgroupfs and systemd names), containerd's and CRI-O's scopes,
proc_pid_cgroup(5).

Tests: tests/unit/hooks/ledger/test_unmanaged.py
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from lading.errors import HostError
from lading.vocabulary import ContainerId, PodUid

ROOT: Final = "sys/fs/cgroup"  # mount point of cgroup v2, below the host root
_POD = re.compile(r"pod([0-9A-Za-z][0-9A-Za-z.-]*)")  # cgroupfs: kubepods/burstable/pod<uid>
_POD_SLICE = re.compile(r"(?:[^/]+-)?kubepods(?:-burstable|-besteffort)?-pod([0-9A-Za-z_.]+)\.slice")  # systemd: "_" for "-"
_ROOT = re.compile(r"kubepods|(?:[^/]+-)?kubepods\.slice")
_CONTAINER = re.compile(r"(?:[a-z-]+-)?([0-9a-f]{64})(?:\.scope)?")  # cri-containerd-<id>.scope, crio-<id>.scope, <id>


class PodProcess(NamedTuple):
    pod: PodUid
    container: ContainerId | None  # None: in the pod's cgroup, but in no recognised container's


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


def parse_cgroup(text: str) -> PodProcess | None:
    """Return the pod and container of a process, from the content of /proc/<pid>/cgroup (v1: a line per hierarchy; v2: one
    `0::` line)."""
    for line in text.splitlines():
        _, _, path = line.partition(":")[2].partition(":")
        if process := _parse_path(path.removesuffix(" (deleted)")):
            return process
    return None


def expand_parent(parent: str) -> str:
    """Return the path of the cgroup that CRI's `cgroup_parent` names, below the root of the hierarchy. systemd names a
    slice by its last part alone (systemd.slice(5)): `a-b.slice` is `/a.slice/a-b.slice`."""
    name = parent.rpartition("/")[2]
    if not name.endswith(".slice"):
        return f"/{parent.strip('/')}"
    text = name.removesuffix(".slice").split("-")
    return "".join(f"/{'-'.join(text[: count + 1])}.slice" for count in range(len(text)))


def _parse_path(path: str) -> PodProcess | None:
    below_root = False
    # containerd without SystemdCgroup, under a kubelet with it, joins slice and container: <slice>:cri-containerd:<id>
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
