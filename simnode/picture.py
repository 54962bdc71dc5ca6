"""Draw a node: its cards and VFs by PCIe switch, and the pods that hold them. Pure: report and decisions in, lines of text out.

    GPU  1a:00.0  [AAAAAAAAAAAAAAAAAAAA]  train, whole
    GPU  1b:00.0  [BBBBCC..............]  serve 16.0 GiB 30 %, notebook 8.0 GiB
    VFs  18:00.0  [A.]  19:00.0 [..]

A card's bar is its memory, a letter is a pod; a share that is too small for a letter of its own has one all the same.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from string import ascii_uppercase
from typing import Final

from lading.nodedevices import Gpu, Pf, Place, Status
from simnode.decisions import Decision, GivenGpu, Part, holders_by_vf, parts_by_card

WIDTH: Final = 20  # characters of a card's bar
_FREE: Final = "."


def letters(decisions: Iterable[Decision]) -> dict[str, str]:
    """Return a letter by pod, in the order given; pods beyond Z share a mark."""
    placed = [decision.pod for decision in decisions if decision.node]
    return {pod: ascii_uppercase[n] if n < len(ascii_uppercase) else "#" for n, pod in enumerate(placed)}


def draw_node(name: str, status: Status, decisions: Sequence[Decision], marks: Mapping[str, str]) -> Iterator[str]:
    here = [decision for decision in decisions if decision.node == name]
    cards, vfs = parts_by_card(here), holders_by_vf(here)
    yield f"{name}: {_summary(status)}"
    by_switch: dict[tuple[str, ...], tuple[list[Gpu], list[Pf]]] = defaultdict(lambda: ([], []))
    for gpu in status.gpus:
        by_switch[_switch(gpu.place)][0].append(gpu)
    for pf in status.pfs:
        by_switch[_switch(pf.place)][1].append(pf)
    for path in sorted(by_switch):
        gpus, pfs = by_switch[path]
        yield f"  {_where(path, (gpus or pfs)[0].place)}"
        for gpu in gpus:
            parts = cards.get((name, gpu.uuid), [])
            yield f"    GPU  {short(gpu.bdf)}  [{draw_card(gpu, parts, marks)}]  {_words(gpu, parts)}".rstrip()
        if pfs:
            drawn = (f"{short(pf.bdf)} [{_draw_vfs(name, pf, vfs, marks)}]" for pf in pfs)
            yield f"    VFs  {'  '.join(drawn)}"


def draw_card(gpu: Gpu, parts: Sequence[Part], marks: Mapping[str, str]) -> str:
    if gpu.mig_enabled:
        return "MIG".center(WIDTH)
    cells = ""
    for part in parts:
        wide = WIDTH if part.whole else max(1, round(part.memory_mib / max(1, gpu.usable_mib) * WIDTH))
        cells += marks[part.pod] * wide
    return cells[:WIDTH].ljust(WIDTH, _FREE)


def short(bdf: str) -> str:
    """Return a PCI address without the domain, which is the same in nearly all of them."""
    return bdf.removeprefix("0000:")


def gib(mib: int) -> str:
    return f"{mib / 1024:.1f} GiB"


def _draw_vfs(node: str, pf: Pf, holders: Mapping[tuple[str, str], Sequence[str]], marks: Mapping[str, str]) -> str:
    return "".join(marks[holders[node, vf.bdf][0]] if (node, vf.bdf) in holders else _FREE for vf in pf.vfs)


def _words(gpu: Gpu, parts: Sequence[Part]) -> str:
    if gpu.mig_enabled:
        return f"in MIG mode, {len(gpu.mig)} instances: not given whole"
    if any(part.whole for part in parts):
        return f"{', '.join(part.pod for part in parts)}, whole"
    text = []
    for part in parts:
        core = f" {part.core_percent} %" if part.core_percent else ""
        text.append(f"{part.pod} {gib(part.memory_mib)}{core}")
    return ", ".join(text)


def _summary(status: Status) -> str:
    models = list(dict.fromkeys(gpu.model for gpu in status.gpus))
    counts = [f"{sum(gpu.model == model for gpu in status.gpus)} x {model}" for model in models]
    vfs = sum(len(pf.vfs) for pf in status.pfs)
    return ", ".join(counts + ([f"{vfs} VFs of {len(status.pfs)} NICs"] if vfs else []))


def _switch(place: Place) -> tuple[str, ...]:
    """Return the bridges down to the upstream port of the first switch: those behind it count as one with it. Never the port
    that is the device's own."""
    return place.path[:-1][:3] or place.path


def _where(path: Sequence[str], place: Place) -> str:
    numa = "" if place.numa is None else f", NUMA node {place.numa}"
    return f"{'switch ' + short(path[-1]) if len(path) > 1 else 'host bridge ' + path[0]}{numa}"


# ---- rows of a table

COLUMNS: Final = ("POD", "CONTAINER", "ASKS", "NODE", "GPU", "AT", "OF IT", "VF")
_NONE: Final = "-"
_UUID: Final = len("GPU-01234567")  # characters of a UUID that are shown: enough to distinguish cards of a cluster


def decision_rows(decision: Decision) -> Iterator[tuple[str, ...]]:
    """Return a row for each card or VF of each container; values equal to those above are left out."""
    of_pod = (decision.pod, decision.node or _NONE)
    for container in decision.containers:
        of_container = (container.name + " (init)" * container.init, container.asks)
        gpus = [(gpu.uuid[:_UUID], short(gpu.bdf), _part(gpu)) for gpu in container.gpus] or [(_NONE, _NONE, _NONE)]
        vfs = [short(vf.bdf) for vf in container.vfs] or [_NONE]
        for gpu, vf in zip_longest(gpus, vfs):
            yield (of_pod[0], *of_container, of_pod[1], *(gpu or ("", "", "")), vf or "")
            of_pod = of_container = ("", "")


def _part(gpu: GivenGpu) -> str:
    if gpu.whole:
        return "whole"
    return gib(gpu.memory_mib) + (f" {gpu.core_percent} %" if gpu.core_percent else "")
