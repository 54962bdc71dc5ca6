"""Test optional groups of the driver's nodes and files, below a root that is created for each test."""

import os
import platform
import stat
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from hooks.host.mounts import recheck_mounts
from hooks.inventory.read import read_inventory
from hooks.model.inventory import Driver, Gpu
from hooks.vendors.nvidia.driver import read_driver_mounts
from hooks.vendors.nvidia.groups import DriverGroup, add_groups
from hooks.vendors.nvidia.settings import NvidiaSettings
from hooks.vendors.nvidia.vendor import Nvidia
from lading.driverfiles import find_driver
from tests.conftest import BuildNode
from tests.unit.hooks.inventories import gpu, mig_gpu, node

VERSION = "580.65.06"
LIBRARIES = f"usr/lib/{platform.machine()}-linux-gnu"
LOADER_FOLDERS = (f"/{LIBRARIES}", "/usr/lib64")
MAJORS = {"nvidia": 195, "drm": 226, "nvidia-caps-imex-channels": 234, "nvidia-fs": 235, "gdrdrv": 236}
CONTROL = tuple(node(f"/dev/{name}") for name in ("nvidiactl", "nvidia-uvm"))


@pytest.fixture
def root(device_nodes: None, tmp_path: Path) -> Path:
    """Create a root that lists every driver and has none of its nodes."""
    write(tmp_path / "proc/devices", listed(MAJORS))
    (tmp_path / "dev").mkdir()
    return tmp_path


def listed(majors: dict[str, int]) -> str:
    lines = "".join(f"{major:3d} {name}\n" for name, major in majors.items())
    return f"Character devices:\n{lines}\nBlock devices:\n259 blkext\n"


