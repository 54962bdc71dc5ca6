"""Record central's actions and findings about pods as Kubernetes Events, which `kubectl describe pod` shows.

Events are no state: each is sent once, one after the other. An Event that cannot be sent is dropped, and so are Events that
come faster than the API server takes them. No other work waits for an Event.

Source: core/v1 Event, k8s.io/api, as of v1.36.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final
from uuid import uuid4

from central.ledger.model import Holder
from central.loop.faults import Faults, Work
from lading.kube.client import KubeClient
from lading.kube.errors import KubeError
from lading.kube.resource import EVENTS
from lading.log import Event, Log
from lading.vocabulary import CENTRAL

WAITING: Final = 256  # maximum queued Events; more have one common cause, which the log shows
TIMEOUT_S: Final = 4.0
_LONGEST_NAME: Final = 253 - 33  # longest name of an object, less a dot and 32 hexadecimal digits


class EventRecorder:
    """Write Events. `now`: RFC 3339."""

    def __init__(self, client: KubeClient, *, now: Callable[[], str], log: Log, faults: Faults | None = None) -> None:
        self._faults = Faults(clock=time.monotonic, log=log) if faults is None else faults
        self._client = client
        self._now = now
        self._log = log
        self._waiting: asyncio.Queue[tuple[Holder, dict[str, object]]] = asyncio.Queue(WAITING)
        self._failing = False  # the last Event was dropped, which is logged already

    def record(self, pod: Holder, reason: str, message: str, *, good: bool = False) -> None:
        """Queue an Event without blocking. `good`: the type is Normal, not Warning."""
        at = self._now()
        event: dict[str, object] = {
            "metadata": {"name": f"{pod.name[:_LONGEST_NAME]}.{uuid4().hex}", "namespace": pod.namespace},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "namespace": pod.namespace, "uid": pod.pod},
            "reason": reason,
            "message": message,
            "type": "Normal" if good else "Warning",
            "source": {"component": CENTRAL},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        try:
            self._waiting.put_nowait((pod, event))
        except asyncio.QueueFull:
            self._failed("more of them than the API server takes")

    async def run(self) -> None:
        while True:
            pod, event = await self._waiting.get()
            with self._faults.handling(Work.EVENTS, f"{pod.namespace}/{pod.name}"):
                await self._send(pod.namespace, event)

    async def _send(self, namespace: str, event: Mapping[str, object]) -> None:
        try:
            await self._client.create(EVENTS.path(namespace), event, timeout_s=TIMEOUT_S)
        except KubeError as e:
            self._failed(str(e))
        else:
            self._failing = False

    def _failed(self, reason: str) -> None:
        if not self._failing:
            self._failing = True
            self._log.warning(Event.TELL_FAILED, reason)
