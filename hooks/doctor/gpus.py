"""What is wrong with a node's GPUs, from what its bus, its kernel and NVML say; and with how containers are to get them.

Enters: the readings of `cards`, and of the driver's files and CDI specs. Leaves: verdicts.

Source: NVML API reference (nvmlReturn_t); NVIDIA's driver persistence documentation; docs/reference.md (gpu_mode).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pynvml

from hooks.doctor.cards import CardsSeen
from hooks.grant.gpu import CDI_KIND, GpuMode
from hooks.inventory.model import Gpu
from lading.doctor.model import Verdict, failed, ok, skipped, warning

_CONTROL: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_RELOAD: Final = (
    "on a drained node: systemctl stop lading-hooks nvidia-persistenced; rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; "
    "modprobe nvidia; systemctl start nvidia-persistenced lading-hooks (or reboot)"
)


def decide_driver(seen: CardsSeen) -> Iterator[Verdict]:
    if not seen.on_bus and not seen.loaded:
        yield ok("this node has no NVIDIA card")
    elif not seen.loaded:
        what = f"NVIDIA's cards are on the bus ({', '.join(seen.on_bus)}), and its kernel module is not loaded"
        yield failed(what, mend="modprobe nvidia; dmesg | grep -i -e nvidia -e NVRM (Secure Boot? nouveau? a kernel upgrade?)")
    elif seen.nvml is None:
        yield failed("NVML does not answer: the driver hangs", mend="dmesg | grep -i xid; drain the node, and reboot it")
    elif seen.nvml.error == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        what = f"the kernel module is {seen.module_version}, the library is of another version: {seen.nvml.why}"
        yield failed(what, mend=_RELOAD)
    elif seen.nvml.error == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        what = f"the kernel module {seen.module_version} is loaded, and libnvidia-ml.so.1 is not found"
        yield failed(what, mend='nvml_library = "/path/to/libnvidia-ml.so.1" in hooks.toml, or install the driver\'s libraries')
    elif seen.nvml.error:
        yield failed(f"NVML: {seen.nvml.why}", mend="nvidia-smi; dmesg | grep -i -e xid -e NVRM")
    elif seen.module_version and seen.module_version != seen.nvml.library_version:
        what = f"the kernel module is {seen.module_version}, the library {seen.nvml.library_version}"
        yield failed(what, mend=_RELOAD)
    else:
        yield ok(f"driver {seen.nvml.library_version}: kernel module and library agree, NVML answers")


def decide_gpus(seen: CardsSeen) -> Iterator[Verdict]:
    """Nodes are `decide_gpu_nodes`'s."""
    if (nothing := _no_cards(seen)) or seen.nvml is None:
        yield nothing or skipped("NVML does not answer")
        return
    ill = [gpu for gpu in seen.nvml.gpus if gpu.unhealthy and not _only_its_node(gpu)]
    for gpu in ill:
        yield failed(f"GPU {gpu.uuid} ({gpu.bdf}): {gpu.unhealthy}", mend=f"nvidia-smi -q -i {gpu.bdf}; dmesg | grep -i xid")
    known = {gpu.bdf for gpu in seen.nvml.gpus}
    for bdf in (bdf for bdf in seen.on_bus if bdf not in known):
        what = f"card {bdf} is on the bus, and the driver does not have it"
        yield failed(what, mend=f"ls -l /sys/bus/pci/devices/{bdf}/driver; dmesg | grep {bdf}")
    if not ill:
        yield ok(f"all {len(seen.nvml.gpus)} answer")


