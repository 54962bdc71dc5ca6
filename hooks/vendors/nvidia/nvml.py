"""Read the node's GPUs by NVML, each with its device nodes. Each call opens a session, reads, and closes the session.

A session that stayed open would keep the driver's module in use and block its upgrade. Where persistence mode is off, every
session powers the cards up and down again: `nvidia-persistenced` belongs on the node.

A card that answers with an error is unhealthy, with the reason; the other cards are not affected. A card that NVML cannot even
identify is identified by the driver's procfs. An unsupported call does not make a card unhealthy. A node without a driver has
no GPUs. Xids need a session that waits for events: `xid` reads them from the kernel log.

Source: NVML API reference (nvml.h), through nvidia-ml-py.
"""

import contextlib
import ctypes
import os
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pynvml

from hooks.host.attributes import read_numa, read_path, read_socket
from hooks.host.binding import read_binding
from hooks.host.devnodes import Cause, DeviceNodeError, read_driver_node
from hooks.model.inventory import CharDevice, Driver, Gpu, GpuProcess, MigInstance, NvLink
from hooks.vendors.nvidia.driver import find_device_root
from hooks.vendors.nvidia.mig import read_profile
from hooks.vendors.nvidia.nvlink import read_links
from hooks.vendors.nvidia.positions import divide, find_position, read_positions
from hooks.vendors.nvidia.procfs import (
    is_driver_loaded,
    mig_capabilities,
    read_kernel_card,
    read_kernel_card_addresses,
    read_majors,
    read_mig_minors,
    read_system_memory,
)
from hooks.vendors.nvidia.session import WITHHELD, LibraryError, session, session_to
from lading.devices.identity import parse_pci_address, pci_order
from lading.errors import HostError
from lading.nvml import ask, list_processes
from lading.vocabulary import GpuUuid, PciAddress

NAME: Final = "nvidia"  # the vendor's name in inventories
CAPS: Final = "/dev/nvidia-caps"
CAPS_DRIVER: Final = "nvidia-caps"
ALL_CARDS: Final = "all"

