"""Stop containers that run without the devices in their pod's annotations: kubelet creates them again, with the devices.

Such a container exists on a node with NRI if the runtime asked neither Lading nor a guard about it, which is over by then. (If
a container bypasses the proxy, kubelet's endpoint is wrong: the next container would have no devices either.)
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from hooks.node.bypass import Bypassed
from lading.errors import RuntimeUnavailableError
from lading.log import Event, Log
from lading.vocabulary import ContainerId

# Grace in seconds, which is short: containerd registers no plugin while it stops a container. A program without its devices has
# little to finish.
GRACE_S: Final = 5


class Stop(Protocol):
    def __call__(self, container_id: str, *, grace_s: int) -> Awaitable[None]:
        """Stop the container, after `grace_s` seconds at most. Raise RuntimeUnavailableError."""
        ...


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
