"""A cluster and a workload from two CSV files, as Alibaba's `cluster-trace-gpu-v2023` has them.

    nodes  sn,cpu_milli,memory_mib,gpu,model
    pods   cpu_milli,memory_mib,num_gpu,gpu_milli[,gpu_spec][,rdma][,rdma_policy][,topology][,priority]

Columns may stand in any order, others are not read. `gpu_milli` is of each GPU: 1000 is a whole one, less is a share and only
with `num_gpu` 1; `gpu_spec` lists models with `|` between, empty is any; `rdma` counts VFs, `rdma_policy` and `topology` are as
the annotations, empty is the default; `priority` counts where pods end. It returns nodes and pods. It refuses what it cannot
replay exactly, and names file, line, column and value; one example is a share that is not a whole percent.
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
PERCENT: Final = 10  # milli; a share of compute is asked for in whole percent
MOST: Final = {
    "cpu_milli": 10**9,
    "memory_mib": 2**31 - 1,
    "gpu": 64,
    "num_gpu": 64,
    "gpu_milli": FULL,
    "rdma": 1024,
    "priority": 10**9,  # of a PriorityClass that is not the system's
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
    gpus: int  # that may be given
    model: str
    devices: Status | None = None  # what it reports; None: so many cards, with nothing known of where they sit

    @property
    def cards(self) -> Sequence[int]:
        """Return the places in the node's report of the GPUs that may be given."""
        if self.devices is None:
            return range(self.gpus)
        return [place for place, gpu in enumerate(self.devices.gpus) if may_be_given(gpu)]


def may_be_given(gpu: Gpu) -> bool:
    """Return whether the card may be given, as a whole or in shares. A card in MIG mode serves only pods that ask for its
    instances, and no pod of a trace does."""
    return not gpu.mig_enabled and not gpu.unhealthy


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePod:
    """The request of a pod; equal ones are of one *kind*."""

    cpu_milli: int = 0
    memory_mib: int = 0
    gpus: int = 0
    gpu_milli: int = 0  # of each of them; 0 where there are none
    models: tuple[str, ...] = ()  # one of these; none: any
    vfs: int = 0  # as the policy counts them
    rdma_policy: RdmaPolicy = RdmaPolicy.NEAREST
    scope: Scope = Scope.ANY
    priority: int = 0

    @property
    def has_devices(self) -> bool:
        return self.gpus > 0 or self.vfs > 0

    @property
    def is_somewhere(self) -> bool:
        """Return whether more than the free cards decides if the pod fits: it asks for VFs, or for devices in one place."""
        return self.vfs > 0 or self.scope is not Scope.ANY

    @property
    def share(self) -> int:
        """Return the milli of one card that the pod asks for; 0 for a pod that asks for whole cards or for none."""
        return self.gpu_milli if self.gpu_milli < FULL else 0

    @property
    def whole(self) -> int:
        """Return the number of whole cards that the pod asks for."""
        return self.gpus if self.gpu_milli == FULL else 0

    @property
    def milli(self) -> int:
        """Return what the pod asks for of all its cards together, in milli."""
        return self.gpus * self.gpu_milli

    @property
    def label(self) -> str:
        """Return the class of pods under which failures are reported."""
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
    partition: PartitionPolicy = PartitionPolicy.PREFER  # the cluster's setting for whole cards where there are NVSwitches
    lifetimes: tuple[float, ...] = ()  # seconds, by pod; none where they are not needed
    expected: tuple[TracePod, ...] = ()  # pods of another workload, for Prior.OTHER

    @property
    def capacity(self) -> int:
        """Return the milli of all cards."""
        return sum(node.gpus for node in self.nodes) * FULL

    def pods_for(self, load: float) -> float:
        """Return how many of the pods, on average, ask together for so many times the capacity."""
        return load * self.capacity * len(self.pods) / sum(pod.milli for pod in self.pods)


def read_nodes(path: Path) -> tuple[TraceNode, ...]:
    """Read the nodes. Raise ConfigError."""
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
    """Return for how many seconds each pod of the file ran: from `scheduled_time`, if it was scheduled, or `creation_time`, to
    `deletion_time`. `pods`: what was read from it. `named`: another file of pods, from which the lifetimes
    are taken by `name`; a pod that is not in it runs as long as the next in turn that asks for as many GPUs there. Raise
    ConfigError."""
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
        # Pandas writes a column with a gap in it as floats.
        digits = value.removesuffix(".0")
        if not (digits.isascii() and digits.isdecimal()) or len(digits) > len(str(most)) or int(digits) > most:
            raise self.error(column, f"a whole number from 0 to {most} is needed")
        return int(digits)

    def choice(self, column: str, default: E) -> E:
        """Return the value of a column, one of the words of the default's type; the default if the column is empty."""
        value = self.optional(column)
        words: dict[str, E] = {choice.value: choice for choice in type(default)}
        if value and value not in words:
            raise self.error(column, f"one of {', '.join(words)} is needed")
        return words.get(value, default)

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
    if b"\0" in content:  # every second byte of plain letters in UTF-16
        raise not_utf8(failed, content, content.index(b"\0"))
    return text
