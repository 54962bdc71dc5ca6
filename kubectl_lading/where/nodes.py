"""Run `kubectl lading nodes`: show one row for each node, and the cluster's totals.

Tests: tests/unit/kubectl_lading/pods/test_pods.py
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from rich.table import Table
from rich.text import Text

from central.request.cpu_memory import allocatable_of
from central.view.build import node_view, totals
from central.view.model import DeviceState, NodeState, NodeView, Totals
from central.view.pods import used
from kubectl_lading.access import connect
from kubectl_lading.cluster import Cluster, read_cluster
from kubectl_lading.command import command
from kubectl_lading.flags import Flags, Output
from kubectl_lading.lists import read_selected
from kubectl_lading.next_step import next_step
from kubectl_lading.terminal.format import NONE, age, count, counts, counts_as_text, of_gib, percent, use_as_text
from kubectl_lading.terminal.output import COUNTS, Cell, now, show, table, text, warn
from lading.kube.resource import NODES

COLUMNS: Final = (
    ("GPUS", f"Cards: {counts_as_text()}. Held is in whole or in part; a node that assigns nothing now has no free ones."),
    ("VFS", f"RDMA VFs: {counts_as_text()}."),
    ("HELD", "Of all cards: memory that pods were given / there is, and percent of compute. A share without percent counts 0."),
    ("USED", "Memory that the driver saw in use when the node last looked, and how busy the cards were; - where not reported."),
    ("HEALTH", "What is wrong, or ok."),
)
WIDE: Final = (
    ("MODELS", "(wide) Cards by model."),
    ("DRIVER", "(wide) The driver of the cards, by version."),
    ("REPORTER", "(wide) Version of the node's lading-hooks."),
    ("CPU", "(wide) Requested by pods / allocatable cores."),
    ("HOST MEMORY", "(wide) Requested by pods / allocatable."),
    ("SEEN", "(wide) How long ago the driver was asked for what is USED."),
)
EXAMPLES: Final = {
    "nodes": "What each node has, and how full it is.",
    "nodes -o wide -l nvidia.com/gpu.product=H200": "Nodes with a label, with models, driver and versions.",
    "nodes -o json": "The same for a program.",
}
_ALL: Final = "TOTAL"


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the cluster's totals and its nodes, with the same keys as central's `GET /v1/cluster`."""

    totals: Totals
    nodes: tuple[NodeView, ...]
    problems: tuple[str, ...] = ()


@command("nodes", columns=(("NODE", "Its name; the last row is of all."), *COLUMNS, *WIDE), selects=True, examples=EXAMPLES)
async def nodes(flags: Flags) -> None:
    """List what each node has, how much of it is held, and how much is used.

    HELD is what pods were given, USED is what the driver saw: a card that is held may idle. They are never the same number."""
    async with connect(flags) as client:
        cluster = await read_cluster(client)
        selected = await read_selected(client, NODES.path(), flags.selector)
    views = view_nodes(cluster)
    if selected is not None:
        names = {name for name, one in cluster.nodes.items() if one.metadata.uid in selected}
        views = [view for view in views if view.name in names]
    warn(*cluster.problems)
    view = ClusterView(totals=totals(views), nodes=tuple(views), problems=tuple(cluster.problems))
    show(view, flags, draw_nodes(views, cluster, wide=flags.output is Output.WIDE), *([COUNTS] if views else []))


def view_nodes(cluster: Cluster) -> list[NodeView]:
    """Return the nodes that report devices, and the nodes without a report on which pods hold devices, sorted by name."""
    unreported = {pod.spec.node_name for pod in cluster.pods} - cluster.reports.keys()
    held = {name for name in unreported if name and any(cluster.ledger.holds_on(name))}
    return [node_view(cluster.ledger, cluster.reports.get(name), name) for name in sorted(cluster.reports.keys() | held)]


def draw_nodes(views: Sequence[NodeView], cluster: Cluster, *, wide: bool) -> Table | Text:
    if not views:
        return text(" ".join(next_step(cluster)) or "No node with these labels reports devices.")
    heads = ("NODE", *(head for head, _ in (*COLUMNS, *(WIDE if wide else ()))))
    rows = [[*_row(view.name, [view]), _health(view), *(_wide(view, cluster) if wide else ())] for view in views]
    rows.append([*_row(_ALL, views), _health_of_all(views), *([""] * len(WIDE) if wide else ())])
    return table(heads, rows)


def _row(name: str, views: Sequence[NodeView]) -> Iterator[Cell]:
    sums = totals(views)
    gpus = [gpu for view in views for gpu in view.gpus]
    yield text(name, "head") if name == _ALL else name
    yield counts(sums.gpu_counts)
    yield counts(sums.vf_counts)
    yield f"{of_gib(sums.held_mib, sums.memory_mib)} {percent(sums.held_percent, sums.core_percent)}" if gpus else NONE
    yield use_as_text(*used(gpus))


def _health(view: NodeView) -> Text:
    if view.state is NodeState.NO_REPORT:
        return text("; ".join(("no report", *view.problems)), "bad")
    unusable = Counter("GPU" for gpu in view.gpus if gpu.state is DeviceState.UNUSABLE and not gpu.cordoned)
    unusable.update("VF" for pf in view.pfs for vf in pf.vfs if vf.state is DeviceState.UNUSABLE and not pf.cordoned)
    message = [] if view.state is NodeState.READY else [view.state.value.replace("-", " ")]
    message += [f"{count(number, kind)} unusable" for kind, number in unusable.items()]
    message += [count(len(view.problems), "problem")] if view.problems else []
    if message == [NodeState.UNSCHEDULABLE.value]:
        return text(", ".join(message + (["cordoned"] if view.cordon else [])), "warn")
    if message:
        return text(", ".join(message + (["cordoned"] if view.cordon else [])), "bad")
    return text("cordoned", "warn") if view.cordon else text("ok", "good")


def _health_of_all(views: Sequence[NodeView]) -> Text:
    sums = totals(views)
    message = [count(len(views), "node")]
    message += [f"{sums.nodes_not_ready} not ready"] if sums.nodes_not_ready else []
    return text(", ".join(message), "bad" if sums.nodes_not_ready else "")


def _wide(view: NodeView, cluster: Cluster) -> Iterator[str]:
    models = Counter(gpu.model for gpu in view.gpus)
    yield ", ".join(f"{number} x {model}" for model, number in models.items()) or NONE
    yield view.driver or NONE
    yield view.reporter or NONE
    yield from _host(view.name, cluster)
    observed = max((gpu.use.at for gpu in view.gpus if gpu.use), default=0)
    yield age(now() - observed) if observed else NONE


def _host(name: str, cluster: Cluster) -> tuple[str, str]:
    capacity = cluster.ledger.capacity(name)
    node = cluster.nodes.get(name)
    size = allocatable_of(node.status.allocatable) if node else None
    if size is None or not capacity.resources_reported:
        return NONE, NONE
    cpu, all_cpu = (size.cpu_milli - capacity.cpu_milli) / 1000, size.cpu_milli / 1000
    return f"{cpu:g}/{all_cpu:g}", of_gib(size.memory_mib - capacity.memory_mib, size.memory_mib)
