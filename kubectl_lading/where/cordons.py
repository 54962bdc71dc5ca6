"""The annotation `lading.dev/cordon` of one node's NodeDevices, edited. Pure.

Enters: what a person wrote there, and the devices to add or take out. Leaves: what it should say; None: nothing, so that the
annotation goes. What it says of other devices, those that are not there too, stays as it was written.

Who takes one device out of "all" means all the others: these are written one by one, as GPUs and PFs. A VF of a PF that is
cordoned likewise. A MIG instance of a cordoned card cannot be given while its card is not: that is refused.
"""

from collections.abc import Iterable, Sequence

from central.ledger.room import EVERYTHING
from kubectl_lading.where.device_names import Device, Kind, devices_of
from lading.errors import LadingError
from lading.nodedevices import NodeDevices


def entries(written: str) -> list[str]:
    return [name for part in written.split(",") if (name := part.strip())]


def is_cordoned(written: str, device: Device) -> bool:
    """Report whether the device is cordoned: by itself, with its card or PF, or with all."""
    names = {name.lower() for name in entries(written)}
    return EVERYTHING in names or not names.isdisjoint(_names(device)) or bool(device.of and device.of.lower() in names)


def add(written: str, devices: Iterable[Device]) -> str | None:
    now = entries(written)
    for device in devices:
        if not is_cordoned(",".join(now), device):
            now.append(device.name)
    return ",".join(now) or None


def add_all(written: str) -> str:
    return written if EVERYTHING in {name.lower() for name in entries(written)} else EVERYTHING


def remove(written: str, devices: Sequence[Device], report: NodeDevices) -> str | None:
    now = entries(written)
    if any(is_cordoned(written, device) for device in devices) and EVERYTHING in {name.lower() for name in now}:
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
