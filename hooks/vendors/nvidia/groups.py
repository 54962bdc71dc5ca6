"""Add the configured groups of optional device nodes and files, which CUDA does not need, to the driver and its cards.

The input is the driver and its cards from `nvml` and `driver`. A missing node or file of a group is a problem of the node, and
no reason for a refusal: containers start without it.

A card's DRM nodes are found by its PCI address, and given with that card only. A card in MIG mode has none, because DRM nodes
reach the whole card. IMEX gives channel 0 only: everyone with that channel can import the memory that a node exports to it.

This module mounts no folders. The toolkit also mounts /run/udev and /tmp/nvidia-mps. /run/udev has a socket by which a
container's root commands the host's udev, even if the mount is read-only. /tmp/nvidia-mps is writable for all who share it.

Source: NVIDIA/nvidia-container-toolkit, internal/discover/gds.go and graphics.go, pkg/nvcdi (gdrcopy, imex, common-nvml);
Linux, Documentation/gpu/drm-uapi.rst (primary and render nodes); systemd, udevd (/run/udev/control).
"""

import os
import platform
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from hooks.host.attributes import pinned, read_device_number, read_names
from hooks.host.devnodes import Cause, DeviceNodeError, read_driver_node
from hooks.model.inventory import CharDevice, Driver, DriverMount, Gpu
from hooks.vendors.nvidia.driver import LOADER_FOLDERS, find_device_root
from hooks.vendors.nvidia.procfs import read_majors
from lading.driverfiles import FoundDriver
from lading.rooted import resolve_below


class DriverGroup(StrEnum):
    GDRCOPY = "gdrcopy"
    GDS = "gds"
    IMEX = "imex"
    GRAPHICS = "graphics"


# The command or module option that creates a group's device nodes.
_MADE_BY: Final = {
    DriverGroup.GDRCOPY: "modprobe gdrdrv",
    DriverGroup.GDS: "modprobe nvidia-fs",
    DriverGroup.IMEX: "NVreg_CreateImexChannel0=1 for the module nvidia",
    DriverGroup.GRAPHICS: "modprobe nvidia-drm, nvidia-modprobe -m",
}
_NVIDIA_FS: Final = re.compile(r"nvidia-fs[0-9]*")
_DRM: Final = re.compile(r"(?:card|renderD)[0-9]+")

