"""Return the queue position of a pod or gang, and the pods or gangs ahead of it with the reason.

Gangs wait in one queue, and are planned in its order. Single pods wait in another queue; the pods that a quota refuses wait in
a queue of that quota. A pod or gang that cannot start does not block the pods or gangs behind it, so a position is no promise.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import Final, Literal

import msgspec

from central.decide.scheduler import Scheduler
from central.gang.gang import Gang
from central.gang.life import Phase
from central.gang.queue import Place, place_of
from central.request.gang import GangKey
from central.state.pending import Pending
from lading.vocabulary import PodUid

MOST_AHEAD: Final = 3  # maximum pods or gangs ahead that are named
_OLDER: Final = "older"
_LESS: Final = "its namespace has less"
_PRIORITY: Final = "of higher priority"
# The first differing part of the sort key gives the reason: central.gang.queue.Place, central.state.tenants.Place.
_OF_GANGS: Final = ("bound in part", "its quota uses less", _PRIORITY, "room is kept for it", _LESS, _OLDER, _OLDER)
_OF_PODS: Final = (_PRIORITY, _LESS, _OLDER, _OLDER)

_Key = Sequence[object]


class Ahead(msgspec.Struct, frozen=True):
    name: str  # namespace/name
    because: str


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    position: int  # position in the queue, from 1
    waiting: int  # number of pods or gangs in the queue, including this one
    of: Literal["gangs", "pods"]
    ahead: tuple[Ahead, ...] = ()  # the first MOST_AHEAD of the queue

    def as_text(self) -> str:
        text = f"{_ordinal(self.position)} of {self.waiting} {self.of if self.waiting > 1 else self.of[:-1]} in line"
        named = ", ".join(f"{one.name} ({one.because})" for one in self.ahead)
        more = self.position - 1 - len(self.ahead)
        return f"{text}{f'; ahead: {named}' if named else ''}{f' and {more} more' if more > 0 else ''}"


# ---- gangs


def gang_lines(scheduler: Scheduler) -> dict[GangKey, Line]:
    """Return the queue position of each gang that waits for a plan."""
    waiting = (gang for gang in scheduler.gangs if gang.phase is Phase.QUEUED or (gang.finishing and not gang.plan))
    placed = _with_places(scheduler, waiting)
    first = [(str(gang.key), place) for place, gang in placed[:MOST_AHEAD]]
    return {
        gang.key: Line(position=number, waiting=len(placed), of="gangs", ahead=_ahead(first[: number - 1], place, _OF_GANGS))
        for number, (place, gang) in enumerate(placed, 1)
    }


def _with_places(scheduler: Scheduler, gangs: Iterable[Gang]) -> list[tuple[Place, Gang]]:
    place = gang_place(scheduler)
    placed = [(place(gang), gang) for gang in gangs if gang.members]
    return sorted(placed, key=lambda one: one[0])


def gang_place(scheduler: Scheduler) -> Callable[[Gang], Place]:
    """Return a function that returns the current sort key of a gang with members. Two gangs never have the same key."""
    scheduler.tenants.catch_up()
    kept = {claim.holder.pod for claim in scheduler.ledger.nominations() if not claim.evicts}
    turn, part = scheduler.quotas.turn, scheduler.tenants.part
    return lambda gang: place_of(gang, turn, part, kept)


# ---- pods alone


def line_of(pod: Pending) -> str | None:
    """Return the queue of a pod: the name of the quota that refuses it, or an empty name. Return None if the pod does not wait
    alone."""
    if pod.refused_at is None or pod.in_gang:
        return None
    return pod.quota.quota if pod.quota is not None else ""


def pod_lines(scheduler: Scheduler, first: Sequence[Pending], waiting: Mapping[str | None, int]) -> dict[PodUid, Line]:
    """Return the queue positions of pods. `first`: the first pods of all queues, in order; `waiting`: the number of pods by
    queue."""
    place = scheduler.tenants.line()
    ahead: defaultdict[str, list[tuple[str, _Key]]] = defaultdict(list)
    position: Counter[str] = Counter()
    result = {}
    for pod in first:
        line = line_of(pod)
        if line is None:
            continue
        own = place(pod)
        position[line] += 1
        result[pod.uid] = Line(
            position=position[line], waiting=waiting[line], of="pods", ahead=_ahead(ahead[line], own, _OF_PODS)
        )
        if len(ahead[line]) < MOST_AHEAD:
            ahead[line].append((_name(pod), own))
    return result


def pod_line(scheduler: Scheduler, pod: Pending) -> Line | None:
    """Return the queue position of one pod; None if the pod does not wait alone."""
    line, place = line_of(pod), scheduler.tenants.line()
    if line is None:
        return None
    own, others = place(pod), [other for other in scheduler.pending if line_of(other) == line]
    before = [other for other in others if place(other) < own]
    first = [(_name(other), place(other)) for other in nsmallest(MOST_AHEAD, before, key=place)]
    return Line(position=len(before) + 1, waiting=len(others), of="pods", ahead=_ahead(first, own, _OF_PODS))


def _name(pod: Pending) -> str:
    return f"{pod.namespace}/{pod.name}"


def _ahead(first: Iterable[tuple[str, _Key]], own: _Key, because: Sequence[str]) -> tuple[Ahead, ...]:
    """Return for each of these names, with its sort key, why it is ahead of the pod or gang with the key `own`."""
    parts = [(name, zip(because, key, own, strict=True)) for name, key in first]
    return tuple(Ahead(name=name, because=next(reason for reason, theirs, mine in of if theirs != mine)) for name, of in parts)


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
