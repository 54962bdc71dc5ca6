"""Return the queue position of a pod or gang, and the pods or gangs ahead of it with the reason.

Gangs wait in one queue, and are planned in its order. Single pods wait in another queue; the pods that a quota refuses wait in
a queue of that quota. A pod or gang that cannot start does not block the pods or gangs behind it, so a position is no promise.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nsmallest
from operator import itemgetter
from typing import Final, Literal, NamedTuple

import msgspec

from central.decide.scheduler import Scheduler
from central.gang.gang import Gang
from central.gang.life import Phase
from central.quota.checks import Key
from central.request.gang import GangKey
from central.state.pending import Pending
from lading.vocabulary import PodUid

MOST_AHEAD: Final = 3  # maximum pods or gangs ahead that are named
_OLDER: Final = "older"
_LESS: Final = "its namespace has less"
_PRIORITY: Final = "of higher priority"
# The first differing part of the sort key gives the reason: Place, central.state.tenants.Place.
_OF_GANGS: Final = ("bound in part", "its quota uses less", _PRIORITY, "room is kept for it", _LESS, _OLDER, _OLDER)
_OF_PODS: Final = (_PRIORITY, _LESS, _OLDER, _OLDER)

_Key = Sequence[object]


class Place(NamedTuple):
    """Represent the sort key of a gang: the smallest key is the first in the queue.

    A gang that is bound in part comes first, because its devices are useless until the gang is whole. Then comes the quota with
    the next turn, then the higher priority. Among equal gangs, a gang with a reservation comes first, then the gang of the
    namespace with the smaller part (central.state.tenants), then the older gang.
    """

    unbound: bool
    turn: Key  # turn of the gang's quota; empty without a quota
    priority: int  # the negative of the gang's priority
    without_room: bool
    part: int  # part of all devices that the gang's namespace holds
    created: str
    key: GangKey


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
    place_of = gang_place(scheduler)
    placed = sorted(((place_of(gang), gang) for gang in waiting if gang.members), key=itemgetter(0))
    first = [(str(gang.key), place) for place, gang in placed[:MOST_AHEAD]]
    return {
        gang.key: Line(position=number, waiting=len(placed), of="gangs", ahead=_ahead(first[: number - 1], place, _OF_GANGS))
        for number, (place, gang) in enumerate(placed, 1)
    }


def gang_place(scheduler: Scheduler) -> Callable[[Gang], Place]:
    """Return a function that returns the current sort key of a gang with members. Two gangs never have the same key."""
    scheduler.tenants.catch_up()
    kept = {claim.holder.pod for claim in scheduler.ledger.nominations() if not claim.evicts}
    turn, part = scheduler.quotas.turn, scheduler.tenants.part

    def place(gang: Gang) -> Place:
        first = next(iter(gang.members.values()))
        return Place(
            unbound=not gang.finishing,
            turn=turn(first.uid),
            priority=-gang.priority,
            without_room=gang.members.keys().isdisjoint(kept),
            part=part(first.namespace),
            created=gang.created,
            key=gang.key,
        )

    return place


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
            ahead[line].append((pod.shown, own))
    return result


def pod_line(scheduler: Scheduler, pod: Pending) -> Line | None:
    """Return the queue position of one pod; None if the pod does not wait alone."""
    line, place = line_of(pod), scheduler.tenants.line()
    if line is None:
        return None
    own, others = place(pod), [other for other in scheduler.pending if line_of(other) == line]
    before = [other for other in others if place(other) < own]
    first = [(other.shown, place(other)) for other in nsmallest(MOST_AHEAD, before, key=place)]
    return Line(position=len(before) + 1, waiting=len(others), of="pods", ahead=_ahead(first, own, _OF_PODS))


def _ahead(first: Iterable[tuple[str, _Key]], own: _Key, because: Sequence[str]) -> tuple[Ahead, ...]:
    """Return for each of these names, with its sort key, why it is ahead of the pod or gang with the key `own`."""
    parts = [(name, zip(because, key, own, strict=True)) for name, key in first]
    return tuple(Ahead(name=name, because=next(reason for reason, theirs, mine in of if theirs != mine)) for name, of in parts)


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
