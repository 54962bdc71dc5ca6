"""Order the gangs that wait for a plan.

A gang that is bound in part comes first: until it is whole, what it has is of no use. Then by priority, then by age. One that
cannot be placed lets the others pass.
"""

from collections.abc import Iterable

from central.gang.model import Gang


def in_line(gangs: Iterable[Gang]) -> list[Gang]:
    return sorted(gangs, key=lambda gang: (not gang.finishing, -gang.priority, gang.created, gang.key))
