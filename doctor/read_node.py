"""Read a node's files and kernel for `lading-doctor`. All functions block; they change nothing and decide nothing.

The ledger is opened for reading while its daemon runs. adjtimex(2) changes nothing with modes = 0.

Source: adjtimex(2), cgroups(7), admin-guide/cgroup-v2, Kubernetes "Device Plugins".

Tests: tests/unit/doctor/test_kernel.py
"""

import contextlib
import ctypes
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from doctor.cluster import PLUGINS, PluginsReading
from doctor.kernel import CgroupMode, CgroupsReading, ClockReading
from doctor.keys import FileReading, KeysReading
from doctor.nvidia.gpus import OwnSpecs
from doctor.rdma import MELLANOX, PEER_MEMORY, ModulesReading
from doctor.read import read_listener
from doctor.state import DiskReading, LedgerReading
from hooks.daemon.settings import Settings
from hooks.host.attributes import read_attribute, read_names
from hooks.host.cdi_files import spec_path
from hooks.host.cdi_spec import SpecError, parse_spec
from hooks.ledger import file
from hooks.ledger.schema import MIGRATIONS
from hooks.ledger.store import read_ledger
from hooks.model.cdi import KINDS, Edits, Spec
from hooks.model.inventory import Pf
from lading.errors import HostError
from lading.sockets import Access

_TIME_ERROR: Final = 5  # result of adjtimex(2) for a clock that is not synchronised
_TIMEX_BYTES: Final = 512  # size of the buffer in bytes; struct timex has 208
_MAX_ERROR_AT: Final = 24  # offset in bytes of maxerror (microseconds) in struct timex, after modes, offset and freq
_READ_BYTES: Final = 64 << 10  # maximum bytes to read of a key file
_RELEASE: Final = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")
_DMA_BUF_SINCE: Final = (5, 12)
_KUBELETS: Final = "kubelet.sock"
_KEY_SUFFIXES: Final = {".pem", ".key"}


# ---- keys


def read_key_files(keys: Mapping[str, str], assignments: tuple[str, ...], *, config: Path) -> KeysReading:
    """Return the configured keys, and other key files: beside these keys, beside the configuration file, and in the folder
    `keys` there."""
    named = {key_id: read_file(Path(path)) for key_id, path in keys.items()}
    folders = {*(file.path.parent for file in named.values()), config.parent, config.parent / "keys"}
    others = {path for folder in folders for path in _key_files(folder)} - {file.path for file in named.values()}
    return KeysReading(assignments=assignments, keys=named, beside=tuple(read_file(path) for path in sorted(others)))


def _key_files(folder: Path) -> Iterable[Path]:
    return (path for path in folder.iterdir() if path.suffix in _KEY_SUFFIXES) if folder.is_dir() else ()


def read_file(path: Path) -> FileReading:
    """Return the beginning of a regular file. Other files are not opened. Raise PermissionError."""
    try:
        result = path.stat()
        if not stat.S_ISREG(result.st_mode):
            return FileReading(path=path, problem="no regular file")
        with path.open("rb") as file:
            content = file.read(_READ_BYTES)
    except PermissionError:
        raise
    except OSError as e:
        return FileReading(path=path, problem=e.strerror or str(e))
    return FileReading(path=path, access=Access.of(result), content=content)


# ---- the ledger and its disk


def read_schema(path: Path) -> LedgerReading:
    """Return the version of the ledger's schema. Raise StateError if the ledger is damaged, PermissionError if this process may
    not read it."""
    try:
        path.lstat()
    except FileNotFoundError:
        return LedgerReading(path=path)
    with path.open("rb"):  # raises PermissionError; SQLite would only report that it cannot open the file
        pass
    with file.damage_explained(path), contextlib.closing(file.open_for_reading(path)) as db:
        file.refuse_unsound(path, db)
        schema = file.version(db)
    if schema == len(MIGRATIONS):
        read_ledger(path)  # check that every grant can be read
    return LedgerReading(path=path, schema=schema)


def read_disk(folder: Path) -> DiskReading:
    try:
        status = folder.stat()
    except FileNotFoundError:
        return DiskReading(folder=folder)
    result = os.statvfs(folder)
    return DiskReading(
        folder=folder,
        there=True,
        access=Access.of(status),
        free=result.f_bavail * result.f_frsize,
        free_inodes=result.f_favail if result.f_files else None,
        read_only=bool(result.f_flag & os.ST_RDONLY),
    )


# ---- the kernel


