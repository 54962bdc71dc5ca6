from dataclasses import replace

from hooks.model.inventory import DriverMount
from hooks.vendors.nvidia.inject import GpuMode, SpecsBy
from hooks.vendors.nvidia.settings import NvidiaSettings
from hooks.vendors.nvidia.vendor import Nvidia
from tests.unit.hooks.inventories import gpu, inventory


def test_the_drivers_files_are_missed_only_where_they_are_to_be_mounted() -> None:
    bare = inventory(gpus=(gpu(0),))
    (driver,) = bare.drivers
    mounting = Nvidia(NvidiaSettings(driver_root="/"))
    assert driver.version in mounting.problem(bare)
    assert not Nvidia().problem(bare)
    by_ctk, by_lading = (
        NvidiaSettings(driver_root="/", gpu_mode=GpuMode.CDI, cdi_specs=specs) for specs in (SpecsBy.NVIDIA_CTK, SpecsBy.LADING)
    )
    assert not Nvidia(by_ctk).problem(bare)
    assert driver.version in Nvidia(by_lading).problem(bare)
    assert not mounting.problem(inventory())
    mounts = (DriverMount(host_path="/libcuda.so.1", container_path="/libcuda.so.1"),)
    assert not mounting.problem(replace(bare, drivers=(replace(driver, mounts=mounts),)))
