"""Find the driver's files that a container with a GPU needs besides device nodes.

The files are those that NVIDIA's container toolkit finds: every library of the driver's version in libcuda's folder, below a
driver root. The toolkit then runs ldconfig in the container, which a CDI spec can request and CRI cannot. Without ldconfig, a
library is also mounted under the name of each host symlink to it: its soname, such as `libcuda.so.1` or `libnvidia-nvvm.so.4`,
and `libcuda.so`. All names are mounted in each default folder of glibc's loader, because a container's image and the driver
root may be of different distributions. Files of other versions (GLVND, EGL platforms) come from the image, as in the toolkit
without graphics. `groups` reads them where the node is configured to give them.

Source: NVIDIA/nvidia-container-toolkit, pkg/nvcdi/driver-nvml.go and internal/lookup/library.go, internal/discover/ipc.go;
ld.so(8).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from hooks.model.inventory import DriverMount
from lading.driverfiles import LIBRARY_FOLDERS, MULTIARCH

# The loader's default folders in a container: that of Debian's family, and that of all other distributions.
LOADER_FOLDERS: Final = (f"/{MULTIARCH}", "/usr/lib64")
CUDA_LINK: Final = "libcuda.so"
CUDA_SONAME: Final = "libcuda.so.1"
_BINARY_FOLDERS: Final = ("usr/bin", "bin")
_BINARIES: Final = (
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


def read_driver_mounts(driver_root: Path, version: str) -> tuple[DriverMount, ...]:
    """Return mounts of programs, sockets, and libraries of exactly this version under all their names, sorted by path.

    Without libcuda of this version the programs belong to another driver, and no mount is returned.
    """
    folder = find_library_folder(driver_root, version)
    if folder is None:
        return ()
    libraries = with_link_names(folder, _libraries(folder, version))
    files = {f"{loader}/{name}": file for name, file in libraries.items() for loader in LOADER_FOLDERS}
    return _mounts(driver_root, files)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFiles:
    """Hold the driver's files at their paths below the driver root, and the symlinks that a CDI hook has to make."""

    mounts: tuple[DriverMount, ...]
    folder: str  # folder of the libraries in the container
    links: Mapping[str, str]  # symlinks in this folder: name to target


def read_driver_files(driver_root: Path, version: str) -> DriverFiles | None:
    """Return the driver's libraries, firmware, programs and sockets, and the symlinks to its libraries. Return None without
    libcuda of this version."""
    host_folder = find_library_folder(driver_root, version)
    if host_folder is None:
        return None
    folder = f"/{host_folder.relative_to(driver_root)}"
    libraries = _libraries(host_folder, version)
    files = {f"{folder}/{name}": file for name, file in libraries.items()}
    for name in _FIRMWARE_FOLDERS:
        for file in (driver_root / name / "nvidia" / version).glob("gsp*.bin"):
            if file.is_file():
                files.setdefault(f"/lib/firmware/nvidia/{version}/{file.name}", file)
    links = _links(host_folder)
    leading = {name: target for name, target in links.items() if name not in libraries and _follow(name, links) in libraries}
    leading.setdefault(CUDA_LINK, CUDA_SONAME)  # many programs load libcuda by its name without a number
    return DriverFiles(mounts=_mounts(driver_root, files), folder=folder, links=dict(sorted(leading.items())))


def _mounts(driver_root: Path, files: dict[str, Path]) -> tuple[DriverMount, ...]:
    """Return mounts of these files, of the programs and of the sockets, sorted by their paths in the container."""
    for name in _BINARIES:
        result = (driver_root / folder / name for folder in _BINARY_FOLDERS)
        if file := next(filter(Path.is_file, result), None):
            files[f"/usr/bin/{name}"] = file
    sockets = {f"/{name}": driver_root / name for name in _SOCKETS if (driver_root / name).is_socket()}
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
    root = Path(driver_root)
    return root if driver_root and (root / "dev/nvidiactl").exists() else host_root


def files_problem(driver_root: Path, version: str) -> str:
    """Describe that libcuda of the running version is missing, and which versions are present."""
    result = ", ".join(read_driver_versions(driver_root))
    there = f"; found {result} (if the driver was upgraded: reboot the node, or load the new module)" if result else ""
    return f"cannot find libcuda.so.{version} below driver_root {driver_root}{there}"


def read_driver_versions(driver_root: Path) -> tuple[str, ...]:
    """Return the versions of libcuda below the driver root, sorted."""
    files = (file for folder in LIBRARY_FOLDERS for file in (driver_root / folder).glob("libcuda.so.*.*") if file.is_file())
    return tuple(sorted({file.name.removeprefix("libcuda.so.") for file in files}))


def _libraries(folder: Path, version: str) -> dict[str, Path]:
    """Return each library of the folder by its name."""
    files = {path.name: path for path in folder.glob(f"lib*.so.{version}") if path.is_file()}
    # This library has its own version, not the driver's; drivers up to the 500s have it.
    return files | {path.name: path for path in folder.glob("libnvidia-nvvm70.so.*") if path.is_file()}


def find_library_folder(driver_root: Path, version: str) -> Path | None:
    """Return the folder with libcuda of this version."""
    folders = (driver_root / name for name in LIBRARY_FOLDERS)
    return next((folder for folder in folders if (folder / f"libcuda.so.{version}").is_file()), None)


def with_link_names(folder: Path, files: dict[str, Path]) -> dict[str, Path]:
    """Return these files of the folder by their names, and by the names of the folder's symlinks to them."""
    links = _links(folder)
    named = dict(files)
    for name in links:
        target = _follow(name, links)
        if target in files:
            named.setdefault(name, files[target])
    return named


def _links(folder: Path) -> dict[str, str]:
    """Return the symlinks in this folder whose targets are in the same folder, sorted by name."""
    there = sorted(folder.glob("lib*.so*"))
    return {path.name: path.readlink().name for path in there if path.is_symlink() and path.readlink().parent == Path()}


def _follow(name: str, links: dict[str, str]) -> str:
    """Resolve a symlink in this folder; for a cycle, return any member."""
    for _ in links:
        if name not in links:
            break
        name = links[name]
    return name
