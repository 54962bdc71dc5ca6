"""Set the driver's limit of a pod's card memory before a container is created (port `Preparer`).

The limit is the pod's: of the container's future cgroups, only the pod's exists when CreateContainer is called. kubelet makes
the pod's cgroup before the sandbox, and removes it with the pod. containerd makes the container's own cgroup in StartContainer,
together with the first process. So the limit exists before any process of the container, and ends with the pod: there is
nothing to undo. The share server limits each container within its pod's limit.

A container is refused if its limit cannot be set, or if the driver reports another limit afterwards.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from hooks.model.assignment import Refusal
from hooks.model.container import Adjustment, Answer, Sandbox
from hooks.model.grant import Grant
from hooks.ports import Preparer
from lading.cgroups import ROOT, expand_parent, parse_cgroup
from lading.devices.share import taken_by_pod
from lading.errors import HostError
from lading.reasons import Reason
from lading.sharegrant import SharedGpu
from lading.threads import in_thread
from lading.vocabulary import GpuUuid, PodUid

LIMIT_S: Final = 5.0  # seconds for one container, including its wait for earlier ones


@dataclass(slots=True, kw_only=True)
class MemoryLimits(Preparer):
    host_root: Path
    limit: Callable[[GpuUuid, Path, int | None], None]  # sets a card's limit for a cgroup, in MiB; may block; raises HostError
    grants: Callable[[], Collection[Grant]]
    _one: asyncio.Lock = field(default_factory=asyncio.Lock)  # a pod's limits are set in order: the newest one last

    def wants(self, answer: Answer) -> bool:
        return bool(_limited(answer))

    async def prepare(self, sandbox: Sandbox, answer: Answer) -> Adjustment | Refusal:
        try:
            async with asyncio.timeout(LIMIT_S), self._one:
                cgroup = find_pod_cgroup(self.host_root, sandbox)
                for gpu in _limited(answer):
                    limit_mib = find_limit(self.grants(), PodUid(sandbox.uid), gpu)
                    await in_thread(partial(self.limit, gpu.uuid, cgroup, limit_mib))
        except (HostError, TimeoutError) as e:
            cause = str(e) or f"the driver gave no answer within {LIMIT_S:g} s"
            message = f"cannot give a share whose memory the driver limits: {cause}"
            return Refusal(reason=Reason.ISOLATION_UNAVAILABLE, message=message)
        return Adjustment()


def _limited(answer: Answer) -> list[SharedGpu]:
    return [gpu for gpu in answer.share.gpus if gpu.driver_limits] if answer.share else []


def find_limit(grants: Collection[Grant], pod: PodUid, shared: SharedGpu) -> int | None:
    """Return the card memory that all containers of the pod may use together, in MiB; None if one of them holds the whole
    card."""
    held = [(one.container, gpu) for one in grants if one.pod == pod for gpu in one.devices.gpus if gpu.uuid == shared.uuid]
    if any(gpu.whole for _, gpu in held):
        return None
    if any(gpu.memory_mib is None for _, gpu in held):  # a share of compute alone has no memory limit
        return shared.total_mib
    return min(taken_by_pod(held).memory_mib, shared.total_mib)


def find_pod_cgroup(host_root: Path, sandbox: Sandbox) -> Path:
    """Return the folder of the pod's cgroup. Raise HostError if it is not certain that the pod's processes will be in it."""
    path = expand_parent(sandbox.cgroup_parent)
    process = parse_cgroup(f"0::{path}")
    if process is None or process.pod != sandbox.uid or ".." in path.split("/"):
        raise HostError(f"kubelet's cgroup_parent {sandbox.cgroup_parent!r:.200} is not the cgroup of pod {sandbox.uid}")
    folder = host_root / ROOT / path.lstrip("/")
    try:
        events = (folder / "cgroup.events").read_text().split("\n")
    except OSError as e:
        raise HostError(f"cannot read {folder}/cgroup.events: {e.strerror}; cgroup v2 is needed") from e
    if "populated 1" not in events:
        raise HostError(f"the sandbox does not run in {folder}: kubelet and the runtime differ in their cgroup driver")
    return folder
