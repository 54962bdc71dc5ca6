"""Hold the state of all quotas at one moment: the used and requested amounts, and what each quota may use.

Tests: tests/unit/central/quota/test_giving.py
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from central.quota.model import FLAT, Amounts, Quota, QuotaId
from central.quota.tree import Tree

ByQuota = Mapping[QuotaId, int]
_NOTHING: Amounts = {}
_NO_QUOTAS: ByQuota = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSnapshot:
    """Hold the amounts of all quotas. `used` and `fixed` of a quota include all quotas below it; the other mappings are by
    resource, then by quota."""

    tree: Tree = field(default_factory=Tree)
    used: Mapping[QuotaId, Amounts] = field(default_factory=dict)  # amounts held by pods, or planned for them
    fixed: Mapping[QuotaId, Amounts] = field(default_factory=dict)  # used amounts of pods that are never preempted
    requested: Mapping[str, ByQuota] = field(default_factory=dict)  # amounts requested by running and waiting pods
    limited: Mapping[str, ByQuota] = field(default_factory=dict)  # requested amounts that the quota passes on to its parent
    runtime: Mapping[str, ByQuota] = field(default_factory=dict)
    totals: Mapping[QuotaId, Amounts] = field(default_factory=dict)  # amounts that a group divides

    def used_of(self, quota: QuotaId, key: str) -> int:
        return self.used.get(quota, _NOTHING).get(key, 0)

    def fixed_of(self, quota: QuotaId, key: str) -> int:
        return self.fixed.get(quota, _NOTHING).get(key, 0)

    def requested_of(self, quota: QuotaId, key: str) -> int:
        return self.requested.get(key, _NO_QUOTAS).get(quota, 0)

    def limited_of(self, quota: QuotaId, key: str) -> int:
        return self.limited.get(key, _NO_QUOTAS).get(quota, 0)

    def runtime_of(self, quota: Quota, key: str) -> int | None:
        """Return the amount that the quota may use now; None if the resource is not limited for it."""
        if key not in quota.max:
            return None
        if quota.id not in self.tree.dividing or quota.flat:
            return quota.max[key]
        return self.runtime.get(key, _NO_QUOTAS).get(quota.id, 0)

    def guaranteed(self, quota: Quota, key: str) -> int:
        """Return the part of the quota's min that it requests, which it gets as soon as it requests it."""
        return min(quota.min.get(key, 0), self.limited_of(quota.id, key))

    def owed(self, quota: Quota, key: str) -> int:
        """Return the guaranteed and requested amount that the quota does not have yet."""
        return max(0, self.guaranteed(quota, key) - self.used_of(quota.id, key))

    def free(self, group: QuotaId, key: str) -> int:
        """Return the unused part of the amount that the quotas of a group divide."""
        used = sum(self.used_of(member, key) for member in self.tree.groups.get(group, ()))
        return self.totals.get(group, _NOTHING).get(key, 0) - used

    @property
    def flat_min(self) -> Amounts:
        """Return the sum of the mins of all quotas without a parent, which borrow from one another only."""
        return self.totals.get(FLAT, _NOTHING)
