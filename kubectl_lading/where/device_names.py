"""Find devices by the names that users write, for every command with a device as argument. Pure.

    GPU-5c1e…            a UUID of a card or MIG instance, or a beginning that no other device has
    node/3               a GPU by its index, in the order of PCI addresses from 0
    node/0000:18:00.0    a PCI address of a GPU, PF or VF; also 18:00.0, and without the node if only one node has the address

Take the name, and the reports of all nodes. Return a `Device`, or raise LadingError with similar names.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kubectl_lading.run import not_found
from lading.amounts import first_few
from lading.devices.identity import pci_order
from lading.errors import LadingError
from lading.nodedevices import NodeDevices

_DOMAIN: Final = "0000:"
_FEW: Final = 4
_OLD_MIG: Final = "mig-gpu-"  # prefix of instance names from drivers before R470, the only UUIDs with slashes: MIG-GPU-…/1/0


class Kind(StrEnum):
    GPU = "GPU"
    MIG = "MIG instance"
    PF = "PF"
    VF = "VF"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    node: str
    kind: Kind
    name: str  # UUID of a GPU or MIG instance, PCI address of a PF or VF
    bdf: str  # PCI address; for a MIG instance that of its card
    of: str = ""  # UUID of a MIG instance's card, PCI address of a VF's PF; empty for a GPU or PF
    index: int | None = None  # index of a GPU on its node, from 0; None for other devices

    @property
    def shown(self) -> str:
        where = f" ({self.bdf})" if self.name != self.bdf else ""
        return f"{'' if self.name.startswith(self.kind[:3]) else f'{self.kind} '}{self.name}{where}"


def devices_of(report: NodeDevices) -> Iterator[Device]:
    node = report.metadata.name
    for index, gpu in enumerate(sorted(report.status.gpus, key=lambda gpu: pci_order(gpu.bdf))):
        yield Device(node=node, kind=Kind.GPU, name=gpu.uuid, bdf=gpu.bdf, index=index)
        for mig in gpu.mig:
            yield Device(node=node, kind=Kind.MIG, name=mig.uuid, bdf=gpu.bdf, of=gpu.uuid)
    for pf in report.status.pfs:
        yield Device(node=node, kind=Kind.PF, name=pf.bdf, bdf=pf.bdf)
        for vf in pf.vfs:
            yield Device(node=node, kind=Kind.VF, name=vf.bdf, bdf=vf.bdf, of=pf.bdf)


def find_device(word: str, reports: Mapping[str, NodeDevices], *, node: str = "") -> Device:
    """Return the device that `word` names. `node`: its node, if `word` does not contain one."""
    result, named = _called(word, reports, node)
    if not result:
        raise _none(named, "device", reports)
    return _only(word, result, "device")


def find_card(word: str, reports: Mapping[str, NodeDevices]) -> Device:
    """Return the GPU that `word` names, also by one of its MIG instances."""
    result, named = _called(word, reports)
    if not result:
        raise _none(named, "GPU", reports)
    cards = [_card_of(device, reports) for device in result if device.kind in (Kind.GPU, Kind.MIG)]
    if not cards:
        nic = result[0]
        hint = f"kubectl lading node {nic.node} shows its GPUs"
        raise LadingError(f"cannot find GPU {word}: it is a {nic.kind} of node {nic.node}", hint=hint)
    return _only(word, list(dict.fromkeys(cards)), "GPU")


def _card_of(device: Device, reports: Mapping[str, NodeDevices]) -> Device:
    return next(one for one in devices_of(reports[device.node]) if one.name == (device.of or device.name))


def _only(word: str, devices: Sequence[Device], what: str) -> Device:
    if len(devices) > 1:
        names = [f"{one.node}/{one.bdf if _is_address(word) else one.name}" for one in devices]
        raise LadingError(f"cannot tell which {what} {word} is: {len(devices)} are called so", hint=f"write {_either(names)}")
    return devices[0]


def _called(word: str, reports: Mapping[str, NodeDevices], node: str = "") -> tuple[list[Device], str]:
    """Return every device that matches the word, and the word with its node, as NODE/WORD, for messages."""
    before, slash, rest = word.partition("/")
    if slash and (before in reports or not word.lower().startswith(_OLD_MIG)):
        word, node = rest, before
    if node and node not in reports:
        raise not_found("node", node, list(reports))
    known = [device for name in ([node] if node else reports) for device in devices_of(reports[name])]
    return list(_matches(word, known, index=bool(node))), f"{node}/{word}" if node else word


def _none(word: str, what: str, reports: Mapping[str, NodeDevices]) -> LadingError:
    """Return an error with similar names of GPUs; if the word begins with a node, only of that node, also by index."""
    node = word.partition("/")[0]
    known = (one for name in ([node] if node in reports else reports) for one in devices_of(reports[name]))
    gpus = [one for one in known if one.kind is Kind.GPU]
    if _is_address(word):
        return not_found(what, word, [f"{one.node}/{one.bdf}" for one in gpus])
    indexes = [f"{one.node}/{one.index}" for one in gpus if node in reports]
    return not_found(what, word, [*indexes, *(one.name for one in gpus)])


def _matches(word: str, known: Sequence[Device], *, index: bool) -> Iterator[Device]:
    if index and word.isascii() and word.isdecimal():
        yield from (device for device in known if device.index == int(word))
    elif _is_address(word):
        yield from (device for device in known if device.bdf == _full(word) and device.kind is not Kind.MIG)
    else:
        uuids = [device for device in known if device.kind in (Kind.GPU, Kind.MIG)]
        exact = [device for device in uuids if device.name.lower() == word.lower()]
        yield from exact or (device for device in uuids if _begins(device.name.lower(), word.lower()))


def _begins(name: str, word: str) -> bool:
    """Return whether the UUID begins with the word, with or without GPU- or MIG-. The word needs at least 2 characters."""
    return len(word) > 1 and (name.startswith(word) or name.partition("-")[2].startswith(word))


def _is_address(word: str) -> bool:
    return ":" in word


def _full(word: str) -> str:
    word = word.lower()
    return word if word.count(":") > 1 else _DOMAIN + word


def _either(names: Sequence[str]) -> str:
    return first_few(names, _FEW, between=" or ", rest=" or {} more")
