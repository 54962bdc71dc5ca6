from dataclasses import replace
from pathlib import Path

import pytest

from hooks.vendors.nvidia.inject import GpuMode, SpecsBy
from hooks.vendors.nvidia.settings import NvidiaSettings
from hooks.vendors.nvidia.vendor import Nvidia
from simnode.build import LIBRARIES
from tests.conftest import BuildNode
from tests.unit.hooks.inventories import gpu, inventory


def test_the_drivers_files_are_missed_only_where_they_are_to_be_mounted(build_node: BuildNode, fake_nvml: Path) -> None:
    node = build_node("workstation")
    by_ctk, by_runtime, by_lading, mounting = (
        NvidiaSettings(nvml_library=str(fake_nvml), gpu_mode=mode, cdi_specs=specs)
        for mode, specs in (
            (GpuMode.CDI, SpecsBy.NVIDIA_CTK),
            (GpuMode.NVIDIA_RUNTIME, SpecsBy.LADING),
            (GpuMode.CDI, SpecsBy.LADING),
            (GpuMode.DEVICES, SpecsBy.LADING),
        )
    )
    for settings in (by_ctk, by_runtime, by_lading, mounting):
        assert Nvidia(settings).read(node.root).problems == ()
    (node.root / LIBRARIES / "libcuda.so.550.127.05").unlink()
    for settings, missed in ((by_ctk, False), (by_runtime, False), (by_lading, True), (mounting, True)):
        read = Nvidia(settings).read(node.root)
        assert read.driver
        assert [bool(read.driver.files_problem), bool(read.problems)] == [missed, missed]
        bare = replace(inventory(gpus=(gpu(0),)), drivers=(read.driver,))
        assert ("550.127.05" in Nvidia(settings).problem(bare)) == missed
    assert not Nvidia(mounting).problem(inventory())


@pytest.mark.parametrize("mounted", [False, True])
def test_the_driver_is_found_without_a_setting_and_named_as_on_the_host(
    build_node: BuildNode, fake_nvml: Path, mounted: bool
) -> None:
    node = build_node("workstation")
    settings = NvidiaSettings(nvml_library=str(fake_nvml), driver_mount=str(node.root) if mounted else "")
    driver = Nvidia(settings).read(node.root).driver
    assert driver
    cuda = {mount.host_path for mount in driver.mounts if "libcuda" in mount.container_path}
    assert cuda == {f"{'' if mounted else node.root}/{LIBRARIES}/libcuda.so.550.127.05"}


def test_a_configured_folder_is_the_only_one_that_is_searched(build_node: BuildNode, fake_nvml: Path) -> None:
    node = build_node("workstation")
    folder = node.root / "srv/driver"
    folder.mkdir(parents=True)
    settings = NvidiaSettings(nvml_library=str(fake_nvml), driver_libraries=("/srv/driver",))
    absent = Nvidia(settings).read(node.root)
    assert absent.driver
    assert "/srv/driver" in absent.driver.files_problem
    (folder / "libcuda.so.550.127.05").touch()
    driver = Nvidia(settings).read(node.root).driver
    assert driver
    libraries = {mount.host_path for mount in driver.mounts if ".so" in mount.host_path}
    assert libraries == {str(folder / "libcuda.so.550.127.05")}
