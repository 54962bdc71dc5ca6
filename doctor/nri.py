"""Check a node with front_end = nri: NRI is on, the runtime launches the guard, and its folder of plugins is valid.

The check `ready` reports whether plugin and guard are connected, from the conditions of lading-hooks.
"""

import glob
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doctor.runtime import RuntimeReading
from hooks.frontends.nri.guard.launched import GUARD, IGNORED, PROGRAM, find_strays
from hooks.host.attributes import read_attribute
from lading.checks.model import Finding, failed, ok, skipped, warning

_INSTALL = "lading-hooks install-guard"
_RESTART = "systemctl restart containerd"
_CONFIG = "etc/containerd/config.toml"
_NRI_SECTION = 'below [plugins."io.containerd.nri.v1.nri"] in containerd\'s configuration'


@dataclass(frozen=True, slots=True, kw_only=True)
class NriReading:
    runtime: RuntimeReading
    by_nri: bool  # whether front_end = nri
    socket: str  # setting nri_socket
    served: bool  # whether a process listens at the socket of NRI
    validates: bool = False  # whether NRI's default validator is on in containerd's configuration files


def read_validator(root: Path) -> bool:
    """Return whether containerd's configuration turns on NRI's default validator; False if the files are elsewhere, or cannot
    be read. Blocks."""
    try:
        config = read_containerd_config(root)
        return bool(config["plugins"]["io.containerd.nri.v1.nri"]["default_validator"]["enable"])
    except (OSError, ValueError, LookupError, TypeError):
        return False


def read_containerd_config(root: Path) -> dict[str, Any]:
    """Return containerd's configuration with all of its `imports` merged: each file once, later values override earlier ones.
    The name of NRI's plugin is the same in versions 2 and 3 of the configuration. Raise OSError, ValueError.

    Source: containerd 2.x, cmd/containerd/server/config/config.go (LoadConfig, resolveImports, mergeConfig).
    """
    merged: dict[str, Any] = {}
    pending, loaded = [f"/{_CONFIG}"], set[str]()
    while pending:
        path = pending.pop(0)
        if path not in loaded:
            loaded.add(path)
            config = tomllib.loads((root / path[1:]).read_text())
            pending += _resolve(root, path, config.get("imports", []))
            merged = _merge(merged, config)
    return merged


def _resolve(root: Path, parent: str, imports: Sequence[str]) -> Iterator[str]:
    """Yield the absolute paths of imported files. A relative path is resolved from the folder of the importing file."""
    for pattern in imports:
        path = os.path.normpath(os.path.join(os.path.dirname(parent), pattern))  # noqa: PTH118, PTH120 - Path removes no ..
        result = sorted(glob.glob(path[1:], root_dir=root)) if "*" in path else [path[1:]]  # noqa: PTH207 -- Path.glob has no root_dir
        yield from (f"/{one}" for one in result)


def _merge(to: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    tables = {key: value for key, value in config.items() if isinstance(value, dict) and isinstance(to.get(key), dict)}
    both = {key: _merge(to[key], value) for key, value in tables.items()}
    return {**to, **config, **both}


def decide_nri(reading: NriReading) -> Iterator[Finding]:
    if not reading.by_nri:
        says = "NRI is on: its plugins may change containers after us" if reading.served else "NRI is off"
        yield ok(f"{reading.runtime.name}: {says}")
        if reading.validates:
            where = f"/{_CONFIG} or its imports"
            what = f"{where}: default_validator is on, and the front end is the proxy, which registers no plugin lading: pods"
            mend = f"in these files: default_validator.enable = false; {_RESTART}. Or front_end = nri"
            yield warning(f"{what} that require it (deploy/required-plugin) are rejected here", mend=mend)
    elif reading.served:
        yield ok(f"{reading.runtime.name}: NRI is on, at {reading.socket}")
    else:
        lines = '[plugins."io.containerd.nri.v1.nri"] and below it: disable = false'
        mend = f"in /etc/containerd/config.toml: {lines}; {_RESTART}"
        what = f"front_end = nri, and no process listens at nri_socket = {reading.socket}: NRI is off (as it is by default in"
        yield failed(f"{what} containerd 1.7; 1.6 has none), or the socket is another one", mend=mend)


@dataclass(frozen=True, slots=True, kw_only=True)
class NriPluginsReading:
    folder: Path
    installed: str  # version of this command
    there: bool  # whether the launched guard's file exists
    version: str  # version of the file; empty: it is no guard of Lading
    strays: tuple[str, ...]  # names of executables that are not named as plugins
    runs: bool | None  # whether a process runs this file; None: processes are not visible
    ignored: bool = False  # whether that process shows that the runtime ignores it


def read_plugins(folder: Path, *, proc: Path, installed: str) -> NriPluginsReading:
    """Read the folder of plugins, and check whether a process runs the guard in it. Blocks."""
    path = folder / PROGRAM
    runs, ignored = _find_process(path, proc)
    return NriPluginsReading(
        folder=folder,
        installed=installed,
        there=path.exists() or path.is_symlink(),
        version=GUARD.find_version(path),
        strays=find_strays(folder),
        runs=runs,
        ignored=ignored,
    )


def _find_process(path: Path, proc: Path) -> tuple[bool | None, bool]:
    """Return whether a process runs this file, None if no process is visible, and whether its name says that it is ignored. A
    process of a replaced file does not count: /proc shows another name."""
    reading = False
    for folder in proc.glob("[0-9]*"):
        try:
            if (folder / "exe").readlink() == path:
                return True, read_attribute(folder / "comm") == IGNORED
            reading = True
        except OSError:  # a kernel thread, an ended process, or a process of another user
            continue
    return False if reading else None, False


def decide_plugins(reading: NriPluginsReading) -> Iterator[Finding]:
    path = reading.folder / PROGRAM
    for name in reading.strays:
        what = f"{reading.folder / name} is executable, and not named as a plugin: containerd does not start with it"
        yield failed(
            what, mend=f"chmod a-x {reading.folder / name}, or move it out of the folder; its name begins with two digits"
        )
    if not reading.there:
        what = f"there is no {path}: from containerd's start until lading-nri-guard is connected, nothing guards"
        yield warning(what, mend=f"{_INSTALL}; {_RESTART}, when it suits")
    elif not reading.version:
        yield failed(f"{path} is no guard of Lading", mend=f"ls -l {path}; move it out of {reading.folder}; {_INSTALL}")
    elif reading.version != reading.installed:
        what = f"{path} has version {reading.version}, and {reading.installed} is installed"
        yield warning(what, mend=f"{_INSTALL}; {_RESTART}, when it suits")
    elif reading.runs is None:
        yield skipped(f"{path} has version {reading.version}; whether it runs cannot be seen from here")
    elif not reading.runs:
        what = (
            f"{path} does not run: it was installed, or ended, since containerd's start, and is launched by its next start only"
        )
        yield warning(what, mend=f"{_RESTART}, when it suits")
    elif reading.ignored:
        what = f"{path} runs, and the runtime ignores it: its answer to the list of pods came after plugin_request_timeout"
        yield warning(what, mend=f'plugin_request_timeout = "10s" {_NRI_SECTION}; {_RESTART}, when it suits')
    else:
        yield ok(f"{path} {reading.version} runs")
