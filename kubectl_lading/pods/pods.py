"""Run `kubectl lading pods`: list the pods that wait for devices or hold some, with each pod's request, devices and use.

Read the cluster and show a row for each pod. With -w, watch the cluster, and show another row whenever a pod has changed.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import click
import msgspec
from rich.console import RenderableType
from rich.text import Text

from central.view.pods import PodState, PodView, ShareView
from kubectl_lading.access import connect, find_scope
from kubectl_lading.central import Central
from kubectl_lading.cluster import Cluster, follow, read_cluster
from kubectl_lading.command import command
from kubectl_lading.flags import Choice, Flags, Output, Scope
from kubectl_lading.lists import read_selected
from kubectl_lading.next_step import next_step
from kubectl_lading.pods.listed import list_pods
from kubectl_lading.terminal.format import NONE, age, count, use_as_text
from kubectl_lading.terminal.output import Cell, Rows, now, show, table, text, warn
from kubectl_lading.where.nodes import view_nodes
from lading.errors import ConfigError
from lading.kube.client import KubeClient
from lading.kube.resource import PODS

COLUMNS: Final = (
    (
        "STATE",
        "waiting: not bound. starting: its node has granted it nothing yet. holding. idle: holds GPUs, none of them in use.",
    ),
    ("NODE", "Where it holds devices."),
    ("GPUS", "Cards that it holds, or a part of."),
    ("VFS", "RDMA VFs that it holds."),
    ("IDLE", "Its cards that the driver saw unused / those whose use the node reports."),
    ("AGE", "Since the pod was created."),
    ("ASKS", "Its request, in words."),
)
WIDE: Final = (
    ("HELD", "(wide) Memory and percent of compute that it was given; 100% is one card."),
    ("USED", "(wide) Memory in use and how busy its cards are, without cards that it shares: use is reported by card."),
)
EXAMPLES: Final = {
    "pods -A": "All pods that wait for devices or hold some.",
    "pods --state idle -A": "Pods that hold cards and use none of them.",
    "pods -l app=train -w": "The pods with a label, and another row whenever one changes.",
}
_DELETED: Final = "gone"
_STYLES: Final = {PodState.WAITING: "warn", PodState.STARTING: "warn", PodState.HOLDING: "good", PodState.IDLE: "warn"}


class PodsView(msgspec.Struct, frozen=True):
    pods: tuple[PodView, ...]
    problems: tuple[str, ...] = ()


@command(
    "pods",
    columns=(("POD", "Its name; with -A also its namespace."), *COLUMNS, *WIDE),
    scope=Scope.PODS,
    selects=True,
    examples=EXAMPLES,
)
@click.option("--state", "states", type=Choice(PodState), multiple=True, help="Only pods in this state. May be repeated.")
@click.option("-w", "--watch", is_flag=True, help="Watch: print a row whenever a pod comes, changes or goes.")
async def pods(flags: Flags, states: tuple[PodState, ...], watch: bool) -> None:
    """List pods that wait for devices, or hold some.

    Why one waits: kubectl lading why, without a name for all of them."""
    if watch and flags.output in (Output.JSON, Output.YAML):
        raise ConfigError(f"cannot watch as {flags.output}", hint="leave -w or -o out")
    namespace = find_scope(flags)

    async def read_pods(client: KubeClient, cluster: Cluster) -> list[PodView]:
        selected = await read_selected(client, PODS.path(namespace), flags.selector)
        listed = list_pods(cluster, view_nodes(cluster), namespace)
        return [one for one in listed if (not states or one.state in states) and (selected is None or one.uid in selected)]

    async with connect(flags) as client:
        cluster = await read_cluster(client, Central(client, flags))
        warn(*cluster.problems)
        listed = await read_pods(client, cluster)
        rows = Rows(_heads(flags), [_row(one, flags) for one in listed], headers=not flags.no_headers)
        if not watch:
            show(PodsView(tuple(listed), tuple(cluster.problems)), flags, draw(listed, cluster, flags))
            return
        rows.print_all()
        last = {one.uid: one for one in listed}
        async for later in follow(client, cluster.dialects):
            last = print_changes(last, await read_pods(client, later), lambda one, state: rows.print(_row(one, flags, state)))


def print_changes(
    last: dict[str, PodView], listed: Sequence[PodView], announce: Callable[[PodView, str], None]
) -> dict[str, PodView]:
    """Print the pods that are new, changed or deleted since `last`; return the current pods by uid."""
    present = {one.uid: one for one in listed}
    for one in listed:
        if one != last.get(one.uid):
            announce(one, one.state.value)
    for uid in last.keys() - present.keys():
        announce(last[uid], _DELETED)
    return present


def draw(listed: Sequence[PodView], cluster: Cluster, flags: Flags) -> RenderableType:
    if not listed:
        where = "" if flags.all_namespaces else " in this namespace (-A: all)"
        return text(" ".join((f"No pod{where} waits for devices or holds some.", *next_step(cluster))))
    return table(_heads(flags), [_row(one, flags) for one in listed])


def _heads(flags: Flags) -> tuple[str, ...]:
    wide = [head for head, _ in WIDE] if flags.output is Output.WIDE else []
    own = [head for head, _ in COLUMNS]
    return (*(["NAMESPACE"] if flags.all_namespaces else []), "POD", *own[:-1], *wide, own[-1])


def _row(one: PodView, flags: Flags, state: str = "") -> list[Cell]:
    wide = [held_as_text(one.holds), used_as_text(one.holds)] if flags.output is Output.WIDE else []
    return [*([one.namespace] if flags.all_namespaces else []), *_cells(one, state), *wide, one.asks or NONE]


def _cells(one: PodView, state: str) -> Iterator[Cell]:
    yield one.pod or f"uid {one.uid}"
    yield text(state or one.state.value, _STYLES[one.state])
    yield ",".join(one.nodes) or NONE
    yield str(one.holds.gpus or NONE)
    yield str(one.holds.vfs or NONE)
    yield idle_as_text(one.holds)
    yield age(now() - one.created) if one.created else NONE


def idle_as_text(share: ShareView) -> str | Text:
    if not share.gpus_reported:
        return NONE
    message = f"{share.gpus_idle}/{share.gpus_reported}"
    return text(message, "warn") if share.gpus_idle else message


def held_as_text(share: ShareView) -> str:
    return use_as_text(share.held_mib, share.held_percent) if share.gpus else NONE


def used_as_text(share: ShareView) -> str:
    shared = f"{count(share.gpus_shared, 'card')} shared" if share.gpus_shared else ""
    known = use_as_text(share.used_mib, share.busy_percent)
    return " + ".join(filter(None, (known if known != NONE or not shared else "", shared)))
