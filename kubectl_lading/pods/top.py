"""Run `kubectl lading top`: show held, used and idle devices by pod, namespace or node, by default the largest holders first.

Read the cluster, and show a row for each pod, namespace or node, and a row with their total. Use is reported by the driver for
each card (`status.use` of NodeDevices). If pods of several rows share a card, its used memory is counted by container.

Tests: tests/page/test_page.py
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Final

import click
import msgspec
from rich.console import RenderableType

from central.view.model import HolderView, NodeView
from central.view.pods import PodState, PodView, ShareView, share_of, share_of_nodes
from kubectl_lading.access import connect, find_scope
from kubectl_lading.central import Central
from kubectl_lading.cluster import Cluster, read_cluster
from kubectl_lading.command import command
from kubectl_lading.flags import Choice, Flags, Scope, refuse
from kubectl_lading.next_step import next_step
from kubectl_lading.pods.listed import list_pods
from kubectl_lading.pods.pods import held_as_text, idle_as_text, used_as_text
from kubectl_lading.terminal.format import NONE, pod_name
from kubectl_lading.terminal.output import Cell, show, table, text, warn
from kubectl_lading.where.nodes import view_nodes

COLUMNS: Final = (
    ("PODS", "(namespaces, nodes) Pods that hold devices."),
    ("WAITING", "(namespaces) Pods that wait for devices."),
    ("GPUS", "Cards that they hold, or a part of."),
    ("VFS", "RDMA VFs that they hold."),
    ("HELD", "Memory and percent of compute that they were given; 100% is one card."),
    ("USED", "Memory in use, and how busy these cards are in the mean; of cards that others share only their own memory."),
    ("IDLE", "Cards that are held and that the driver saw unused / held ones whose use the node reports."),
)
EXAMPLES: Final = {
    "top": "The nodes, the fullest first.",
    "top namespaces --sort idle": "Namespaces by their idle cards.",
    "top pods -A": "All pods that hold devices.",
}
_ALL: Final = "TOTAL"


class Of(StrEnum):
    PODS = "pods"
    NAMESPACES = "namespaces"
    NODES = "nodes"


class Sort(StrEnum):
    HELD = "held"
    IDLE = "idle"
    NAME = "name"


class TopRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # NAMESPACE/POD, a namespace, or a node
    pods: int = 0  # number of pods that hold devices
    waiting: int = 0  # number of pods that wait for devices
    share: ShareView = ShareView()


class TopView(msgspec.Struct, frozen=True, kw_only=True):
    of: Of
    rows: tuple[TopRow, ...]
    total: TopRow


@command(
    "top", columns=(("NAMESPACE", "Or POD, or NODE: what the row is about."), *COLUMNS), scope=Scope.PODS, examples=EXAMPLES
)
@click.argument("of", type=Choice(Of), default=Of.NODES.value)
@click.option("--sort", type=Choice(Sort), default=Sort.HELD.value, show_default=True)
async def top(flags: Flags, of: Of, sort: Sort) -> None:
    """Show what pods, namespaces or nodes hold, how much of it they use, and what is idle.

    HELD is what was assigned, USED what the driver saw at the node's last look. `top namespaces` is about all namespaces
    unless -n names one."""
    if of is Of.NODES:
        refuse(flags, Scope.CLUSTER)
    namespace = find_scope(flags) if of is Of.PODS else flags.namespace
    async with connect(flags) as client:
        cluster = await read_cluster(client, Central(client, flags))
    warn(*cluster.problems)
    view = view_top(cluster, of, sort, namespace)
    show(view, flags, draw(view), *map(text, next_step(cluster)))


def view_top(cluster: Cluster, of: Of, sort: Sort, namespace: str = "") -> TopView:
    """Return the rows and their total. `namespace`: empty for all."""
    views = view_nodes(cluster)
    pods = list_pods(cluster, views, namespace)
    rows = sorted(MAKERS[of](views, pods), key=lambda row: (_KEYS[sort](row), row.name))
    everything = share_of_nodes(views) if of is Of.NODES else share_of(views, lambda one: namespace in ("", one.namespace))
    return TopView(of=of, rows=tuple(rows), total=_row(_ALL, pods, everything))


def _row(name: str, pods: Sequence[PodView], share: ShareView) -> TopRow:
    waiting = sum(pod.state is PodState.WAITING for pod in pods)
    return TopRow(name=name, pods=len(pods) - waiting, waiting=waiting, share=share)


def _by_pod(views: Sequence[NodeView], pods: Sequence[PodView]) -> Iterator[TopRow]:
    for pod in pods:
        if pod.state is not PodState.WAITING:
            yield _row(pod_name(pod), [pod], pod.holds)


def _by_namespace(views: Sequence[NodeView], pods: Sequence[PodView]) -> Iterator[TopRow]:
    of_node = {view.name: view for view in views}
    for name, own in _grouped((pod.namespace, pod) for pod in pods).items():
        nodes = dict.fromkeys(node for pod in own for node in pod.nodes)
        yield _row(name, own, share_of([of_node[node] for node in nodes], partial(_is_in, name)))


def _by_node(views: Sequence[NodeView], pods: Sequence[PodView]) -> Iterator[TopRow]:
    on = _grouped((node, pod) for pod in pods for node in pod.nodes)
    for view in views:
        yield _row(view.name, on.get(view.name, []), share_of_nodes([view]))


def _grouped(pairs: Iterable[tuple[str, PodView]]) -> dict[str, list[PodView]]:
    groups: dict[str, list[PodView]] = {}
    for key, pod in pairs:
        groups.setdefault(key, []).append(pod)
    return groups


def _is_in(namespace: str, holder: HolderView) -> bool:
    return holder.namespace == namespace


MAKERS: Final = {Of.PODS: _by_pod, Of.NAMESPACES: _by_namespace, Of.NODES: _by_node}
_KEYS: Final[Mapping[Sort, Callable[[TopRow], tuple[int, int]]]] = {
    Sort.HELD: lambda row: (-row.share.held_percent, -row.share.held_mib),
    Sort.IDLE: lambda row: (-row.share.gpus_idle, -row.share.held_percent),
    Sort.NAME: lambda row: (0, 0),
}


def draw(view: TopView) -> RenderableType:
    heads = [head for head, _ in COLUMNS if head not in _LEFT_OUT[view.of]]
    rows = [_cells(view.of, row) for row in (*view.rows, view.total)]
    return table([_HEADS[view.of], *heads], rows, wraps=("USED",))


_HEADS: Final = {Of.PODS: "POD", Of.NAMESPACES: "NAMESPACE", Of.NODES: "NODE"}
_LEFT_OUT: Final = {Of.PODS: {"PODS", "WAITING"}, Of.NAMESPACES: set[str](), Of.NODES: {"WAITING"}}


def _cells(of: Of, row: TopRow) -> list[Cell]:
    numbers = {"PODS": str(row.pods), "WAITING": str(row.waiting or NONE)}
    share = row.share
    return [
        text(row.name, "head") if row.name == _ALL else row.name,
        *(message for head, message in numbers.items() if head not in _LEFT_OUT[of]),
        str(share.gpus or NONE),
        str(share.vfs or NONE),
        held_as_text(share),
        used_as_text(share),
        idle_as_text(share),
    ]
