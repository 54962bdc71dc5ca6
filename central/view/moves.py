"""Find moves of running pods after which pending pods would fit. The result is advice: no pod is moved.

For each pending pod, in queue order, the result is one of three: the pod fits now; or the fewest, least important pods to move,
with a new place for each; or no such set was found. All plans are valid together: each includes the plans before it, and no two
pods get the same devices (central.ledger.overlay).

A pod that is being deleted counts as ended. Pods of an affinity group are not moved, because they would have to move together.
The search is bounded: it moves one pod of a node, then two, then three. Nodes with the fewest missing devices come first.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from central.decide.scheduler import Scheduler
from central.ledger.model import PodRecord
from central.ledger.overlay import Overlay, Put
from central.ledger.parts import containers_placed
from central.ledger.usage import Hold
from central.request.model import Shape
from central.request.node_rules import NodeRules
from central.search.placement import MAY_FIT_LATER
from central.state.pending import Pending
from central.view.helps import lacks
from lading.vocabulary import PodUid

TRIES: Final = 20_000  # maximum fits in all, some 0.1 ms each
TRIES_A_POD: Final = 5_000
TRIES_A_NODE: Final = 500
MOST_MOVES: Final = 3  # maximum moves for one pending pod; more moves need a maintenance window
ELSEWHERE: Final = 32  # maximum further nodes tried for a moved pod

_Size = tuple[int, int, int, int]  # whole cards, VFs, MiB and percent of shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    pod: Pending
    record: PodRecord  # the pod's current node and devices
    to: Put


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    pod: Pending
    to: Put | None  # None: no place was found
    moves: tuple[Move, ...] = ()  # empty: the pod fits without moves
    ended: bool = False  # the search reached its maximum number of fits: there may be a place


@dataclass(slots=True, kw_only=True)
class _Search:
    scheduler: Scheduler
    movable: Mapping[PodUid, Pending]
    state: Overlay  # the cluster with the plans so far
    tries: int  # remaining fits
    allows: Callable[[Pending, str], bool]

    def place(self, state: Overlay, pod: Pending, name: str) -> Put | None:
        return place(self.scheduler, state, pod, name) if self.allows(pod, name) else None


def plan_openings(
    scheduler: Scheduler,
    waiting: Collection[Pending],
    movable: Mapping[PodUid, Pending],
    *,
    tries: int = TRIES,
    allows: Callable[[Pending, str], bool] = lambda pod, node: True,
) -> Iterator[Opening | None]:
    """Yield one Opening for each waiting pod, and None between two steps of the search. `movable`: the bound pods that may be
    moved, with their requests, by uid. `allows`: whether rules other than devices allow a pod on a node."""
    ending = [record.uid for name in scheduler.ledger.nodes() for record in scheduler.ledger.bound_on(name) if record.deleting]
    state = scheduler.ledger.without(*ending, *(pod.uid for pod in waiting))
    search = _Search(scheduler=scheduler, movable=movable, state=state, tries=tries, allows=allows)
    hopeless: dict[tuple[Shape, NodeRules | None], bool] = {}  # only the first of equal pods is tried
    for pod in sorted(waiting, key=scheduler.tenants.line()):
        kind = pod.shape, pod.node_rules
        if kind not in hopeless:
            best = None
            for opening in _openings(search, pod):
                best = opening or best
                yield None
            if best is not None:
                search.state = _carried_out(search.state, best)
                yield best
                continue
            hopeless[kind] = search.tries <= 0
        yield Opening(pod=pod, to=None, ended=hopeless[kind])


def _carried_out(state: Overlay, opening: Opening) -> Overlay:
    put = (opening.to, *(move.to for move in opening.moves))
    return state.without(*(move.record.uid for move in opening.moves)).with_put(*filter(None, put))


def place(scheduler: Scheduler, state: Overlay, pod: Pending, name: str) -> Put | None:
    """Return a place for the pod on the node in that state; None if devices, cpu or memory do not suffice."""
    result = scheduler.fit_pod(pod.shape, name, state)
    if result is None:
        return None
    return Put(node=name, hold=Hold(result.taken, containers_placed(result.containers)), cpu_memory=pod.cpu_memory)


def _somewhere(search: _Search, state: Overlay, pod: Pending) -> Put | None:
    """Return a place for the pod in that state, or None. The search order is the node that central would choose, then nodes
    that the plan changed, then others."""
    fits = search.scheduler.judged(pod.request).fits
    best = search.scheduler.verdicts.best(pod.shape, search.scheduler.ledger.nodes())
    freed = {record.node for uid in state.removed if (record := search.scheduler.ledger.pod(uid)) and record.node}
    first = dict.fromkeys(name for name in (best, *state.put, *sorted(freed)) if name)
    others = (name for name in sorted(fits) if name not in first)
    for count, name in enumerate((*first, *others)):
        if count > ELSEWHERE + len(first):
            return None
        search.tries -= 1
        if put := search.place(state, pod, name):
            return put
    return None


# ---- the pods to move


def _openings(search: _Search, pod: Pending) -> Iterator[Opening | None]:
    """Yield the best opening so far after each node."""
    if here := _somewhere(search, search.state, pod):
        yield Opening(pod=pod, to=here)
        return
    best, enough = None, search.tries - TRIES_A_POD
    for name in _near_first(search, pod):
        result = _opening_on(search, pod, name, len(best.moves) if best else MOST_MOVES)
        if result is not None and (best is None or _cost(result) < _cost(best)):
            best = result
            yield result
        else:
            yield None
        if search.tries <= max(0, enough):
            return


def _near_first(search: _Search, pod: Pending) -> Sequence[str]:
    """Return the nodes where a move may help, those with the fewest missing devices first."""
    verdicts = search.scheduler.judged(pod.request)
    demand = search.scheduler.demand(pod.request)
    names = [
        name for name in search.scheduler.ledger.nodes() if name in verdicts.fits or verdicts.reasons.get(name) in MAY_FIT_LATER
    ]
    far = {name: lacks(search.state.capacity(name), demand) for name in names}
    return sorted(names, key=lambda name: (far[name], name))


def _opening_on(search: _Search, pod: Pending, name: str, most: int) -> Opening | None:
    records = sorted((one for one in search.scheduler.ledger.bound_on(name) if _may_move(search, one)), key=_importance)
    search.tries -= 1
    if not records or search.place(search.state.without(*(one.uid for one in records)), pod, name) is None:
        return None
    until = max(0, search.tries - TRIES_A_NODE)
    for going in _sets(records, most):
        search.tries -= 1
        if search.tries < until:
            return None
        if result := _try(search, pod, name, going):
            return result
    return None


def _sets(records: Sequence[PodRecord], most: int) -> Iterator[tuple[PodRecord, ...]]:
    """Yield sets of at most `most` records: smaller sets first; of one size, those with the least important top member
    first."""
    for size in range(1, min(most, len(records)) + 1):
        for last in range(size - 1, len(records)):
            for others in combinations(records[:last], size - 1):
                yield *others, records[last]


def _may_move(search: _Search, record: PodRecord) -> bool:
    one = search.movable.get(record.uid)
    grouped = one is not None and one.request.sharing is not None and bool(one.request.sharing.affinity)
    return one is not None and not grouped and record.uid not in search.state.removed


def _try(search: _Search, pod: Pending, name: str, going: Sequence[PodRecord]) -> Opening | None:
    """Place the pod there without these pods, and find a place for each of them, the largest first."""
    state = search.state.without(*(record.uid for record in going))
    to = search.place(state, pod, name)
    if to is None:
        return None
    state, moves = state.with_put(to), []
    for record in sorted(going, key=_size, reverse=True):
        one = search.movable[record.uid]
        put = _somewhere(search, state, one)
        if put is None:
            return None
        state = state.with_put(put)
        moves.append(Move(pod=one, record=record, to=put))
    return Opening(pod=pod, to=to, moves=tuple(moves))


def _importance(record: PodRecord) -> tuple[int, _Size, int, PodUid]:
    """Return a sort key by which the best pod to move comes first: by lowest priority, then smallest size, then youngest."""
    return record.priority, _size(record), -record.created, record.uid


def _size(record: PodRecord) -> _Size:
    parts = record.taken.gpus.values() if record.taken else ()
    whole = sum(part.whole for part in parts)
    vfs = len(record.taken.vfs) if record.taken else 0
    return whole, vfs, sum(part.memory_mib for part in parts), sum(part.core_percent for part in parts)


def _cost(opening: Opening) -> tuple[int, int, int, list[_Size]]:
    records = [move.record for move in opening.moves]
    priorities = [record.priority for record in records]
    return len(records), max(priorities, default=0), sum(priorities), sorted(map(_size, records), reverse=True)
