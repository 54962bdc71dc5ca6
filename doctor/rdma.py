"""Check a node's RDMA: mode, modules, VFs, and the memory that containers may lock.

Take PFs and VFs as the inventory reads them, and the kernel's mode and modules. Return verdicts. A built-in module is detected
by its entries in sysfs.

Source: rdma-system(8); Documentation/ABI/testing/sysfs-bus-pci (sriov_numvfs, driver_override); NVIDIA's GPUDirect RDMA guide.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hooks.model.attachment import RdmaMode
from hooks.model.inventory import INFINIBAND, Pf, Vf
from lading.checks.model import Finding, failed, ok, skipped, warning

_VFIO: Final = "vfio"  # common part of the driver names vfio-pci and mlx5_vfio_pci
MELLANOX: Final = "mlx5_core"
PEER_MEMORY: Final = "nvidia_peermem"
NO_RDMA: Final = "this node has no RDMA device"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulesReading:
    pfs: tuple[Pf, ...]
    gpus: bool  # whether this node also has GPUs
    modules: frozenset[str]  # names of the modules for RDMA that are loaded or built in
    dma_buf: bool = False  # whether NICs can use GPU memory by DMA-BUF, without nvidia_peermem


def decide_modules(reading: ModulesReading) -> Iterator[Finding]:
    if not reading.pfs:
        yield ok(NO_RDMA)
        return
    needed = ["ib_core", "ib_uverbs", "rdma_ucm"] + ["mlx5_ib"] * any(pf.driver == MELLANOX for pf in reading.pfs)
    missing = [name for name in needed if name not in reading.modules]
    if missing:
        mend = (
            f"modprobe -a {' '.join(missing)}; at each boot: printf '%s\\n' {' '.join(missing)} > /etc/modules-load.d/rdma.conf"
        )
        yield failed(f"not loaded: {', '.join(missing)}", mend=mend)
    if reading.gpus and PEER_MEMORY not in reading.modules and not reading.dma_buf:
        what = f"no GPUDirect RDMA: {PEER_MEMORY} is not loaded, and DMA-BUF needs the open kernel module and kernel 5.12"
        yield warning(what, mend=f"modprobe {PEER_MEMORY}")
    elif not missing:
        yield ok(f"loaded: {', '.join(sorted(reading.modules))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaModeReading:
    pfs: tuple[Pf, ...]
    mode: RdmaMode | None  # None: the host root belongs to another machine, so the mode cannot be read
    attaches: bool  # whether VFs and their RDMA devices are moved into the network namespaces of pods


def decide_mode(reading: RdmaModeReading) -> Iterator[Finding]:
    if not reading.pfs:
        yield ok(NO_RDMA)
    elif reading.mode is None:
        yield skipped("host_root is not this machine's: its RDMA mode cannot be read")
    elif reading.mode is RdmaMode.NONE:
        yield failed("there are RDMA devices, but this kernel has no NETLINK_RDMA", mend="modprobe ib_core")
    elif reading.mode is RdmaMode.EXCLUSIVE and not reading.attaches:
        what = "exclusive, but RDMA devices are not moved into pods: containers get nodes that they cannot use"
        yield failed(what, mend="netdev = true in hooks.toml; or rdma system set netns shared, before any pod has one")
    else:
        yield ok(str(reading.mode))


@dataclass(frozen=True, slots=True, kw_only=True)
class VfsReading:
    pfs: tuple[Pf, ...]
    problems: tuple[str, ...] = ()  # messages about devices that could not be read


def decide_vfs(reading: VfsReading) -> Iterator[Finding]:
    if not reading.pfs:
        yield ok(NO_RDMA)
    for pf in reading.pfs:
        if pf.unhealthy and pf.vfs:
            yield failed(f"PF {pf.bdf}: {pf.unhealthy}", mend=f"ls -l /sys/bus/pci/devices/{pf.bdf}/driver; ibstat {pf.ibdev}")
    vfs = [vf for pf in reading.pfs for vf in pf.vfs]
    could = [pf for pf in reading.pfs if pf.total_vfs and not pf.vfs]
    if could and not vfs:
        pf = could[0]
        mend = f"echo {pf.total_vfs} > /sys/bus/pci/devices/{pf.bdf}/sriov_numvfs (at each boot: a udev rule)"
        yield warning(f"{len(reading.pfs)} PFs, and none has a VF; {pf.bdf} ({pf.netdev or pf.ibdev}) could", mend=mend)
    unhealthy = [vf for vf in vfs if vf.unhealthy]
    for vf in unhealthy:
        yield _judge_unhealthy(vf)
    for problem in reading.problems:
        yield warning(problem, mend="dmesg | tail; ls -l /dev/infiniband")
    if reading.pfs and not vfs and not could:
        yield ok(f"{len(reading.pfs)} PFs, none of which has VFs, or could have some")
    if vfs and not unhealthy:
        without = f"; {len(could)} PFs have none" if could else ""  # if other PFs have VFs, this is intended
        yield ok(f"{len(vfs)} VFs of {len(reading.pfs) - len(could)} PFs can be assigned{without}")


def _judge_unhealthy(vf: Vf) -> Finding:
    what = f"VF {vf.bdf}: {vf.unhealthy}"
    pci = "/sys/bus/pci"
    if not vf.driver:
        return failed(what, mend=f"echo {vf.bdf} > {pci}/drivers_probe")
    if _VFIO in vf.driver:  # the VF may be intended for virtual machines on the same node
        unbind = f"echo {vf.bdf} > {pci}/drivers/{vf.driver}/unbind"
        return warning(
            what, mend=f"{unbind}; echo > {pci}/devices/{vf.bdf}/driver_override; echo {vf.bdf} > {pci}/drivers_probe"
        )
    if not vf.ibdev:
        return failed(what, mend=f"ls {pci}/devices/{vf.bdf}/infiniband; lading-hooks ledger; modprobe mlx5_ib")
    if vf.uverbs is None:
        return failed(what, mend="modprobe ib_uverbs; ls -l /dev/infiniband; udevadm trigger -s infiniband_verbs")
    if vf.link_layer == INFINIBAND:
        return failed(what, mend="systemctl restart lading-ib-guids")
    return failed(what, mend=f"ip link set <PF> vf {vf.index} mac <MAC>, then rebind it")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemlockReading:
    vfs: bool  # whether this node has VFs
    ipc_lock: bool  # setting rdma_ipc_lock
    memlock: bool = False  # setting rdma_memlock
    problem: str  # warning of hooks.host.memlock about the runtime's limit; empty: none


def decide_memlock(reading: MemlockReading) -> Iterator[Finding]:
    if not reading.vfs:
        yield ok("this node has no VF that would need it")
    elif not reading.problem:
        yield ok("the container runtime may lock enough memory")
    elif reading.memlock:
        yield ok("the runtime's limit is small, and rdma_memlock = true lifts it in containers with VFs")
    elif reading.ipc_lock:
        yield ok("the runtime's limit is small, and rdma_ipc_lock = true gives containers CAP_IPC_LOCK")
    else:
        folder = "/etc/systemd/system/containerd.service.d"
        write = f"mkdir -p {folder}; printf '[Service]\\nLimitMEMLOCK=infinity\\n' > {folder}/20-memlock.conf"
        yield failed(reading.problem, mend=f"{write}; systemctl daemon-reload && systemctl restart containerd")
