"""Read kubelet on this node: its process, its unit, and the configuration files that they name. Blocks; decides nothing.

Tests: tests/unit/doctor/kubelet/test_kubelet.py
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from doctor.kubelet.distribution import Distribution, kubelet_words
from doctor.kubelet.kubelet import KEY, Command, KubeletSeen, Setting, last_flag, traced
from doctor.kubelet.read_distribution import RunningService, read_service
from doctor.kubelet.read_unit_files import read_unit
from doctor.kubelet.unit_files import Word, plan_command
from doctor.processes import Process
from doctor.read_files import find_processes, read_yaml

_UNIT: Final = "kubelet.service"


def read_kubelet(host_root: Path) -> KubeletSeen:
    """Read kubelet. Blocks. Raises PermissionError for a file without permission to read, ConfigError for a malformed one."""
    process = next(iter(find_processes(host_root / "proc", "kubelet")), None)
    unit = read_unit(host_root, _UNIT)
    if service := read_service(host_root, kubelet=process is not None, alone=process is None and not unit.files):
        return _of_service(host_root, service, process)
    planned = plan_command(unit)
    return KubeletSeen(
        process=process,
        running=_running(host_root, process, planned),
        unit=unit,
        planned=Command(words=planned, config=_read_config(host_root, planned)) if planned else None,
    )


def _running(host_root: Path, process: Process | None, planned: Sequence[Word]) -> Command | None:
    words = traced(process.argv, planned) if process else ()
    return Command(words=words, config=_read_config(host_root, words)) if words else None


def _of_service(host_root: Path, found: RunningService, kubelet: Process | None) -> KubeletSeen:
    """Read the kubelet of K3s or RKE2. RKE2's process shows kubelet's command line. The kubelet inside K3s is assumed to have
    the settings in the files of K3s."""
    service = found.service
    words = (Word(f"--config-dir={service.kubelet_folder}", ""), *kubelet_words(service.options))
    config = _read_config(host_root, words)
    if KEY not in config or Path(config[KEY].source).name.startswith("00-"):  # K3s or RKE2 wrote this file at its last start
        config[KEY] = Setting(value=service.own_endpoint.value, source=service.own_endpoint.file)
    planned = Command(words=words, config=config)
    inside = service.distribution is Distribution.K3S
    return KubeletSeen(
        process=found.process if inside else kubelet,
        running=(planned if found.process else None) if inside else _running(host_root, kubelet, words),
        planned=planned,
        service=service,
    )


def _read_config(host_root: Path, words: Sequence[Word]) -> dict[str, Setting]:
    """Read the configuration files in the command line; later files override earlier ones. Keep only keys with a text: no
    others are used."""
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
            for key, value in read_yaml(path, f"kubelet's {name}").items()
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
