"""Run `kubectl lading gpu`: show the pods on a card, its free capacity, its earlier holders, and the NICs near it."""

from collections.abc import Iterator
from itertools import groupby
from typing import Final

import click
import msgspec
from rich.console import RenderableType
from rich.text import Text

from central.search.topology import Distance, distance
from central.view.build import node_view
from central.view.model import DeviceState, GpuView, HolderView, Past
from kubectl_lading.access import connect
from kubectl_lading.cluster import Cluster, read_cluster
from kubectl_lading.command import command
from kubectl_lading.flags import Flags
from kubectl_lading.next_step import expect_reports
from kubectl_lading.terminal.format import DISTANCES, NONE, age, gib, pod_name, use_of
from kubectl_lading.terminal.output import facts, now, show, table, text
from kubectl_lading.where.device_names import find_card
from lading.nodedevices import NodeDevices

COLUMNS: Final = (
    ("HELD", "What the pod was given of the card: whole, memory, percent of compute and the isolation, or MIG instances."),
    ("USED", "Memory that its processes use, where the node tells it by container."),
    (
        "BECAUSE",
        "bound: its assignment has it. granted: its node reports it. reserved, predicted, nominated: central plans it.",
    ),
    ("FOR", "For how long it has held the card, by the node's ledger."),
    ("BY", "Whose decision: signed and unsigned are central's, manual a person's."),
)


class NearVf(msgspec.Struct, frozen=True, kw_only=True):
    pf: str
    ibdev: str = ""
    distance: str = ""  # distance to the card, as text


class GpuReport(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    gpu: GpuView
    near: tuple[NearVf, ...] = ()  # NICs with VFs, the nearest first
    past: tuple[Past, ...] = ()  # earlier grants of the card and of its MIG instances, the newest first


@command(
    "gpu",
    columns=COLUMNS,
    examples={"gpu h100-1/3": "The card of index 3 on node h100-1.", "gpu GPU-5c1e": "The card whose UUID begins so."},
)
@click.argument("card", metavar="CARD")
async def gpu(flags: Flags, card: str) -> None:
    """Show the pods on a card now, what is free of it, and the pods that held it before.

    CARD is a UUID or its beginning (also of a MIG instance), NODE/INDEX, or a PCI address, with NODE/ before it where several
    nodes have that one."""
    async with connect(flags) as client:
        cluster = await read_cluster(client)
    expect_reports(cluster, f"GPU {card}")
    result = find_gpu(cluster, card)
    show(result, flags, *draw_gpu(result))


def find_gpu(cluster: Cluster, word: str) -> GpuReport:
    """Return a report about the GPU that `word` names. Raises LadingError if none or several match."""
    card = find_card(word, cluster.reports)
    report = cluster.reports[card.node]
    view = node_view(cluster.ledger, report, card.node)
    one = next(gpu for gpu in view.gpus if gpu.uuid == card.name)
    devices = {one.uuid, *(instance.uuid for instance in one.mig)}
    return GpuReport(
        node=card.node,
        gpu=one,
        near=tuple(_near(report, one.uuid)),
        past=tuple(past for past in view.past if past.device in devices),
    )


def _near(report: NodeDevices, uuid: str) -> Iterator[NearVf]:
    """Yield the NICs with VFs near the card, the nearest first. NICs at distance "across" are left out."""
    place = next(gpu.place for gpu in report.status.gpus if gpu.uuid == uuid)
    pairs_of_distance = sorted((distance(place, pf.place), pf.bdf, pf.ibdev) for pf in report.status.pfs if pf.vfs)
    for level, bdf, ibdev in pairs_of_distance:
        if level is not Distance.CROSS:
            yield NearVf(pf=bdf, ibdev=ibdev, distance=DISTANCES[level])


# ---- for people


def draw_gpu(report: GpuReport) -> Iterator[RenderableType]:
    gpu = report.gpu
    style = {DeviceState.FREE: "good", DeviceState.UNUSABLE: "bad"}.get(gpu.state, "")
    yield Text.assemble(text(f"GPU {gpu.index} of node {report.node}", "head"), "  ", text(gpu.state.value, style))
    yield facts(_facts(report))
    yield Text()
    if gpu.holders:
        yield table(("NOW", "CONTAINERS", "HELD", "USED", "BECAUSE"), [_row_of_holder(one, gpu) for one in gpu.holders])
    else:
        yield text("No pod holds it.")
    if report.past:
        yield Text()
        yield table(("BEFORE", "CONTAINER", "UNTIL", "FOR", "BY"), [_row_of_past(one) for one in report.past])


def _facts(report: GpuReport) -> Iterator[tuple[str, str]]:
    gpu = report.gpu
    yield "uuid", gpu.uuid
    yield "at", gpu.bdf + (f", module {gpu.module_id}" if gpu.module_id is not None else "")
    links = f", {gpu.nvlinks} NVLinks" if gpu.nvlinks else ""
    yield "model", f"{gpu.model}, {gib(gpu.memory_mib)} to give{links}"
    if gpu.why:
        yield "unusable", gpu.why
    yield "held", f"{gib(gpu.held_mib)} of memory, {gpu.held_percent}% of compute"
    yield "left", _left(gpu)
    if use := gpu.use:
        memory, busy = use_of(use)
        yield "used", f"{memory} of memory, {busy} busy, as the driver saw it {age(now() - use.at)} ago"
    for level, group in groupby(report.near, key=lambda one: one.distance):
        yield level, ", ".join(one.ibdev or one.pf for one in group)


def _left(gpu: GpuView) -> str:
    if gpu.mig_positions and gpu.state is not DeviceState.WITHHELD:
        return f"room for MIG instances, some or others: {', '.join(gpu.mig_positions)}"
    if gpu.mig:
        free = [one.profile or gib(one.memory_mib) for one in gpu.mig if one.state is DeviceState.FREE]
        return f"MIG instances {', '.join(free)}" if free else "nothing"
    if gpu.state is DeviceState.WITHHELD:
        return "nothing for new pods: its node assigns no devices now"
    if gpu.state in (DeviceState.HELD, DeviceState.UNUSABLE):
        return "nothing" + (" for new pods" if gpu.state is DeviceState.UNUSABLE else "")
    return f"{gib(gpu.memory_mib - gpu.held_mib)} of memory, {100 - gpu.held_percent}% of compute"


def _amount(one: HolderView, gpu: GpuView) -> str:
    if one.mig:
        profiles = {instance.uuid: instance.profile or instance.uuid for instance in gpu.mig}
        return ", ".join(profiles.get(uuid, uuid) for uuid in one.mig)
    return "whole" if one.whole else ", ".join(filter(None, (gib(one.memory_mib), f"{one.core_percent}%", one.isolation)))


def _row_of_holder(one: HolderView, gpu: GpuView) -> tuple[str, str, str, str, str]:
    used = NONE if one.used_mib is None else gib(one.used_mib)
    return pod_name(one), ", ".join(one.containers) or NONE, _amount(one, gpu), used, ", ".join(one.claims)


def _row_of_past(one: Past) -> tuple[str, str, str, str, str]:
    return pod_name(one), one.container or NONE, f"{age(now() - one.until)} ago", age(one.until - one.since), one.by or NONE
