"""Find where a host has the libraries of NVIDIA's driver, and NVML among them.

The folders are searched in this order: those that the configuration names, and no others; else the folders of the driver's
libraries in the cache of the host's loader; else the folders in which systems are known to have them. All of it is done again
below the root of a driver container. All paths are those of the host, below a root, at which the host's `/` may be mounted.

Source: NVIDIA/nvidia-container-toolkit, internal/lookup; the documentation and packages of the systems (docs/compatibility.md).
"""

import fnmatch
import os
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lading.elf import is_foreign, is_library
from lading.loader_cache import read_cache
from lading.rooted import resolve_below

NVML: Final = "libnvidia-ml.so.1"
MULTIARCH: Final = f"usr/lib/{platform.machine()}-linux-gnu"
DRIVER_CONTAINER: Final = "run/nvidia/driver"  # where the GPU Operator's driver container has its root
CACHES: Final = ("etc/ld.so.cache", "usr/local/glibc/etc/ld.so.cache")  # the second is that of Talos
# Known folders, and the systems that have them. `*` is a version of the driver or of the kernel, which changes with updates.
KNOWN_FOLDERS: Final = (
    (MULTIARCH, "Debian, Ubuntu"),
    (f"{MULTIARCH}/nvidia/current", "Debian"),
    ("usr/lib64", "Red Hat, Amazon Linux, Azure Linux"),
    ("lib64", "a root of the driver alone"),
    ("usr/lib", "Arch Linux, Bottlerocket"),
    ("usr/local/nvidia/lib64", "AKS"),
    ("home/kubernetes/bin/nvidia/lib64", "Container-Optimized OS on GKE"),
    ("var/lib/nvidia/lib64", "Container-Optimized OS"),
    ("opt/nvidia/lib64", "Ubuntu on GKE"),
    ("opt/nvidia/*/*/usr/lib64", "Flatcar"),
    ("usr/lib/nvidia/tesla", "Bottlerocket"),
    ("usr/lib/nvidia/tesla/*", "Bottlerocket"),
    ("usr/local/glibc/usr/lib", "Talos"),
    ("usr/local/glibc/usr/lib64", "Talos"),
    ("run/opengl-driver/lib", "NixOS"),
)
_OWN_CACHE: Final = Path("/etc/ld.so.cache")
_LOADER_FOLDERS: Final = (f"/{MULTIARCH}", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
_CACHED: Final = ("libcuda.so.", "libnvidia-")
_MAPPED: Final = re.compile(r"/libnvidia-ml\.so\.([0-9.]+)(?: \(deleted\))?$", re.MULTILINE)
_VERSION: Final = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d+[.\d]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryFolder:
    path: Path  # real path, with all links resolved below the root
    name: str  # path below the root, with its links: /run/opengl-driver/lib
    source: str  # the cache or setting that names it, or the system that is known to have it


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDriver:
    """Represent a driver of one version. `folders`: all folders that may have its files, that of libcuda first."""

    root: Path
    version: str
    folders: tuple[LibraryFolder, ...]

    def list_files(self, pattern: str) -> dict[str, Path]:
        """Return the files whose names match the pattern, by name, with symlinks resolved. If several folders have a file of
        one name, that of the first folder counts. Libraries of another processor or word size are left out."""
        files: dict[str, Path] = {}
        for folder in self.folders:
            for name in fnmatch.filter(_list_names_in(folder.path), pattern):
                file = None if name in files else resolve_below(self.root, name, start=folder.path)
                if file is not None and file.is_file() and not is_foreign(file):
                    files[name] = file
        return files

    def find_links(self, files: frozenset[Path]) -> dict[str, Path]:
        """Return the symlinks in all folders that lead to these files, directly or by other symlinks: file by name."""
        links: dict[str, Path] = {}
        for folder in self.folders:
            for name in fnmatch.filter(_list_names_in(folder.path, links_only=True), "lib*.so*"):
                file = None if name in links else resolve_below(self.root, name, start=folder.path)
                if file in files:
                    links[name] = file
        return links


def find_driver(root: Path, version: str, configured: Sequence[str] = ()) -> FoundDriver | None:
    """Return the driver whose libcuda is of this version; None without one. `configured`: folders of the host to search in, and
    no others."""
    for base in _list_roots(root, configured):
        folders = tuple(list_folders(base, configured))
        for folder in folders:
            file = resolve_below(base, f"libcuda.so.{version}", start=folder.path)
            if file is not None and file.is_file() and not is_foreign(file):
                others = (other for other in folders if other is not folder)
                return FoundDriver(root=base, version=version, folders=(folder, *others))
    return None


def read_driver_versions(root: Path, configured: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the versions of libcuda in all folders, sorted."""
    folders = [folder.path for base in _list_roots(root, configured) for folder in list_folders(base, configured)]
    names = (file.name for folder in folders for file in folder.glob("libcuda.so.*.*"))
    return tuple(sorted({name.removeprefix("libcuda.so.") for name in names}))


def find_nvml(root: Path, version: str, configured: Sequence[str] = ()) -> Path | None:
    """Return the real path of NVML: of this version of the driver if there is one, else of any; None without one."""
    candidates = [(base, folder) for base in _list_roots(root, configured) for folder in list_folders(base, configured)]
    for name in (f"libnvidia-ml.so.{version}", NVML) if version else (NVML,):
        for base, folder in candidates:
            file = resolve_below(base, name, start=folder.path)
            if file is not None and is_library(file):
                return file
    return None


def read_module_version(host_root: Path) -> str:
    """Return the version of the loaded kernel module; empty if none is loaded (the driver's nv-procfs.c)."""
    try:
        match = _VERSION.search((host_root / "proc/driver/nvidia/version").read_text(errors="replace"))
    except OSError:
        return ""
    return match[1] if match else ""


def read_loaded_nvml() -> str:
    """Return the version of the NVML that this process has loaded, by the name of its file; empty if it has loaded none."""
    match = _MAPPED.search(Path("/proc/self/maps").read_text(errors="replace"))
    return match[1] if match else ""


def find_outdated_nvml(host_root: Path, find_installed: Callable[[], Path | None]) -> str:
    """Return why this process has to be started anew; empty if it need not. A process never loads NVML twice. So a new process
    is needed if the loaded NVML has another version than the kernel module, and the NVML that a new process would load
    (`find_installed`; None or a bare name: as the dynamic loader finds it) has the module's version."""
    loaded, module = read_loaded_nvml(), read_module_version(host_root)
    if "." not in loaded or not module or loaded == module:
        return ""
    named = find_installed() or Path(NVML)
    installed = named if len(named.parts) > 1 else find_by_loader(named.name)
    if (
        installed is None or installed.resolve().name != f"libnvidia-ml.so.{module}"
    ):  # an upgrade is under way: a new process would be no better
        return ""
    return f"the driver was exchanged: its kernel module is {module}, and this process has NVML {loaded}"


def find_by_loader(name: str) -> Path | None:
    """Return the library that glibc's loader finds by this SONAME in a new process with this environment; None without one.
    Source: ld.so(8)."""
    variable = [Path(folder, name) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    cached = [Path(library.path) for library in read_cache(_OWN_CACHE) if library.name == name]
    return next(filter(is_library, (*variable, *cached, *(Path(folder, name) for folder in _LOADER_FOLDERS))), None)


def list_folders(root: Path, configured: Sequence[str] = ()) -> Iterator[LibraryFolder]:
    """Yield the existing folders that may have the driver's libraries, each once, in the order in which they are searched."""
    observed = set()
    for name, source in _list_names(root, configured):
        path = resolve_below(root, name)
        if path is not None and path not in observed and path.is_dir():
            observed.add(path)
            yield LibraryFolder(path=path, name=name, source=source)


def _list_names_in(folder: Path, *, links_only: bool = False) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if not links_only or entry.is_symlink())
    except FileNotFoundError:  # the folder was removed meanwhile, as an upgrade does
        return []


def _list_roots(root: Path, configured: Sequence[str]) -> tuple[Path, ...]:
    below = None if configured else resolve_below(root, DRIVER_CONTAINER)
    return (root,) if below is None else (root, below)


def _list_names(root: Path, configured: Sequence[str]) -> Iterator[tuple[str, str]]:
    if configured:
        yield from ((name, "driver_libraries") for name in configured)
        return
    for cache in CACHES:
        file = resolve_below(root, cache)
        for library in read_cache(file) if file else ():
            if library.name.startswith(_CACHED):
                folder, target = resolve_below(root, library.path.rpartition("/")[0]), resolve_below(root, library.path)
                # On Debian the cached path is a symlink to a file in another folder.
                real = filter(None, (folder, target and target.parent))
                yield from ((f"/{path.relative_to(root)}", f"/{cache}") for path in real)
    for pattern, system in KNOWN_FOLDERS:
        # Folders are named by versions, and the newest version is searched first.
        folders = sorted(root.glob(pattern), reverse=True) if "*" in pattern else [root / pattern]
        yield from ((f"/{folder.relative_to(root)}", f"known folder of {system}") for folder in folders)
