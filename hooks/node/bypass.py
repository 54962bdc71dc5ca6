"""Find containers that run without the devices in their pod's annotations, and stop them where kubelet creates them again.

They bypassed the proxy and its hook call: an upgrade of kubelet can reset its runtime endpoint. Then annotated pods start
without their devices, and nothing else would report it. The input is the runtime's lists. The result is created or running
containers without a grant of this node, whose pod's annotations give them devices, or should have had them refused. Even an
empty grant counts, because the annotations, and the forms that the node accepts, may change after a container was created.

On a node with NRI, such a container exists if the runtime asked neither Lading nor a guard about it, which is over by then. So
it is stopped, and kubelet creates it again, with the devices. (If a container bypasses the proxy, kubelet's endpoint is wrong:
the next container would have no devices either.)

Source: CRI ListPodSandbox and ListContainers (annotations in both).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from hooks.forms.annotations import parse_assignment, prefixes
from hooks.model.assignment import Refusal, Trust
from hooks.model.lists import ContainerState, ListedContainer, ListedSandbox, Lists
from lading.errors import RuntimeUnavailableError
from lading.log import Event, Log
from lading.vocabulary import ContainerId, PodUid, SandboxId

# Grace in seconds, which is short: containerd registers no plugin while it stops a container. A program without its devices has
# little to finish.
GRACE_S: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Bypassed:
    id: ContainerId
    container: str
    pod: PodUid
    namespace: str
    pod_name: str
    running: bool = True  # False: the container is only created


def find_bypassed(lists: Lists, *, node: str, trust: Trust) -> tuple[Bypassed, ...]:
    """Return the bypassed containers. A pod's annotations may be long: they are parsed once, and only if a live container lacks
    a grant."""
    begins = prefixes()
    annotated = {s.id: s for s in lists.sandboxes if any(key.startswith(begins) for key in s.annotations)}
    bare: dict[SandboxId, list[ListedContainer]] = {}
    for container in lists.containers:
        if container.sandbox in annotated and container.live and container.grant is None:
            bare.setdefault(container.sandbox, []).append(container)
    return tuple(
        result for id_, those in bare.items() for result in _find_in_pod(annotated[id_], those, node=node, trust=trust)
    )


def _find_in_pod(sandbox: ListedSandbox, bare: Sequence[ListedContainer], *, node: str, trust: Trust) -> Iterator[Bypassed]:
    assignment = parse_assignment(sandbox.annotations, pod=sandbox.pod, node=node, trust=trust)
    if assignment is None:
        return
    for container in bare:
        if isinstance(assignment, Refusal) or not assignment.for_container(container.name).empty:
            yield Bypassed(
                id=container.id,
                container=container.name,
                pod=sandbox.pod,
                namespace=sandbox.namespace,
                pod_name=sandbox.pod_name,
                running=container.state is ContainerState.RUNNING,
            )


class Stop(Protocol):
    def __call__(self, container_id: str, *, grace_s: int) -> Awaitable[None]:
        """Stop the container, after `grace_s` seconds at most. Raise RuntimeUnavailableError."""


@dataclass(slots=True, kw_only=True)
class BareStopper:
    """Stop bypassed containers, on the event loop's thread. `stopped` is called after each container."""

    compare_soon: Callable[[], object]
    stop: Stop
    log: Log
    stopped: Callable[[], object]
    _stopping: dict[ContainerId, asyncio.Task[None]] = field(default_factory=dict)

    def handle(self, bypassed: Sequence[Bypassed]) -> None:
        """Begin to stop the running containers among these. A container that is only created holds no device, and is refused
        when it is to be started."""
        for one in bypassed:
            if one.running and one.id not in self._stopping:
                self._stopping[one.id] = asyncio.create_task(self._stop(one))

    async def _stop(self, one: Bypassed) -> None:
        fields = {"pod_uid": one.pod, "namespace": one.namespace, "pod": one.pod_name, "container": one.container}
        try:
            await self.stop(one.id, grace_s=GRACE_S)
        except RuntimeUnavailableError as e:
            self.log.error(Event.CONTAINER_STOP_FAILED, str(e), **fields)
        else:
            self.log.warning(Event.CONTAINER_STOPPED, f"container {one.id[:12]} ran without its devices", **fields)
            self.stopped()
            self.compare_soon()
        finally:
            del self._stopping[one.id]
