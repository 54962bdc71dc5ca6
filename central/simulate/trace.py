"""A cluster and a workload from two CSV files, as Alibaba's `cluster-trace-gpu-v2023` has them.

    nodes  sn,cpu_milli,memory_mib,gpu,model
    pods   cpu_milli,memory_mib,num_gpu,gpu_milli[,gpu_spec]

Columns may stand in any order, others are not read. `gpu_milli` is of each GPU: 1000 is a whole one, less is a share and only
with `num_gpu` 1; `gpu_spec` lists models with `|` between, empty is any. Leaves: nodes, and pods. Refuses,
naming file, line, column and value, what it can not replay exactly: a share that is no whole percent among it.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lading.errors import ConfigError

FULL: Final = 1000  # milli of a whole card
PERCENT: Final = 10  # milli; a share of compute is asked for in whole percent
_MOST: Final = {"cpu_milli": 10**9, "memory_mib": 2**31 - 1, "gpu": 64, "num_gpu": 64, "gpu_milli": FULL}
_NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS: Final = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceNode:
    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePod:
    """What a pod asks for; equal ones are of one *kind*."""

    cpu_milli: int = 0
    memory_mib: int = 0
    gpus: int = 0
    gpu_milli: int = 0  # of each of them; 0 where there are none
    models: tuple[str, ...] = ()  # one of these; none: any

    @property
    def share(self) -> int:
        """Milli of one card; 0 for a pod that asks for whole cards or for none."""
        return self.gpu_milli if self.gpu_milli < FULL else 0

    @property
    def whole(self) -> int:
        """Whole cards."""
        return self.gpus if self.gpu_milli == FULL else 0

    @property
    def milli(self) -> int:
        """Of all its cards together."""
        return self.gpus * self.gpu_milli

    @property
    def label(self) -> str:
        """The class of pod that failures are reported by."""
        if self.share:
            return "share < 50 %" if self.share < FULL // 2 else "share >= 50 %"
        if not self.whole:
            return "cpu only"
        return f"{self.whole} GPU" if self.whole == 1 else f"{self.whole} GPUs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    nodes: tuple[TraceNode, ...]
    pods: tuple[TracePod, ...]

    @property
    def capacity(self) -> int:
        """Milli of all cards."""
        return sum(node.gpus for node in self.nodes) * FULL


def read_nodes(path: Path) -> tuple[TraceNode, ...]:
    """Raises ConfigError."""
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
    """In the order of the file; equal ones are one object. Raises ConfigError."""
    known: dict[TracePod, TracePod] = {}
    pods = tuple(known.setdefault(pod, pod) for pod in map(_pod, _rows(path, _POD_COLUMNS)))
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
    return TracePod(
        cpu_milli=row.number("cpu_milli"),
        memory_mib=row.number("memory_mib"),
        gpus=gpus,
        gpu_milli=milli if gpus else 0,
        models=tuple(sorted({model.strip() for model in row.optional("gpu_spec").split("|")} - {""})) if gpus else (),
    )


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
        value, most = self.cells[column].strip(), _MOST[column]
        # Pandas writes a column with a gap in it as floats.
        digits = value.removesuffix(".0")
        if not (digits.isascii() and digits.isdecimal()) or len(digits) > len(str(most)) or int(digits) > most:
            raise self.error(column, f"a whole number from 0 to {most} is needed")
        return int(digits)

    def error(self, column: str, problem: str) -> ConfigError:
        return ConfigError(f"cannot read {self.path}, line {self.line}: {column} = {self.cells[column]!r:.80}: {problem}")


def _rows(path: Path, needed: Sequence[str]) -> list[_Row]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            lines = [(reader.line_num, cells) for cells in reader if cells]
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise ConfigError(f"cannot read {path}: {e}") from e
    for column in needed:
        if header.count(column) != 1:
            problem = "is missing" if column not in header else "is there twice"
            raise ConfigError(f"cannot read {path}, line 1: column {column} {problem}", hint=f"needed are {','.join(needed)}")
    for line, cells in lines:
        if len(cells) != len(header):
            raise ConfigError(f"cannot read {path}, line {line}: {len(cells)} values under {len(header)} columns")
    return [_Row(path, line, dict(zip(header, cells, strict=True))) for line, cells in lines]
