"""Test that a built node is read back as in its profile."""

import shutil
from pathlib import Path

import pytest

from hooks.host.mounts import recheck_mounts
from hooks.inventory.rails import with_rails
from hooks.inventory.read import read_inventory
from hooks.model.inventory import CharDevice, Gpu, Inventory, MigInstance, NvLink, Pf, Vf
from hooks.vendors.nvidia.settings import NvidiaSettings
from hooks.vendors.nvidia.vendor import Nvidia
from lading.errors import HostError
from lading.vocabulary import GpuUuid, PciAddress
from simnode.build import LIBRARIES, SimNode
from simnode.profile import PROFILES, HostBridge, PciNode
from tests.conftest import BuildNode


def paths(bridge: HostBridge) -> dict[str, tuple[str, ...]]:
    """Return the bridges above each GPU and PF, as the profile nests them."""

    def below(above: tuple[str, ...], nodes: tuple[PciNode, ...]) -> dict[str, tuple[str, ...]]:
        result = {node.bdf: above for node in nodes if node.gpu or node.pf}
        for node in nodes:
            result |= below((*above, node.bdf), node.below)
        return result

    return below((f"pci{bridge.bus}",), bridge.below)


def expected(node: SimNode) -> Inventory:
    """Return the inventory of a healthy node by its profile, without versions, control nodes and RDMA nodes, which other tests
    check."""

    def char(path: str, major: str, minor: int) -> CharDevice:
        return CharDevice(path=path, host_path=f"{node.root}{path}", major=node.profile.major(major), minor=minor)

    path = {bdf: above for bridge in node.profile.host_bridges for bdf, above in paths(bridge).items()}
    socket = {endpoint.bdf: bridge.socket if bridge.numa >= 0 else None for bridge, endpoint in node.profile.endpoints}
    numa = {endpoint.bdf: bridge.numa if bridge.numa >= 0 else None for bridge, endpoint in node.profile.endpoints}
    gpus = tuple(
        Gpu(
            vendor="nvidia",
            uuid=GpuUuid(gpu.uuid),
            bdf=PciAddress(bdf),
            index=index,
            minor=gpu.minor,
            model=gpu.model,
            memory_mib=gpu.memory_mib,
            reserved_mib=gpu.reserved_mib,
            numa=numa[bdf],
            node=char(f"/dev/nvidia{gpu.minor}", "nvidia", gpu.minor),
            path=path[bdf],
            socket=socket[bdf],
            module_id=gpu.module_id or None,
            links=(NvLink(count=sum(gpu.nvlinks.values())),) if gpu.nvlinks else (),  # to NVSwitches, in what is shipped
            processes=(),
            mig_enabled=gpu.mig is not None,
            mig=tuple(
                MigInstance(
                    uuid=mig.uuid,
                    gpu_instance=mig.gi,
                    compute_instance=mig.ci,
                    memory_mib=mig.memory_mib,
                    profile=mig.profile,
                    nodes=tuple(char(f"/dev/nvidia-caps/nvidia-cap{n}", "nvidia-caps", n) for n in mig.cap_minors),
                )
                for mig in gpu.mig or ()
            ),
        )
        for index, (bdf, gpu) in enumerate(node.profile.gpus)
    )
    pfs, number = [], 0
    for bdf, pf in node.profile.pfs:
        vfs = []
        for index, vf in enumerate(pf.vfs):
            number += 1  # nodes are numbered in order of appearance: a PF, its VFs, the next PF
            mads = [(f"issm{number}", 64 + number), (f"umad{number}", number)]
            vfs.append(
                Vf(
                    bdf=PciAddress(vf.bdf),
                    pf=PciAddress(bdf),
                    index=index,
                    driver="mlx5_core",
                    numa=numa[bdf],
                    ibdev=vf.ibdevs[0],
                    netdev=vf.netdev,
                    link_layer=pf.link_layer,
                    uverbs=char(f"/dev/infiniband/uverbs{number}", "infiniband", 192 + number),
                    umad=tuple(char(f"/dev/infiniband/{name}", "infiniband", minor) for name, minor in mads),
                )
            )
        number += 1
        pfs.append(
            Pf(
                bdf=PciAddress(bdf),
                driver="mlx5_core",
                numa=numa[bdf],
                ibdev=pf.ibdev,
                netdev=pf.netdev,
                link_layer=pf.link_layer,
                total_vfs=pf.total_vfs,
                vfs=tuple(vfs),
                path=path[bdf],
                socket=socket[bdf],
            )
        )
    return Inventory(gpus=gpus, pfs=with_rails(pfs, {}))


