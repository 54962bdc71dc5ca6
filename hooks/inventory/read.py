"""One reading of everything that a node has, below its host root. It can take seconds (NVML): nothing for the hot path."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hooks.inventory.driver import read_cdi_names, read_driver_mounts
from hooks.inventory.model import Inventory, Partition
from hooks.inventory.nvml import read_gpus
from hooks.inventory.sysfs import read_rdma
from lading.errors import HostError


def read_inventory(
    host_root: Path,
    *,
    nvml_library: Path | None,
    driver_root: Path | None = None,
    cdi_spec_dirs: Sequence[Path] = (),
    partitions: tuple[Partition, ...] = (),
) -> Inventory:
    """Raises HostError where there is no node to read. What can not be read of a node is in `problems`.

    `driver_root` and `cdi_spec_dirs` are looked into where the way in which GPUs are injected needs what is there. `partitions`
    are what the configuration says of the board; no file of the host tells them.
    """
    for part in ("sys", "proc", "dev"):
        if not (host_root / part).is_dir():
            raise HostError(f"cannot read the inventory: {host_root / part} is no folder", hint="is host_root right?")
    try:
        driver, gpus, gpu_problems = read_gpus(host_root, library=nvml_library)
        pfs, rdma_cm, rdma_problems = read_rdma(host_root)
        if driver and driver_root:
            driver = replace(driver, mounts=read_driver_mounts(driver_root, driver.version))
            if not driver.mounts:
                gpu_problems = (*gpu_problems, f"cannot find libcuda.so.{driver.version} below driver_root {driver_root}")
    except OSError as e:
        raise HostError(f"cannot read the inventory below {host_root}: {e}") from e
    return Inventory(
        gpus=gpus,
        pfs=pfs,
        driver=driver,
        rdma_cm=rdma_cm,
        cdi_names=read_cdi_names(cdi_spec_dirs),
        partitions=partitions,
        problems=(*gpu_problems, *rdma_problems),
    )
