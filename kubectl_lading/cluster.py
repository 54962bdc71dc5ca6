"""Read the cluster into central's own data structures: lists of the API server, in a read-only ledger.

Take a client; return a `Cluster`: who holds which devices, and which pods wait. What central would decide needs its scheduler:
`kubectl_lading.deciding` adds it, and takes a multiple of the time to import. The three lists (NodeDevices, Nodes, Pods) are
from three slightly different moments, as three watches would be.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic

from central.api.cached_objects import Ident
from central.api.decoded import Unreadable
from central.api.watch import Reflector
from central.controllers.conditions import Conditions
from central.controllers.informer import DevicesFeed, NodeFeed, PodFeed
from central.ledger.ledger import Ledger
from central.request import pod as request
from central.request.parse import OWN_ONLY, Dialects
from central.state.nodes import Nodes
from central.state.pending import Pending, PendingPods
from kubectl_lading.central import Central
from kubectl_lading.lists import Listed, N, read_list
from kubectl_lading.objects import Node, Pod, Report
from kubectl_lading.terminal.output import warn
from kubectl_lading.terminal.progress import Progress
from lading.kube.client import KubeClient
from lading.kube.resource import NODE_DEVICES, NODES, PODS
from lading.log import Event, Level, Log

EVERY_S: Final = 1.0  # minimum seconds between two results of `follow`
_SHARE: Final = 10  # minimum pause between two computations, as a multiple of the time that one took


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    ledger: Ledger
    pending: PendingPods
    reports: Mapping[str, Report]
    nodes: Mapping[str, Node]
    pods: Sequence[Pod]
    hosts: Nodes  # labels, taints and cordons, for the node rules of pods
    dialects: Dialects = OWN_ONLY  # how pods may request devices
    unassigned: Sequence[request.Pod] = ()  # pods that request devices and were bound without an assignment
    problems: Sequence[str] = ()  # messages about objects that could not be read

    def allows(self, pod: Pending, node: str) -> bool:
        """Return whether kube-scheduler would let the pod go to the node: it checks nodeSelector, node affinity, taints and
        `kubectl cordon`."""
        return self.hosts.allow(pod.node_rules, node) is not False


async def read_cluster(client: KubeClient, central: Central | None = None) -> Cluster:
    """Return the cluster from lists of the API server. With `central`, pods of the systems that central reads are pods with
    requests too. Raises KubeError."""
    if central is None:
        return compute(*await read_lists(client))
    lists, dialects = await asyncio.gather(read_lists(client), central.dialects())
    return compute(*lists, dialects)


async def read_lists(client: KubeClient) -> tuple[Listed[Report], Listed[Node], Listed[Pod]]:
    with Progress("reading the cluster") as progress:
        return await asyncio.gather(
            read_list(client, NODE_DEVICES, Report, progress),
            read_list(client, NODES, Node, progress),
            read_list(client, PODS, Pod, progress),
        )


def compute(devices: Listed[Report], nodes: Listed[Node], pods: Listed[Pod], dialects: Dialects = OWN_ONLY) -> Cluster:
    """Compute the cluster from the three lists. `dialects`: how pods may request devices."""
    ledger, pending, hosts = Ledger(), PendingPods(), Nodes()
    problems = _Problems()
    unassigned: list[request.Pod] = []
    log = Log(problems, Level.ERROR)
    NodeFeed(ledger, hosts).replaced(*nodes)
    DevicesFeed(ledger).replaced(*devices)
    PodFeed(ledger, pending, Conditions(), log=log, unassigned=unassigned.append, dialects=dialects).replaced(*pods)
    for kind, (objects, _) in (("NodeDevices", devices), ("Node", nodes), ("Pod", pods)):
        problems.messages += [_unreadable(kind, one) for one in objects if isinstance(one, Unreadable)]
    return Cluster(
        ledger=ledger,
        pending=pending,
        reports={one.metadata.name: one for one in _readable(devices[0])},
        nodes={one.metadata.name: one for one in _readable(nodes[0])},
        pods=_readable(pods[0]),
        hosts=hosts,
        dialects=dialects,
        unassigned=unassigned,
        problems=problems.messages,
    )


def _readable(objects: Sequence[N | Unreadable]) -> list[N]:
    return [one for one in objects if not isinstance(one, Unreadable)]


class _Problems:
    """Collect the informers' errors as lines for the user."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def write(self, level: Level, event: Event, message: str, fields: dict[str, str]) -> None:
        if event is Event.ASSIGNMENT_UNREADABLE:
            whose = f"{fields['namespace']}/{fields['pod']}"
            self.messages.append(f"the assignment of pod {whose} on node {fields['node']} cannot be read: {message}")


def _unreadable(kind: str, one: Unreadable) -> str:
    name = "/".join(filter(None, (one.metadata.namespace, one.metadata.name)))
    return f"{kind} {name} cannot be read: {one.why}"


# ---- after every change


class _Kept(Generic[N]):
    """Keep the objects of one kind by uid, and set `news` after each change."""

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

    def removed(self, deleted: Ident, version: str) -> None:
        self._objects.pop(deleted.uid, None)
        self._news.set()


class _Warnings:
    def write(self, level: Level, event: Event, message: str, fields: dict[str, str]) -> None:
        warn(message)


async def follow(
    client: KubeClient, dialects: Dialects = OWN_ONLY, *, every_s: float = EVERY_S
) -> AsyncGenerator[Cluster, None]:
    """Yield the cluster now, then again after changes, until the generator is closed. The pause between two results is at least
    `every_s` seconds and ten times the computing time. Restart a watch that breaks, after a warning."""
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
            yield compute(devices.listed, nodes.listed, pods.listed, dialects)
            await asyncio.sleep(max(every_s, _SHARE * (loop.time() - began)))


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
