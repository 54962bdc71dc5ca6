"""Read the files of a systemd unit on a node, and the environment files that they name. Blocks; decides nothing.

Source: systemd.unit(5) (unit search path, specifiers).

Tests: tests/unit/doctor/kubelet/test_unit_files.py
"""

from pathlib import Path
from typing import Final

from doctor.kubelet.unit_files import Unit, UnitFile, environment_files

# Folders of units, in rising priority: a file in a later folder replaces a file of the same name in an earlier folder.
UNIT_FOLDERS: Final = (
    "lib/systemd/system",
    "usr/lib/systemd/system",
    "usr/local/lib/systemd/system",
    "run/systemd/system",
    "etc/systemd/system",
)


def read_unit(host_root: Path, name: str) -> Unit:
    """Read the files of the unit `name`. Blocks. Raises PermissionError for a file without permission to read."""
    main: dict[str, Path] = {}
    drop_ins: dict[str, Path] = {}
    for folder in (host_root / part for part in UNIT_FOLDERS):
        if (folder / name).is_file():
            main[name] = folder / name
        drop_ins |= {path.name: path for path in sorted(folder.glob(f"{name}.d/*.conf")) if path.is_file()}
    ordered = [*main.values(), *(drop_ins[key] for key in sorted(drop_ins))]
    files = tuple(UnitFile(f"/{path.relative_to(host_root)}", _read(path, name)) for path in ordered)
    environment = {}
    for path in environment_files(files):
        below = host_root / path.removeprefix("/")
        if below.is_file():
            environment[path] = below.read_text(errors="replace")
    return Unit(files=files, environment=environment)


def _read(path: Path, unit: str) -> str:
    """Read a unit's file, and expand the specifier %N, which the units of K3s use in the names of environment files."""
    return path.read_text(errors="replace").replace("%N", unit.removesuffix(".service"))