_NO_DRIVER = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
_MODES: Final = {
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD: "EXCLUSIVE_THREAD",
    pynvml.NVML_COMPUTEMODE_PROHIBITED: "PROHIBITED",
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "EXCLUSIVE_PROCESS",
}
_CONTROL = (("/dev/nvidiactl", "nvidia", 255), ("/dev/nvidia-uvm", "nvidia-uvm", 0), ("/dev/nvidia-uvm-tools", "nvidia-uvm", 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Host:
    root: Path
    device_root: Path
    majors: dict[str, int]
    mig_minors: dict[str, int]
    divided: frozenset[str] = frozenset()

    def node(self, path: str, driver: str, minor: int) -> CharDevice:
        return read_driver_node(self.device_root, path, majors=self.majors, driver=driver, minor=minor)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """Hold the error of a card, which NVML may not have identified before."""

    index: int
    reason: str


def _read_host(host_root: Path, driver_root: str) -> _Host:
    return _Host(
        root=host_root,
        device_root=find_device_root(host_root, driver_root),
        majors=read_majors(host_root),
        mig_minors=read_mig_minors(host_root),
    )


def read_gpus(
    host_root: Path, *, library: Path | None, driver_root: str = "", divided: Collection[str] = ()
) -> tuple[Driver | None, tuple[Gpu, ...], tuple[str, ...]]:
    """Return the driver, its cards in PCI order, and problems. Raise OSError if /proc or /sys cannot be read.

    The device nodes are below `driver_root` if a driver container made them there, else below the host's root. `library` is the
    NVML to load; None: the dynamic loader finds it. A process loads NVML only once: after a driver upgrade the daemon starts
    anew (`driverfiles.find_outdated_nvml`). `divided`: UUIDs and PCI addresses of cards whose instances are made on demand, or
    "all".
    """
    host = replace(_read_host(host_root, driver_root), divided=frozenset(divided))
    problems: list[str] = []
    driver = None
    try:
        with session(library):
            version = str(pynvml.nvmlSystemGetDriverVersion())
            cards, failures = _read_cards(host, problems)
        driver = Driver(vendor=NAME, version=version, control=_read_control(host, problems))
    except (pynvml.NVMLError, LibraryError) as e:
        if not is_driver_loaded(host_root) and (isinstance(e, LibraryError) or e.value in _NO_DRIVER):
            return None, (), ()
        cards = []
        failures = [_Failure(index=index, reason=f"NVML: {e}") for index in range(len(read_kernel_card_addresses(host_root)))]
        problems = [f"cannot read GPUs: NVML: {e}{_hint(e)}"]
    cards += _read_unanswered(host, {card.bdf for card in cards}, failures, problems)
    return driver, tuple(sorted(cards, key=lambda card: pci_order(card.bdf))), tuple(problems)


def read_processes(cards: Iterable[GpuUuid], *, library: Path | None) -> dict[GpuUuid, tuple[GpuProcess, ...]]:
    """Return the processes of these cards; a card that does not report its processes is left out. Raise HostError."""
    result = {}
    with session_to("read the processes of GPUs", library):
        for uuid in cards:
            with contextlib.suppress(pynvml.NVMLError):  # `read_gpus` reports a card's errors
                result[uuid] = _list_processes(pynvml.nvmlDeviceGetHandleByUUID(uuid))
    return result


def _hint(error: Exception) -> str:
    if isinstance(error, pynvml.NVMLError) and error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return (
            " (the driver was upgraded: reboot the node, or load the new module; lading-hooks starts anew once module and "
            "libraries are of one version)"
        )
    return ""


def _read_cards(host: _Host, problems: list[str]) -> tuple[list[Gpu], list[_Failure]]:
    cards, failures = [], []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            cards.append(_read_card(host, index, pynvml.nvmlDeviceGetHandleByIndex(index), problems))
        except pynvml.NVMLError as e:
            failures.append(_Failure(index=index, reason=f"NVML: {e}"))
    return cards, failures


def _pci_address(handle: Any) -> PciAddress:
    text = pynvml.nvmlDeviceGetPciInfo(handle).busId
    bdf = parse_pci_address(text.decode() if isinstance(text, bytes) else text)
    if bdf is None:
        raise HostError(f"cannot read a GPU's PCI address: NVML says {text!r}")
    return bdf


def _read_card(host: _Host, index: int, handle: Any, problems: list[str]) -> Gpu:
    bdf = _pci_address(handle)
    # The binding is read before the minor, which the driver sets at its probe (nv.c, nvl->minor_num): a later rebind then
    # shows. The session keeps the module loaded.
    binding = read_binding(host.root, bdf)
    uuid = GpuUuid(pynvml.nvmlDeviceGetUUID(handle))
    minor = pynvml.nvmlDeviceGetMinorNumber(handle)
    memory_mib, reserved_mib, used_mib = _read_memory(handle)
    if not memory_mib:
        memory_mib = read_system_memory(host.root)
    mig_enabled = ask(lambda: pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE, False)
    mig = _read_mig(host, handle, minor, memory_mib, problems) if mig_enabled else ()
    if mig_enabled and host.divided & {ALL_CARDS, uuid, bdf}:
        mig = _put_at_positions(handle, uuid, memory_mib, mig, problems)
    elif host.divided & {uuid, bdf}:
        problems.append(f"cannot divide GPU {uuid}: it is not in MIG mode (nvidia-smi -i {bdf} -mig 1)")
    reasons = []
    node = None
    try:
        node = host.node(f"/dev/nvidia{minor}", "nvidia", minor)
    except DeviceNodeError as e:
        reasons.append(str(e))
    numa = read_numa(host.root, bdf)
    module_id, links = _read_board(handle, uuid, problems)
    *_, remapping_pending, remapping_failed = ask(lambda: pynvml.nvmlDeviceGetRemappedRows(handle), (0, 0, 0, 0))
    if remapping_failed:
        reasons.append("a memory row could not be remapped: the card needs service")
    elif remapping_pending:
        reasons.append("a memory row is remapped at the next reset of the card")
    pending = ask(lambda: pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle), None, absent=WITHHELD)
    if pending == pynvml.NVML_FEATURE_ENABLED:
        reasons.append("a memory page is retired at the next reset of the card")
    reasons += ask(lambda: _fabric_problem(handle), [])
    return Gpu(
        uuid=uuid,
        vendor=NAME,
        bdf=bdf,
        index=index,
        minor=minor,
        model=str(pynvml.nvmlDeviceGetName(handle)),
        memory_mib=memory_mib,
        reserved_mib=reserved_mib,
        numa=numa,
        node=node,
        mig=mig,
        mig_enabled=mig_enabled,
        unhealthy="; ".join(reasons),
        processes=_read_processes(handle, uuid, problems),
        path=read_path(host.root, bdf),
        socket=read_socket(host.root, numa),
        module_id=module_id,
        links=links,
        binding=binding,
        compute_mode=_MODES.get(ask(lambda: pynvml.nvmlDeviceGetComputeMode(handle), 0, absent=WITHHELD), ""),
        uncorrected_errors=ask(
            lambda: pynvml.nvmlDeviceGetTotalEccErrors(
                handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
            ),
            None,
            absent=WITHHELD,
        ),
        used_mib=used_mib,
        busy_percent=_read_busy(handle),
    )


def _read_memory(handle: Any) -> tuple[int, int, int | None]:
    """Return the whole, reserved and used memory in MiB; used is without the driver's reserved part. Drivers before 510 lack
    the call's second version, and their used memory includes the reserved part."""
    memory = ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2), None)
    if memory is None:
        first = ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle), None)
        return first.total >> 20 if first else 0, 0, None  # a card that uses the system's memory (GB10) reports none
    used_mib = memory.used >> 20 if memory.used <= memory.total else None  # NVML_VALUE_NOT_AVAILABLE has all bits set
    return memory.total >> 20, memory.reserved >> 20, used_mib


