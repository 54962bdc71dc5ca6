"""Read the NVIDIA driver's entries in /proc: majors, the kernel module's cards, the device minors of MIG capabilities.

This module needs no NVML, so it still identifies a card that does not answer NVML.

Source: proc_devices(5); the driver's nv-procfs.c (gpus/<bdf>/information); NVIDIA's MIG user guide, "Device nodes and
capabilities" (mig-minors, where `gpu<N>` is the card's device minor, not its index).
"""

from dataclasses import dataclass
from pathlib import Path

from hooks.host.attributes import read_attribute, read_names
from lading.devices.identity import parse_gpu_uuid, parse_pci_address, pci_order
from lading.vocabulary import GpuUuid, PciAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCard:
    bdf: PciAddress
    uuid: GpuUuid | None  # None: the kernel module has not read the UUID (`GPU-????????-…`)
    minor: int | None
    model: str


def read_majors(host_root: Path) -> dict[str, int]:
    """Return character drivers and their majors. NVIDIA's main driver was called nvidia-frontend before 550."""
    majors: dict[str, int] = {}
    characters, _, _ = (read_attribute(host_root / "proc/devices") or "").partition("Block devices:")
    for line in characters.splitlines():
        match line.split():
            case [major, name] if major.isdecimal():
                majors.setdefault(name, int(major))
            case _:
                pass  # the heading or an empty line
    if "nvidia-frontend" in majors:
        majors.setdefault("nvidia", majors["nvidia-frontend"])
    return majors


def is_driver_loaded(host_root: Path) -> bool:
    return (host_root / "proc/driver/nvidia/version").exists()


def mig_capabilities(minor: int, gpu_instance: int, compute_instance: int) -> tuple[str, str]:
    """Return the names of a MIG instance's two capabilities, as in `read_mig_minors`. `minor`: the device minor of its card."""
    of_gpu = f"gpu{minor}/gi{gpu_instance}"
    return f"{of_gpu}/access", f"{of_gpu}/ci{compute_instance}/access"


def read_mig_minors(host_root: Path) -> dict[str, int]:
    """Return N of /dev/nvidia-caps/nvidia-cap<N> by capability: `gpu0/gi1/access`, `gpu0/gi1/ci0/access`, … The driver lists
    every possible instance."""
    minors = {}
    for line in (read_attribute(host_root / "proc/driver/nvidia-caps/mig-minors") or "").splitlines():
        name, _, minor = line.rpartition(" ")
        if minor.isdecimal():
            minors[name] = int(minor)
    return minors


def read_kernel_card_addresses(host_root: Path) -> tuple[PciAddress, ...]:
    """Return the addresses of the cards that the kernel module drives, in PCI order, which is NVML's."""
    result = (parse_pci_address(name) for name in read_names(host_root / "proc/driver/nvidia/gpus"))
    return tuple(sorted((bdf for bdf in result if bdf), key=pci_order))


def read_kernel_card(host_root: Path, bdf: PciAddress) -> KernelCard:
    """Read a card's entry. The read wakes a sleeping card, so use it only for cards that do not answer NVML."""
    text = read_attribute(host_root / "proc/driver/nvidia/gpus" / bdf / "information") or ""
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    minor = fields.get("Device Minor", "")
    return KernelCard(
        bdf=bdf,
        uuid=parse_gpu_uuid(fields.get("GPU UUID", "")),
        minor=int(minor) if minor.isdecimal() else None,
        model=fields.get("Model", ""),
    )


def read_system_memory(host_root: Path) -> int:
    """Return the host's memory in MiB: a card without memory of its own uses it."""
    for line in (read_attribute(host_root / "proc/meminfo") or "").splitlines():
        match line.split():
            case ["MemTotal:", amount, "kB"] if amount.isdecimal():
                return int(amount) >> 10
            case _:
                pass
    return 0
