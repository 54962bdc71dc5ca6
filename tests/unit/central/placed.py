"""Build placed devices for tests, by letter and number: a container in one line."""

from central.assignment.model import PlacedContainer, PlacedGpu, PlacedVf
from lading.vocabulary import GpuUuid, PciAddress


def uuid(letter: str) -> GpuUuid:
    return GpuUuid(f"GPU-0000000{letter.lower()}-0000-0000-0000-000000000000")


def mig_uuid(number: int) -> str:
    return f"MIG-{number:08x}-0000-0000-0000-000000000000"


def whole(letter: str) -> PlacedGpu:
    return share(letter)


def share(letter: str, mib: int = 0, core: int = 0) -> PlacedGpu:
    return PlacedGpu(uuid=uuid(letter), bdf=_bdf(letter), memory_mib=mib or None, core_percent=core or None)


def instance(letter: str, number: int) -> PlacedGpu:
    return PlacedGpu(uuid=uuid(letter), bdf=_bdf(letter), mig_uuid=mig_uuid(number))


def vf(number: int) -> PlacedVf:
    return PlacedVf(bdf=PciAddress(f"0000:18:{number // 8:02x}.{number % 8}"), pf=PciAddress("0000:18:00.0"))


def container(*devices: PlacedGpu | PlacedVf) -> PlacedContainer:
    return PlacedContainer(
        gpus=tuple(device for device in devices if isinstance(device, PlacedGpu)),
        vfs=tuple(device for device in devices if isinstance(device, PlacedVf)),
    )


def _bdf(letter: str) -> PciAddress:
    return PciAddress(f"0000:1{letter.lower()}:00.0")
