"""Read the cluster into central's own data structures: lists of the API server, in a read-only ledger.

Take a client; return a `Cluster`. Its ledger, pending pods and scheduler show how central would decide. The state in central's
memory is missing (predictions, reservations, since when a pod is refused): `kubectl_lading.central` asks central for it. The
three lists (NodeDevices, Nodes, Pods) are from three slightly different moments, as three watches would be.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic

from central.api.cached_objects import Ident
from central.api.watch import Reflector, Unreadable
from central.controllers.conditions import Conditions
from central.controllers.gangs import GangFeed
from central.controllers.informer import DevicesFeed, NodeFeed, PodFeed
from central.decide.configuration import EffectiveConfiguration
from central.decide.gangs import GangPlanner
from central.decide.scheduler import Scheduler
from central.decide.why_pod import FITS
from central.ledger.ledger import Ledger
from central.page.waiting import count_reasons
from central.request import pod as request
from central.state.budgets import Budget
from central.state.nodes import Nodes
from central.state.pending import Pending, PendingPods
from kubectl_lading.central import Central
from kubectl_lading.lists import Listed, N, read_list, read_permitted
from kubectl_lading.objects import Node, Pod, Report, Unread
from kubectl_lading.terminal.output import warn
from kubectl_lading.terminal.progress import Progress
from lading.kube.client import KubeClient
from lading.kube.resource import BUDGETS, NODE_DEVICES, NODES, PODS
from lading.log import Event, Level, Log

DEFAULT: Final = EffectiveConfiguration()  # central's configuration after a default installation
EVERY_S: Final = 1.0  # minimum seconds between two results of `follow`
NOT_ALLOWED: Final = "not-allowed"  # replaces the reason "fits" if kube-scheduler does not let the pod go to the node
_SHARE: Final = 10  # minimum pause between two computations, as a multiple of the time that one took


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    ledger: Ledger
    pending: PendingPods
    scheduler: Scheduler
    reports: Mapping[str, Report]
    nodes: Mapping[str, Node]
    pods: Sequence[Pod]
    hosts: Nodes  # labels, taints and cordons, for the node rules of pods
    planner: GangPlanner
    unassigned: Sequence[request.Pod] = ()  # pods that request devices and were bound without an assignment
    problems: Sequence[str] = ()  # messages about objects that could not be read

    def allows(self, pod: Pending, node: str) -> bool:
        """Return whether kube-scheduler would let the pod go to the node: it checks nodeSelector, node affinity, taints and
        `kubectl cordon`."""
        return self.hosts.allow(pod.node_rules, node) is not False

    def count_reasons(self, pod: Pending) -> dict[str, int]:
        """Return the number of nodes by reason. A node with fitting devices that the pod's node rules exclude counts as
        NOT_ALLOWED."""
        reasons = count_reasons(self.scheduler, pod)
        if FITS in reasons:
            fits = self.scheduler.judged(pod.request).fits
            away = min(reasons[FITS], sum(not self.allows(pod, name) for name in fits))
            reasons |= {FITS: reasons[FITS] - away, NOT_ALLOWED: away}
        return {reason: nodes for reason, nodes in reasons.items() if nodes}


async def read_cluster(client: KubeClient) -> Cluster:
    """Return the cluster from lists of the API server, with central's default configuration. Raises KubeError."""
    return compute(*await read_lists(client))


async def read_deciding(client: KubeClient, central: Central) -> Cluster:
    """Return the cluster with central's effective configuration. Use the defaults, after a warning, if central does not report
    it. Raises KubeError."""
    lists, text = await asyncio.gather(read_lists(client), central.configuration())
    if isinstance(text, EffectiveConfiguration):
        return compute(*lists, text)
    reason = text.why if isinstance(text, Unread) else "it is older than this command, and does not tell them"
    warn(f"the settings of central are not known, and taken to be the defaults (policy {DEFAULT.policy.value}): {reason}")
    return compute(*lists)


async def read_lists(client: KubeClient) -> tuple[Listed[Report], Listed[Node], Listed[Pod]]:
    with Progress("reading the cluster") as progress:
        return await asyncio.gather(
            read_list(client, NODE_DEVICES, Report, progress),
            read_list(client, NODES, Node, progress),
            read_list(client, PODS, Pod, progress),
        )


async def read_budgets(client: KubeClient) -> list[Budget] | None:
    """Return the disruption budgets, which limit the pods that may be evicted or moved; None, after a warning, if they may not
    be read. Raises KubeError."""
    return await read_permitted(client, BUDGETS.path(), Budget, "disruption budgets were not looked at: {e}")


def compute(
    devices: Listed[Report], nodes: Listed[Node], pods: Listed[Pod], configuration: EffectiveConfiguration = DEFAULT
) -> Cluster:
    """Compute the cluster from the three lists."""
    pods = _without_foreign(pods, frozenset(configuration.foreign_annotations))
    ledger, pending = Ledger(), PendingPods()
    hosts = Nodes()
    scheduler = configuration.scheduler(ledger, pending, clock=time.monotonic, domains=hosts.domains)
    problems = _Problems()
    unassigned: list[request.Pod] = []
    log = Log(problems, Level.ERROR)
    NodeFeed(ledger, hosts).replaced(*nodes)
    DevicesFeed(ledger).replaced(*devices)
    PodFeed(ledger, pending, Conditions(), log=log, unassigned=unassigned.append).replaced(*pods)
    GangFeed(scheduler.starts, ledger).replaced(*pods)
    for kind, (objects, _) in (("NodeDevices", devices), ("Node", nodes), ("Pod", pods)):
        problems.messages += [_unreadable(kind, one) for one in objects if isinstance(one, Unreadable)]
    return Cluster(
        ledger=ledger,
        pending=pending,
        scheduler=scheduler,
        reports={one.metadata.name: one for one in _readable(devices[0])},
        nodes={one.metadata.name: one for one in _readable(nodes[0])},
        pods=_readable(pods[0]),
        hosts=hosts,
        planner=GangPlanner(scheduler, hosts),
        unassigned=unassigned,
        problems=problems.messages,
    )


def _without_foreign(pods: Listed[Pod], keys: frozenset[str]) -> Listed[Pod]:
    """Return the pods without the annotations of other systems that central is configured to ignore."""
    objects, version = pods
    return [one if isinstance(one, Unreadable) else request.without_annotations(one, keys) for one in objects], version


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


async def follow(client: KubeClient, *, every_s: float = EVERY_S) -> AsyncGenerator[Cluster, None]:
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
            yield compute(devices.listed, nodes.listed, pods.listed)
            await asyncio.sleep(max(every_s, _SHARE * (loop.time() - began)))


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
