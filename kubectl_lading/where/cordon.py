"""Run `kubectl lading cordon` and `uncordon`: keep new pods from devices, by an annotation of their node's NodeDevices.

Take devices as users name them. Send one patch for each node, with the resourceVersion that was read: if another client edits
the annotation meanwhile, read it again, so that no edit is lost. No pod is evicted: a pod that holds a device keeps it, and is
named in the output.

Entries of the annotation about other devices stay as they are, also those of devices that do not exist. To uncordon one device
of a node cordoned by "all", write all other GPUs and PFs one by one. A VF of a cordoned PF is handled in the same way. A MIG
instance cannot be uncordoned while its card is cordoned; that is refused.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

import click
import msgspec
from rich.table import Table
from rich.text import Text

from central.view.model import Ending
from kubectl_lading.access import connect, find_node_name
from kubectl_lading.cluster import Cluster, read_cluster
from kubectl_lading.command import command
from kubectl_lading.complete_names import complete_nodes
from kubectl_lading.flags import Flags
from kubectl_lading.next_step import expect_reports
from kubectl_lading.run import not_found
from kubectl_lading.terminal.format import pod_name
from kubectl_lading.terminal.output import show, table, text
from kubectl_lading.where.device_names import Device, Kind, devices_of, find_device
from lading.errors import ConfigError, LadingError
from lading.kube.client import KubeClient
from lading.kube.errors import ConflictError, ForbiddenError
from lading.kube.resource import NODE_DEVICES
from lading.nodedevices import EVERYTHING, Cordon, NodeDevices
from lading.vocabulary import CORDON

TRIES: Final = 5  # maximum attempts of one patch, because other clients may edit the same object

COLUMNS: Final = (
    ("NODE", "Where the device is."),
    ("DEVICE", "The UUID of a GPU or MIG instance, the PCI address of a PF or VF."),
    ("CORDON", "Whether the device is cordoned from now on, and whether it was before."),
    ("HELD BY", "Pods that hold it, or a part of it: a cordon does not evict them."),
)


class Change(msgspec.Struct, frozen=True):
    node: str
    device: str
    kind: Kind
    cordoned: bool  # whether the device is cordoned after the command
    before: bool  # whether the device was cordoned before the command
    held_by: tuple[str, ...]
    dry_run: bool = False


_REPORTS = msgspec.json.Decoder(NodeDevices)
_devices = click.argument("devices", nargs=-1, metavar="[DEVICE]...")
_node = click.option(
    "--node",
    metavar="NAME",
    default="",
    shell_complete=complete_nodes,
    help="Node of the devices; DEVICE is then a PCI address or an index.",
)
_all = click.option("--all", "everything", is_flag=True, help="Every device of --node.")
_dry_run = click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")


@command(
    "cordon",
    columns=COLUMNS,
    examples={
        "cordon h100-1/3 --dry-run": "Which pods hold that card, and would keep it.",
        "cordon --all --node h100-1": "Every device of a node.",
    },
)
@_devices
@_node
@_all
@_dry_run
async def cordon(flags: Flags, devices: tuple[str, ...], node: str, everything: bool, dry_run: bool) -> None:
    """Keep new pods from devices. No pod is evicted.

    A DEVICE is a UUID or the beginning of one, NODE/INDEX of a GPU, or NODE/ADDRESS: h100-1/3, h100-1/0000:18:00.0. A PF stands
    for all of its VFs, a card for all of its MIG instances."""
    await _edit(flags, devices, node, everything=everything, dry_run=dry_run, cordons=True)


@command("uncordon", columns=COLUMNS, examples={"uncordon h100-1/3": "Let that card get pods again."})
@_devices
@_node
@_all
@_dry_run
async def uncordon(flags: Flags, devices: tuple[str, ...], node: str, everything: bool, dry_run: bool) -> None:
    """Let devices get pods again.

    A DEVICE is named as for `cordon`. One that was cordoned with its whole node, or with its PF, is taken out of that."""
    await _edit(flags, devices, node, everything=everything, dry_run=dry_run, cordons=False)


async def _edit(flags: Flags, args: Sequence[str], node: str, *, everything: bool, dry_run: bool, cordons: bool) -> None:
    if everything == bool(args) or (everything and not node):
        raise ConfigError("cannot tell which devices are meant", hint="name some, or all of a node: --all --node NAME")
    async with connect(flags) as client:
        cluster = await read_cluster(client)
        node = find_node_name(node)
        expect_reports(cluster, " ".join(args) or f"devices of node {node}")
        if everything:
            if node not in cluster.reports:
                raise not_found("node", node, list(cluster.reports))
            devices = [one for one in devices_of(cluster.reports[node]) if one.kind in (Kind.GPU, Kind.PF)]
        else:
            devices = list(dict.fromkeys(find_device(word, cluster.reports, node=node) for word in args))
        changes = []
        for name, some in groupby(sorted(devices, key=lambda one: one.node), key=lambda one: one.node):
            of_node = list(some)
            before = await _patch(client, name, of_node, everything=everything, dry_run=dry_run, cordons=cordons)
            changes += [_change(cluster, one, before, cordoned=cordons, dry_run=dry_run) for one in of_node]
    show(changes, flags, draw(changes))


async def _patch(
    client: KubeClient, name: str, devices: Sequence[Device], *, everything: bool, dry_run: bool, cordons: bool
) -> str:
    """Cordon or uncordon the devices in the node's annotation. Return its previous value."""
    path = NODE_DEVICES.path(name=name)
    for _ in range(TRIES):
        report = _REPORTS.decode(await client.get(path))
        written = report.metadata.annotations.get(CORDON, "")
        if cordons:
            wanted = add_all(written) if everything else add(written, devices)
        else:
            wanted = None if everything else remove(written, devices, report)
        if dry_run or (wanted or "") == written:
            return written
        version = report.metadata.resource_version
        try:
            await client.merge(path, {"metadata": {"resourceVersion": version, "annotations": {CORDON: wanted}}})
        except ConflictError:
            continue
        except ForbiddenError as e:
            raise LadingError(e.message, hint="ClusterRole lading-operator (deploy/rbac/operator.yaml) has the right") from e
        return written
    raise LadingError(f"cannot change the cordons of node {name}: another client edits {CORDON} all the time", hint="try again")


