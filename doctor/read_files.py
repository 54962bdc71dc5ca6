"""Read processes in /proc and YAML files of a node. Nothing is changed, nothing is decided.

Source: proc_pid_cmdline(5).

Tests: tests/unit/doctor/test_sockets.py
"""

from pathlib import Path
from typing import Any

import yaml

from doctor.processes import Process
from lading.errors import ConfigError


def read_process(proc: Path, pid: int) -> Process:
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        words = []
    return Process(pid=pid, argv=tuple(words[:-1]))  # each argument ends in NUL


def find_processes(proc: Path, program: str) -> tuple[Process, ...]:
    """Return the processes that were started as this program, by pid."""
    pids = sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal())
    return tuple(process for process in (read_process(proc, pid) for pid in pids) if process.program == program)


def read_yaml(path: Path, name: str) -> dict[str, Any]:
    """Return the mapping in a YAML file; empty if there is none. Raises ConfigError for a file that is not YAML. `name`: the
    file in messages."""
    try:
        found = yaml.safe_load(path.read_bytes())
    except FileNotFoundError:
        return {}
    except yaml.YAMLError as e:
        raise ConfigError(f"cannot read {name}: not YAML") from e
    return found if isinstance(found, dict) else {}
