"""Compute the runtime of quotas: how much of the cluster each may use now. Koordinator's algorithm, in integers.

    request up     A leaf requests the amounts of its pods, waiting pods included; a quota that does not lend requests at least
                   its min. A parent requests the sum of its children's requests, each limited to that child's max.
    divide down    Siblings get their min; if they lend, at most their request. The remainder goes to those that request more,
                   in proportion to their weights, until each has its request. If the sum of all mins exceeds the total, the
                   mins are reduced in proportion. Children divide their parent's runtime.

Every resource is divided separately. No unit is lost or given twice: units left over by proportions go, one each, to the
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
    """Hold the parameters of one quota in the division of one resource."""

    name: str
    weight: int
    amount: int  # requested amount, limited to the quota's max
    min: int
    lends: bool = True


class RequestSums(NamedTuple):
    """Hold the requests of one resource by quota; quotas without a request are absent."""

    requested: Mapping[QuotaId, int]  # requests of the quota's pods, or of its children
    limited: Mapping[QuotaId, int]  # requests to the parent: from the min (if the quota does not lend) to the max


def divide(total: int, siblings: Iterable[Sibling], *, unit: int = 1) -> dict[str, int]:
    """Return the runtime of each sibling by name. The results are whole units if all amounts are."""
    ordered = sorted(siblings, key=_name)
    if unit > 1 and (total % unit or any(one.amount % unit or one.min % unit for one in ordered)):
        unit = 1
    runtime, hungry = {}, []
    for one, scaled in zip(ordered, _scaled_mins(total, ordered, unit), strict=True):
        if one.amount > scaled:
            hungry.append(one)
        runtime[one.name] = scaled if one.amount > scaled or not one.lends else one.amount
    _give_rest(total - sum(runtime.values()), hungry, runtime, unit)
    return runtime


_name: Final = attrgetter("name")


def _scaled_mins(total: int, siblings: Sequence[Sibling], unit: int) -> list[int]:
    mins = [one.min for one in siblings]
    together = sum(mins)
    return mins if together <= total else [max(0, total) // unit * least // together * unit for least in mins]


def _give_rest(rest: int, hungry: list[Sibling], runtime: dict[str, int], unit: int) -> None:
    """Give the remainder to the hungry siblings, by weight, in rounds: an amount that one of them does not need goes to the
    next round."""
    hungry = [one for one in hungry if one.weight]
    while rest > 0 and hungry:
        if sum(one.amount - runtime[one.name] for one in hungry) <= rest:  # all requests can be met in one round
            runtime.update((one.name, one.amount) for one in hungry)
            return
        for one, given in zip(hungry, _in_proportion(rest, hungry, unit), strict=True):
            runtime[one.name] += given
        rest = sum(max(0, runtime[one.name] - one.amount) for one in hungry)
        for one in hungry:
            runtime[one.name] = min(runtime[one.name], one.amount)
        hungry = [one for one in hungry if runtime[one.name] < one.amount]


def _in_proportion(amount: int, siblings: Sequence[Sibling], unit: int) -> list[int]:
    units, weights = amount // unit, sum(one.weight for one in siblings)
    parts = [divmod(units * one.weight, weights) for one in siblings]
    given = [part * unit for part, _ in parts]
    left = units - sum(part for part, _ in parts)
    # `nlargest` is stable: among equal remainders, the first sibling by name gets the unit.
    for at in nlargest(left, range(len(parts)), key=lambda at: parts[at][1]):
        given[at] += unit
    return given


def sum_requests(tree: Tree, key: str, requested: Mapping[QuotaId, int]) -> RequestSums:
    """Return the requests of every quota, given the requests of the leaves' pods."""
    sums, limited = dict(requested), dict[QuotaId, int]()
    for quota in tree.leaves_first():
        own = sums.get(quota.id, 0)
        limited[quota.id] = own = limit(quota, key, own)
        if own and quota.parent in tree.quotas:
            sums[quota.parent] = sums.get(quota.parent, 0) + own
    return RequestSums(sums, limited)


def limit(quota: Quota, key: str, requested: int) -> int:
    """Return the amount that the quota requests of its parent, if its pods or children request this amount."""
    amount = least_requested(quota, key, requested)
    return min(amount, quota.max[key]) if key in quota.max else amount


def least_requested(quota: Quota, key: str, requested: int) -> int:
    """Return the quota's own request: at least its min if it does not lend."""
    return requested if quota.lends else max(requested, quota.min.get(key, 0))


def sibling(quota: Quota, key: str, amount: int) -> Sibling:
    return Sibling(quota.id, quota.weight_of(key), amount, quota.min.get(key, 0), quota.lends)