def _read_busy(handle: Any) -> int | None:
    """Return the utilization in percent, for people only; None if unreadable, which does not make the card unhealthy."""
    try:
        percent = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except pynvml.NVMLError:
        return None
    return percent if percent <= 100 else None


def _read_board(handle: Any, uuid: GpuUuid, problems: list[str]) -> tuple[int | None, tuple[NvLink, ...]]:
    """Return the card's module id on an NVSwitch board, and its NVLinks. Both only help to rank cards: a card without them is
    still healthy."""
    try:
        module_id = ask(lambda: int(pynvml.nvmlDeviceGetModuleId(handle)), 0)
        return module_id or None, read_links(handle)  # module ids count from 1; 0 means a card on no board
    except pynvml.NVMLError as e:
        problems.append(f"cannot read module id and NVLinks of GPU {uuid}: NVML: {e}")
        return None, ()


# NVML's errors for a slot without an instance, or for an instance that was destroyed during the reading.
_NO_INSTANCE = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT)


def _read_mig(host: _Host, card: Any, minor: int, card_mib: int, problems: list[str]) -> tuple[MigInstance, ...]:
    """Return the card's MIG instances that a container could get."""
    slots = range(pynvml.nvmlDeviceGetMaxMigDeviceCount(card))
    result = (_read_instance(host, card, slot, minor, card_mib, problems) for slot in slots)
    return tuple(instance for instance in result if instance)


