"""Read the configuration files of K3s or RKE2 on a node. Blocks; decides nothing.

K3s and RKE2 overwrite their command line with one word, such as "/usr/local/bin/k3s agent", so flags are those of the unit.
Files written after the start of the process are found by their modification times.

Source: K3s' pkg/proctitle, install.sh (k3s.service); RKE2's bundle/lib/systemd/system.

Tests: tests/unit/doctor/kubelet/test_distribution.py
"""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from doctor.kubelet.distribution import Distribution, Option, Service, flags, merge, option
from doctor.kubelet.unit import Unit
from doctor.read_files import read_yaml


def read_service(host_root: Path, distribution: Distribution, unit: Unit) -> Service:
    """Return the settings of K3s or RKE2. Raises PermissionError, ConfigError."""
    given, prefix = flags(unit.planned), distribution.upper()
    path = unit.variables.get(f"{prefix}_CONFIG_FILE") or option(given, "config") or f"/etc/rancher/{distribution}/config.yaml"
    files = tuple(_configuration(host_root, path, distribution))
    named = unit.variables.get(f"{prefix}_NODE_NAME")
    options = (*([Option("node-name", named, "")] if named else ()), *merge(files), *given, Option("config", path, ""))
    read = [*(file for file, _ in files), *unit.files, *unit.environment]
    changed = _newest(host_root, read, time.time() - time.monotonic() + unit.started_s) if unit.pid else ""
    return Service(distribution=distribution, unit=unit.name, options=options, changed=changed)


def _configuration(host_root: Path, path: str, distribution: Distribution) -> Iterator[tuple[str, dict[str, Any]]]:
    main = host_root / path.lstrip("/")
    folder = main.with_name(f"{main.name}.d")
    drop_ins = sorted(folder.iterdir()) if folder.is_dir() else []
    for file in (main, *(one for one in drop_ins if one.suffix.lower() in (".yaml", ".yml"))):
        if file.is_file():
            name = f"/{file.relative_to(host_root)}"
            yield name, read_yaml(file, f"{distribution}'s {name}")


def _newest(host_root: Path, files: Iterable[str], since: float) -> str:
    """Return the file that was written last, if later than `since` (seconds since the epoch); else an empty text."""
    written = {name: (host_root / name.lstrip("/")).stat().st_mtime for name in files}
    newest = max(written, key=lambda name: written[name], default="")
    return newest if newest and written[newest] > since else ""
