"""Read kubelet on this node: its process, its unit, and the configuration files that they name. Blocks; decides nothing.

K3s and RKE2 overwrite their command line with one word, such as "/usr/local/bin/k3s agent", so their flags are those of the
unit. Files written after the start of the process are found by their modification times.

Source: K3s' pkg/proctitle, install.sh (k3s.service); RKE2's bundle/lib/systemd/system.

Tests: tests/unit/doctor/kubelet/test_kubelet.py
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from doctor.kubelet.distribution import Distribution, Option, Service, distribution_of, flags, kubelet_words, merge, option
from doctor.kubelet.kubelet import KEY, Command, KubeletReading, Setting, last_flag, traced
from doctor.kubelet.unit import Unit, Word, parse_units
from doctor.processes import Process, find_processes, read_process
from lading.errors import ConfigError

# K3s may have a unit with a name of its own (INSTALL_K3S_NAME). A pattern matches loaded units only.
UNITS: Final = tuple(f"{name}.service" for name in ("kubelet", "k3s", "k3s-agent", "k3s-*", "rke2-server", "rke2-agent"))


def read_kubelet(host_root: Path, shown: str | None) -> KubeletReading:
    """Read kubelet. `shown`: what `systemctl show` prints about UNITS; None if systemd does not answer. Blocks. Raises
    PermissionError for a file without permission to read, ConfigError for a malformed one."""
    process = next(iter(find_processes(host_root / "proc", "kubelet")), None)
    units = parse_units(shown or "", lambda path: _read(_below(host_root, path)))
    unit = next((one for one in units if one.name == "kubelet"), Unit())
    if chosen := _choose(units, kubelet=process is not None, alone=process is None and not unit.files):
        return _of_service(host_root, *chosen, process)
    return KubeletReading(
        process=process,
        running=_running(host_root, process, unit.planned),
        unit=unit,
        by_systemd=shown is not None,
        planned=Command(words=unit.planned, config=_read_config(host_root, unit.planned)) if unit.planned else None,
    )


def _choose(units: Sequence[Unit], *, kubelet: bool, alone: bool) -> tuple[Distribution, Unit] | None:
    """Return the unit of K3s or RKE2 that runs kubelet; None if there is none. `kubelet`: kubelet is a process of its own, so
    that K3s is another node's, in a container. `alone`: there is neither a kubelet nor its unit, so that a K3s or RKE2 counts
    even if it does not run."""
    result = [(distribution, unit) for unit in units if (distribution := distribution_of(unit))]
    running = [one for one in result if one[1].pid and not (kubelet and one[0] is Distribution.K3S)]
    return next(iter(running or result if alone else running), None)


def _running(host_root: Path, process: Process | None, planned: Sequence[Word]) -> Command | None:
    text = traced(process.argv, planned) if process else ()
    return Command(words=text, config=_read_config(host_root, text)) if text else None


def _of_service(host_root: Path, distribution: Distribution, unit: Unit, kubelet: Process | None) -> KubeletReading:
    """Read the kubelet of K3s or RKE2. RKE2's process shows kubelet's command line. The kubelet inside K3s is assumed to have
    the settings in the files of K3s."""
    service = _read_service(host_root, distribution, unit)
    text = (Word(f"--config-dir={service.kubelet_folder}", ""), *kubelet_words(service.options))
    config = _read_config(host_root, text)
    if KEY not in config or Path(config[KEY].source).name.startswith("00-"):  # K3s or RKE2 wrote this file at its last start
        config[KEY] = Setting(value=service.own_endpoint.value, source=service.own_endpoint.file)
    planned = Command(words=text, config=config)
    inside = distribution is Distribution.K3S
    return KubeletReading(
        process=read_process(host_root / "proc", unit.pid) if inside and unit.pid else kubelet,
        running=(planned if unit.pid else None) if inside else _running(host_root, kubelet, text),
        unit=unit,
        planned=planned,
        service=service,
    )


def _read_service(host_root: Path, distribution: Distribution, unit: Unit) -> Service:
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
            yield name, _read_yaml(file, f"{distribution}'s {name}")


def _newest(host_root: Path, files: Iterable[str], since: float) -> str:
    """Return the file that was written last, if later than `since` (seconds since the epoch); else an empty text."""
    written = {name: (host_root / name.lstrip("/")).stat().st_mtime for name in files}
    newest = max(written, key=lambda name: written[name], default="")
    return newest if newest and written[newest] > since else ""


def _read_config(host_root: Path, text: Sequence[Word]) -> dict[str, Setting]:
    """Read the configuration files in the command line; later files override earlier ones. Keep only keys with a text: no
    others are used."""
    paths = []
    if (main := last_flag(text, "config")) and main.text:
        paths.append(_below(host_root, main.text))
    if (folder := last_flag(text, "config-dir")) and folder.text:
        paths += _drop_ins(_below(host_root, folder.text))
    settings: dict[str, Setting] = {}
    for path in paths:
        name = f"/{path.relative_to(host_root)}"
        settings |= {
            key: Setting(value=value, source=name)
            for key, value in _read_yaml(path, f"kubelet's {name}").items()
            if isinstance(value, str) and value
        }
    return settings


def _drop_ins(folder: Path) -> list[Path]:
    """Return the drop-ins in the folder. Raises PermissionError for an unreadable folder, where a glob would return none."""
    if folder.is_dir():
        next(folder.iterdir(), None)
    return sorted(folder.rglob("*.conf"))


def _below(host_root: Path, path: str) -> Path:
    return host_root / path.lstrip("/")


def _read_yaml(path: Path, name: str) -> dict[str, Any]:
    """Return the mapping in a YAML file; empty if there is none. Raises ConfigError for a file that is not YAML. `name`: the
    file in messages."""
    try:
        result = yaml.safe_load(path.read_bytes())
    except FileNotFoundError:
        return {}
    except yaml.YAMLError as e:
        raise ConfigError(f"cannot read {name}: not YAML") from e
    return result if isinstance(result, dict) else {}


def _read(path: Path) -> str | None:
    return path.read_text(errors="replace") if path.is_file() else None
