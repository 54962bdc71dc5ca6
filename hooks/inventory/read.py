"""Read all devices of a node, below its host root. It can take seconds (a driver), so never do it in the hot path."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from hooks.host.cdi_files import read_cdi_names
from hooks.host.rdma import read_rdma
from hooks.inventory.rails import unknown_rails, with_rails
from hooks.model.inventory import Inventory
from hooks.ports import Vendor
from lading.devices.isolation import IsolationName
from lading.errors import HostError
from lading.nodedevices import SHARES_PER_GPU
from lading.vocabulary import PciAddress

_NONE: Final[Mapping[PciAddress, int]] = MappingProxyType({})


def read_inventory(
    host_root: Path,
    *,
    vendors: Sequence[Vendor],
    cdi_spec_dirs: Sequence[Path] = (),
    shares_per_gpu: int = SHARES_PER_GPU,
    isolations: tuple[IsolationName, ...] = (IsolationName.NONE,),
    rails: Mapping[PciAddress, int] = _NONE,
) -> Inventory:
    """Read the node. Raise HostError if there is no node to read. What cannot be read of a node is in `problems`.

    `cdi_spec_dirs` are read for the names of CDI devices. `shares_per_gpu`, `isolations` and `rails`
    (of PFs) come from the configuration.
    """
    for part in ("sys", "proc", "dev"):
        if not (host_root / part).is_dir():
            raise HostError(f"cannot read the inventory: {host_root / part} is no folder", hint="is host_root right?")
    try:
        result = [vendor.read(host_root) for vendor in vendors]
        pfs, rdma_cm, rdma_problems = read_rdma(host_root)
    except OSError as e:
        raise HostError(f"cannot read the inventory below {host_root}: {e}") from e
    return Inventory(
        gpus=tuple(gpu for one in result for gpu in one.gpus),
        pfs=with_rails(pfs, rails),
        drivers=tuple(one.driver for one in result if one.driver),
        rdma_cm=rdma_cm,
        cdi_names=read_cdi_names(cdi_spec_dirs),
        partitions=tuple(partition for one in result for partition in one.partitions),
        shares_per_gpu=shares_per_gpu,
        isolations=isolations,
        problems=(*(problem for one in result for problem in one.problems), *rdma_problems, *unknown_rails(pfs, rails)),
    )
