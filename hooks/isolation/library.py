"""Replace the driver's libcuda and NVML in a container by Lading's, which keep the container to its share of a card's memory.

The vendor mounts the driver's files. Lading's libraries replace libcuda and NVML among them, under each of their names; the
real files are mounted at paths where Lading's libraries find them. So a container without Lading's library has no CUDA. The
folder of the container's grant, with the share server's socket, is mounted too (attach/share_folders.py). The grant says
whether the container takes turns of the card's compute.

Tests: tests/unit/hooks/isolation/test_tokens.py
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from hooks.host.ldcache import without_compat
from hooks.isolation.unenforced import list_shares, total_mib
from hooks.model.assignment import Refusal
from hooks.model.container import Adjustment, Container, EnvVar, Mount, Sandbox, merge
from hooks.ports import Card, Enforced
from lading.devices.share import FULL_CORE
from lading.reasons import Reason
from lading.sharegrant import IN_CONTAINER, REAL_LIBRARIES, SharedGpu, ShareGrant, folder_name
from lading.vocabulary import PodUid

CUDA: Final = "libcuda.so.1"
LIBRARIES: Final = (CUDA, "libnvidia-ml.so.1")
# Where images have a newer libcuda that goes before the driver's: CUDA Compatibility, "Forward Compatibility".
_OF_IMAGES: Final = "/usr/local/cuda/compat"
# Julia's CUDA_Driver_jll and vLLM (env_override.py) then load the libcuda of the container, and no copy, which knows no share.
_NO_COPY: Final = Adjustment(env=(EnvVar("JULIA_CUDA_USE_COMPAT", "false"), EnvVar("VLLM_ENABLE_CUDA_COMPATIBILITY", "0")))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLibrary:
    libraries: str  # the folder that has them
    shares_dir: str

    def enforce(
        self, cards: Sequence[Card], sandbox: Sandbox, container: Container, given: Adjustment, *, turns: bool
    ) -> Enforced | Refusal:
        """Return the vendors' adjustment `given` with the libraries, and the container's shares. `turns`: kernels run in turns
        only; else an MPS server runs them."""
        replaced = tuple(self._replace(mount) for mount in given.mounts)
        real = {name: mount for mount in given.mounts if (name := _replaced_by(mount))}
        if CUDA not in real:
            return _refuse("a share: the container gets no libcuda.so of the driver")
        shared = [card for card in cards if card.granted.shared]
        gpus = tuple(_share_of(card, turns=turns) for card in shared)
        for card, gpu in zip(shared, gpus, strict=True):
            if gpu.memory_mib < card.gpu.context_mib and not gpu.driver_limits:
                return _refuse(
                    f"a share of {gpu.memory_mib} MiB of {gpu.uuid}: each process has a context there, which takes "
                    f"{card.gpu.context_mib} MiB of the share; ask for more memory"
                )
        share = ShareGrant(
            pod=PodUid(sandbox.uid),
            container="" if shared[0].granted.pod_wide else container.name,
            namespace=sandbox.namespace,
            pod_name=sandbox.name,
            gpus=gpus,
        )
        folder = f"{self.shares_dir}/{folder_name(share.pod, share.container)}"
        behind = tuple(Mount(f"{REAL_LIBRARIES}/{name}", mount.host_path) for name, mount in real.items())
        # A hook hides the folder in images that have it. Without a hook it is made in all images, and programs take its parent
        # for CUDA's toolkit: the lesser evil, for the image's libcuda knows no share.
        over = () if given.hooks else (Mount(_OF_IMAGES, self.libraries),)
        mounts = (*replaced, *over, *behind, Mount(IN_CONTAINER, folder))
        return Enforced(
            adjustment=merge((replace(given, mounts=mounts, hooks=without_compat(given.hooks)), list_shares(cards), _NO_COPY)),
            share=share,
        )

    def _replace(self, mount: Mount) -> Mount:
        name = _replaced_by(mount)
        return replace(mount, host_path=f"{self.libraries}/{name}") if name else mount


def _share_of(card: Card, *, turns: bool) -> SharedGpu:
    """Return the share of one card. Defaults for the assignment: all of the memory, no guaranteed compute, no limit.

    Memory by MPS is never left to a limit of the driver: that is of a cgroup, and the server is in another one."""
    total, granted = total_mib(card), card.granted
    return SharedGpu(
        uuid=granted.uuid,
        memory_mib=min(granted.memory_mib or total, total),
        total_mib=total,
        request_percent=granted.core_percent or 0,
        limit_percent=granted.core_limit_percent or FULL_CORE,
        driver_limits=turns and card.gpu.limits_memory,
        turns=turns,
    )


def _replaced_by(mount: Mount) -> str:
    """Return the library that replaces this file of the driver; empty if the file is not replaced."""
    file = mount.container_path.rpartition("/")[2]
    return next((name for name in LIBRARIES if file.startswith(name.removesuffix(".1"))), "")


def _refuse(problem: str) -> Refusal:
    return Refusal(reason=Reason.ISOLATION_UNAVAILABLE, message=f"cannot give {problem}")