def read_cgroups(host_root: Path) -> CgroupsReading:
    if read_attribute(host_root / "sys/fs/cgroup/cgroup.controllers") is not None:
        bpf = read_attribute(host_root / "proc/sys/kernel/unprivileged_bpf_disabled")  # the file exists with CONFIG_BPF_SYSCALL
        return CgroupsReading(mode=CgroupMode.V2, devices=bpf is not None)
    rows = [line.split() for line in (read_attribute(host_root / "proc/cgroups") or "").splitlines()]
    if not rows:
        return CgroupsReading(mode=CgroupMode.UNKNOWN)
    return CgroupsReading(mode=CgroupMode.V1, devices=any(row[0] == "devices" and row[-1] == "1" for row in rows))


def read_clock() -> ClockReading:
    """Return the state of the kernel's clock. adjtimex(2) with modes = 0 adjusts nothing."""
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)
    state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    if state < 0:
        raise HostError(f"cannot ask for the clock's state: errno {ctypes.get_errno()}")
    microseconds = ctypes.c_long.from_buffer(timex, _MAX_ERROR_AT).value
    return ClockReading(synchronised=state != _TIME_ERROR, max_error_s=microseconds / 1e6)


def read_modules(host_root: Path, pfs: tuple[Pf, ...], *, gpus: bool) -> ModulesReading:
    evidence = {
        "ib_core": "sys/class/infiniband",
        "ib_uverbs": "sys/class/infiniband_verbs",
        "rdma_ucm": "sys/class/misc/rdma_cm",
    }
    result = set(read_names(host_root / "sys/module"))
    result |= {name for name, folder in evidence.items() if read_names(host_root / folder)}
    if any(pf.driver == MELLANOX and pf.ibdev for pf in pfs):
        result.add("mlx5_ib")
    modules = frozenset(result & {*evidence, "mlx5_ib", PEER_MEMORY})
    return ModulesReading(pfs=pfs, gpus=gpus, modules=modules, dma_buf=_has_dma_buf(host_root))


def _has_dma_buf(host_root: Path) -> bool:
    """Return whether NICs can use GPU memory by DMA-BUF. That needs NVIDIA's open kernel module and kernel 5.12 or newer
    (GPUDirect RDMA guide)."""
    is_open = "Open Kernel Module" in (read_attribute(host_root / "proc/driver/nvidia/version") or "")
    release = _RELEASE.match(read_attribute(host_root / "proc/sys/kernel/osrelease") or "")
    return is_open and release is not None and (int(release[1]), int(release[2])) >= _DMA_BUF_SINCE


# ---- kubelet's device plugins


def read_plugins(host_root: Path, *, coexist: bool) -> PluginsReading:
    """Return the sockets of device plugins that have a listener. A socket without a listener is a leftover of an ended plugin,
    which kubelet removes at its next start."""
    folder = host_root / PLUGINS
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_socket() and path.name != _KUBELETS)
    except FileNotFoundError:
        paths = []
    return PluginsReading(sockets=tuple(path.name for path in paths if _is_served(path)), coexist=coexist)


def _is_served(path: Path) -> bool:
    try:
        return read_listener(path) is not None
    except HostError:
        return True  # the plugin listens, but is too busy to accept connections


# ---- CDI specs of lading-hooks


def read_own_specs(settings: Settings) -> OwnSpecs:
    """Return a reading of the CDI specs in cdi_dir. Raise OSError if a file cannot be read."""
    specs: list[Spec] = []
    invalid: list[str] = []
    for path in (spec_path(Path(settings.cdi_dir), kind) for kind in KINDS):
        try:
            specs.append(parse_spec(path.read_bytes()))
        except FileNotFoundError:
            continue
        except SpecError as e:
            invalid.append(f"{path}: {e.message}")
    edits = [one for spec in specs for one in (spec.container_edits, *(device.container_edits for device in spec.devices))]
    paths = dict.fromkeys(path for one in edits for path in _host_paths(one))
    return OwnSpecs(
        folder=settings.cdi_dir,
        invalid=tuple(invalid),
        missing=tuple(path for path in paths if not os.path.lexists(path)),
        libraries=frozenset(Path(mount.container_path).name for one in edits for mount in one.mounts),
        hooked=any(one.hooks for one in edits),
        hook=settings.cdi_hook,
    )


def _host_paths(edits: Edits) -> list[str]:
    nodes, mounts = [node.host_path for node in edits.device_nodes], [mount.host_path for mount in edits.mounts]
    return [*nodes, *mounts, *(hook.path for hook in edits.hooks)]
