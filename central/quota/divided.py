"""Keep the requests and the runtime of quotas current, request by request: only groups with a changed amount are divided again.

Most requests change nothing above their quota: a quota that requests its max already requests no more of its parent. The result
equals a new division of the whole tree.

Tests: tests/properties/test_quota.py
"""

from collections import defaultdict

from central.quota.amounts import unit_of
from central.quota.model import Amounts, QuotaId
from central.quota.runtime import Sibling, divide, limit, sibling, sum_requests
from central.quota.tree import Tree


class Divided:
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
