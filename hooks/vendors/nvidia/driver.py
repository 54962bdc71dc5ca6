"""Find the driver's files that a container with a GPU needs besides device nodes.

The files are those that NVIDIA's container toolkit finds: every library of the driver's version, in all folders where the host
has the driver (`lading.driverfiles`). The toolkit then runs ldconfig in the container, which a CDI spec can request and CRI
cannot. Without ldconfig, a library is also mounted under the name of each host symlink to it: its soname, such as
`libcuda.so.1` or `libnvidia-nvvm.so.4`. Where the host has no symlink, the library's own SONAME counts. Both forms always give
`libcuda.so`.

All names are mounted in each default folder of glibc's loader, because a container's image and the host may be of different
distributions. Files of other versions (GLVND, EGL platforms) come from the image, as in the toolkit without graphics. `groups`
reads them where the node is configured to give them.

Source: NVIDIA/nvidia-container-toolkit, pkg/nvcdi/driver-nvml.go and internal/lookup/library.go, internal/discover/ipc.go;
ld.so(8).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from hooks.model.inventory import DriverMount
from lading.driverfiles import DRIVER_CONTAINER, MULTIARCH, FoundDriver, read_driver_versions
from lading.elf import read_soname
from lading.rooted import resolve_below

# The loader's default folders in a container: that of Debian's family, and that of all other distributions.
LOADER_FOLDERS: Final = (f"/{MULTIARCH}", "/usr/lib64")
CUDA_LINK: Final = "libcuda.so"
CUDA_SONAME: Final = "libcuda.so.1"
# Folders of programs below the host's root, besides those beside the libraries: PATH of systems, and Bottlerocket's folder.
_PROGRAM_FOLDERS: Final = (
    "usr/bin",
    "bin",
    "usr/sbin",
    "sbin",
    "usr/local/bin",
    "usr/local/sbin",
    "opt/bin",
    "usr/libexec/nvidia/tesla/bin",
    "run/current-system/sw/bin",
)
_PROGRAMS: Final = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)
_FIRMWARE_FOLDERS: Final = (
    "lib/firmware",
    "usr/lib/firmware",
)  # the kernel's firmware folders below a driver root, with and without a merged /usr
_SOCKETS: Final = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket")


def read_driver_mounts(driver: FoundDriver) -> tuple[DriverMount, ...]:
    """Return mounts of programs, sockets, and libraries of the driver's version under all their names, sorted by path."""
    libraries = _list_libraries(driver)
    names = libraries | {name: libraries[target] for name, target in _list_links(driver, libraries).items()}
    return _mounts(driver, {f"{loader}/{name}": file for name, file in names.items() for loader in LOADER_FOLDERS})


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFiles:
    """Hold the driver's files at their paths below the driver root, and the symlinks that a CDI hook has to make."""

    mounts: tuple[DriverMount, ...]
    folder: str  # folder of the libraries in the container
    links: Mapping[str, str]  # symlinks in this folder: name to target


def read_driver_files(driver: FoundDriver) -> DriverFiles:
    """Return the driver's libraries, firmware, programs and sockets, and the symlinks to its libraries. All libraries are in
    libcuda's folder."""
    folder, libraries = driver.folders[0].name, _list_libraries(driver)
    files = {f"{folder}/{name}": file for name, file in libraries.items()}
    for name in _FIRMWARE_FOLDERS:
        there = resolve_below(driver.root, f"{name}/nvidia/{driver.version}")
        for file in there.glob("gsp*.bin") if there else ():
            if file.is_file():
                files.setdefault(f"/lib/firmware/nvidia/{driver.version}/{file.name}", file)
    links = _list_links(driver, libraries)
    if CUDA_SONAME in links:
        links[CUDA_LINK] = CUDA_SONAME  # the toolkit makes the same link
    return DriverFiles(mounts=_mounts(driver, files), folder=folder, links=dict(sorted(links.items())))


def _list_libraries(driver: FoundDriver) -> dict[str, Path]:
    """Return each library of the driver by its name."""
    files = driver.list_files(f"lib*.so.{driver.version}")
    # libnvidia-nvvm70 has a version number of its own. Drivers before version 600 contain it.
    return files | driver.list_files("libnvidia-nvvm70.so.*")


def _list_links(driver: FoundDriver, libraries: Mapping[str, Path]) -> dict[str, str]:
    """Return the other names of libraries: those of the host's symlinks, sonames without a symlink, and `libcuda.so`. Each
    leads to the name of a library."""
    names = {file: name for name, file in libraries.items()}
    links = {name: names[file] for name, file in driver.find_links(frozenset(names)).items() if name not in libraries}
    for file, name in names.items():
        if name not in links.values() and (soname := read_soname(file)) not in {"", *libraries}:
            links.setdefault(soname, name)
    links.setdefault(CUDA_LINK, f"{CUDA_LINK}.{driver.version}")  # many programs load libcuda by its name without a number
    return links


def _mounts(driver: FoundDriver, files: dict[str, Path]) -> tuple[DriverMount, ...]:
    """Return mounts of these files, of the programs and of the sockets, sorted by their paths in the container."""
    folders = [*(folder.path.parent / "bin" for folder in driver.folders), *(driver.root / name for name in _PROGRAM_FOLDERS)]
    for name in _PROGRAMS:
        candidates = (resolve_below(driver.root, f"/{folder.relative_to(driver.root)}/{name}") for folder in folders)
        if file := next((file for file in candidates if file is not None and file.is_file()), None):
            files[f"/usr/bin/{name}"] = file
    sockets = {f"/{name}": driver.root / name for name in _SOCKETS if (driver.root / name).is_socket()}
    return tuple(
        DriverMount(host_path=str(file), container_path=path, is_socket=path in sockets)
        for path, file in sorted((files | sockets).items())
    )


def name_on_host(mounts: Iterable[DriverMount], *, mounted_at: Path, driver_root: Path) -> tuple[DriverMount, ...]:
    """Return mounts that were found below `mounted_at` with their paths on the host, below `driver_root`."""
    return tuple(
        replace(mount, host_path=str(driver_root / Path(mount.host_path).relative_to(mounted_at)), mounted_at=mount.host_path)
        for mount in mounts
    )


def find_device_root(host_root: Path, driver_root: str) -> Path:
    """Return the root folder of the driver's device nodes: a driver container makes them below its own root."""
    node = "dev/nvidiactl"
    if driver_root:
        return Path(driver_root) if (Path(driver_root) / node).exists() else host_root
    own = host_root / DRIVER_CONTAINER
    return own if not (host_root / node).exists() and (own / node).exists() else host_root


def files_problem(view: Path, version: str, configured: Sequence[str] = (), *, driver_root: str = "") -> str:
    """Describe that libcuda of the running version is missing, and which versions are present. `view`: the folder in which this
    process has the driver's root."""
    result = ", ".join(read_driver_versions(view, configured))
    place = f"in driver_libraries = {', '.join(configured)}" if configured else "in the loader's cache or a known folder"
    root = f"below driver_root {driver_root}" if driver_root else "on the host"
    upgraded = f"found {result}: if the driver was upgraded, reboot the node, or load the new module"
    return f"cannot find libcuda.so.{version} {root}, {place}; {upgraded if result else 'driver_libraries = its folder'}"