def _read_instance(host: _Host, card: Any, slot: int, minor: int, card_mib: int, problems: list[str]) -> MigInstance | None:
    """Return the MIG instance in a slot; None if the slot is empty. Add a problem, and return None, if its capability nodes are
    missing."""
    try:
        handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, slot)
        uuid = str(pynvml.nvmlDeviceGetUUID(handle))
        gi, ci = pynvml.nvmlDeviceGetGpuInstanceId(handle), pynvml.nvmlDeviceGetComputeInstanceId(handle)
        memory_mib, *_ = _read_memory(handle)
        profile = read_profile(handle, card_mib=card_mib)
        nodes = tuple(_cap_node(host, capability) for capability in mig_capabilities(minor, gi, ci))
    except pynvml.NVMLError as e:
        if e.value in _NO_INSTANCE:
            return None
        raise
    except DeviceNodeError as e:
        problems.append(f"cannot offer MIG instance {uuid}: {e}")
        return None
    return MigInstance(uuid=uuid, gpu_instance=gi, compute_instance=ci, memory_mib=memory_mib, nodes=nodes, profile=profile)


def _put_at_positions(
    card: Any, uuid: GpuUuid, card_mib: int, instances: tuple[MigInstance, ...], problems: list[str]
) -> tuple[MigInstance, ...]:
    """Return each position of a card that is divided on demand, with the position's instance if there is one."""
    positions = read_positions(card, uuid, card_mib=card_mib)
    there = {}
    for instance in instances:
        position = find_position(card, instance.gpu_instance, positions)
        if position is None or position.name in there:
            problems.append(f"cannot give MIG instance {instance.uuid}: its card is divided by Lading, which did not make it")
            continue
        there[position.name] = instance
    return tuple(
        replace(
            there.get(name, MigInstance(uuid=name, memory_mib=position.memory_mib)),
            uuid=name,
            profile=position.profile,
            span=position.span,
            made_uuid=there[name].uuid if name in there else "",
        )
        for name, position in positions.items()
    )


def _cap_node(host: _Host, capability: str) -> CharDevice:
    minor = host.mig_minors.get(capability)
    if minor is None:
        raise DeviceNodeError(Cause.MISSING, capability, "/proc/driver/nvidia-caps/mig-minors does not list it")
    return host.node(f"{CAPS}/nvidia-cap{minor}", CAPS_DRIVER, minor)


def divide_card(
    host_root: Path, gpu: Gpu, granted: Collection[str], *, library: Path | None, driver_root: str = ""
) -> dict[str, str]:
    """Remove the card's instances that are not granted, and make the granted ones, with their device nodes. Return a message
    for each failed position. The call can take seconds, and may be repeated. Raise HostError."""
    host = _read_host(host_root, driver_root)
    with session_to(f"divide GPU {gpu.uuid}", library):
        card = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        positions = read_positions(card, gpu.uuid, card_mib=gpu.memory_mib)
        numbers, problems = divide(card, positions, granted)
    for position, (gi, ci) in numbers.items():
        try:
            for capability in mig_capabilities(gpu.minor, gi, ci):
                _make_cap_node(host, capability)
        except OSError as e:
            problems[position] = f"cannot make {e.filename}: {e.strerror}"
    return problems


