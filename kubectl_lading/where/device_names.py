"""Devices as people name them. Pure.

    GPU-5c1e…            a UUID, or the beginning of one that no other device has; MIG instances too
    node/3               the GPU of that index: in the order of PCI addresses, from 0
    node/0000:18:00.0    a PCI address on that node, of a GPU, PF or VF; with --node without the node's name; 18:00.0 will do

Enters: the words, the reports of all nodes. Leaves: a `Device`, or LadingError with the names that are near.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from central.fit.topology import address
from kubectl_lading.run import not_found
from lading.errors import LadingError
from lading.nodedevices import NodeDevices

_DOMAIN: Final = "0000:"
_FEW: Final = 4


class Kind(StrEnum):
    GPU = "GPU"
    MIG = "MIG instance"
    PF = "PF"
    VF = "VF"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    node: str
    kind: Kind
    name: str  # its identity: a UUID or a PCI address
    bdf: str  # of a MIG instance: its card's
    of: str = ""  # the card of a MIG instance, the PF of a VF
    index: int | None = None  # of a GPU

    @property
    def shown(self) -> str:
        where = f" ({self.bdf})" if self.name != self.bdf else ""
        return f"{'' if self.name.startswith(self.kind[:3]) else f'{self.kind} '}{self.name}{where}"


def devices_of(report: NodeDevices) -> Iterator[Device]:
    node = report.metadata.name
    for index, gpu in enumerate(sorted(report.status.gpus, key=lambda gpu: address(gpu.bdf))):
        yield Device(node=node, kind=Kind.GPU, name=gpu.uuid, bdf=gpu.bdf, index=index)
        for mig in gpu.mig:
            yield Device(node=node, kind=Kind.MIG, name=mig.uuid, bdf=gpu.bdf, of=gpu.uuid)
    for pf in report.status.pfs:
        yield Device(node=node, kind=Kind.PF, name=pf.bdf, bdf=pf.bdf)
        for vf in pf.vfs:
            yield Device(node=node, kind=Kind.VF, name=vf.bdf, bdf=vf.bdf, of=pf.bdf)


def find_device(word: str, reports: Mapping[str, NodeDevices], *, node: str = "") -> Device:
    """`node`: where it is, where the word does not say."""
    before, slash, rest = word.rpartition("/")
    if slash and before in reports:  # UUIDs of MIG instances may have slashes too
        word, node = rest, before
    elif slash and not _is_mig(word):
        node = before
    if node and node not in reports:
        raise not_found("node", node, list(reports))
    known = [device for name in ([node] if node else reports) for device in devices_of(reports[name])]
    if _is_address(word) and not node:
        nodes = sorted({device.node for device in known if device.bdf == _full(word)})
        hint = f"write {_either([f'{one}/{word}' for one in nodes])}, or --node" if nodes else "no node has it"
        raise LadingError(f"cannot tell which node's {word} is meant", hint=hint)
    found = list(_matches(word, known, index=bool(node)))
    if len(found) > 1:
        raise LadingError(f"cannot tell which device {word} is: {len(found)} begin so", hint=_either([d.name for d in found]))
    if not found:
        where = f" on node {node}" if node else ""
        raise not_found("device", f"{word}{where}", [device.name for device in known if device.kind is Kind.GPU])
    return found[0]


def _matches(word: str, known: list[Device], *, index: bool) -> Iterator[Device]:
    if index and word.isascii() and word.isdecimal():
        yield from (device for device in known if device.index == int(word))
    elif _is_address(word):
        yield from (device for device in known if device.bdf == _full(word) and device.kind is not Kind.MIG)
    else:
        exact = [device for device in known if device.name.lower() == word.lower()]
        yield from exact or (device for device in known if _begins(device.name.lower(), word.lower()))


def _begins(name: str, word: str) -> bool:
    """With GPU- or MIG- before it, or without."""
    return name.startswith(word) or (len(word) > 1 and name.partition("-")[2].startswith(word))


def _is_mig(word: str) -> bool:
    return word.upper().startswith("MIG-")


def _is_address(word: str) -> bool:
    return ":" in word


def _full(word: str) -> str:
    word = word.lower()
    return word if word.count(":") > 1 else _DOMAIN + word


def _either(names: list[str]) -> str:
    shown = " or ".join(names[:_FEW])
    return f"{shown} or {len(names) - _FEW} more" if len(names) > _FEW else shown