def decide_gpu_nodes(seen: CardsSeen) -> Iterator[Verdict]:
    if (nothing := _no_cards(seen)) or seen.nvml is None:
        yield nothing or skipped("NVML does not answer")
        return
    missing = [gpu for gpu in seen.nvml.gpus if _only_its_node(gpu)]
    for gpu in missing:
        yield failed(f"GPU {gpu.uuid}: {gpu.unhealthy}", mend=f"rm -f /dev/nvidia{gpu.minor}; nvidia-modprobe -c {gpu.minor}")
    there = {node.path for node in seen.nvml.driver.control} if seen.nvml.driver else set()
    absent = [path for path in _CONTROL if path not in there]
    if absent:
        said = seen.nvml.problems
        unsaid = [f"{path} is not there" for path in absent if not any(path in problem for problem in said)]
        makes = "nvidia-modprobe -c 0 -u (package nvidia-modprobe); at each boot: systemctl enable nvidia-persistenced"
        yield failed("; ".join((*said, *unsaid)), mend=f"rm -f {' '.join(absent)}; {makes}")
    if not missing and not absent:
        yield ok("/dev has every card's node and the driver's, with the kernel's numbers")


def decide_persistence(seen: CardsSeen) -> Iterator[Verdict]:
    if (nothing := _no_cards(seen)) or seen.nvml is None:
        yield nothing or skipped("NVML does not answer")
    elif asleep := seen.nvml.not_persistent:
        what = f"persistence mode is off on {len(asleep)} of {len(seen.nvml.gpus)} cards"
        yield warning(what, mend="systemctl enable --now nvidia-persistenced (or nvidia-smi -pm 1, until the next boot)")
    else:
        yield ok("no card says that its persistence mode is off")


def _no_cards(seen: CardsSeen) -> Verdict | None:
    if not seen.on_bus and not seen.loaded:
        return ok("this node has no NVIDIA card")
    return skipped("the driver is not loaded") if not seen.loaded else None


def _only_its_node(gpu: Gpu) -> bool:
    """NVML told of the card, and it is its device node that can not be used."""
    return bool(gpu.unhealthy) and gpu.node is None and gpu.memory_mib > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionSeen:
    """How containers get their cards, and what of that is there."""

    mode: GpuMode
    cards: CardsSeen
    driver_root: str = ""
    libraries: int = 0  # of the driver's version, below driver_root
    spec_dirs: tuple[str, ...] = ()
    cdi_names: frozenset[str] = frozenset()


def decide_driver_files(seen: InjectionSeen) -> Iterator[Verdict]:
    version = seen.cards.nvml.library_version if seen.cards.nvml else ""
    if seen.mode is not GpuMode.DEVICES:
        yield ok(f"not needed with gpu_mode = {seen.mode}")
    elif not version:
        yield _no_cards(seen.cards) or skipped("the driver's version is not known")
    elif not seen.driver_root:
        what = "driver_root is empty: containers get device nodes, and no driver libraries but those of their image"
        yield warning(what, mend='driver_root = "/" in hooks.toml; systemctl restart lading-hooks')
    elif not seen.libraries:
        what = f"no libcuda.so.{version} below driver_root {seen.driver_root}"
        mend = f"find {seen.driver_root} -name 'libcuda.so.*'; the folder above its usr/lib is driver_root"
        yield failed(what, mend=mend)
    else:
        yield ok(f"{seen.libraries} files of driver {version} below {seen.driver_root}")


def decide_cdi_specs(seen: InjectionSeen) -> Iterator[Verdict]:
    if seen.mode is not GpuMode.CDI:
        yield ok(f"not needed with gpu_mode = {seen.mode}")
        return
    if (nothing := _no_cards(seen.cards)) or seen.cards.nvml is None:
        yield nothing or skipped("NVML does not answer")
        return
    gpus = [gpu for gpu in seen.cards.nvml.gpus if not gpu.mig_enabled]
    uuids = [gpu.uuid for gpu in gpus] + [mig.uuid for gpu in seen.cards.nvml.gpus for mig in gpu.mig]
    missing = [uuid for uuid in uuids if f"{CDI_KIND}={uuid}" not in seen.cdi_names]
    if missing:
        named = f"{CDI_KIND}={missing[0]}{', …' if len(missing) > 1 else ''}"
        what = f"no CDI spec in {', '.join(seen.spec_dirs)} names {len(missing)} of {len(uuids)} devices by UUID: {named}"
        yield failed(what, mend="nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml")
    else:
        yield ok(f"CDI specs name all of {len(uuids)} devices by UUID")
