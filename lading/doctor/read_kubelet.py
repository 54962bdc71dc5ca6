"""kubelet as this node has it: the process, its unit, the configuration files that either names. Blocks; decides nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from lading.doctor.kubelet import Command, KubeletSeen, Setting, last_flag, traced
from lading.doctor.read import find_processes
from lading.doctor.unit_files import Unit, UnitFile, Word, environment_files, plan_command
from lading.errors import ConfigError

# Where units lie, in rising priority: a file of one name in a later folder replaces the one in an earlier.
UNIT_FOLDERS: Final = ("lib/systemd/system", "usr/lib/systemd/system", "run/systemd/system", "etc/systemd/system")

_UNIT: Final = "kubelet.service"


def read_kubelet(host_root: Path) -> KubeletSeen:
    """Blocks. PermissionError where a file may not be read, ConfigError for a configuration that is none."""
    process = next(iter(find_processes(host_root / "proc", "kubelet")), None)
    unit = read_unit(host_root, _UNIT)
    planned = plan_command(unit)
    running = traced(process.argv, planned) if process else ()
    return KubeletSeen(
        process=process,
        running=Command(words=running, config=_read_config(host_root, running)) if running else None,
        unit=unit,
        planned=Command(words=planned, config=_read_config(host_root, planned)) if planned else None,
    )


def _read_config(host_root: Path, words: Sequence[Word]) -> dict[str, Setting]:
    """Later files over earlier. Keys that hold text only: the others are not asked for."""
    paths = []
    if (main := last_flag(words, "config")) and main.text:
        paths.append(_below(host_root, main.text))
    if (folder := last_flag(words, "config-dir")) and folder.text:
        paths += _drop_ins(_below(host_root, folder.text))
    settings: dict[str, Setting] = {}
    for path in paths:
        name = f"/{path.relative_to(host_root)}"
        settings |= {
            key: Setting(value=value, source=name)
            for key, value in _read_yaml(path, name).items()
            if isinstance(value, str) and value
        }
    return settings


def _drop_ins(folder: Path) -> list[Path]:
    """PermissionError where we may not look: to a glob there would be none."""
    if folder.is_dir():
        next(folder.iterdir(), None)
    return sorted(folder.rglob("*.conf"))


def _below(host_root: Path, path: str) -> Path:
    return host_root / path.lstrip("/")


def _read_yaml(path: Path, name: str) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_bytes())
    except FileNotFoundError:
        return {}
    except yaml.YAMLError as e:
        raise ConfigError(f"cannot read kubelet's {name}: no YAML") from e
    return found if isinstance(found, dict) else {}


def read_unit(host_root: Path, name: str) -> Unit:
    """Blocks. PermissionError where a file may not be read."""
    main: dict[str, Path] = {}
    drop_ins: dict[str, Path] = {}
    for folder in (host_root / part for part in UNIT_FOLDERS):
        if (folder / name).is_file():
            main[name] = folder / name
        drop_ins |= {path.name: path for path in sorted(folder.glob(f"{name}.d/*.conf")) if path.is_file()}
    ordered = [*main.values(), *(drop_ins[key] for key in sorted(drop_ins))]
    files = tuple(UnitFile(f"/{path.relative_to(host_root)}", path.read_text(errors="replace")) for path in ordered)
    environment = {}
    for path in environment_files(files):
        below = host_root / path.removeprefix("/")
        if below.is_file():
            environment[path] = below.read_text(errors="replace")
    return Unit(files=files, environment=environment)
