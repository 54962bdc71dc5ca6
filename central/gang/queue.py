"""Order the gangs that wait for a plan.

A gang that is bound in part comes first: until it is whole, what it has is of no use. Then the quota whose turn it is, then by
priority, then by age. One that cannot be placed lets the others pass.
"""

from collections.abc import Callable, Iterable
from fractions import Fraction

from central.gang.model import Gang
from lading.vocabulary import PodUid

Turn = Callable[[PodUid], tuple[Fraction | float, ...]]


def in_line(gangs: Iterable[Gang], turn: Turn) -> list[Gang]:
    """Order them. `turn` returns the sort key of a pod's quota; an empty one if it has none."""

    def place(gang: Gang) -> tuple[object, ...]:
        return not gang.finishing, turn(next(iter(gang.members))), -gang.priority, gang.created, gang.key

    return sorted(gangs, key=place)
