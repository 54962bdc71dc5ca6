"""Read K3s or RKE2 on a node: its process, its unit, its configuration. Blocks; decides nothing.

K3s and RKE2 overwrite their command line with one word, such as "/usr/local/bin/k3s agent", so flags are read from the unit.
Files written after the start of the process are found by their modification times.

Source: K3s' pkg/proctitle, install.sh (k3s.service); RKE2's bundle/lib/systemd/system; proc_pid_stat(5), proc_pid_cgroup(5).

Tests: tests/unit/doctor/kubelet/test_distribution.py
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from doctor.kubelet.distribution import ROLES, Distribution, Option, Service, flags, merge, option
from doctor.kubelet.read_unit_files import read_unit
from doctor.kubelet.unit_files import environment, plan_command
from doctor.processes import Process
from doctor.read_files import read_process, read_yaml

_UNITS: Final = {
    (Distribution.K3S, "server"): "k3s",
    (Distribution.K3S, "agent"): "k3s-agent",
    (Distribution.RKE2, "server"): "rke2-server",
    (Distribution.RKE2, "agent"): "rke2-agent",
}
_SERVICE: Final = re.compile(r"/([^/]+)\.service(?:/|$)", re.MULTILINE)
_STARTED: Final = 19  # index of the start time (field 22 of /proc/PID/stat) among the fields after the process name


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningService:
    service: Service
    process: Process | None  # None: installed, but not running


def read_service(host_root: Path, *, kubelet: bool, alone: bool) -> RunningService | None:
    """Return the node's K3s or RKE2; None if there is none. `kubelet`: kubelet runs as its own process, so a running K3s is in
    a container and does not count. `alone`: there is neither a kubelet process nor its unit, so an installed K3s or RKE2 counts
    even if it does not run. Raises PermissionError, ConfigError."""
    proc = host_root / "proc"
    for process in _processes(proc):
        found = _distribution(process)
        if found and not (kubelet and found[0] is Distribution.K3S):
            unit = _unit_of(proc, process) or _UNITS[found]
            return RunningService(service=_read(host_root, found[0], unit, since=_started_at(proc, process)), process=process)
    for (distribution, _), unit in _UNITS.items() if alone else ():
        if read_unit(host_root, f"{unit}.service").files:
            return RunningService(service=_read(host_root, distribution, unit, since=None), process=None)
    return None


def _processes(proc: Path) -> Iterator[Process]:
    pids = sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()) if proc.is_dir() else []
    return (read_process(proc, pid) for pid in pids)


def _distribution(process: Process) -> tuple[Distribution, str] | None:
    """Return the distribution and role of a process, such as K3s and `agent`; else None."""
    words = " ".join(process.argv).split()
    name, role = (Path(words[0]).name, words[1]) if len(words) > 1 else ("", "")
    return (Distribution(name), role) if name in list(Distribution) and role in ROLES else None


def _unit_of(proc: Path, process: Process) -> str:
    try:
        found = _SERVICE.search((proc / str(process.pid) / "cgroup").read_text())
    except OSError:
        return ""
    return found[1] if found else ""


def _started_at(proc: Path, process: Process) -> float | None:
    """Return the start time of the process, in seconds since the epoch; None if /proc does not contain it."""
    try:
        ticks = int((proc / str(process.pid) / "stat").read_text().rpartition(")")[2].split()[_STARTED])
        booted = re.search(r"^btime (\d+)$", (proc / "stat").read_text(), re.MULTILINE)
    except (OSError, ValueError, IndexError):
        return None
    return int(booted[1]) + ticks / os.sysconf("SC_CLK_TCK") if booted else None


def _read(host_root: Path, distribution: Distribution, name: str, *, since: float | None) -> Service:
    unit = read_unit(host_root, f"{name}.service")
    given = flags(plan_command(unit))
    variables = environment(unit)
    prefix = distribution.upper()
    path = variables[f"{prefix}_CONFIG_FILE"].text if f"{prefix}_CONFIG_FILE" in variables else option(given, "config")
    path = path or f"/etc/rancher/{distribution}/config.yaml"
    files = tuple(_configuration(host_root, path, distribution))
    named = variables.get(f"{prefix}_NODE_NAME")
    options = (*([Option("node-name", *named)] if named else ()), *merge(files), *given, Option("config", path, ""))
    read = [*(file for file, _ in files), *(file.path for file in unit.files), *unit.environment]
    return Service(distribution=distribution, unit=name, options=options, changed=_newest(host_root, read, since))


def _configuration(host_root: Path, path: str, distribution: Distribution) -> Iterator[tuple[str, dict[str, Any]]]:
    main = host_root / path.lstrip("/")
    folder = main.with_name(f"{main.name}.d")
    drop_ins = sorted(folder.iterdir()) if folder.is_dir() else []
    for file in (main, *(one for one in drop_ins if one.suffix.lower() in (".yaml", ".yml"))):
        if file.is_file():
            name = f"/{file.relative_to(host_root)}"
            yield name, read_yaml(file, f"{distribution}'s {name}")


def _newest(host_root: Path, files: Iterable[str], since: float | None) -> str:
    """Return the file that was written last, if later than `since` (seconds since the epoch); else an empty text."""
    written = {name: (host_root / name.lstrip("/")).stat().st_mtime for name in files} if since is not None else {}
    newest = max(written, key=lambda name: written[name], default="")
    return newest if newest and since is not None and written[newest] > since else ""
