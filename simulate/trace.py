"""Read a cluster and a workload from two CSV files in the format of Alibaba's `cluster-trace-gpu-v2023`.

    nodes  sn,cpu_milli,memory_mib,gpu,model
    pods   cpu_milli,memory_mib,num_gpu,gpu_milli[,gpu_spec][,rdma][,rdma_policy][,topology][,priority]

Columns may be in any order; other columns are ignored. `gpu_milli` is the request of each GPU: 1000 is a whole one, less is a
share and possible only with `num_gpu` 1. `gpu_spec` lists models separated by `|`; empty means any. `rdma` is a number of VFs.
`rdma_policy` and `topology` have the values of the annotations; empty means the default. `priority` is used where pods end.
Return nodes and pods. Refuse values that cannot be replayed exactly, such as a share that is not a whole percent, with file,
line, column and value.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle
from pathlib import Path
from typing import Final, TypeVar

from central.request.model import PartitionPolicy, RdmaPolicy, Scope
from lading.errors import ConfigError
from lading.nodedevices import Gpu, Status

FULL: Final = 1000  # milli of a whole card
PERCENT: Final = 10  # milli in a percent; a share of compute is requested in whole percent
MOST: Final = {
    "cpu_milli": 10**9,
    "memory_mib": 2**31 - 1,
    "gpu": 64,
    "num_gpu": 64,
    "gpu_milli": FULL,
    "rdma": 1024,
    "priority": 10**9,  # maximum of a PriorityClass other than the system's
    **dict.fromkeys(("creation_time", "scheduled_time", "deletion_time"), 10**12),
}
_NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS: Final = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_TIMES: Final = ("creation_time", "deletion_time")
_REFINING: Final = ("gpu_spec", "rdma", "rdma_policy", "topology", "priority")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceNode:
    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int  # number of usable cards
    model: str
    devices: Status | None = None  # the node's report; None: `gpus` cards at unknown positions

    @property
    def cards(self) -> Sequence[int]:
        """Return the indices of the usable GPUs in the node's report."""
        if self.devices is None:
            return range(self.gpus)
        return [place for place, gpu in enumerate(self.devices.gpus) if may_be_given(gpu)]


def may_be_given(gpu: Gpu) -> bool:
    """Return whether the card may be given, as a whole or in shares. A card in MIG mode serves only pods that request its
    instances, and no pod of a trace does."""
    return not gpu.mig_enabled and not gpu.unhealthy


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePod:
    """Represent the request of a pod; pods with equal requests are of one *kind*."""

    cpu_milli: int = 0
    memory_mib: int = 0
    gpus: int = 0
    gpu_milli: int = 0  # requested milli of each GPU; 0 without GPUs
    models: tuple[str, ...] = ()  # accepted models; empty: any
    vfs: int = 0  # number of VFs, counted by the RDMA policy
    rdma_policy: RdmaPolicy = RdmaPolicy.NEAREST
    scope: Scope = Scope.ANY
    priority: int = 0

    @property
    def has_devices(self) -> bool:
        return self.gpus > 0 or self.vfs > 0

    @property
    def is_somewhere(self) -> bool:
        """Return whether the positions of devices also decide if the pod fits: it requests VFs, or devices in one place."""
        return self.vfs > 0 or self.scope is not Scope.ANY

    @property
    def share(self) -> int:
        """Return the requested milli of one card; 0 for a pod that requests whole cards or none."""
        return self.gpu_milli if self.gpu_milli < FULL else 0

    @property
    def whole(self) -> int:
        return self.gpus if self.gpu_milli == FULL else 0

    @property
    def milli(self) -> int:
        return self.gpus * self.gpu_milli

    @property
    def label(self) -> str:
        """Return the class of pods under which failures and waits are reported."""
        if not self.gpus:
            return "VFs only" if self.vfs else "cpu only"
        if self.share:
            cards = "share < 50 %" if self.share < FULL // 2 else "share >= 50 %"
        else:
            cards = f"{self.whole} GPU" if self.whole == 1 else f"{self.whole} GPUs"
        return f"{cards} + VFs" if self.vfs else cards


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    nodes: tuple[TraceNode, ...]
    pods: tuple[TracePod, ...]
    partition: PartitionPolicy = PartitionPolicy.PREFER  # the cluster's setting for NVSwitch partitions
    lifetimes: tuple[float, ...] = ()  # seconds, by pod; empty if not needed
    expected: tuple[TracePod, ...] = ()  # pods of another workload, for Prior.OTHER

    @property
    def capacity(self) -> int:
        return sum(node.gpus for node in self.nodes) * FULL

    def pods_for(self, load: float) -> float:
        """Return the mean number of pods that together request `load` times the capacity."""
        return load * self.capacity * len(self.pods) / sum(pod.milli for pod in self.pods)


