"""Enforce memory limits of shares by HAMi-core, a library of the operator that is loaded before CUDA in each program.

Lading does not build or ship the library. The container gets the library at the path that it expects, a list of preloads that
names it, and a folder of its own (attach/share_folders.py) for the library's files: the amounts in use, which the processes of
a container share, and a lock. The library waits for the lock without a deadline, so no two containers may have the same lock.

A limit is for the n-th device that CUDA counts in the container. Variables of the program change that order, so all cards of a
container have the same limit. The library identifies processes by their IDs in the container, so containers of a pod cannot
have a common share. The library's compute limit is not used, because it reacts to NVML's samples, too late to be a limit.

Source: HAMi-core, multiprocess_memory_limit.c, utils.c and libvgpu.c, at 8f3a89c (2026-06).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hooks.isolation.unenforced import list_shares, total_mib
from hooks.model.assignment import Refusal
from hooks.model.container import Adjustment, Container, EnvVar, Mount, Sandbox, merge
from hooks.ports import Card, Enforced
from lading.devices.isolation import IsolationName
from lading.reasons import Reason
from lading.sharegrant import folder_name

LIBRARY: Final = "/usr/local/vgpu/libvgpu.so"
PRELOADS: Final = "/etc/ld.so.preload"  # LD_PRELOAD would end each program of an image with another C library
STATE: Final = "/run/lading/hami"
LOCK: Final = "/tmp/vgpulock"  # noqa: S108 -- where the library looks

_LIMIT: Final = "CUDA_DEVICE_MEMORY_LIMIT"
_REGION: Final = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
_INSTEAD: Final = "CUDA_REDIRECT"  # environment variable by which an image can select another library


@dataclass(frozen=True, slots=True, kw_only=True)
class HamiCore:
    library: str
    folder: str  # folder with the containers' folders and the list of preloads
    name: IsolationName = IsolationName.HAMI_CORE

    def enforce(self, cards: Sequence[Card], sandbox: Sandbox, container: Container, given: Adjustment) -> Enforced | Refusal:
        limits = {min(card.granted.memory_mib or total_mib(card), total_mib(card)) for card in cards}
        if len(limits) > 1:
            return _refuse(
                container,
                f"limits of {' and '.join(f'{mib} MiB' for mib in sorted(limits))}: which of its cards CUDA counts first "
                "depends on the program; ask for the same gpu-memory of each",
            )
        if any(card.granted.pod_wide for card in cards):
            return _refuse(
                container, f"one share together with the pod's other containers; write it in lading.dev/gpus.{container.name}"
            )
        env = {
            _REGION: f"{STATE}/region",
            _INSTEAD: "",
            **{f"{_LIMIT}_{index}": f"{mib}m" for mib in limits for index in range(len(cards))},
        }
        own = f"{self.folder}/{folder_name(sandbox.uid, container.name)}"
        mounts = (
            Mount(LIBRARY, self.library),
            Mount(PRELOADS, preloads_path(self.folder)),
            Mount(STATE, own, readonly=False),
            Mount(LOCK, own, readonly=False),
        )
        hami = Adjustment(env=tuple(EnvVar(name, value) for name, value in env.items()), mounts=mounts)
        return Enforced(adjustment=merge((given, list_shares(cards), hami)))


def preloads_path(folder: str) -> str:
    return f"{folder}/ld.so.preload"


def _refuse(container: Container, problem: str) -> Refusal:
    return Refusal(
        reason=Reason.ISOLATION_UNAVAILABLE,
        message=f"cannot give container {container.name}, with isolation hami-core, {problem}",
    )
