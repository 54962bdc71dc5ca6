"""Enforce shares by NVIDIA's Multi-Process Service (MPS): one control daemon for each card, and limits in the environment.

CUDA reads the limits of a process: a part of the card's multiprocessors, and an amount of memory. No share is guaranteed. A
process can connect to the daemon of one pipe folder only, so a container gets one card. The MPS server and its clients exchange
data in /dev/shm, so all containers of a card mount the daemon's folder there. hooks/mps/ runs the daemons.

MPS limits the memory of each process. With Lading's library (hooks/isolation/library.py) each container keeps to its share of
memory too, by the rules of the isolation `tokens`; it takes no turns.

Source: NVIDIA, Multi-Process Service (docs.nvidia.com/deploy/mps): CUDA_MPS_PIPE_DIRECTORY, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE,
CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; the mount of /dev/shm as in NVIDIA's device plugin.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from hooks.isolation.library import ShareLibrary
from hooks.isolation.unenforced import list_shares, total_mib
from hooks.model.assignment import GrantedGpu, Refusal
from hooks.model.container import Adjustment, Container, EnvVar, Mount, Sandbox, merge
from hooks.model.grant import Grant
from hooks.ports import Card, Enforced
from lading.devices.assignment import MAX_MEMORY_MIB
from lading.devices.isolation import IsolationName
from lading.devices.share import FULL_CORE
from lading.reasons import Reason
from lading.vocabulary import GpuUuid

PIPE: Final = "CUDA_MPS_PIPE_DIRECTORY"
THREADS: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MEMORY: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"

IN_CONTAINER: Final = "/run/lading/mps"
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 -- where the driver looks


class Limits(NamedTuple):
    """Hold the maximum memory and compute that a process may use of its card."""

    memory_mib: int
    percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsFolders:
    """Hold the parent folders of all MPS daemons. The folders of one daemon are named after the UUID of its card."""

    mps_dir: str
    shm_dir: str  # on a tmpfs that containers may fill: their files there are charged to their memory

    def of(self, uuid: GpuUuid) -> str:
        return f"{self.mps_dir}/{uuid}"

    def pipe(self, uuid: GpuUuid) -> str:
        return f"{self.of(uuid)}/pipe"

    def log(self, uuid: GpuUuid) -> str:
        return f"{self.of(uuid)}/log"

    def shm(self, uuid: GpuUuid) -> str:
        return f"{self.shm_dir}/{uuid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mps:
    folders: MpsFolders
    library: ShareLibrary | None = None  # keeps containers to their memory; None: MPS keeps each process to it
    name: IsolationName = IsolationName.MPS

    def enforce(self, cards: Sequence[Card], sandbox: Sandbox, container: Container, given: Adjustment) -> Enforced | Refusal:
        if len(cards) != 1:
            return Refusal(
                reason=Reason.ISOLATION_UNAVAILABLE,
                message=f"cannot give {len(cards)} devices to container {container.name} with isolation mps: a process reaches "
                "the MPS daemon of one card; ask for one share",
            )
        [card] = cards
        total = total_mib(card)
        limits = _limits(card.granted)
        env = {
            PIPE: IN_CONTAINER,
            THREADS: str(limits.percent),
            MEMORY: f"0={min(limits.memory_mib, total)}M",  # the daemon's only card has the number 0
        }
        mounts = (
            Mount(IN_CONTAINER, self.folders.pipe(card.gpu.uuid)),
            Mount(_SHARED_MEMORY, self.folders.shm(card.gpu.uuid), readonly=False),
        )
        mps = Adjustment(env=tuple(EnvVar(name, value) for name, value in env.items()), mounts=mounts)
        if self.library is None:
            return Enforced(adjustment=merge((given, list_shares(cards), mps)))
        enforced = self.library.enforce(cards, sandbox, container, given, turns=False)
        if isinstance(enforced, Refusal):
            return enforced
        return replace(enforced, adjustment=merge((enforced.adjustment, mps)))


def mps_cards(grants: Collection[Grant]) -> Iterator[GrantedGpu]:
    """Yield the shares of these grants that are enforced by MPS."""
    return (gpu for grant in grants for gpu in grant.devices.gpus if not gpu.whole and gpu.isolation is IsolationName.MPS)


def largest_limits(grants: Collection[Grant], uuid: GpuUuid) -> Limits | None:
    """Return the largest limits of the card's shares; None without a share. A process that removed the limits from its
    environment is bound by the largest limits."""
    each = [_limits(gpu) for gpu in mps_cards(grants) if gpu.uuid == uuid]
    if not each:
        return None
    return Limits(max(one.memory_mib for one in each), max(one.percent for one in each))


def _limits(granted: GrantedGpu) -> Limits:
    """Return the limits of one share. An amount that the assignment does not name is unlimited."""
    return Limits(granted.memory_mib or MAX_MEMORY_MIB, granted.core_limit_percent or FULL_CORE)
