"""Read a cluster from the reports of its nodes: a JSON file that names a NodeDevices for each kind of node.

    {"nvswitch_partition": "prefer",                             optional; central's setting
     "nodes": [{"name": "h100", "count": 16, "devices": "dgx-h100.json", "cpu_milli": 112000, "memory_mib": 2097152}, …]}

`devices` is a file beside this one, with a NodeDevices object as `kubectl get nodedevices NODE -o json` prints it, or its
status alone. The nodes in the example are `h100-1` to `h100-16`. A replay begins without pods: devices that were held, used or
cordoned in the report are free, but unhealthy ones are not given. Return nodes of a Trace, and the setting. Errors name file,
entry, key and value. They cover missing or unknown keys, numbers out of range, reports that are unreadable or without devices,
and nodes with several models of cards.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from central.request.model import PartitionPolicy
from lading.errors import ConfigError
from lading.nodedevices import KIND, Gpu, Status
from simulate.trace import MOST, TraceNode, may_be_given, not_utf8

_KEYS: Final = ("name", "count", "devices", "cpu_milli", "memory_mib")
_SETTING: Final = "nvswitch_partition"
_REPORTED: Final = frozenset({"gpus", "pfs"})  # keys that identify the status of a NodeDevices
_MOST_NODES: Final = 20_000  # maximum count of one entry
# Maximum cards of a node. Up to it the choice of devices is exact (docs/reference.md), as the referee requires.
MOST_GPUS: Final = 16
_LEAST_MIB: Final = 100  # least memory of a card, so that a percent is at least 1 MiB
_SHOWN: Final = 80


class Described(NamedTuple):
    nodes: tuple[TraceNode, ...]
    partition: PartitionPolicy


def read_cluster(path: Path) -> Described:
    """Read the cluster file. Raise ConfigError."""
    content = _read_json(path, f"cannot read {path}")
    if _is_report(content):
        example = dict(zip(_KEYS, ("n", 1, path.name, 64_000, 262_144), strict=True))
        raise ConfigError(
            f"cannot replay {path}: this is what one node reports, and no cluster",
            hint=f"a cluster file beside it names it under devices: {json.dumps({'nodes': [example]})}",
        )
    whole = _Keys(path, "", content)
    whole.check(("nodes",), (_SETTING,))
    setting = content.get(_SETTING, PartitionPolicy.PREFER.value)
    if setting not in list(PartitionPolicy):
        raise whole.error(_SETTING, f"{' or '.join(PartitionPolicy)} is needed")
    entries = content["nodes"]
    if not isinstance(entries, list) or not entries:
        raise whole.error("nodes", "a list of one entry or more is needed")
    nodes: dict[str, TraceNode] = {}
    for number, entry in enumerate(entries):
        keys = _Keys(path, f", nodes[{number}]", entry)
        for node in _nodes(keys):
            if node.name in nodes:
                raise keys.error("name", f"{node.name} is of an earlier entry too")
            nodes[node.name] = node
    if not any(node.gpus for node in nodes.values()):
        raise ConfigError(f"cannot replay {path}: no node has a GPU that may be given")
    return Described(tuple(nodes.values()), PartitionPolicy(setting))


def _is_report(content: object) -> bool:
    """Return whether the content is a NodeDevices object, or the status of one."""
    if not isinstance(content, dict) or "nodes" in content:
        return False
    return content.get("kind") == KIND or not _REPORTED.isdisjoint(content)


def _nodes(entry: "_Keys") -> list[TraceNode]:
    entry.check(_KEYS)
    name, count = entry.text("name"), entry.number("count", 1, _MOST_NODES)
    devices = _read_devices(entry)
    given = [gpu for gpu in devices.gpus if may_be_given(gpu)]
    models = sorted({gpu.model for gpu in given})
    if len(models) > 1:
        raise entry.error("devices", f"GPUs of one node are of one model here, and it has {', '.join(models)}")
    cpu_milli, memory_mib = (entry.number(key, 0, MOST[key]) for key in ("cpu_milli", "memory_mib"))
    return [
        TraceNode(
            name=f"{name}-{number}",
            cpu_milli=cpu_milli,
            memory_mib=memory_mib,
            gpus=len(given),
            model=models[0] if models else "",
            devices=devices,
        )
        for number in range(1, count + 1)
    ]


def _read_devices(entry: "_Keys") -> Status:
    path = entry.path.parent / entry.text("devices")
    content = _read_json(path, f"{entry.where('devices')}: cannot read {path}")
    if isinstance(content, dict) and "status" in content:
        if content.get("kind", KIND) != KIND:
            raise entry.error("devices", f"it is a {content['kind']!s:.{_SHOWN}}, and not a {KIND}")
        content = content["status"]
    try:
        status = msgspec.convert(content, Status)
    except msgspec.ValidationError as e:
        raise entry.error("devices", f"{path} is neither a {KIND} nor its status: {e}") from e
    if not status.gpus and not status.pfs:
        raise entry.error("devices", f"{path} has neither gpus nor pfs: it is no {KIND}, or its node has no devices")
    if len(status.gpus) > MOST_GPUS:
        raise entry.error("devices", f"it has {len(status.gpus)} GPUs, and up to {MOST_GPUS} can be replayed")
    for gpu in status.gpus:
        if not _LEAST_MIB <= gpu.usable_mib <= MOST["memory_mib"]:
            raise entry.error("devices", f"GPU {gpu.uuid} has {gpu.usable_mib} MiB: {_LEAST_MIB} or more are needed")
    gpus = [name for gpu in status.gpus for name in (gpu.uuid, gpu.bdf)]
    pfs = [name for pf in status.pfs for name in (pf.bdf, *(vf.bdf for vf in pf.vfs))]
    names = Counter([*gpus, *pfs])
    if names.total() > len(names):
        raise entry.error("devices", f"{names.most_common(1)[0][0]} is there twice")
    return msgspec.structs.replace(status, reconciled=True, grants=(), problems=(), gpus=tuple(map(_unused, status.gpus)))


def _unused(gpu: Gpu) -> Gpu:
    return msgspec.structs.replace(gpu, used_by="", dirty="")


def _read_json(path: Path, failed: str) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as e:
        raise ConfigError(f"{failed}: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise not_utf8(failed, e.object, e.start) from e
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{failed}: {e}") from e


@dataclass(frozen=True, slots=True)
class _Keys:
    """Hold a JSON object of the file, and its position for error messages."""

    path: Path
    entry: str
    content: Mapping[str, Any]

    def check(self, needed: tuple[str, ...], possible: tuple[str, ...] = ()) -> None:
        allowed = ", ".join((*needed, *possible))
        if not isinstance(self.content, dict):
            raise ConfigError(f"cannot read {self.path}{self.entry}: {self._shown(self.content)}: an object is needed")
        for key, value in self.content.items():
            if key not in (*needed, *possible):
                problem = f"there is no such key; there are {allowed}"
                raise ConfigError(f"cannot read {self.path}{self.entry}: {self._shown(key)} = {self._shown(value)}: {problem}")
        for key in needed:
            if key not in self.content:
                raise ConfigError(f"cannot read {self.path}{self.entry}: {key} is missing", hint=f"needed are {allowed}")

    def text(self, key: str) -> str:
        value = self.content[key]
        if not isinstance(value, str) or not value.strip():
            raise self.error(key, "a text is needed")
        return value.strip()

    def number(self, key: str, least: int, most: int) -> int:
        value = self.content[key]
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.error(key, f"a whole number from {least} to {most} is needed")
        return value

    def where(self, key: str) -> str:
        return f"cannot read {self.path}{self.entry}: {key} = {self._shown(self.content[key])}"

    def error(self, key: str, problem: str) -> ConfigError:
        return ConfigError(f"{self.where(key)}: {problem}")

    @staticmethod
    def _shown(value: object) -> str:
        return f"{value!r:.{_SHOWN}}"