@pytest.mark.parametrize("name", sorted(path.stem for path in PROFILES.glob("*.json")))
def test_built_node_is_read_back(build_node: BuildNode, fake_nvml: Path, name: str) -> None:
    node = build_node(name)
    inventory = read_inventory(node.root, vendors=[Nvidia(NvidiaSettings(nvml_library=str(fake_nvml)))])
    assert inventory.problems == ()
    assert (inventory.gpus, inventory.pfs) == (expected(node).gpus, expected(node).pfs)
    (driver,) = inventory.drivers
    assert [(control.path, control.major, control.minor) for control in driver.control] == [
        ("/dev/nvidiactl", 195, 255),
        ("/dev/nvidia-uvm", 507, 0),
        ("/dev/nvidia-uvm-tools", 507, 1),
    ]
    assert (inventory.rdma_cm is not None) == bool(node.profile.pfs)


def test_driver_files_of_another_version_are_a_problem(build_node: BuildNode, fake_nvml: Path, tmp_path: Path) -> None:
    (tmp_path / "driver/usr/lib64").mkdir(parents=True)
    (tmp_path / "driver/usr/lib64/libcuda.so.560.35.03").touch()
    (tmp_path / "driver/usr/bin").mkdir()
    (tmp_path / "driver/usr/bin/nvidia-smi").touch()
    root, driver_root = build_node("workstation").root, str(tmp_path / "driver")
    inventory = read_inventory(root, vendors=[Nvidia(NvidiaSettings(nvml_library=str(fake_nvml), driver_root=driver_root))])
    (driver,) = inventory.drivers
    assert driver.mounts == ()
    assert [driver.version in problem and "560.35.03" in problem for problem in inventory.problems] == [True]


def test_in_a_container_the_driver_is_read_where_it_is_mounted_and_named_as_on_the_host(
    build_node: BuildNode, fake_nvml: Path
) -> None:
    root = build_node("workstation").root
    library = root / LIBRARIES / "libnvidia-ml.so.1"
    library.unlink()
    shutil.copy(fake_nvml, library)
    (driver,) = read_inventory(root, vendors=[Nvidia(NvidiaSettings(driver_root="/", driver_mount=str(root)))]).drivers
    cuda = f"/{LIBRARIES}/libcuda.so.{driver.version}"
    assert cuda in {mount.host_path for mount in driver.mounts}
    assert recheck_mounts(driver) is driver
    (root / cuda[1:]).unlink()
    assert recheck_mounts(driver).missing == (cuda,)


def test_node_with_neither_gpu_nor_nic(build_node: BuildNode, fake_nvml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = build_node({"name": "bare"})
    monkeypatch.delenv("FAKE_NVML_STATE")
    assert read_inventory(node.root, vendors=[Nvidia(NvidiaSettings(nvml_library=str(fake_nvml)))]) == Inventory()


@pytest.mark.parametrize("deleted", ["sys", "proc", "dev"])
def test_a_folder_that_is_no_host_root(tmp_path: Path, deleted: str) -> None:
    for part in {"sys", "proc", "dev"} - {deleted}:
        (tmp_path / part).mkdir()
    with pytest.raises(HostError) as caught:
        read_inventory(tmp_path, vendors=[Nvidia()])
    assert str(tmp_path / deleted) in str(caught.value)


def test_unreadable_sysfs_is_an_error_not_an_empty_inventory(tmp_path: Path) -> None:
    for part in ("sys/bus/pci", "proc/devices", "dev"):
        (tmp_path / part).mkdir(parents=True)  # proc/devices is a folder: EISDIR
    with pytest.raises(HostError):
        read_inventory(tmp_path, vendors=[Nvidia()])
