"""Read all devices of a node, below its host root. It can take seconds (NVML), so never do it in the hot path."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hooks.host.rdma import read_rdma
from hooks.model.inventory import Gpu, Inventory, Partition
from hooks.vendors.nvidia.driver import files_problem, read_cdi_names, read_driver_mounts
from hooks.vendors.nvidia.groups import DriverGroup, add_groups
from hooks.vendors.nvidia.nvml import read_gpus
from hooks.vendors.nvidia.xid import KernelLog
from lading.errors import HostError
from lading.nodedevices import SHARES_PER_GPU


def read_inventory(
    host_root: Path,
    *,
    nvml_library: Path | None,
    driver_root: str = "",
    driver_files: bool = False,
    driver_groups: Sequence[DriverGroup] = (),
    cdi_spec_dirs: Sequence[Path] = (),
    partitions: tuple[Partition, ...] = (),
    shares_per_gpu: int = SHARES_PER_GPU,
    kernel_log: KernelLog | None = None,
) -> Inventory:
    """Read the node. Raise HostError if there is no node to read. What cannot be read of a node is in `problems`.

    `driver_root` has the driver's libraries, which are read if `driver_files` asks for them, and a driver container's device
    nodes. `cdi_spec_dirs` are read for the names of CDI devices. `partitions` and `shares_per_gpu` come from the configuration;
    no file of the host has them.
    """
    for part in ("sys", "proc", "dev"):
        if not (host_root / part).is_dir():
            raise HostError(f"cannot read the inventory: {host_root / part} is no folder", hint="is host_root right?")
    try:
        driver, gpus, gpu_problems = read_gpus(host_root, library=nvml_library, driver_root=driver_root)
        if gpus and kernel_log:
            gpus, log_problems = _with_xids(gpus, kernel_log)
            gpu_problems = (*gpu_problems, *log_problems)
        pfs, rdma_cm, rdma_problems = read_rdma(host_root)
        if driver and driver_root and driver_files:
            driver = replace(driver, mounts=read_driver_mounts(Path(driver_root), driver.version))
            if not driver.mounts:
                gpu_problems = (*gpu_problems, files_problem(Path(driver_root), driver.version))
        if driver and driver_groups:
            driver, gpus, group_problems = add_groups(driver, gpus, driver_groups, host_root=host_root, driver_root=driver_root)
            gpu_problems = (*gpu_problems, *group_problems)
    except OSError as e:
        raise HostError(f"cannot read the inventory below {host_root}: {e}") from e
    return Inventory(
        gpus=gpus,
        pfs=pfs,
        driver=driver,
        rdma_cm=rdma_cm,
        cdi_names=read_cdi_names(cdi_spec_dirs),
        partitions=partitions,
        shares_per_gpu=shares_per_gpu,
        problems=(*gpu_problems, *rdma_problems),
    )


def _with_xids(gpus: tuple[Gpu, ...], kernel_log: KernelLog) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """Return the cards with their critical Xids, and a problem if the kernel log cannot be read."""
    try:
        xids = kernel_log.read()
    except OSError as e:
        return gpus, (f"cannot read Xids from the kernel log: {e.strerror}",)
    return tuple(replace(gpu, unhealthy="; ".join(filter(None, (gpu.unhealthy, xids.of(gpu.bdf))))) for gpu in gpus), ()
