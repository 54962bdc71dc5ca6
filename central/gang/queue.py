"""Order the gangs that wait for a plan.

A gang that is bound in part comes first: until it is whole, what it has is of no use. Then the quota whose turn it is, then the
higher priority. Of equal ones the gang for which room is kept already, then that of the namespace with the smaller part
(central.state.tenants), then the older one. A gang that cannot be placed lets the others pass.
"""

from collections.abc import Callable, Collection
from fractions import Fraction
from typing import NamedTuple

from central.gang.model import Gang
from central.request.gang import GangKey
from lading.vocabulary import PodUid

Turn = Callable[[PodUid], tuple[Fraction | float, ...]]


class Place(NamedTuple):
    """The sort key of a gang: the least is the first in line."""

    unbound: bool
    turn: tuple[Fraction | float, ...]  # of its quota; empty if it has none
    priority: int  # negative
    without_room: bool
    part: int  # of all devices, of its namespace
    created: str
    key: GangKey


def place_of(gang: Gang, turn: Turn, part: Callable[[str], int], kept: Collection[PodUid]) -> Place:
    """Return the place of a gang that has members. `turn` returns the sort key of a pod's quota, `part` the part of all devices
    that a namespace has. `kept`: pods for which room is kept."""
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