def read_nodes(path: Path) -> tuple[TraceNode, ...]:
    """Read the nodes from a CSV file. Raise ConfigError."""
    nodes: dict[str, TraceNode] = {}
    for row in _rows(path, _NODE_COLUMNS):
        node = TraceNode(
            name=row.text("sn"),
            cpu_milli=row.number("cpu_milli"),
            memory_mib=row.number("memory_mib"),
            gpus=row.number("gpu"),
            model=row.text("model") if row.number("gpu") else "",
        )
        if node.name in nodes:
            raise row.error("sn", "a node of this name is in an earlier line")
        nodes[node.name] = node
    if not any(node.gpus for node in nodes.values()):
        raise ConfigError(f"cannot replay {path}: no node has a GPU")
    return tuple(nodes.values())


def read_pods(path: Path) -> tuple[TracePod, ...]:
    """Return the pods in the order of the file; equal pods are one object. Raise ConfigError."""
    known: dict[TracePod, TracePod] = {}
    pods = tuple(known.setdefault(pod, pod) for pod in map(_pod, _rows(path, _POD_COLUMNS, _REFINING)))
    if not any(pod.gpus for pod in known):
        raise ConfigError(f"cannot replay {path}: no pod asks for a GPU")
    return pods


def _pod(row: "_Row") -> TracePod:
    gpus, milli = row.number("num_gpu"), row.number("gpu_milli")
    if gpus and not milli:
        raise row.error("gpu_milli", "of each GPU; 1000 is a whole one")
    if gpus > 1 and milli != FULL:
        raise row.error("gpu_milli", "a share is of one GPU: with num_gpu above 1 it has to be 1000")
    if gpus and milli % PERCENT:
        raise row.error("gpu_milli", f"shares are whole percent of a card: a multiple of {PERCENT}")
    spec = row.optional("gpu_spec")
    models = tuple(sorted({model.strip() for model in spec.split("|")} - {""}))
    if "," in spec:
        raise row.error("gpu_spec", "models have | between, and no comma")
    if spec and not models:
        raise row.error("gpu_spec", "it names no model; one is needed, several as A|B, or nothing for any")
    vfs = row.number("rdma") if row.optional("rdma") else 0
    rdma_policy = row.choice("rdma_policy", RdmaPolicy.NEAREST)
    scope = row.choice("topology", Scope.ANY)
    if row.optional("rdma_policy") and not vfs:
        raise row.error("rdma_policy", "the pod asks for no VF in rdma")
    if rdma_policy is RdmaPolicy.PER_SWITCH and not gpus:
        raise row.error("rdma_policy", "it counts the switches of a pod's GPUs, and this one asks for none")
    if scope is not Scope.ANY and not gpus and not vfs:
        raise row.error("topology", "the pod asks for no device")
    if scope is not Scope.ANY and rdma_policy is RdmaPolicy.PER_PF:
        raise row.error("topology", f"VFs of every PF, which {rdma_policy} means, are wherever these are")
    return TracePod(
        cpu_milli=row.number("cpu_milli"),
        memory_mib=row.number("memory_mib"),
        gpus=gpus,
        gpu_milli=milli if gpus else 0,
        models=models if gpus else (),
        vfs=vfs,
        rdma_policy=rdma_policy,
        scope=scope,
        priority=row.number("priority") if row.optional("priority") else 0,
    )


