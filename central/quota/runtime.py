"""Compute the runtime of quotas: how much of the cluster each may use now. Koordinator's algorithm, in integers.

    request up     a leaf asks for what its pods ask for, waiting pods too; a quota that does not lend asks for its min at
                   least. A parent asks for the sum of its children's requests, each limited to that child's max.
    divide down    siblings get their min, those that lend no more than they ask for; what is left goes to those that ask for
                   more, in proportion of their weights, until each has what it asks for. If all mins together are more than
                   there is, they are reduced in proportion. A parent's runtime is what its children divide.

Every resource is divided on its own. No unit is lost or given twice: what proportions leave over goes, one unit each, to the
largest remainders, then by name. The result does not depend on the order of the siblings.

Source: Koordinator a7a1b76, pkg/scheduler/plugins/elasticquota/core (runtime_quota_calculator.go and
scale_minquota_when_over_root_res.go); its proposal multi-hierarchy-elastic-quota-management.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from operator import attrgetter
from typing import Final, NamedTuple

from central.quota.model import Quota, QuotaId
from central.quota.tree import Tree


class Sibling(NamedTuple):
    """Hold what one of the quotas that divide an amount has of one resource."""

    name: str
    weight: int
    asks: int  # limited to its max
    min: int
    lends: bool = True


class Asking(NamedTuple):
    """Hold the requests of one resource by quota. A quota that asks for nothing is not in it."""

    requested: Mapping[QuotaId, int]  # of its pods, or of its children
    limited: Mapping[QuotaId, int]  # at least its min if it does not lend, at most its max


def divide(total: int, siblings: Iterable[Sibling], *, unit: int = 1) -> dict[str, int]:
    """Return the runtime by name. It is in whole units if all amounts are."""
    ordered = sorted(siblings, key=_name)
    if unit > 1 and (total % unit or any(one.asks % unit or one.min % unit for one in ordered)):
        unit = 1
    runtime, hungry = {}, []
    for one, scaled in zip(ordered, _scaled_mins(total, ordered, unit), strict=True):
        if one.asks > scaled:
            hungry.append(one)
        runtime[one.name] = scaled if one.asks > scaled or not one.lends else one.asks
    _give_rest(total - sum(runtime.values()), hungry, runtime, unit)
    return runtime


_name: Final = attrgetter("name")


def _scaled_mins(total: int, siblings: Sequence[Sibling], unit: int) -> list[int]:
    mins = [one.min for one in siblings]
    together = sum(mins)
    return mins if together <= total else [max(0, total) // unit * least // together * unit for least in mins]


def _give_rest(rest: int, hungry: list[Sibling], runtime: dict[str, int], unit: int) -> None:
    """Give what is left to the hungry, by weight, in rounds: what one of them does not need is the rest of the next round."""
    hungry = [one for one in hungry if one.weight]
    while rest > 0 and hungry:
        if sum(one.asks - runtime[one.name] for one in hungry) <= rest:  # as all rounds would end
            runtime.update((one.name, one.asks) for one in hungry)
            return
        for one, given in zip(hungry, _in_proportion(rest, hungry, unit), strict=True):
            runtime[one.name] += given
        rest = sum(max(0, runtime[one.name] - one.asks) for one in hungry)
        for one in hungry:
            runtime[one.name] = min(runtime[one.name], one.asks)
        hungry = [one for one in hungry if runtime[one.name] < one.asks]


def _in_proportion(amount: int, siblings: Sequence[Sibling], unit: int) -> list[int]:
    units, weights = amount // unit, sum(one.weight for one in siblings)
    parts = [divmod(units * one.weight, weights) for one in siblings]
    given = [part * unit for part, _ in parts]
    left = units - sum(part for part, _ in parts)
    # The siblings are in the order of their names, and so are equal remainders.
    for at in nlargest(left, range(len(parts)), key=lambda at: parts[at][1]):
        given[at] += unit
    return given


def ask_up(tree: Tree, key: str, requested: Mapping[QuotaId, int]) -> Asking:
    """Return what every quota asks for, from the requests of the leaves' pods."""
    asked, limited = dict(requested), dict[QuotaId, int]()
    for quota in tree.leaves_first():
        own = asked.get(quota.id, 0)
        limited[quota.id] = own = limit(quota, key, own)
        if own and quota.parent in tree.quotas:
            asked[quota.parent] = asked.get(quota.parent, 0) + own
    return Asking(asked, limited)


def limit(quota: Quota, key: str, requested: int) -> int:
    """Return what the quota asks its parent for, if its pods or children request so much."""
    asks = least_asked(quota, key, requested)
    return min(asks, quota.max[key]) if key in quota.max else asks


def least_asked(quota: Quota, key: str, requested: int) -> int:
    """Return the request of the quota itself: its min counts as requested if it does not lend."""
    return requested if quota.lends else max(requested, quota.min.get(key, 0))


def sibling(quota: Quota, key: str, asks: int) -> Sibling:
    return Sibling(quota.id, quota.weight_of(key), asks, quota.min.get(key, 0), quota.lends)