def _change(cluster: Cluster, device: Device, before: str, *, cordoned: bool, dry_run: bool) -> Change:
    return Change(
        node=device.node,
        device=device.name,
        kind=device.kind,
        cordoned=cordoned,
        before=is_cordoned(before, device),
        held_by=tuple(sorted(_holders(cluster, device))),
        dry_run=dry_run,
    )


def _holders(cluster: Cluster, device: Device) -> Iterable[str]:
    vfs = _vfs_below(cluster.reports, device)
    for held in cluster.ledger.holders(device.node):
        part = held.taken.gpus.get(device.of or device.name)  # type: ignore[call-overload]
        if (part is not None and (device.kind is Kind.GPU or device.name in part.mig)) or vfs & held.taken.vfs:
            yield pod_name(Ending(uid=held.holder.pod, namespace=held.holder.namespace, pod=held.holder.name))


def _vfs_below(reports: Mapping[str, NodeDevices], device: Device) -> set[str]:
    of_pf = {one.name for one in devices_of(reports[device.node]) if one.kind is Kind.VF and one.of == device.name}
    return of_pf | ({device.name} if device.kind is Kind.VF else set())


def draw(changes: Sequence[Change]) -> Table | Text:
    rows = [(one.node, one.device, _describe(one), ", ".join(one.held_by) or "no pod") for one in changes]
    return table([head for head, _ in COLUMNS], rows)


def _describe(change: Change) -> Text:
    now = "cordoned" if change.cordoned else "in service"
    if change.cordoned == change.before:
        return text(f"{now}, as before", "dim")
    return text(f"would be {now}" if change.dry_run else now, "warn" if change.cordoned else "good")


def is_cordoned(written: str, device: Device) -> bool:
    """Return whether the annotation `written` cordons the device: by itself, by its card or PF, or by "all"."""
    return Cordon.parse(written).covers(*_names(device), device.of)


def add(written: str, devices: Iterable[Device]) -> str | None:
    now = list(Cordon.parse(written).entries)
    for device in devices:
        if not is_cordoned(",".join(now), device):
            now.append(device.name)
    return ",".join(now) or None


def add_all(written: str) -> str:
    return written if EVERYTHING in Cordon.parse(written).names else EVERYTHING


def remove(written: str, devices: Sequence[Device], report: NodeDevices) -> str | None:
    cordon = Cordon.parse(written)
    now = list(cordon.entries)
    if EVERYTHING in cordon.names and any(is_cordoned(written, device) for device in devices):
        now = [name for name in now if name.lower() != EVERYTHING]
        now += [device.name for device in devices_of(report) if device.kind in (Kind.GPU, Kind.PF)]
    for device in devices:
        if device.of and device.of.lower() in {name.lower() for name in now}:
            now = _one_by_one(now, device, report)
        now = [name for name in now if name.lower() not in _names(device) | _parts(device, report)]
    return ",".join(dict.fromkeys(now)) or None


def _one_by_one(now: Sequence[str], device: Device, report: NodeDevices) -> list[str]:
    if device.kind is Kind.MIG:
        raise LadingError(f"cannot uncordon {device.shown}: its card {device.of} is cordoned", hint=f"uncordon {device.of}")
    siblings = [one.name for one in devices_of(report) if one.kind is Kind.VF and one.of == device.of]
    return [name for name in now if name.lower() != device.of.lower()] + siblings


def _parts(device: Device, report: NodeDevices) -> set[str]:
    """Return the MIG instances of a card, or the VFs of a PF."""
    return {one.name.lower() for one in devices_of(report) if one.of == device.name}


def _names(device: Device) -> set[str]:
    return {device.name.lower()} if device.kind is Kind.MIG else {device.name.lower(), device.bdf.lower()}
