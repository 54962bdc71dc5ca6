"""Order the gangs that wait for a plan.

A gang that is bound in part comes first, because its devices are useless until the gang is whole. Then comes the quota with the
next turn, then the higher priority. Among equal gangs, a gang with a reservation comes first, then the gang of the namespace
with the smaller part (central.state.tenants), then the older gang. A gang that cannot be placed does not block the others.

Tests: tests/unit/central/decide/test_line.py
"""

from collections.abc import Callable, Collection
from fractions import Fraction
from typing import NamedTuple

from central.gang.gang import Gang
from central.request.gang import GangKey
from lading.vocabulary import PodUid

Turn = Callable[[PodUid], tuple[Fraction | float, ...]]


class Place(NamedTuple):
    """Represent the sort key of a gang: the smallest key is the first in the queue."""

    unbound: bool
    turn: tuple[Fraction | float, ...]  # turn of the gang's quota; empty without a quota
    priority: int  # the negative of the gang's priority
    without_room: bool
    part: int  # part of all devices that the gang's namespace holds
    created: str
    key: GangKey


def place_of(gang: Gang, turn: Turn, part: Callable[[str], int], kept: Collection[PodUid]) -> Place:
    """Return the sort key of a gang that has members. `turn` returns the sort key of a pod's quota, `part` a namespace's part
    of all devices. `kept`: pods with a reservation."""
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
