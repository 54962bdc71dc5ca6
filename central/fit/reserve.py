"""Compute the weight of several free cards on one node, for the pods that ask for several at once.

Few pods ask for eight cards, and each of them waits if no node has eight left. So every number of cards above one counts as if
it came OFTEN at least, and counts more if fewer places for it are left. A place is a node with that many cards that no pod
holds; as many places are needed as such pods come while the rest of the cards is given away.

It takes a workload, and what is free in the cluster. It returns a factor for each *group*, pods of one number of cards and the
same models. The factors change with the cluster; new factors mean that all nodes are scored again, which pays off only if some
factor is off by more than APART.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from central.fit.columns import FULL
from central.fit.workload import MASS, Workload

OFTEN: Final = MASS // 40
# Numbers of cards for which room is kept even if no known pod asks for them.
NUMBERS: Final = (2, 4, 8)
LEAST: Final = 0.3
MOST: Final = 4.0
NEEDED: Final = 2.0  # places for each that is needed, from which on nothing is scarce
APART: Final = 2.0


class Group(NamedTuple):
    gpus: int
    models: tuple[str, ...] = ()  # any of these; none: all


Factors = Mapping[Group, float]
Places = Callable[[Group], int]


def weigh_groups(workload: Workload, free_milli: int, places: Places) -> Factors:
    """Return the factor of each group of pods that ask for several cards. `free_milli` is what is free of all cards of the
    cluster, in milli. `places` says how many pods of a group could be placed, one by one."""
    of_group: dict[Group, int] = {}
    of_number: dict[int, int] = {}
    cards = 0.0  # that a pod takes, times MASS
    for one, mass in workload.kinds:
        share = 0 if one.cpu_only else (one.core_percent or 50) / 100  # by memory: of cards of unknown size
        cards += mass * (one.gpus or share)
        if one.gpus > 1:
            group = Group(one.gpus, one.models)
            of_group[group] = of_group.get(group, 0) + mass
            of_number[one.gpus] = of_number.get(one.gpus, 0) + mass
    factors = {}
    for group, mass in of_group.items():
        needed = mass / cards * free_milli / FULL
        scarce = NEEDED * (needed + 0.5) / max(1, places(group))
        factors[group] = min(MOST, max(LEAST * mass / of_number[group.gpus], scarce))
    return factors


def differ(some: Factors, others: Factors) -> bool:
    """Return whether any factor differs by more than APART between the two, which are of one workload."""
    return any(not 1 / APART <= some[group] / others[group] <= APART for group in some)