def write(path: Path, content: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def make_node(root: Path, path: str, driver: str, minor: int) -> None:
    (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
    os.mknod(root / path[1:], stat.S_IFCHR | 0o600, os.makedev(MAJORS[driver], minor))


def make_drm(root: Path, card: Gpu, *numbers: int) -> None:
    """Make the card's nodes in /dev/dri and in sysfs, with the folders of connectors and the links that lie beside."""
    for number in numbers:
        name = f"renderD{number}" if number >= 128 else f"card{number}"
        folder = root / "sys/bus/pci/devices" / card.bdf / "drm" / name
        write(folder / "dev", f"226:{number}\n")
        (folder / f"{name}-DP-1").mkdir()
        make_node(root, f"/dev/dri/{name}", "drm", number)
    write(root / "sys/bus/pci/devices" / card.bdf / "drm/version", "drm 1.1.0\n")


def add(
    root: Path, *groups: DriverGroup, gpus: tuple[Gpu, ...] = (), driver_root: Path | None = None
) -> tuple[Driver, tuple[Gpu, ...], tuple[str, ...]]:
    found = find_driver(driver_root, VERSION) if driver_root else None
    mounts = read_driver_mounts(found) if found else ()
    driver = Driver(vendor="nvidia", version=VERSION, control=CONTROL, mounts=mounts)
    return add_groups(driver, gpus, groups, host_root=root, driver_root=str(driver_root or ""), found=found)


def added(driver: Driver) -> list[str]:
    assert driver.control[: len(CONTROL)] == CONTROL
    return [one.path for one in driver.control[len(CONTROL) :]]


def mounted(driver: Driver) -> dict[str, str]:
    return {mount.container_path: mount.host_path for mount in driver.group_mounts}


def a_driver_root(folder: Path, *files: str) -> Path:
    for name in (f"{LIBRARIES}/libcuda.so.{VERSION}", *files):
        write(folder / name)
    return folder


# device nodes


def test_each_group_gives_its_nodes_and_no_others(root: Path) -> None:
    make_node(root, "/dev/gdrdrv", "gdrdrv", 0)
    for number in (10, 0, 2):
        make_node(root, f"/dev/nvidia-fs{number}", "nvidia-fs", number)
    for number in (0, 1):
        make_node(root, f"/dev/nvidia-caps-imex-channels/channel{number}", "nvidia-caps-imex-channels", number)
    make_node(root, "/dev/nvidia-modeset", "nvidia", 254)
    expected = {
        DriverGroup.GDRCOPY: ["/dev/gdrdrv"],
        DriverGroup.GDS: ["/dev/nvidia-fs0", "/dev/nvidia-fs2", "/dev/nvidia-fs10"],
        DriverGroup.IMEX: ["/dev/nvidia-caps-imex-channels/channel0"],
        DriverGroup.GRAPHICS: ["/dev/nvidia-modeset"],
    }
    for group, paths in expected.items():
        driver, _, problems = add(root, group)
        assert (added(driver), driver.group_mounts, problems) == (paths, (), ())
    driver, _, _ = add(root, *reversed(DriverGroup), DriverGroup.GDS)
    assert added(driver) == [path for paths in expected.values() for path in paths]
    assert [one.host_path for one in driver.control[2:3]] == [f"{root}/dev/gdrdrv"]


@pytest.mark.parametrize(
    ("group", "path", "module"),
    [
        (DriverGroup.GDRCOPY, "/dev/gdrdrv", "gdrdrv"),
        (DriverGroup.GDS, "/dev/nvidia-fs0", "nvidia-fs"),
        (DriverGroup.IMEX, "/dev/nvidia-caps-imex-channels/channel0", "NVreg_CreateImexChannel0=1"),
        (DriverGroup.GRAPHICS, "/dev/nvidia-modeset", "nvidia-modprobe -m"),
    ],
)
@pytest.mark.parametrize("majors", [MAJORS, {}])
def test_what_is_missing_is_a_problem_with_a_way_to_mend_it(
    root: Path, group: DriverGroup, path: str, module: str, majors: dict[str, int]
) -> None:
    write(root / "proc/devices", listed(majors))
    driver, _, (problem,) = add(root, group)
    assert added(driver) == []
    for word in (path, f"driver_groups: {group}", module):
        assert word in problem


def test_a_node_with_another_drivers_number_is_a_problem(root: Path) -> None:
    make_node(root, "/dev/gdrdrv", "nvidia-fs", 0)
    make_node(root, "/dev/nvidia-fs0", "gdrdrv", 0)
    make_node(root, "/dev/nvidia-caps-imex-channels/channel0", "nvidia-caps-imex-channels", 1)
    driver, _, problems = add(root, DriverGroup.GDRCOPY, DriverGroup.GDS, DriverGroup.IMEX)
    assert added(driver) == []
    assert ["the kernel says" in problem for problem in problems] == [True] * 3
    assert not any("modprobe" in problem for problem in problems)


@pytest.mark.parametrize("path", ["dev/gdrdrv", "dev/nvidia-fs0", "dev/nvidia-caps-imex-channels"])
def test_a_link_is_followed_nowhere(root: Path, path: str) -> None:
    make_node(root, "/dev/real", "gdrdrv", 0)
    (root / path).symlink_to("real")
    driver, _, problems = add(root, DriverGroup.GDRCOPY, DriverGroup.GDS, DriverGroup.IMEX)
    assert added(driver) == []
    assert sum("symbolic link" in problem for problem in problems) == 1


def test_nodes_of_a_driver_container_and_of_the_host(root: Path) -> None:
    """Check nodes of both: the driver of the container creates its nodes below the container's root; gdrdrv may be the host's
    own module."""
    driver_root = root / "driver"
    make_node(root, "/dev/gdrdrv", "gdrdrv", 0)
    make_node(driver_root, "/dev/nvidiactl", "nvidia", 255)
    make_node(driver_root, "/dev/nvidia-caps-imex-channels/channel0", "nvidia-caps-imex-channels", 0)
    driver, _, problems = add(root, DriverGroup.GDRCOPY, DriverGroup.IMEX, driver_root=driver_root)
    assert [one.host_path for one in driver.control[2:]] == [
        f"{root}/dev/gdrdrv",
        f"{driver_root}/dev/nvidia-caps-imex-channels/channel0",
    ]
    assert problems == ()


# DRM nodes of a card


def drm(gpus: Iterable[Gpu]) -> list[list[str]]:
    return [[one.path for one in card.drm] for card in gpus]


def test_a_card_has_its_own_drm_nodes(root: Path) -> None:
    """Check DRM nodes whose numbers do not follow the order of the cards."""
    make_node(root, "/dev/nvidia-modeset", "nvidia", 254)
    make_drm(root, gpu(0), 2, 129)
    make_drm(root, gpu(1), 1, 128)
    make_node(root, "/dev/dri/card0", "drm", 0)  # the node of the board's own display
    driver, gpus, problems = add(root, DriverGroup.GRAPHICS, gpus=(gpu(0), gpu(1)))
    assert drm(gpus) == [["/dev/dri/card2", "/dev/dri/renderD129"], ["/dev/dri/card1", "/dev/dri/renderD128"]]
    assert (added(driver), problems) == (["/dev/nvidia-modeset"], ())
    assert tuple(replace(card, drm=()) for card in gpus) == (gpu(0), gpu(1))


def test_a_node_that_is_another_cards_is_not_given(root: Path) -> None:
    make_node(root, "/dev/nvidia-modeset", "nvidia", 254)
    make_drm(root, gpu(0), 128)
    make_drm(root, gpu(1), 129)
    (root / "dev/dri/renderD128").unlink()
    make_node(root, "/dev/dri/renderD128", "drm", 129)
    _, gpus, (problem,) = add(root, DriverGroup.GRAPHICS, gpus=(gpu(0), gpu(1)))
    assert drm(gpus) == [[], ["/dev/dri/renderD129"]]
    assert "/dev/dri/renderD128" in problem


def test_a_card_without_drm_nodes_is_named(root: Path) -> None:
    make_node(root, "/dev/nvidia-modeset", "nvidia", 254)
    _, gpus, (problem,) = add(root, DriverGroup.GRAPHICS, gpus=(gpu(0),))
    assert drm(gpus) == [[]]
    assert gpu(0).uuid in problem
    assert "modprobe nvidia-drm" in problem


def test_a_card_in_mig_mode_has_none_and_one_that_is_lost_says_so_elsewhere(root: Path) -> None:
    """Check that a card in MIG mode gets no render node, which would reach the whole card."""
    make_node(root, "/dev/nvidia-modeset", "nvidia", 254)
    make_drm(root, mig_gpu(0), 128)
    _, gpus, problems = add(root, DriverGroup.GRAPHICS, gpus=(mig_gpu(0), replace(gpu(1), node=None)))
    assert (drm(gpus), problems) == ([[], []], ())


def test_no_drm_nodes_without_the_group(root: Path) -> None:
    make_node(root, "/dev/gdrdrv", "gdrdrv", 0)
    make_drm(root, gpu(0), 128)
    _, gpus, _ = add(root, DriverGroup.GDRCOPY, gpus=(gpu(0),))
    assert gpus == (gpu(0),)


# files


def test_storage_comes_with_its_configuration(root: Path) -> None:
    driver_root = a_driver_root(root / "driver", "etc/cufile.json", "run/udev/data/b8:0")
    assert mounted(add(root, DriverGroup.GDS, driver_root=driver_root)[0]) == {}  # it is of use with the nodes only
    make_node(root, "/dev/nvidia-fs0", "nvidia-fs", 0)
    expected = {"/etc/cufile.json": f"{driver_root}/etc/cufile.json"}
    assert mounted(add(root, DriverGroup.GDS, driver_root=driver_root)[0]) == expected
    assert mounted(add(root, DriverGroup.GDS)[0]) == {}
    (driver_root / "etc/cufile.json").unlink()
    driver, _, problems = add(root, DriverGroup.GDS, driver_root=driver_root)
    assert (mounted(driver), problems) == ({}, ())


def test_the_files_of_graphics(root: Path) -> None:
    own = (
        "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
        "usr/share/nvidia/nvoptix.bin",
        "usr/share/vulkan/icd.d/nvidia_icd.json",
        f"usr/share/vulkan/icd.d/nvidia_icd.{platform.machine()}.json",
        "etc/vulkan/implicit_layer.d/nvidia_layers.json",
    )
    others = (
        "usr/share/glvnd/egl_vendor.d/50_mesa.json",
        "usr/share/egl/egl_external_platform.d/50_other.json",
        "usr/share/vulkan/icd.d/nvidia_icd.i686.json",
        "usr/share/vulkan/icd.d/intel_icd.x86_64.json",
    )
    driver_root = a_driver_root(root / "driver", *own, *others)
    mounts = mounted(add(root, DriverGroup.GRAPHICS, driver_root=driver_root)[0])
    assert mounts == {f"/{name.replace('usr/share/vulkan', 'etc/vulkan')}": f"{driver_root}/{name}" for name in own}
    write(driver_root / "etc/vulkan/icd.d/nvidia_icd.json")
    mounts = mounted(add(root, DriverGroup.GRAPHICS, driver_root=driver_root)[0])
    assert mounts["/etc/vulkan/icd.d/nvidia_icd.json"] == f"{driver_root}/etc/vulkan/icd.d/nvidia_icd.json"
    assert len(mounts) == len(own)


def test_the_libraries_of_graphics_under_every_name_in_every_folder(root: Path) -> None:
    driver_root = a_driver_root(
        root / "driver",
        f"{LIBRARIES}/libnvidia-egl-gbm.so.1.1.2",
        f"{LIBRARIES}/libnvidia-egl-rm.so.{VERSION}",  # a library of the driver's version is mounted already
        f"{LIBRARIES}/libnvidia-allocator.so.{VERSION}",
    )
    (driver_root / LIBRARIES / "libnvidia-egl-gbm.so.1").symlink_to("libnvidia-egl-gbm.so.1.1.2")
    driver, _, _ = add(root, DriverGroup.GRAPHICS, driver_root=driver_root)
    folder = driver_root / LIBRARIES
    assert mounted(driver) == {
        f"{loader}/{name}": str(folder / file)
        for loader in LOADER_FOLDERS
        for name, file in (
            ("libnvidia-egl-gbm.so.1.1.2", "libnvidia-egl-gbm.so.1.1.2"),
            ("libnvidia-egl-gbm.so.1", "libnvidia-egl-gbm.so.1.1.2"),
            ("gbm/nvidia-drm_gbm.so", f"libnvidia-allocator.so.{VERSION}"),
        )
    }
    assert not mounted(driver).keys() & {mount.container_path for mount in driver.mounts}


def test_the_files_of_graphics_beside_the_libraries_are_where_images_search(root: Path) -> None:
    """Check NixOS: links in /run/opengl-driver lead into the store, by paths from the host's root."""
    store = root / "driver/nix/store/abc-nvidia"
    for name in (f"lib/libcuda.so.{VERSION}", "lib/libnvidia-egl-gbm.so.1.1.2", "share/glvnd/egl_vendor.d/10_nvidia.json"):
        write(store / name)
        link = root / "driver/run/opengl-driver" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"/nix/store/abc-nvidia/{name}")
    mounts = mounted(add(root, DriverGroup.GRAPHICS, driver_root=root / "driver")[0])
    assert mounts == {
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": f"{store}/share/glvnd/egl_vendor.d/10_nvidia.json",
        **{f"{folder}/libnvidia-egl-gbm.so.1.1.2": f"{store}/lib/libnvidia-egl-gbm.so.1.1.2" for folder in LOADER_FOLDERS},
    }


def test_without_the_drivers_own_files_there_are_none(root: Path) -> None:
    """Check that the groups do not hide the absence of the driver's own files."""
    driver_root = root / "driver"
    write(driver_root / "usr/share/glvnd/egl_vendor.d/10_nvidia.json")
    driver, _, _ = add(root, DriverGroup.GRAPHICS, driver_root=driver_root)
    assert (driver.mounts, driver.group_mounts) == ((), ())


def test_a_file_of_a_group_that_is_deleted_is_left_out(root: Path) -> None:
    """Compare with the driver's own files, whose absence is a refusal."""
    name = "usr/share/glvnd/egl_vendor.d/10_nvidia.json"
    driver_root = a_driver_root(root / "driver", name, "usr/share/nvidia/nvoptix.bin")
    driver, _, _ = add(root, DriverGroup.GRAPHICS, driver_root=driver_root)
    assert recheck_mounts(driver) is driver
    (driver_root / name).unlink()
    checked = recheck_mounts(driver)
    assert (list(mounted(checked)), checked.mounts, checked.missing) == (["/usr/share/nvidia/nvoptix.bin"], driver.mounts, ())


# in the inventory


def test_the_inventory_has_them_where_they_are_configured(build_node: BuildNode, fake_nvml: Path) -> None:
    root = build_node("workstation").root
    plain = read_inventory(root, vendors=[Nvidia(NvidiaSettings(nvml_library=str(fake_nvml)))])
    devices = root / "proc/devices"
    devices.write_text(devices.read_text().replace("Character devices:\n", "Character devices:\n236 gdrdrv\n226 drm\n"))
    make_node(root, "/dev/gdrdrv", "gdrdrv", 0)
    make_node(root, "/dev/nvidia-modeset", "nvidia", 254)
    for number, card in enumerate(plain.gpus, 128):
        make_drm(root, card, number)
    assert read_inventory(root, vendors=[Nvidia(NvidiaSettings(nvml_library=str(fake_nvml)))]) == plain
    groups = (DriverGroup.GDRCOPY, DriverGroup.GRAPHICS, DriverGroup.IMEX)
    inventory = read_inventory(root, vendors=[Nvidia(NvidiaSettings(nvml_library=str(fake_nvml), driver_groups=groups))])
    more = inventory.drivers[0].control[len(plain.drivers[0].control) :]
    assert [one.path for one in more] == ["/dev/gdrdrv", "/dev/nvidia-modeset"]
    assert drm(inventory.gpus) == [[f"/dev/dri/renderD{number}"] for number, _ in enumerate(plain.gpus, 128)]
    assert ["channel0" in problem for problem in inventory.problems] == [True]
