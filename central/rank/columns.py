"""Keep the free capacity of all nodes as columns of numbers, to judge and score changed nodes in one vectorized step.

A *row* is a node, a *slot* one of its cards. Take the ledger's `NodeCapacity` of each node, one at a time, and its free cpu and
memory. Return arrays, the rows that changed since a version, and `States`, the values on which a score depends. When a node is
removed, its row becomes empty and is reused for the next new node.

All figures are integers. Whether a pod fits depends on exact figures (MiB, percent). Scores depend on the remainder of a card
in thousandths of the card (*milli*), of memory or compute, whichever is scarcer. 1000 is a usable card that no pod holds; a
card that may not be given has 0 left.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from central.assignment.model import Part
from central.ledger.model import CardCapacity, NodeCapacity
from central.loop.steps import exhaust
from central.rank.equivalence import Interner
from central.request.model import CpuMemory
from central.search.topology import NO_LAYOUT, Layout, lay_out
from lading.devices.isolation import IsolationName

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

FULL: Final = 1000  # milli of one whole free card
MOST_WAIT: Final = 1024  # maximum catch-ups until a `NodeCapacity` that raised an exception is read again
PLENTY: Final = 1 << 40  # cpu and memory of a node that does not report them; no card has more MiB
# The planes of `cards`: each has one number for every slot.
MIB, CORE, SIZE, MODEL, ANY_MODEL, USABLE, ISOLATION, FREE = range(8)
_PLANES: Final = 8
# The value of ISOLATION for a card that no pod holds. Held cards have 0 for no isolation, or a negative number for another.
BARE: Final = 1
NOT_OFFERED: Final = 2
_NEVER: Final = -2  # tick before any change
_NO_CARD: Final = (0, 0, 0, -1, -1, 0, 0, 0)

Capacities = Callable[
    [int], tuple[Iterable[tuple[str, NodeCapacity | None]], int]
]  # nodes changed after a version, and the new version
Loads = Callable[[int], tuple[Iterable[tuple[str, int, int, bool]], int]]  # nodes with changed cpu or memory (known or not)


class Kind(NamedTuple):
    """Represent the kind of a node by its cards. A node with different cards counts as if all were like its first."""

    model: str = ""
    size_mib: int = 0


class States(NamedTuple):
    """Hold the free capacity of nodes, which is all that a score depends on."""

    left: Ints  # [2, n]: cpu in milli, memory in MiB
    kind: Ints  # [n]: index into Columns.kinds
    free: Ints  # [n, slots]: free milli of each card


class Columns:
    """Keep the columns of all nodes. `order` decides ties between equal scores: the node with the least value is chosen, by
    default by name. `numbers` assigns the numbers of `classes`; several columns may share it."""

    def __init__(self, order: Callable[[str], Any] | None = None, numbers: Interner | None = None) -> None:
        self.names: list[str] = []  # node names, by row; empty for a row without a node
        self.row_of: dict[str, int] = {}
        self.capacities: list[NodeCapacity | None] = []
        self.kinds: list[Kind] = [Kind()]
        self.models: dict[str, int] = {}  # model numbers in the planes MODEL and ANY_MODEL
        self._isolations: dict[tuple[str, ...], int] = {(): 0}  # numbers in the plane ISOLATION, by CardCapacity.isolations
        self._offered: dict[tuple[IsolationName, ...], int] = {(IsolationName.NONE,): 0}  # numbers in `offers`
        self.cards: Ints = np.zeros((0, _PLANES, 0), np.int64)
        self.left: Ints = np.zeros((2, 0), np.int64)  # cpu in milli and memory in MiB, by row
        self.kind: Ints = np.zeros(0, np.int64)
        self.free: Ints = np.zeros(0, np.int64)  # free milli of all cards, by row
        self.full: Ints = np.zeros(0, np.int64)  # number of wholly free cards, by row
        self.layouts: list[Layout] = []  # the positions of the node's cards, by row
        self.classes: list[int] = []  # equivalence class, by row; rows of one class have equal devices
        self.serving: Ints = np.zeros(0, np.int64)  # 0 (serves), or the number of the reason (vectors.py), by row
        self.needs_search: Bools = np.zeros(0, np.bool_)  # whether sharing labels need the exact search, by row
        self.partitioned: Bools = np.zeros(0, np.bool_)  # whether the node has NVSwitch partitions, by row
        self.offers: Ints = np.zeros(0, np.int64)  # the number of NodeCapacity.offered, by row
        self.devices_changed: Ints = np.zeros(0, np.int64)  # tick of the last change of devices, by row
        self.changed: Ints = np.zeros(0, np.int64)  # tick of the last change, of devices, cpu or memory, by row
        self.tick = 0
        self._empty: list[int] = []
        self._kind_of: dict[Kind, int] = {Kind(): 0}
        self._numbers = Interner() if numbers is None else numbers
        self._order = order
        self._ranks: Ints | None = None

    # ---- changes

    def put(self, capacity: NodeCapacity) -> None:
        """Store the node's current free capacity, with its cpu and memory."""
        row = self._row(capacity.name, len(capacity.cards))
        self._set_cards(row, self.capacities[row], capacity)
        self.layouts[row] = lay_out(capacity, vfs=False)
        self.capacities[row] = capacity
        self.serving[row] = _serving(capacity)
        self.needs_search[row] = any(card.sharers for card in capacity.cards)
        self.partitioned[row] = bool(capacity.partitions)
        self.offers[row] = self._offered.setdefault(capacity.offered, len(self._offered))
        kind = next((Kind(card.gpu.model, card.gpu.usable_mib) for card in capacity.cards if not card.gpu.mig_enabled), Kind())
        self.kind[row] = self._number_of(kind)
        self._classify(row)
        self._set_load(row, capacity.cpu_milli, capacity.memory_mib, capacity.resources_reported)
        self.tick += 1
        self.devices_changed[row] = self.changed[row] = self.tick

    def load(self, name: str, cpu_milli: int, memory_mib: int, known: bool) -> None:
        """Store a node's changed cpu and memory only; ignore a node without a row."""
        row = self.row_of.get(name)
        if row is not None and self._set_load(row, cpu_milli, memory_mib, known):
            self.tick += 1
            self.changed[row] = self.tick

    def drop(self, name: str) -> None:
        row = self.row_of.pop(name, None)
        if row is None:
            return
        self.names[row], self.capacities[row], self.layouts[row] = "", None, NO_LAYOUT
        self.cards[row] = np.array(_NO_CARD, np.int64)[:, None]
        self.free[row] = self.full[row] = 0
        self.serving[row] = 1
        self.offers[row] = 0
        self.needs_search[row] = self.partitioned[row] = False
        self._classify(row)
        self._empty.append(row)
        self.tick += 1
        self.devices_changed[row] = self.changed[row] = self.tick

    def of_capacity(self, capacity: NodeCapacity) -> "Columns":
        """Return columns of one node with the same numbering; its `NodeCapacity` may differ from the ledger's."""
        one = Columns()
        one.kinds, one._kind_of, one.models = self.kinds, self._kind_of, self.models
        one._isolations, one._offered = self._isolations, self._offered
        one.put(capacity)
        return one

    # ---- queries

    @property
    def slots(self) -> int:
        return int(self.cards.shape[2])

    @property
    def ranks(self) -> Ints:
        """Return, for each row, its rank among all rows by `order`."""
        if self._ranks is None:
            order = self._order
            keys = list(self.names) if order is None else [order(name) for name in self.names]
            self._ranks = np.empty(len(keys), np.int64)
            self._ranks[sorted(range(len(keys)), key=keys.__getitem__)] = np.arange(len(keys))
        return self._ranks

    def changed_since(self, tick: int, *, devices_only: bool = False) -> Ints:
        """Return the rows that changed after this tick; all rows for -1."""
        return ((self.devices_changed if devices_only else self.changed) > tick).nonzero()[0]

    def has_load(self, row: int, capacity: NodeCapacity) -> bool:
        """Return whether this `NodeCapacity` has the cpu and memory of the row."""
        return _load_of(capacity.cpu_milli, capacity.memory_mib, capacity.resources_reported) == (*self.left[:, row].tolist(),)

    def states(self, rows: Ints) -> States:
        return States(self.left[:, rows], self.kind[rows], self.cards[rows, FREE])

    def cards_by_kind(self) -> list[int]:
        """Return, for each kind of node, the number of cards that are not in MIG mode."""
        rows = np.fromiter(self.row_of.values(), np.int64, len(self.row_of))
        cards = (self.cards[rows, MODEL] >= 0).sum(1)
        counts: list[int] = np.bincount(self.kind[rows], cards, len(self.kinds)).astype(np.int64).tolist()
        return counts

    def free_milli(self, models: Sequence[str] = ()) -> int:
        """Return the free milli of all usable cards of these models; of all models if none is given."""
        return int(self.free[self._are_of(models)[self.kind]].sum() if models else self.free.sum())

    def places(self, gpus: int, models: Sequence[str], cpu_memory: CpuMemory) -> int:
        """Return how many pods that request this many cards of one of these models, this cpu and this memory could be placed,
        one after the other. No models: any model."""
        rows = (self.full >= gpus).nonzero()[0]
        if models:
            rows = rows[self._are_of(models)[self.kind[rows]]]
        places = self.full[rows] // gpus
        for left, requested in zip(self.left, cpu_memory, strict=True):
            if requested:
                places = np.minimum(places, left[rows] // requested)
        return int(places.sum())

    def _are_of(self, models: Sequence[str]) -> Bools:
        """Return, for each kind of node, whether its cards are of one of these models."""
        return np.array([kind.model in models for kind in self.kinds], np.bool_)

    def models_of(self, names: Iterable[str]) -> Bools:
        """Return, for each model number, whether it is one of these models. The last element, at index -1, is False."""
        wanted = np.zeros(len(self.models) + 1, np.bool_)
        for name in names:
            if name in self.models:
                wanted[self.models[name]] = True
        return wanted

    def isolation_of(self, rows: Ints, requested: IsolationName | None) -> Ints | None:
        """Return, for each row, the ISOLATION number of cards that this request's shares could join there; NOT_OFFERED if the
        node does not offer the isolation. Return None if isolation makes no difference in the cluster."""
        if requested is None and len(self._offered) == 1 and len(self._isolations) == 1:
            return None
        numbers = [
            self._number_of_isolation(requested or offered[0]) if requested in {None, *offered} else NOT_OFFERED
            for offered in self._offered
        ]
        own: Ints = np.array(numbers, np.int64)[self.offers[rows]]
        return own

    # ---- rows

    def _row(self, name: str, cards: int) -> int:
        row = self.row_of.get(name)
        if row is None:
            row = self._empty.pop() if self._empty else len(self.names)
            if row == len(self.names):
                self.names.append("")
                self.capacities.append(None)
                self.layouts.append(NO_LAYOUT)
                self.classes.append(-1)
            self.names[row] = name
            self.row_of[name] = row
            self._ranks = None
        if row >= len(self.kind) or cards > self.slots:
            self._grow(row + 1, cards)
        return row

    def _grow(self, rows: int, slots: int) -> None:
        had = len(self.kind)
        size = had if rows <= had else max(rows, 2 * had, 64)
        slots = max(slots, self.slots)
        cards = np.empty((size, _PLANES, slots), np.int64)
        cards[:] = np.array(_NO_CARD, np.int64)[:, None]
        cards[:had, :, : self.slots] = self.cards
        self.cards = cards
        more = size - had
        self.left = np.concatenate([self.left, np.zeros((2, more), np.int64)], 1)
        self.kind, self.free, self.full = (
            np.concatenate([column, np.zeros(more, np.int64)]) for column in (self.kind, self.free, self.full)
        )
        self.devices_changed, self.changed = (
            np.concatenate([column, np.full(more, _NEVER)]) for column in (self.devices_changed, self.changed)
        )
        self.serving = np.concatenate([self.serving, np.ones(more, np.int64)])
        self.offers = np.concatenate([self.offers, np.zeros(more, np.int64)])
        self.needs_search, self.partitioned = (
            np.concatenate([column, np.zeros(more, np.bool_)]) for column in (self.needs_search, self.partitioned)
        )

    def _set_cards(self, row: int, before: NodeCapacity | None, capacity: NodeCapacity) -> None:
        """Store the changed cards of the node: the ledger keeps an unchanged card as the same object."""
        had = before.cards if before is not None else ()
        plane = self.cards[row]
        for slot, card in enumerate(capacity.cards):
            if slot >= len(had) or had[slot] is not card:
                plane[:, slot] = self._card(card)
        for slot in range(len(capacity.cards), len(had)):
            plane[:, slot] = _NO_CARD
        free = plane[FREE].tolist()
        self.free[row], self.full[row] = sum(free), free.count(FULL)

    def _classify(self, row: int) -> None:
        others = self.kind[row], self.serving[row], self.needs_search[row], self.partitioned[row], self.offers[row]
        key = self.layouts[row], self.cards[row].tobytes(), *map(int, others)
        self.classes[row] = self._numbers.of(key)

    def _set_load(self, row: int, cpu_milli: int, memory_mib: int, known: bool) -> bool:
        """Store the cpu and memory of the row, and return whether they changed."""
        now, (cpu, memory) = _load_of(cpu_milli, memory_mib, known), self.left
        if now == (cpu[row], memory[row]):
            return False
        cpu[row], memory[row] = now
        return True

    def _card(self, card: CardCapacity) -> tuple[int, ...]:
        gpu = card.gpu
        model = self.models.setdefault(gpu.model, len(self.models))
        free, size = min(card.free_mib, PLENTY), min(gpu.usable_mib, PLENTY)  # limits the values that a node reports
        requested = -1 if gpu.mig_enabled else model
        isolation = self._isolations.setdefault(card.isolations, -len(self._isolations)) if card.pods else BARE
        return free, card.free_core, size, requested, model, int(card.usable), isolation, left_of(card)

    def _number_of_isolation(self, name: IsolationName) -> int:
        isolations = () if name is IsolationName.NONE else (name,)
        return self._isolations.setdefault(isolations, -len(self._isolations))

    def _number_of(self, kind: Kind) -> int:
        number = self._kind_of.get(kind)
        if number is None:
            number = self._kind_of[kind] = len(self.kinds)
            self.kinds.append(kind)
        return number


class _Failed(NamedTuple):
    """Hold the `NodeCapacity` that could not be read, and when to read it again."""

    capacity: NodeCapacity | None
    until: int  # number of the catch-up that reads it again
    wait: int


class Followed:
    """Keep columns up to date with a ledger."""

    def __init__(self, columns: Columns, capacities: Capacities, loads: Loads) -> None:
        self.columns = columns
        self._capacities = capacities
        self._loads = loads
        self._observed_capacities = self._observed_loads = -1
        self._stale: dict[str, NodeCapacity | None] = {}  # changed nodes that are not in the columns yet
        self._questions = 0
        self._failed: dict[str, _Failed] = {}

    def catching_up(self) -> Iterator[None]:
        """Read the changed nodes, one in each step; `catch_up` reads the others. If reading a node raises an exception (an
        error in central's code), the node counts as one without a report. It is read again after twice as many catch-ups each
        time."""
        self._questions += 1
        changed, self._observed_capacities = self._capacities(self._observed_capacities)
        self._stale.update(changed)
        for name in [name for name, failed in self._failed.items() if name in self._stale or failed.until <= self._questions]:
            self._stale.setdefault(name, self._failed[name].capacity)
        while self._stale:
            name, capacity = next(iter(self._stale.items()))
            try:
                if capacity is None:
                    self.columns.drop(name)
                else:
                    self.columns.put(capacity)
            except Exception:
                self.columns.drop(name)
                wait = min(2 * self._failed[name].wait, MOST_WAIT) if name in self._failed else 1
                self._failed[name] = _Failed(capacity, self._questions + wait, wait)
                raise
            else:
                self._failed.pop(name, None)
            finally:
                del self._stale[name]
            yield

    def catch_up(self) -> Columns:
        exhaust(self.catching_up())
        loads, version = self._loads(self._observed_loads)
        for load in loads:
            self.columns.load(*load)
        self._observed_loads = version
        return self.columns


def _serving(capacity: NodeCapacity) -> int:
    """Return 0 if the node serves pods, else the number of the reason (vectors.py)."""
    if capacity.serving:
        return 0
    return 1 if not capacity.reported else 2 if not capacity.reachable else 4 if capacity.rebooted else 3


def _load_of(cpu_milli: int, memory_mib: int, known: bool) -> tuple[int, int]:
    return (cpu_milli, memory_mib) if known else (PLENTY, PLENTY)


def left_of(card: CardCapacity, part: Part | None = None) -> int:
    """Return the milli left of a card, after taking `part` too if it is given."""
    size = card.gpu.usable_mib
    if not card.usable or card.gpu.mig_enabled or size <= 0 or (part is not None and part.whole):
        return 0
    if part is None:
        bare, mib, core = card.pods == 0, card.free_mib, card.free_core
    else:
        bare, mib, core = False, card.free_mib - part.memory_mib, card.free_core - part.core_percent
    return min(mib * FULL // size, core * 10, FULL if bare else FULL - 1)


def milli_requested(size_mib: int, memory_mib: int | None, core_percent: int | None) -> int:
    """Return the milli that a share takes of a card of this size, rounded up; more than FULL if the card is too small."""
    core = (core_percent or 0) * 10
    if memory_mib is None:
        return core
    return max(core, -(-memory_mib * FULL // size_mib)) if size_mib > 0 else FULL + 1


def joined(some: States, more: States) -> States:
    return States(
        np.concatenate((some.left, more.left), 1),
        np.concatenate((some.kind, more.kind)),
        np.concatenate((some.free, more.free)),
    )


def first_of(columns: Columns, rows: Ints) -> int:
    """Return the row that comes first by `Columns.order`, among equally good rows."""
    return int(rows[columns.ranks[rows].argmin()])


def rows_of(columns: Columns, names: Collection[str]) -> Ints:
    """Return the rows of these nodes; nodes without a row are left out."""
    rows = np.fromiter(map(columns.row_of.get, names, repeat(-1)), np.int64, len(names))
    return rows[rows >= 0]
