"""What a GPU container needs besides device nodes: the driver's files (mode `devices`), or CDI specs (mode `cdi`).

Driver files are found as NVIDIA's tools find them: every library whose name ends in the driver's version, in the folders where
distributions put it, below a driver root. ldcache and the `.so.1` links can not be made through CRI: a program that looks for
`libcuda.so.1` gets it because each library is mounted under its soname too.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from hooks.grant.gpu import DriverMount

_LIBRARY_FOLDERS: Final = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "lib64", "usr/lib")
# In a container, where the loader looks without configuration on glibc systems; x86_64 unless the folder says otherwise.
_BINARIES: Final = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)
_SOCKETS: Final = ("run/nvidia-persistenced/socket",)


def read_driver_mounts(driver_root: Path, version: str) -> tuple[DriverMount, ...]:
    """Libraries of exactly this version with their sonames, programs, sockets; sorted by container path."""
    mounts = {mount.container_path: mount for mount in _libraries(driver_root, version)}
    for name in _BINARIES:
        path = driver_root / "usr/bin" / name
        if path.is_file():
            mounts[f"/usr/bin/{name}"] = DriverMount(host_path=str(path), container_path=f"/usr/bin/{name}")
    for name in _SOCKETS:
        path = driver_root / name
        if path.is_socket():
            mounts[f"/{name}"] = DriverMount(host_path=str(path), container_path=f"/{name}")
    return tuple(mounts[path] for path in sorted(mounts))


def _libraries(driver_root: Path, version: str) -> Iterator[DriverMount]:
    for folder in _LIBRARY_FOLDERS:
        for library in sorted((driver_root / folder).glob(f"lib*.so.{version}")):
            if not library.is_file():
                continue
            stem = library.name.removesuffix(f".{version}")  # libcuda.so
            for name in (library.name, f"{stem}.1"):
                yield DriverMount(host_path=str(library), container_path=f"/{folder}/{name}")


def read_cdi_names(folders: Iterable[Path]) -> frozenset[str]:
    """`vendor/class=name` of each device that the specs define. A later folder overrides an earlier one; a device that two
    specs of one folder define is dropped, as runtimes do; a spec that can not be read defines nothing."""
    names: set[str] = set()
    for folder in folders:
        counts: dict[str, int] = {}
        for path in sorted(folder.glob("*")):
            for name in _spec_names(path):
                counts[name] = counts.get(name, 0) + 1
        names -= {name for name, count in counts.items() if count > 1}
        names |= {name for name, count in counts.items() if count == 1}
    return frozenset(names)


def _spec_names(path: Path) -> list[str]:
    try:
        if path.suffix == ".json":
            spec: Any = json.loads(path.read_bytes())
        elif path.suffix in {".yaml", ".yml"}:
            spec = yaml.safe_load(path.read_bytes())
        else:
            return []
        return [f"{spec['kind']}={device['name']}" for device in spec["devices"]]
    except (OSError, ValueError, yaml.YAMLError, RecursionError, KeyError, TypeError):
        return []
