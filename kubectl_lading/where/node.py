"""Run `kubectl lading node`: show one node's topology, and which pods hold its devices."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

import click
from rich.console import Group as Lines
from rich.text import Text

from central.view.build import node_view, totals
from central.view.model import DeviceCounts, NodeState, NodeView
from kubectl_lading.access import connect, find_node_name
from kubectl_lading.cluster import Cluster, read_cluster
from kubectl_lading.command import command
from kubectl_lading.complete_names import complete_nodes
from kubectl_lading.flags import Flags, Output
from kubectl_lading.next_step import next_step
from kubectl_lading.run import not_found
from kubectl_lading.terminal.format import age, count
from kubectl_lading.terminal.output import console, now, show, text
from kubectl_lading.where.draw import draw_topology

COLUMNS: Final = (
    (
        "DEVICE",
        "GPU: index by PCI address, UUID, PCI address. NIC: RDMA device, PCI address. A switch is named by its root port.",
    ),
    ("HELD", "What pods were given, by the ledger: of a GPU its memory and percent of its compute; of a NIC its VFs."),
    (
        "USED",
        "What the driver saw in use on a GPU when the node last looked: memory, and how busy. - where that is not reported.",
    ),
    ("HELD BY", "Pods; with ! why no new pod gets the device. -o wide: whole UUIDs, and which VFs."),
)
EXAMPLES: Final = {"node n1": "The devices of node n1, and their pods.", "node node/n1 -o wide": "With whole UUIDs and VFs."}
_STATES: Final = {
    NodeState.READY: ("ready", "good"),
    NodeState.UNREACHABLE: ("not reachable: devices that pods hold there stay held, and no others are assigned", "bad"),
    NodeState.UNSCHEDULABLE: (
        "unschedulable (kubectl cordon): devices that pods hold there stay held, and no others are assigned",
        "warn",
    ),
    NodeState.REBOOTED: ("has booted since its last report: no devices are assigned until lading-hooks reports again", "bad"),
    NodeState.NOT_RECONCILED: ("does not know yet which pods hold its devices: none is given until it does", "bad"),
    NodeState.NO_REPORT: ("reports no devices", "bad"),
}


@command("node", columns=COLUMNS, examples=EXAMPLES)
@click.argument("name", metavar="NODE", shell_complete=complete_nodes)
async def node(flags: Flags, name: str) -> None:
    """Show the topology of NODE, and which pods hold its devices."""
    async with connect(flags) as client:
        cluster = await read_cluster(client)
    view = find_node(cluster, find_node_name(name))
    lines = draw_node(view, console().width, wide=flags.output is Output.WIDE)
    show(view, flags, Lines(*lines, *map(text, next_step(cluster))))


def find_node(cluster: Cluster, name: str) -> NodeView:
    """Return the view of a node, also without a report, or of a deleted node whose devices pods still hold. Raises
    LadingError."""
    if name not in cluster.reports and name not in cluster.nodes and not any(cluster.ledger.holds_on(name)):
        raise not_found("node", name, sorted(cluster.reports.keys() | cluster.nodes.keys()))
    return node_view(cluster.ledger, cluster.reports.get(name), name)


def draw_node(view: NodeView, width: int, *, wide: bool) -> Iterator[Text]:
    state, style = _STATES[view.state]
    yield Text.assemble(text(view.name, "head"), "  ", text(state, style))
    yield from (text(line) for line in _summary(view))
    if view.gpus or view.pfs:
        yield Text()
        yield from draw_topology(view, width, wide=wide)
    if view.problems:
        yield Text()
        yield text("PROBLEMS", "head")
        yield from (text(f"! {problem}", "bad") for problem in view.problems)


def _counted(of: DeviceCounts, *, also: str = "") -> str:
    return f"{of.free} free, {of.held} held{also}, {of.unusable} unusable"


def _summary(view: NodeView) -> Iterator[str]:
    sums = totals([view])
    if view.gpus:
        models = Counter(gpu.model for gpu in view.gpus)
        counted = _counted(sums.gpu_counts, also=f" ({sums.gpus_shared} in part)" if sums.gpus_shared else "")
        links = {gpu.nvlinks for gpu in view.gpus} - {0}
        linked = f"; {'/'.join(map(str, sorted(links)))} NVLinks each" if links else ""
        yield f"{', '.join(f'{number} x {model}' for model, number in models.items())}: {counted}{linked}"
    if view.pfs:
        layers = "/".join(sorted({pf.link_layer for pf in view.pfs} - {""}))
        nics = count(len(view.pfs), f"{layers} NIC".strip())
        yield f"{nics}, {count(sums.vfs, 'VF')}: {_counted(sums.vf_counts)}"
    versions = [f"{name} {version}" for name, version in (("driver", view.driver), ("lading-hooks", view.reporter)) if version]
    observed = max((gpu.use.at for gpu in view.gpus if gpu.use), default=0)
    versions += [f"USED as the driver saw it {age(now() - observed)} ago"] if observed else []
    if versions:
        yield ", ".join(versions)
    if view.isolations:
        default, *others = view.isolations
        yield f"isolations of shares: {', '.join((f'{default} (default)', *others))}"
    if view.cordon:
        yield f"cordoned: {view.cordon}"