def read_lifetimes(path: Path, pods: Sequence[TracePod], named: Path | None = None) -> tuple[float, ...]:
    """Return the seconds that each pod of the file ran: from `scheduled_time`, or `creation_time` if it was never scheduled, to
    `deletion_time`. Raise ConfigError.

    `pods` are the pods read from the file. `named` is another file of pods, from which lifetimes are taken by `name`. A pod
    absent there gets the lifetime of the next pod in turn there that requests as many GPUs."""
    if named is None:
        return tuple(map(_lifetime, _rows(path, _TIMES)))
    by_name: dict[str, float] = {}
    by_gpus: dict[int, list[float]] = {}
    for row, pod in zip(_rows(named, ("name", *_TIMES)), read_pods(named), strict=True):
        seconds = by_name[row.text("name")] = _lifetime(row)
        by_gpus.setdefault(pod.gpus, []).append(seconds)
    turns = {gpus: cycle(seconds) for gpus, seconds in by_gpus.items()}
    others = cycle(by_name.values())
    names = (row.text("name") for row in _rows(path, ("name",)))
    return tuple(
        by_name[name] if name in by_name else next(turns.get(pod.gpus, others)) for name, pod in zip(names, pods, strict=True)
    )


def _lifetime(row: "_Row") -> float:
    began = "scheduled_time" if row.optional("scheduled_time") else "creation_time"
    return float(max(0, row.number("deletion_time") - row.number(began)))


E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class _Row:
    path: Path
    line: int
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        value = self.cells[column].strip()
        if not value:
            raise self.error(column, "it is empty")
        return value

    def optional(self, column: str) -> str:
        return self.cells.get(column, "").strip()

    def number(self, column: str) -> int:
        value, most = self.cells[column].strip(), MOST[column]
        # Pandas writes a column with a missing value as floats, such as 8.0.
        digits = value.removesuffix(".0")
        if not (digits.isascii() and digits.isdecimal()) or len(digits) > len(str(most)) or int(digits) > most:
            raise self.error(column, f"a whole number from 0 to {most} is needed")
        return int(digits)

    def choice(self, column: str, default: E) -> E:
        """Return the value of a column as a member of the default's type; the default if the column is empty. Raise
        ConfigError."""
        value = self.optional(column)
        text: dict[str, E] = {choice.value: choice for choice in type(default)}
        if value and value not in text:
            raise self.error(column, f"one of {', '.join(text)} is needed")
        return text.get(value, default)

    def error(self, column: str, problem: str) -> ConfigError:
        return ConfigError(f"cannot read {self.path}, line {self.line}: {column} = {self.cells[column]!r:.80}: {problem}")


def _rows(path: Path, needed: Sequence[str], refining: Sequence[str] = ()) -> list[_Row]:
    reader = csv.reader(io.StringIO(_read_text(path), newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        lines = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as e:
        raise ConfigError(f"cannot read {path}, line {reader.line_num}: {e}") from e
    for column in (*needed, *refining):
        if header.count(column) > 1 or (column in needed and column not in header):
            problem = "is missing" if column not in header else "is there twice"
            raise ConfigError(f"cannot read {path}, line 1: column {column} {problem}", hint=f"needed are {','.join(needed)}")
    if not lines:
        raise ConfigError(f"cannot replay {path}: there is no line below the names of the columns")
    for line, cells in lines:
        if len(cells) != len(header):
            raise ConfigError(f"cannot read {path}, line {line}: {len(cells)} values under {len(header)} columns")
    return [_Row(path, line, dict(zip(header, cells, strict=True))) for line, cells in lines]


def not_utf8(failed: str, content: bytes, at: int) -> ConfigError:
    line = content.count(b"\n", 0, at) + 1
    return ConfigError(
        f"{failed}: it is not in UTF-8: byte 0x{content[at]:02x} in line {line}", hint="save it as UTF-8, or as plain ASCII"
    )


def _read_text(path: Path) -> str:
    """Return the text of a file, without a byte order mark. Raise ConfigError."""
    failed = f"cannot read {path}"
    try:
        content = path.read_bytes()
    except OSError as e:
        raise ConfigError(f"{failed}: {e.strerror}") from e
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise not_utf8(failed, content, e.start) from e
    if b"\0" in content:  # a file in UTF-16: every second byte of ASCII letters is 0
        raise not_utf8(failed, content, content.index(b"\0"))
    return text
