"""One reading of everything that a node has, below its host root. It can take seconds (NVML): nothing for the hot path."""

from pathlib import Path

from hooks.inventory.model import Inventory
from hooks.inventory.nvml import read_gpus
from hooks.inventory.sysfs import read_rdma
from lading.errors import HostError


def read_inventory(host_root: Path, *, nvml_library: Path | None) -> Inventory:
    """Raises HostError where there is no node to read. What can not be read of a node is in `problems`."""
    for part in ("sys", "proc", "dev"):
        if not (host_root / part).is_dir():
            raise HostError(f"cannot read the inventory: {host_root / part} is no folder", hint="is host_root right?")
    try:
        driver, gpus, gpu_problems = read_gpus(host_root, library=nvml_library)
        pfs, rdma_cm, rdma_problems = read_rdma(host_root)
    except OSError as e:
        raise HostError(f"cannot read the inventory below {host_root}: {e}") from e
    return Inventory(gpus=gpus, pfs=pfs, driver=driver, rdma_cm=rdma_cm, problems=(*gpu_problems, *rdma_problems))
