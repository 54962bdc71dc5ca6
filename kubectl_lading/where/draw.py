"""Draw a node's topology: sockets, NUMA nodes, switches, GPUs and NICs as a tree, with held and used amounts, and holders.

Take a `NodeView` and the width of the terminal; return lines. On a narrow terminal, the holders of a device are in lines below
the device. The VFs of a NIC share one line with the number of VFs by pod; with `wide` the VFs are listed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from rich.text import Text

from central.view.model import DeviceState, GpuView, GroupView, HolderView, MigView, NodeView, PfView, VfView
from kubectl_lading.terminal.format import NONE, count, gib, of_gib, pod_name, short_bdf, short_uuid, use_of
from kubectl_lading.terminal.output import text

_GAP: Final = 2
_BAR: Final = 8  # length of a bar, in columns
_BELOW: Final = 4  # indentation of the holders below a device, in columns
_LEAST: Final = 20  # minimum columns for the holders, on any terminal
_BESIDE: Final = 34  # minimum columns for long holders beside the device; with fewer they go below it
_STYLES: Final = {
    DeviceState.FREE: "good",
    DeviceState.SHARED: "warn",
    DeviceState.HELD: "",
    DeviceState.WITHHELD: "warn",
    DeviceState.UNUSABLE: "bad",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    branch: str = ""  # lines of the tree before the device
    below: str = ""  # lines of the tree before the device's further lines
    device: Text
    held: Text = field(default_factory=Text)
    used: Text = field(default_factory=Text)
    by: tuple[Text, ...] = ()


_HEADS: Final = Row(device=text("DEVICE", "head"), held=text("HELD", "head"), used=text("USED", "head"))


def draw_topology(view: NodeView, width: int, *, wide: bool = False) -> Iterator[Text]:
    rows = [_HEADS, *_rows(view, wide=wide)]
    columns = (
        max(len(row.branch) + len(row.device) for row in rows if row.held) + _GAP,
        max(len(row.held) for row in rows) + _GAP,
        max(len(row.used) for row in rows) + _GAP,
    )
    longest = max((len(line) for row in rows for line in row.by), default=0)
    beside = width - sum(columns) >= min(_BESIDE, longest)
    for row in rows:
        by = (text("HELD BY", "head"),) if row is _HEADS and beside else row.by
        indent = sum(columns) if beside else len(row.below) + _BELOW
        lines = [part for line in by for part in _folded(line, max(_LEAST, width - indent))]
        first = lines.pop(0) if beside and lines else Text()
        yield _aligned((Text.assemble((row.branch, "bright_black"), row.device), row.held, row.used, first), columns)
        for line in lines:
            yield Text.assemble((row.below.ljust(indent), "bright_black"), line)


def _aligned(cells: Sequence[Text], columns: Sequence[int]) -> Text:
    made, at = Text(), 0
    for cell, wide in zip(cells, (*columns, 0), strict=True):
        made.pad_right(max(0, at - len(made)))
        made.append_text(cell)
        at += wide
    made.rstrip()
    return made


def _folded(line: Text, width: int) -> Iterator[Text]:
    """Yield the lines of a text, at most `width` columns each, broken at blanks if there are any."""
    while len(line) > width:
        at = line.plain.rfind(" ", 0, width) + 1 or width
        head, line = line.divide([at])
        yield head
    yield line


# ---- the tree


def _rows(view: NodeView, *, wide: bool) -> Iterator[Row]:
    gpus, pfs = {gpu.uuid: gpu for gpu in view.gpus}, {pf.bdf: pf for pf in view.pfs}
    for (socket, numa), groups in groupby(view.groups, key=lambda group: (group.socket, group.numa)):
        yield Row(device=text(_place(socket, numa), "head"))
        branches = [branch for group in groups for branch in _branches(group)]
        for number, (group, gpu_uuids, pf_bdfs) in enumerate(branches):
            last = number == len(branches) - 1
            branch, below = _sticks("", last=last)
            devices: list[GpuView | PfView] = [gpus[uuid] for uuid in gpu_uuids if uuid in gpus]
            devices += [pfs[bdf] for bdf in pf_bdfs if bdf in pfs]
            if group is None:
                for device in devices:
                    yield from _device(device, "", last=last, wide=wide)
                continue
            yield Row(branch=branch, device=text(_switch(group)))
            for place, device in enumerate(devices):
                yield from _device(device, below, last=place == len(devices) - 1, wide=wide)


def _branches(group: GroupView) -> Iterator[tuple[GroupView | None, tuple[str, ...], tuple[str, ...]]]:
    """Yield the branches of a group. A switch with only one device is left out, and its device is drawn directly below the NUMA
    node."""
    if len(group.gpus) + len(group.pfs) > 1 and group.name:
        yield group, group.gpus, group.pfs
        return
    yield from ((None, (uuid,), ()) for uuid in group.gpus)
    yield from ((None, (), (bdf,)) for bdf in group.pfs)


def _sticks(before: str, *, last: bool) -> tuple[str, str]:
    return before + ("└─ " if last else "├─ "), before + ("   " if last else "│  ")


def _place(socket: int | None, numa: int | None) -> str:
    if socket is None and numa is None:
        return "socket and NUMA node unknown"
    return ", ".join(
        [f"socket {socket}" if socket is not None else "socket unknown"] + ([f"NUMA node {numa}"] if numa is not None else [])
    )


def _switch(group: GroupView) -> str:
    kind = "host bridge" if group.name.startswith("pci") else "switch at"
    return f"{kind} {short_bdf(group.name)}"


def _device(device: GpuView | PfView, before: str, *, last: bool, wide: bool) -> Iterator[Row]:
    branch, below = _sticks(before, last=last)
    if isinstance(device, PfView):
        rail = "" if device.rail is None else f"rail {device.rail}"
        names = " ".join(filter(None, ("NIC", device.ibdev or device.netdev, short_bdf(device.bdf), rail)))
        by = (*_vf_holders(device.vfs, wide=wide), *_why_vfs(device))
        yield Row(branch=branch, below=below, device=text(names), held=_held_vfs(device), used=text(NONE, "dim"), by=by)
        return
    name = f"GPU {device.index} {device.uuid if wide else short_uuid(device.uuid)} {short_bdf(device.bdf)}"
    by = (*_gpu_holders(device), *_why(device.why))
    yield Row(branch=branch, below=below, device=text(name), held=_held(device), used=_used(device), by=by)
    for number, instance in enumerate(device.mig):
        yield _mig(instance, *_sticks(below, last=number == len(device.mig) - 1))


# ---- one device


def _gpu_holders(gpu: GpuView) -> Iterator[Text]:
    shared = gpu.state in (DeviceState.SHARED, DeviceState.WITHHELD)
    for one in gpu.holders:
        if one.whole or not gpu.mig:  # MIG instances have their own lines
            amount = f" {gib(one.memory_mib)} {one.core_percent}%" if shared or not one.whole else ""
            isolation = f" {one.isolation}" if one.isolation else ""
            yield text(f"{pod_name(one)}{amount}{isolation}{_unsure(one)}")


def _why(reason: str, which: str = "") -> Iterator[Text]:
    """Yield the reason why no new pod gets a device; nothing if there is no reason."""
    if reason:
        yield text(f"! {which}{reason}", "warn" if reason == "cordoned" else "bad")


def _held(gpu: GpuView) -> Text:
    style = _STYLES[gpu.state]
    if not gpu.holders:
        only = " for MIG" if gpu.mig_positions else ""
        return text(f"{_bar(0)} {gpu.state.value}{only}", style)
    filled = gpu.held_mib / gpu.memory_mib if gpu.memory_mib else 1.0
    if any(holder.whole for holder in gpu.holders):
        return text(f"{_bar(1.0)} whole", style)
    if gpu.mig:
        taken = sum(bool(one.holders) for one in gpu.mig)
        most = "" if gpu.mig_positions else f"/{len(gpu.mig)}"  # the number of further instances depends on their sizes
        return text(f"{_bar(filled)} {taken}{most} instances", style)
    return text(f"{_bar(filled)} {of_gib(gpu.held_mib, gpu.memory_mib)} {gpu.held_percent}%", style)


def _bar(part: float) -> str:
    """Draw a bar for a part from 0 to 1. Above 0, at least one cell is full; only 1 fills all cells."""
    cells = round(part * _BAR)
    if 0 < part < 1:
        cells = min(max(cells, 1), _BAR - 1)
    return "█" * cells + "░" * (_BAR - cells)


def _used(gpu: GpuView) -> Text:
    return text(" ".join(use_of(gpu.use))) if gpu.use else text(NONE, "dim")


def _unsure(holder: HolderView) -> str:
    """Return a remark about a holder without a grant, such as "not granted yet"; empty with one. A grant without a binding is
    normal for devices named by hand."""
    if "granted" in holder.claims:
        return ""
    message = {"bound": "not granted yet", "lingering": "ended while the node was not reachable"}
    return f" ({', '.join(message.get(claim, claim) for claim in holder.claims)})"


def _mig(instance: MigView, branch: str, below: str) -> Row:
    return Row(
        branch=branch,
        below=below,
        device=text(f"{instance.profile or gib(instance.memory_mib)} {short_uuid(instance.uuid)}"),
        held=text(instance.state.value, _STYLES[instance.state]),
        used=text(NONE, "dim"),
        by=tuple(text(pod_name(one) + _unsure(one)) for one in instance.holders),
    )


def _held_vfs(pf: PfView) -> Text:
    if not pf.vfs:
        return text("no VFs", "bad" if pf.why else "dim")
    held = sum(bool(vf.holders) for vf in pf.vfs)
    usable = sum(vf.state is not DeviceState.UNUSABLE for vf in pf.vfs)
    free = any(vf.state is DeviceState.FREE for vf in pf.vfs)
    style = "bad" if not usable else ("good" if not held and free else "")
    return text(f"{_bar(held / len(pf.vfs))} {held}/{len(pf.vfs)} VFs", style)


def _vf_holders(vfs: Sequence[VfView], *, wide: bool) -> Iterator[Text]:
    """Yield the holders of VFs on one line; with `wide`, a line for each pod with its VFs' addresses."""
    held: dict[str, list[str]] = {}
    for vf in vfs:
        for holder in vf.holders:
            held.setdefault(pod_name(holder) + _unsure(holder), []).append(short_bdf(vf.bdf))
    if wide:
        yield from (text(f"{who}: {' '.join(bdfs)}") for who, bdfs in held.items())
    elif held:
        yield text(", ".join(f"{who} x{len(bdfs)}" if len(bdfs) > 1 else who for who, bdfs in held.items()))


def _why_vfs(pf: PfView) -> Iterator[Text]:
    """Yield the reasons why no new pod gets VFs of the NIC, each once."""
    reasons: dict[str, list[str]] = {}
    for vf in () if pf.why else pf.vfs:
        reasons.setdefault(vf.why, []).append(short_bdf(vf.bdf))
    yield from _why(pf.why)
    for reason, bdfs in reasons.items():
        yield from _why(reason, f"{bdfs[0] if len(bdfs) == 1 else count(len(bdfs), 'VF')}: ")
