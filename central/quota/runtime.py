"""Compute the runtime of quotas: how much of the cluster each may use now. Koordinator's algorithm, in integers, kept current
request by request.

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

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from operator import attrgetter
from typing import Final, NamedTuple

from central.quota.amounts import unit_of
from central.quota.model import Amounts, Quota, QuotaId
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


class Divided:
    """Keep the requests and the runtime of quotas current: only groups with a changed amount are divided again. Most requests
    change nothing above their quota, because a quota that requests its max already requests no more of its parent."""

    def __init__(self, tree: Tree) -> None:
        """Create the division for quotas without requests. `requested`, `limited` and `runtime` are by resource, then quota."""
        self._tree = tree
        self.totals: dict[QuotaId, Amounts] = {}
        self.runtime: dict[str, dict[QuotaId, int]] = {}
        self.requested: dict[str, dict[QuotaId, int]] = {}
        self.limited: dict[str, dict[QuotaId, int]] = {}
        self._stale: defaultdict[str, set[QuotaId]] = defaultdict(set)  # groups, by resource
        self._siblings: defaultdict[tuple[str, QuotaId], dict[QuotaId, Sibling]] = defaultdict(dict)
        for key in {key for quota in tree.quotas.values() for key in quota.max}:
            sums = sum_requests(tree, key, {})
            self.requested[key], self.limited[key] = dict(sums.requested), dict(sums.limited)
            self.runtime[key] = {}
            self._stale[key].update(tree.groups)
            for group, members in tree.groups.items():
                for quota in [tree.quotas[member] for member in members if key in tree.quotas[member].max]:
                    self._siblings[key, group][quota.id] = sibling(quota, key, self.limited[key].get(quota.id, 0))

    def add_request(self, quota: QuotaId, key: str, more: int) -> None:
        """Add an amount to the requests of a quota's pods."""
        if key not in self.requested:
            return
        requested, limited = self.requested[key], self.limited[key]
        for step in self._tree.paths.get(quota, ()):
            requested[step] = requested.get(step, 0) + more
            before = limited.get(step, 0)
            limited[step] = limit(self._tree.quotas[step], key, requested[step])
            more = limited[step] - before
            if not more:
                return
            group = self._tree.quotas[step].parent
            self._stale[key].add(group)
            siblings = self._siblings[key, group]
            if step in siblings:
                siblings[step] = siblings[step]._replace(amount=limited[step])

    def set_total(self, group: QuotaId, total: Amounts) -> None:
        """Set the amounts that a group without a parent quota divides; other groups divide the runtime of their parent."""
        before = self.totals.get(group, {})
        self.totals[group] = total
        for key in self.runtime:
            if before.get(key, 0) != total.get(key, 0):
                self._stale[key].add(group)

    def refresh(self) -> set[QuotaId]:
        """Divide again the groups that have changed. Return the quotas that may use more than before."""
        grown: set[QuotaId] = set()
        while self._stale:
            key, stale = self._stale.popitem()
            for group in self._tree.groups:
                if group in stale:
                    stale |= self._divide(key, group, grown)
        return grown

    def _divide(self, key: str, group: QuotaId, grown: set[QuotaId]) -> set[QuotaId]:
        """Divide the amount of a group. Return the quotas with a changed runtime; add those with a higher one to `grown`."""
        runtime = self.runtime[key]
        total = runtime[group] if group in runtime else self.totals.get(group, {}).get(key, 0)
        changed = set()
        for name, amount in divide(total, self._siblings[key, group].values(), unit=unit_of(key)).items():
            quota = QuotaId(name)
            before = runtime.get(quota, 0)
            if amount != before or quota not in runtime:
                changed.add(quota)
                runtime[quota] = amount
            if amount > before:
                grown.add(quota)
        return changed
