"""The cluster at one moment, as central's own code sees it: lists of the API server, in a ledger that nothing is written from.

Enters: a client. Leaves: a `Cluster`, whose ledger, pending pods and scheduler say what central would decide. What only central
knows (predictions, reservations, since when a pod is refused) is not in it: `kubectl_lading.central` asks for that. The three
lists are of three moments, as three watches would be.
"""

import asyncio
import contextlib
import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from central.api.objects import Metadata, Node
from central.api.watch import Named, Unreadable
from central.ask import pod as ask
from central.controllers.conditions import Conditions
from central.controllers.informer import DevicesFeed, NodeFeed, PodFeed
from central.ledger.ledger import Ledger
from central.scheduling.configuration import Reckoning
from central.scheduling.scheduler import Scheduler
from central.state.pending import PendingPods
from kubectl_lading.central import Central, Silent
from kubectl_lading.owners import Pod
from kubectl_lading.terminal.output import warn
from kubectl_lading.terminal.progress import Progress
from lading.kube.client import KubeClient
from lading.kube.errors import KubeError, NotFoundError
from lading.kube.resource import NODE_DEVICES, NODES, PODS, Resource
from lading.log import Event, Level, Log
from lading.nodedevices import NodeDevices

T = TypeVar("T", bound=Named)

DEFAULT: Final = Reckoning()  # as central is installed by default


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    ledger: Ledger
    pending: PendingPods
    scheduler: Scheduler
    reports: Mapping[str, NodeDevices]
    nodes: Mapping[str, Node]
    pods: Sequence[Pod]
    unassigned: Sequence[ask.Pod] = ()  # request devices, and were bound without an assignment
    problems: Sequence[str] = ()  # what could not be read, as text

    def pod(self, namespace: str, name: str) -> Pod | None:
        return next((one for one in self.pods if (one.metadata.namespace, one.metadata.name) == (namespace, name)), None)


async def read_cluster(client: KubeClient) -> Cluster:
    """Return the cluster as the API server lists it. Raises KubeError."""
    return compute(*await _lists(client))


async def read_deciding(client: KubeClient, central: Central) -> Cluster:
    """Return the cluster with central's effective configuration, where central reports it. Raises KubeError."""
    lists, said = await asyncio.gather(_lists(client), central.reckoning())
    if isinstance(said, Reckoning):
        return compute(*lists, said)
    why = said.why if isinstance(said, Silent) else "it is older than this command, and does not tell them"
    warn(f"the settings of central are not known, and taken to be the defaults (policy {DEFAULT.policy.value}): {why}")
    return compute(*lists)


async def _lists(client: KubeClient) -> "tuple[Listed[NodeDevices], Listed[Node], Listed[Pod]]":
    with Progress("reading the cluster") as progress:
        return await asyncio.gather(
            read_list(client, NODE_DEVICES, NodeDevices, progress),
            read_list(client, NODES, Node, progress),
            read_list(client, PODS, Pod, progress),
        )


Listed = tuple[Sequence[T | Unreadable], str]  # with the list's resourceVersion


def compute(devices: Listed[NodeDevices], nodes: Listed[Node], pods: Listed[Pod], reckoning: Reckoning = DEFAULT) -> Cluster:
    """Compute the cluster from the three lists."""
    pods = _without_foreign(pods, frozenset(reckoning.foreign_annotations))
    ledger, pending = Ledger(), PendingPods()
    scheduler = reckoning.scheduler(ledger, pending, clock=time.monotonic)
    problems = _Problems()
    unassigned: list[ask.Pod] = []
    log = Log(problems, Level.ERROR)
    NodeFeed(ledger).replaced(*nodes)
    DevicesFeed(ledger).replaced(*devices)
    PodFeed(ledger, pending, Conditions(), log=log, unassigned=unassigned.append).replaced(*pods)
    for kind, (objects, _) in (("NodeDevices", devices), ("Node", nodes), ("Pod", pods)):
        problems.said += [_unreadable(kind, one) for one in objects if isinstance(one, Unreadable)]
    return Cluster(
        ledger=ledger,
        pending=pending,
        scheduler=scheduler,
        reports={one.metadata.name: one for one in _readable(devices[0])},
        nodes={one.metadata.name: one for one in _readable(nodes[0])},
        pods=_readable(pods[0]),
        unassigned=unassigned,
        problems=problems.said,
    )


def _without_foreign(pods: Listed[Pod], keys: frozenset[str]) -> Listed[Pod]:
    """Return the pods as central reads them, without annotations of other systems."""
    objects, version = pods
    return [one if isinstance(one, Unreadable) else ask.without_annotations(one, keys) for one in objects], version


def _readable(objects: Sequence[T | Unreadable]) -> list[T]:
    return [one for one in objects if not isinstance(one, Unreadable)]


class _Problems:
    """What the informers log, as lines for the user."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def write(self, level: Level, event: Event, message: str, fields: dict[str, str]) -> None:
        if event is Event.ASSIGNMENT_UNREADABLE:
            whose = f"{fields['namespace']}/{fields['pod']}"
            self.said.append(f"the assignment of pod {whose} on node {fields['node']} cannot be read: {message}")


def _unreadable(kind: str, one: Unreadable) -> str:
    name = "/".join(filter(None, (one.metadata.namespace, one.metadata.name)))
    return f"{kind} {name} cannot be read: {one.why}"


class _Bare(msgspec.Struct):
    metadata: Metadata = Metadata()


class NotInstalledError(KubeError):
    """The API server does not know NodeDevices: it answers 404 without more detail."""

    def __init__(self) -> None:
        name = f"{NODE_DEVICES.plural}.{NODE_DEVICES.group}"
        super().__init__(
            f"cannot list {name}: this cluster has no such resource: "
            f"its CustomResourceDefinition ({NODE_DEVICES.version}) is not installed"
        )
        self.hint = (
            "kubectl apply --server-side -k deploy/crds installs it, and docs/deploy.md says what else Lading needs; "
            "or is another cluster meant? (--context)"
        )


async def read_list(client: KubeClient, resource: Resource, kind: type[T], progress: Progress) -> Listed[T]:
    """Return the list. Raises NotInstalledError where this cluster has no NodeDevices resource, else KubeError."""
    parse = functools.partial(_parse, msgspec.json.Decoder(kind))
    objects: list[T | Unreadable] = []
    version = ""
    pages = client.list_pages(resource.path())
    try:
        async with contextlib.aclosing(pages):
            async for page in pages:
                if page.first:
                    objects.clear()
                objects += map(parse, page.items)
                version = page.resource_version
                progress.say(resource.plural, len(objects))
    except NotFoundError as e:  # an empty list is false
        if resource != NODE_DEVICES:  # a Kubernetes type is missing: this is not an API server
            raise
        raise NotInstalledError from e
    return objects, version


def _parse(decoder: msgspec.json.Decoder[T], raw: msgspec.Raw) -> T | Unreadable:
    """Decode one object. One that cannot be decoded exists all the same, and may hold devices."""
    try:
        return decoder.decode(raw)
    except msgspec.DecodeError as e:
        why = str(e)
    try:
        metadata = msgspec.json.decode(raw, type=_Bare).metadata
    except msgspec.DecodeError:
        metadata = Metadata()
    return Unreadable(metadata=metadata, why=why)
