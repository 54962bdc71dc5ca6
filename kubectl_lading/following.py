"""The cluster after every change, as `-w` shows it.

Enters: a client. Leaves: a `Cluster` whenever an object is another, at most every EVERY_S, and so seldom that computing it
takes a tenth of the time. Watches that break are taken up again; a warning says so.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Final, Generic

from central.api.known import Ident
from central.api.watch import Reflector, Unreadable
from kubectl_lading.cluster import Cluster, compute
from kubectl_lading.lists import N
from kubectl_lading.objects import Node, Pod, Report
from kubectl_lading.terminal.output import warn
from lading.kube.client import KubeClient
from lading.kube.resource import NODE_DEVICES, NODES, PODS
from lading.log import Event, Level, Log

EVERY_S: Final = 1.0
_SHARE: Final = 10  # minimum pause between two computations, as a multiple of the time that one took


class _Kept(Generic[N]):
    """The objects of one kind, by uid."""

    def __init__(self, news: asyncio.Event) -> None:
        self._news = news
        self._objects: dict[str, N | Unreadable] = {}
        self._version = ""

    @property
    def listed(self) -> tuple[list[N | Unreadable], str]:
        return list(self._objects.values()), self._version

    def replaced(self, objects: Sequence[N | Unreadable], version: str) -> None:
        self._objects = {one.metadata.uid: one for one in objects}
        self._version = version
        self._news.set()

    def changed(self, obj: N | Unreadable) -> None:
        self._objects[obj.metadata.uid] = obj
        self._news.set()

    def removed(self, gone: Ident, version: str) -> None:
        self._objects.pop(gone.uid, None)
        self._news.set()


class _Warnings:
    def write(self, level: Level, event: Event, message: str, fields: dict[str, str]) -> None:
        warn(message)


async def follow(client: KubeClient, *, every_s: float = EVERY_S) -> AsyncGenerator[Cluster, None]:
    """Yield the cluster as it is, then as it is after changes, until it is closed."""
    news, log = asyncio.Event(), Log(_Warnings(), Level.WARNING)
    devices, nodes, pods = _Kept[Report](news), _Kept[Node](news), _Kept[Pod](news)
    reflectors = (
        Reflector(client, NODE_DEVICES, Report, devices, log=log),
        Reflector(client, NODES, Node, nodes, log=log),
        Reflector(client, PODS, Pod, pods, log=log),
    )
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        for reflector in reflectors:
            stack.push_async_callback(_end, loop.create_task(reflector.run()))
        await asyncio.gather(*(reflector.synced.wait() for reflector in reflectors))
        while True:
            await news.wait()
            news.clear()
            began = loop.time()
            yield compute(devices.listed, nodes.listed, pods.listed)
            await asyncio.sleep(max(every_s, _SHARE * (loop.time() - began)))


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