def _make_cap_node(host: _Host, capability: str) -> None:
    """Make the device node of a capability, as nvidia-modprobe does: the driver itself makes none. Raise OSError."""
    minor, major = host.mig_minors.get(capability), host.majors.get(CAPS_DRIVER)
    if minor is None or major is None:
        return  # `_cap_node` reports the missing entry
    path = host.device_root / CAPS[1:] / f"nvidia-cap{minor}"
    path.parent.mkdir(mode=0o755, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mknod(path, stat.S_IFCHR | 0o444, os.makedev(major, minor))
        path.chmod(0o444)  # independent of the umask


def _read_processes(handle: Any, uuid: GpuUuid, problems: list[str]) -> tuple[GpuProcess, ...] | None:
    """Return the card's processes. A failure is a problem, because a card that a pod uses without a grant would seem free.
    Drivers before 510 do not report processes."""
    try:
        return _list_processes(handle)
    except pynvml.NVMLError as e:
        if e.value not in WITHHELD:
            raise
        problems.append(f"cannot read the processes of GPU {uuid}: NVML: {e}")
        return None


def _list_processes(handle: Any) -> tuple[GpuProcess, ...]:
    """Return the processes of a card. Raise NVMLError."""
    return tuple(
        GpuProcess(pid=one.pid, instance=one.instance, used_mib=None if one.used_bytes is None else one.used_bytes >> 20)
        for one in list_processes(handle)
    )


def _read_control(host: _Host, problems: list[str]) -> tuple[CharDevice, ...]:
    nodes, errors = _read_nodes(host, _CONTROL)
    problems += [f"{e} (nvidia-modprobe -c 0 -u makes it)" if e.cause is Cause.MISSING else str(e) for e in errors]
    return nodes


def find_bad_nodes(host_root: Path, minors: Iterable[int], *, driver_root: str = "") -> tuple[DeviceNodeError, ...]:
    """Check the device nodes of the driver and of cards with these minors, without NVML. Return the errors. Raise OSError."""
    host = _read_host(host_root, driver_root)
    cards = [(f"/dev/nvidia{minor}", "nvidia", minor) for minor in minors]
    return _read_nodes(host, (*_CONTROL, *cards))[1]


def _read_nodes(
    host: _Host, expected: Iterable[tuple[str, str, int]]
) -> tuple[tuple[CharDevice, ...], tuple[DeviceNodeError, ...]]:
    """Return the device nodes for these (path, driver, minor), and an error for each unusable node."""
    nodes, errors = [], []
    for path, driver, minor in expected:
        try:
            nodes.append(host.node(path, driver, minor))
        except DeviceNodeError as e:
            errors.append(e)
    return tuple(nodes), tuple(errors)


def _read_unanswered(host: _Host, answered: set[PciAddress], failures: list[_Failure], problems: list[str]) -> list[Gpu]:
    """Return the kernel module's cards that NVML did not read: lost or excluded cards, or all cards if no session opens."""
    silent = [bdf for bdf in read_kernel_card_addresses(host.root) if bdf not in answered]
    if len(silent) != len(failures):
        # NVML does not count all silent cards, so a failure or an index cannot be attributed to a card: it could be another's.
        reason = "; ".join(sorted({failure.reason for failure in failures})) or "NVML does not report it"
        failures = [_Failure(index=-1, reason=reason) for _ in silent]
    cards = []
    for bdf, failure in zip(silent, failures, strict=True):  # both in PCI order
        known = read_kernel_card(host.root, bdf)
        if known.uuid is None or known.minor is None:
            problems.append(f"cannot identify GPU {bdf}: {failure.reason}")
            continue
        numa = read_numa(host.root, bdf)
        cards.append(
            Gpu(
                uuid=known.uuid,
                vendor=NAME,
                bdf=bdf,
                index=failure.index,
                minor=known.minor,
                model=known.model,
                memory_mib=0,
                reserved_mib=0,
                numa=numa,
                node=None,
                unhealthy=failure.reason,
                path=read_path(host.root, bdf),
                socket=read_socket(host.root, numa),
            )
        )
    return cards


def _fabric_problem(handle: Any) -> list[str]:
    """Return problems of an NVSwitch board's NVLink fabric, for cards from Hopper on. CUDA fails with error 802 until Fabric
    Manager has set up the fabric."""
    info = pynvml.c_nvmlGpuFabricInfo_t()
    pynvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    match info.state:
        case pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED | pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS:
            return ["Fabric Manager has not set up its NVLink fabric: systemctl status nvidia-fabricmanager"]
        case pynvml.NVML_GPU_FABRIC_STATE_COMPLETED if info.status != pynvml.NVML_SUCCESS:
            return [f"Fabric Manager failed to set up its NVLink fabric: {pynvml.NVMLError(info.status)}"]
    return []