# The driver's packages put graphics files into one of these folders, or into `share` beside its folder of libraries; the first
# folder with a file counts.
_CONFIG_FOLDERS: Final = ("etc", "usr/share")
_CONFIGS: Final = (
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/*nvidia*.json",
    "nvidia/nvoptix.bin",
    "vulkan/icd.d/nvidia_icd.json",
    f"vulkan/icd.d/nvidia_icd.{platform.machine()}.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expected:
    path: str
    driver: str  # driver's name in /proc/devices
    minor: int | None  # expected minor; None: any minor is accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Host:
    root: Path
    device_root: Path
    majors: dict[str, int]
    problems: list[str]

    def nodes(self, group: DriverGroup, expected: Iterable[_Expected]) -> tuple[CharDevice, ...]:
        """Return the usable nodes of a group. Add a problem for each unusable node."""
        result = []
        for one in expected:
            try:
                result.append(self._node(one))
            except DeviceNodeError as e:
                absent = e.cause in (Cause.MISSING, Cause.NO_DRIVER)
                self.problems.append(f"{e} (driver_groups: {group}{f'; {_MADE_BY[group]}' if absent else ''})")
        return tuple(result)

    def _node(self, one: _Expected) -> CharDevice:
        """Read a device node. Modules that a driver container does not load have their nodes below the host's root."""
        root = self.device_root if os.path.lexists(self.device_root / one.path[1:]) else self.root
        return read_driver_node(root, one.path, majors=self.majors, driver=one.driver, minor=one.minor)


def add_groups(
    driver: Driver,
    gpus: tuple[Gpu, ...],
    groups: Iterable[DriverGroup],
    *,
    host_root: Path,
    driver_root: str = "",
    found: FoundDriver | None = None,
) -> tuple[Driver, tuple[Gpu, ...], tuple[str, ...]]:
    """Return the driver and the cards with the nodes and files of these groups, and problems for the missing ones. Raise
    OSError.

    Nodes are below `driver_root` if a driver container made them there, else below the host's root. Files are those of `found`,
    mounted where the driver's own files are; None: containers get no files.
    """
    wanted = frozenset(groups)
    host = _Host(
        root=host_root, device_root=find_device_root(host_root, driver_root), majors=read_majors(host_root), problems=[]
    )
    nodes = list(driver.control)
    files: dict[str, Path] = {}
    for group in DriverGroup:
        if group in wanted:
            result = host.nodes(group, _expected(group, host))
            nodes += result
            if found and (result or group is DriverGroup.GRAPHICS):
                files |= _files(group, found)
    if DriverGroup.GRAPHICS in wanted:
        gpus = tuple(replace(gpu, drm=_read_drm(host, gpu)) for gpu in gpus)
    mounts = tuple(DriverMount(host_path=str(file), container_path=path) for path, file in sorted(files.items()))
    return replace(driver, control=tuple(nodes), group_mounts=mounts), gpus, tuple(host.problems)


def _expected(group: DriverGroup, host: _Host) -> list[_Expected]:
    """Return the nodes of a group that belong to no card."""
    match group:
        case DriverGroup.GDRCOPY:
            return [_Expected(path="/dev/gdrdrv", driver="gdrdrv", minor=0)]
        case DriverGroup.GDS:
            names = [name for name in read_names(host.root / "dev") if _NVIDIA_FS.fullmatch(name)]
            in_order = sorted(names, key=lambda name: (len(name), name)) or ["nvidia-fs0"]
            return [_Expected(path=f"/dev/{name}", driver="nvidia-fs", minor=None) for name in in_order]
        case DriverGroup.IMEX:
            folder = "nvidia-caps-imex-channels"
            return [_Expected(path=f"/dev/{folder}/channel0", driver=folder, minor=0)]
        case DriverGroup.GRAPHICS:
            return [_Expected(path="/dev/nvidia-modeset", driver="nvidia", minor=254)]


def _read_drm(host: _Host, gpu: Gpu) -> tuple[CharDevice, ...]:
    if gpu.node is None or gpu.mig_enabled:
        return ()
    expected = []
    with pinned(host.root / "sys/bus/pci/devices" / gpu.bdf / "drm") as folder:
        for name in filter(_DRM.fullmatch, read_names(folder)):
            if number := read_device_number(folder / name / "dev"):
                expected.append(_Expected(path=f"/dev/dri/{name}", driver="drm", minor=number[1]))
    if not expected:
        made_by = _MADE_BY[DriverGroup.GRAPHICS]
        host.problems.append(f"cannot find DRM nodes of GPU {gpu.uuid} (driver_groups: {DriverGroup.GRAPHICS}; {made_by})")
    return host.nodes(DriverGroup.GRAPHICS, expected)


def _files(group: DriverGroup, driver: FoundDriver) -> dict[str, Path]:
    """Return the group's existing files, by their paths in the container. A group works without any of its files."""
    match group:
        case DriverGroup.GDS if (file := driver.root / "etc/cufile.json").is_file():
            return {"/etc/cufile.json": file}
        case DriverGroup.GRAPHICS:
            return dict(_configs(driver)) | dict(_graphics_libraries(driver))
        case _:
            return {}


def _configs(driver: FoundDriver) -> Iterator[tuple[str, Path]]:
    beside = f"{driver.folders[0].name.rpartition('/')[0]}/share"
    paths: dict[str, tuple[str, Path]] = {}
    for name in (*_CONFIG_FOLDERS, beside):
        folder = resolve_below(driver.root, name)
        for below in _list_configs(folder) if folder else ():
            file = resolve_below(driver.root, below, start=folder)
            if file is not None and file.is_file():
                paths.setdefault(below, (name, file))
    for below, (name, file) in paths.items():
        # Vulkan's loader searches /etc in every image, but /usr/share only where it was built for that.
        yield f"/etc/{below}" if name == "etc" or below.startswith("vulkan/") else f"/usr/share/{below}", file


def _list_configs(folder: Path) -> Iterator[str]:
    """Yield the paths of files that may be below this folder."""
    for pattern in _CONFIGS:
        yield from (str(file.relative_to(folder)) for file in folder.glob(pattern)) if "*" in pattern else (pattern,)


def _graphics_libraries(driver: FoundDriver) -> Iterator[tuple[str, Path]]:
    """Yield the libraries of EGL platforms, which have their own versions, and the driver's allocator under GBM's name."""
    platforms = driver.list_files("libnvidia-egl-*.so.*")
    files = {name: file for name, file in platforms.items() if not file.name.endswith(f".so.{driver.version}")}
    allocator = f"libnvidia-allocator.so.{driver.version}"
    if file := driver.list_files(allocator).get(allocator):
        files["gbm/nvidia-drm_gbm.so"] = file
    for name, file in files.items():
        yield from ((f"{loader}/{name}", file) for loader in LOADER_FOLDERS)
