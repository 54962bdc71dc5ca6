"""Cache sandboxes and containers by id for later calls, because teardown calls carry only an id.

Entries are added from observed replies and from the runtime's lists. They are removed on an observed Remove, and when a list
lacks them. Bounded: the oldest sandbox is dropped first, with its containers, and is added again from the next list.

Source: runtime.v1 ListPodSandbox, ListContainers; koord-runtime-proxy leaks here (docs/hook-api.md).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from lading.vocabulary import ContainerId, SandboxId
from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.call.projection import container_identity, sandbox_of_list

MAX_SANDBOXES: Final = 10_000  # kubelet's own default is 110 pods a node
MAX_BYTES: Final = 64 << 20  # a pod's annotations alone may be 256 KiB


@dataclass(slots=True, kw_only=True)
class _Sandbox:
    message: hook.PodSandbox
    since: int
    size: int = 0  # bytes
    containers: dict[ContainerId, hook.Container] = field(default_factory=dict)


class SandboxCache:
    def __init__(self, *, max_sandboxes: int = MAX_SANDBOXES, max_bytes: int = MAX_BYTES) -> None:
        self._sandboxes: dict[SandboxId, _Sandbox] = {}  # oldest first
        self._sandbox_of: dict[ContainerId, SandboxId] = {}
        self._max_sandboxes = max_sandboxes
        self._max_bytes = max_bytes
        self._bytes = 0
        self.listed = False  # the runtime's lists were read at least once: an unknown sandbox is a new one
        self._clock = 0  # counts additions, so that a list cannot remove a newer entry

    def __len__(self) -> int:
        return len(self._sandboxes)

    @property
    def containers(self) -> int:
        return len(self._sandbox_of)

    def sandbox(self, sandbox_id: str) -> hook.PodSandbox | None:
        entry = self._sandboxes.get(SandboxId(sandbox_id))
        return entry.message if entry else None

    def container(self, container_id: str) -> tuple[hook.PodSandbox, hook.Container] | None:
        sandbox_id = self._sandbox_of.get(ContainerId(container_id))
        if sandbox_id is None:
            return None
        entry = self._sandboxes[sandbox_id]
        return entry.message, entry.containers[ContainerId(container_id)]

    def annotations(self, sandbox_id: str) -> frozenset[str]:
        """Return the keys that the pod has or had, and those of its containers, because a grant outlives its annotation."""
        entry = self._sandboxes.get(SandboxId(sandbox_id))
        if entry is None:
            return frozenset()
        return frozenset(entry.message.annotations).union(
            *(container.annotations for container in tuple(entry.containers.values()))
        )

    def learn_sandbox(self, sandbox: hook.PodSandbox) -> None:
        """Add or update a sandbox. A cached sandbox keeps its containers and the annotations that `sandbox` lacks."""
        self._clock += 1
        before = self._sandboxes.get(SandboxId(sandbox.id))
        if before and before.message == sandbox:
            before.since = self._clock
        elif before:
            both = hook.PodSandbox(annotations=before.message.annotations)
            both.MergeFrom(sandbox)
            self._grow(before, both.ByteSize() - before.message.ByteSize())
            before.message, before.since = both, self._clock
        else:
            made = self._sandboxes[SandboxId(sandbox.id)] = _Sandbox(message=sandbox, since=self._clock)
            self._grow(made, sandbox.ByteSize())

    def learn_container(self, sandbox_id: str, container: hook.Container) -> None:
        """Add a container if its sandbox is cached."""
        entry = self._sandboxes.get(SandboxId(sandbox_id))
        if entry is None:
            return
        self.forget_container(container.id)
        self._clock += 1
        entry.since = self._clock
        entry.containers[ContainerId(container.id)] = container
        self._sandbox_of[ContainerId(container.id)] = SandboxId(sandbox_id)
        self._grow(entry, container.ByteSize())

    def forget_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox with its containers: the runtime removes them in the same call."""
        entry = self._sandboxes.pop(SandboxId(sandbox_id), None)
        if entry is None:
            return
        self._bytes -= entry.size
        for container_id in entry.containers:
            del self._sandbox_of[container_id]

    def forget_container(self, container_id: str) -> None:
        sandbox_id = self._sandbox_of.pop(ContainerId(container_id), None)
        if sandbox_id is None:
            return
        entry = self._sandboxes[sandbox_id]
        self._grow(entry, -entry.containers.pop(ContainerId(container_id)).ByteSize())

    def mark(self) -> int:
        """Return a mark for `relist`. It must be taken before the runtime is asked for its lists."""
        return self._clock

    def relist(self, mark: int, sandboxes: Iterable[cri.PodSandbox], containers: Iterable[cri.Container]) -> None:
        """Add entries of the lists that are not cached; remove entries that the lists lack, unless added after `mark`.

        Cached entries are not changed: a list has less than the call that created the sandbox.
        """
        self.listed = True
        listed = {SandboxId(item.id): item for item in sandboxes}
        running = {ContainerId(item.id): item for item in containers}
        for sandbox_id, entry in list(self._sandboxes.items()):
            if entry.since > mark:
                continue
            if sandbox_id not in listed:
                self.forget_sandbox(sandbox_id)
            for container_id in [c for c in entry.containers if c not in running]:
                self.forget_container(container_id)
        for sandbox_id, sandbox in listed.items():
            if sandbox_id not in self._sandboxes:
                self.learn_sandbox(sandbox_of_list(sandbox))
        for container_id, container in running.items():
            if container_id not in self._sandbox_of:
                self.learn_container(container.pod_sandbox_id, container_identity(container, container_id=container.id))

    def _grow(self, entry: _Sandbox, size: int) -> None:
        entry.size += size
        self._bytes += size
        while len(self._sandboxes) > self._max_sandboxes or (self._bytes > self._max_bytes and len(self._sandboxes) > 1):
            self.forget_sandbox(next(iter(self._sandboxes)))
