"""Read and write the sysfs settings that a network device and its queues keep when the device changes its namespace.

The CPUs that may send through a queue (XPS) are left out: drivers set them whenever the device comes up.

Source: Linux, Documentation/ABI/testing/sysfs-class-net and sysfs-class-net-queues; net/core/net-sysfs.c.

Tests: tests/node/test_netlink_kept.py
"""

from pathlib import Path
from typing import Final

from hooks.host.attributes import read_attribute, read_names

_OF_DEVICE: Final = {
    "threaded-napi": "threaded",
    "gro-flush-timeout": "gro_flush_timeout",
    "napi-defer-hard-irqs": "napi_defer_hard_irqs",
}
_OF_QUEUES: Final = {
    "rps-cpus": ("rx-", "rps_cpus"),
    "rps-flows": ("rx-", "rps_flow_cnt"),
    "tx-max-rate": ("tx-", "tx_maxrate"),
}

NAMES: Final = frozenset(_OF_DEVICE) | frozenset(_OF_QUEUES)


def read(folder: Path) -> dict[str, str]:
    """Return the values by name. A queue setting has one value for each queue, in order, or a single one if all are equal.
    `folder`: the device's folder in sysfs."""
    result = {name: value for name, file in _OF_DEVICE.items() if (value := read_attribute(folder / file)) is not None}
    for name, files in _OF_QUEUES.items():
        values = [value for path in _paths(folder, *files) if (value := read_attribute(path)) is not None]
        if values:
            result[name] = values[0] if len(set(values)) == 1 else " ".join(values)
    return result


def write(folder: Path, name: str, *, now: str, wanted: str) -> None:
    """Write one setting in the form that `read` returns. Raise OSError."""
    if name in _OF_DEVICE:
        (folder / _OF_DEVICE[name]).write_text(wanted)
        return
    values = wanted.split()
    for number, path in enumerate(_paths(folder, *_OF_QUEUES[name])):
        path.write_text(values[number] if number < len(values) else values[-1])


def _paths(folder: Path, prefix: str, file: str) -> list[Path]:
    queues = (name for name in read_names(folder / "queues") if name.startswith(prefix))
    return [folder / "queues" / name / file for name in sorted(queues, key=lambda name: (len(name), name))]
