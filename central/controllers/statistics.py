"""Count the cluster's devices at intervals: free, held and unusable ones, and how fragmented the free capacity is.

The Overview is made from the ledger and the expected pods, and can be read at any time. A scrape that counted 5,000 nodes would
delay kube-scheduler. So only changed nodes are counted, in slices and outside the scheduling path. The sums are kept in parts
of PART_NODES nodes, so that one vector operation is short for any number of nodes.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from central.ledger.ledger import Ledger
from central.ledger.model import NodeCapacity
from central.loop.faults import Faults, Work
from central.loop.slices import Slices
from central.rank.columns import ANY_MODEL, BARE, CORE, ISOLATION, MIB, MODEL, SIZE, USABLE, Bools, Columns, Ints
from central.rank.equivalence import Interner
from central.rank.forecast import Forecast
from central.rank.unusable import FreeColumns, read_free, unusable_milli
from central.view.model import NodeState
from lading.devices.share import FULL_CORE

SCAN_S: Final = 10.0  # seconds between two counts; Prometheus scrapes every 15 to 60 s
SLICE_S: Final = 0.0005  # seconds of a slice, plus one vector operation, so that kube-scheduler's requests hardly wait
PART_NODES: Final = 512  # one vector operation takes some 0.2 ms, with 8 cards a node
REST_S: Final = 0.01  # pause between slices: one count may take a second
SIZES: Final = (1, 2, 4, 8)  # whole GPUs of a pod; for each size, the places where it fits are counted
# The keys are the values of Columns.serving.
_STATES: Final = {0: NodeState.READY, 2: NodeState.UNREACHABLE, 3: NodeState.NOT_RECONCILED, 4: NodeState.REBOOTED}


class Amounts(NamedTuple):
    """Hold the amounts of one resource by state. Free devices that may not be given count as unusable."""

    free: int = 0
    held: int = 0
    unusable: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    nodes: Mapping[NodeState, int]
    gpus: Amounts  # a GPU counts as held if any part of it is held
    mig_gpus: int  # usable GPUs in MIG mode without a held instance; not counted in `gpus`
    memory_mib: Amounts  # memory of GPUs that are not in MIG mode
    core_percent: Amounts  # compute of GPUs that are not in MIG mode; 100 a card
    vfs: Amounts
    free_milli: int  # free thousandths of cards, by the scarcer of memory and compute
    unusable_milli: float  # part of free_milli that an average expected pod cannot use
    places: Mapping[int, int]  # number of pods that fit, by the sizes of SIZES

    @property
    def fragmentation(self) -> float:
        """Return the part of the free capacity that is unusable; 0 if nothing is free."""
        return self.unusable_milli / self.free_milli if self.free_milli else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    columns: Columns
    vfs: dict[str, Amounts] = field(default_factory=dict)


class _Counts(NamedTuple):
    """Hold the counts of some nodes; counts of disjoint sets of nodes add up."""

    nodes: tuple[int, ...]  # one number for each of _STATES
    gpus: tuple[int, ...]
    mig_gpus: tuple[int, ...]  # one number
    memory_mib: tuple[int, ...]
    core_percent: tuple[int, ...]
    vfs: tuple[int, ...]
    free_milli: tuple[int, ...]  # one number
    places: tuple[int, ...]  # one number for each of SIZES


class ClusterStatistics:
    """Compute the statistics of the cluster. `clock`: seconds, monotonic."""

    def __init__(self, ledger: Ledger, forecast: Forecast, *, clock: Callable[[], float], faults: Faults) -> None:
        self._faults = faults
        self.overview: Overview | None = None  # None before the first count
        self._ledger = ledger
        self._forecast = forecast
        self._clock = clock
        self._numbers = Interner()
        self._parts = [_Part(columns=Columns(numbers=self._numbers))]
        self._part_of: dict[str, _Part] = {}
        self._observed_capacities = self._observed_loads = -1

    async def run(self) -> None:
        while True:
            await self.scan()
            await asyncio.sleep(SCAN_S)

    async def scan(self, *, rest_s: float = REST_S) -> None:
        slices = Slices(self._clock, slice_s=SLICE_S, rest_s=rest_s)
        await self._catch_up(slices)
        free = []
        for part in self._parts:
            free.append(read_free(part.columns))
            await slices.pause()
        unusable = await self._unusable(free, slices)
        counts = []
        for part, of_part in zip(self._parts, free, strict=True):
            counts.append(_count(part, of_part))
            await slices.pause()
        self.overview = _overview(counts, unusable)

    async def _catch_up(self, slices: Slices) -> None:
        ledger = self._ledger
        version, names = ledger.version, ledger.changed_since(self._observed_capacities)
        if self._observed_capacities < 0:
            self._observed_loads = ledger.loads_version  # each NodeCapacity has its node's cpu and memory
        for name in names:
            with self._faults.handling(Work.STATISTICS, name):  # a node that fails counts as before
                self._count_node(ledger.capacity(name))
            await slices.pause()
        self._observed_capacities = version  # nodes that changed meanwhile are counted again next time
        loads, self._observed_loads = ledger.loads_changed_since(self._observed_loads)
        for load in loads:
            part = self._part_of.get(load[0])
            if part is not None:
                part.columns.load(*load)
            await slices.pause()

    def _count_node(self, capacity: NodeCapacity) -> None:
        part = self._part_of.get(capacity.name)
        if capacity.reported:
            part = part or self._part_with_room()
            self._part_of[capacity.name] = part
            part.columns.put(capacity)
            part.vfs[capacity.name] = _vfs(capacity)
        elif part is not None:
            part.columns.drop(capacity.name)
            del part.vfs[capacity.name], self._part_of[capacity.name]

    def _part_with_room(self) -> _Part:
        for part in reversed(self._parts):
            if len(part.vfs) < PART_NODES:
                return part
        self._parts.append(_Part(columns=Columns(numbers=self._numbers)))
        return self._parts[-1]

    async def _unusable(self, free: Sequence[FreeColumns], slices: Slices) -> float:
        """Return the mean unusable milli-GPUs over the expected pods that request GPUs."""
        total, mass = 0, 0
        for kind, weight in self._forecast.workload.kinds:
            if kind.cpu_only:
                continue
            unusable = 0
            for part, of_part in zip(self._parts, free, strict=True):
                models = part.columns.models_of(kind.models) if kind.models else None
                unusable += unusable_milli(of_part, kind, models)
                await slices.pause()
            total += weight * unusable
            mass += weight
        return total / mass if mass else 0.0


def _vfs(capacity: NodeCapacity) -> Amounts:
    free = sum(vf.free for vf in capacity.vfs) if capacity.serving else 0
    held = sum(vf.usable and not vf.free for vf in capacity.vfs)
    return Amounts(free, held, len(capacity.vfs) - free - held)


def _count(part: _Part, free: FreeColumns) -> _Counts:
    columns, vfs = part.columns, part.vfs.values()
    rows = np.fromiter(columns.row_of.values(), np.int64, len(columns.row_of))
    cards, serving = columns.cards[rows], columns.serving[rows]
    there, bare, mig = cards[:, ANY_MODEL] >= 0, cards[:, ISOLATION] == BARE, cards[:, MODEL] < 0
    usable = (cards[:, USABLE] > 0) & (serving == 0)[:, None]

    def amounts(left: int, whole: int | None) -> Amounts:
        """Return the amounts from the columns `left` (free) and `whole` (total). Without `whole` the total is 100 for each
        card."""
        full = FULL_CORE if whole is None else cards[:, whole]
        some = there & ~mig
        rest = cards[:, left]
        return Amounts(_sum(rest, some & usable), _sum(full - rest, some), _sum(rest, some & ~usable))

    whole = free.whole
    return _Counts(
        nodes=tuple(_number(serving == number) for number in _STATES),
        gpus=Amounts(_number(there & bare & usable & ~mig), _number(there & ~bare), _number(there & bare & ~usable)),
        mig_gpus=(_number(there & bare & usable & mig),),
        memory_mib=amounts(MIB, SIZE),
        core_percent=amounts(CORE, None),
        vfs=Amounts(*(sum(column) for column in zip(*vfs, strict=True))) if vfs else Amounts(),
        free_milli=(free.total_milli,),
        places=tuple(int((whole // size).sum()) for size in SIZES),
    )


def _overview(counts: Sequence[_Counts], unusable: float) -> Overview:
    """Return the sum of all parts."""
    total = _Counts(*(tuple(map(sum, zip(*column, strict=True))) for column in zip(*counts, strict=True)))
    return Overview(
        nodes=dict(zip(_STATES.values(), total.nodes, strict=True)),
        gpus=Amounts(*total.gpus),
        mig_gpus=total.mig_gpus[0],
        memory_mib=Amounts(*total.memory_mib),
        core_percent=Amounts(*total.core_percent),
        vfs=Amounts(*total.vfs),
        free_milli=total.free_milli[0],
        unusable_milli=unusable,
        places=dict(zip(SIZES, total.places, strict=True)),
    )


def _sum(plane: Ints, where: Bools) -> int:
    return int(plane[where].sum())


def _number(where: Bools) -> int:
    return int(np.count_nonzero(where))
