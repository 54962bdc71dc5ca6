"""Hold how the quotas stand at one moment: what is used, what is asked for, and what each may use."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from central.quota.model import FLAT, Amounts, Quota, QuotaId
from central.quota.tree import Tree

ByQuota = Mapping[QuotaId, int]
_NOTHING: Amounts = {}
_NO_QUOTAS: ByQuota = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSnapshot:
    """`used` and `fixed` are of a quota with all quotas below it; the others are by resource, then by quota."""

    tree: Tree = field(default_factory=Tree)
    used: Mapping[QuotaId, Amounts] = field(default_factory=dict)  # held, or planned for a pod
    fixed: Mapping[QuotaId, Amounts] = field(default_factory=dict)  # of that, by pods that are never preempted
    asked: Mapping[str, ByQuota] = field(default_factory=dict)  # by pods that hold something and pods that wait
    limited: Mapping[str, ByQuota] = field(default_factory=dict)  # of that, what the quota asks its parent for
    runtime: Mapping[str, ByQuota] = field(default_factory=dict)
    totals: Mapping[QuotaId, Amounts] = field(default_factory=dict)  # what a group divides

    def used_of(self, quota: QuotaId, key: str) -> int:
        return self.used.get(quota, _NOTHING).get(key, 0)

    def fixed_of(self, quota: QuotaId, key: str) -> int:
        return self.fixed.get(quota, _NOTHING).get(key, 0)

    def asked_of(self, quota: QuotaId, key: str) -> int:
        return self.asked.get(key, _NO_QUOTAS).get(quota, 0)

    def limited_of(self, quota: QuotaId, key: str) -> int:
        return self.limited.get(key, _NO_QUOTAS).get(quota, 0)

    def runtime_of(self, quota: Quota, key: str) -> int | None:
        """Return what the quota may use now; None if the resource is not limited for it."""
        if key not in quota.max:
            return None
        if quota.id not in self.tree.dividing or quota.flat:
            return quota.max[key]
        return self.runtime.get(key, _NO_QUOTAS).get(quota.id, 0)

    def guaranteed(self, quota: Quota, key: str) -> int:
        """Return what the quota gets of its min as soon as it asks: as much of it as is asked for."""
        return min(quota.min.get(key, 0), self.limited_of(quota.id, key))

    def owed(self, quota: Quota, key: str) -> int:
        """Return what is missing of that."""
        return max(0, self.guaranteed(quota, key) - self.used_of(quota.id, key))

    def free(self, group: QuotaId, key: str) -> int:
        """Return what the quotas of a group do not use of what they divide."""
        used = sum(self.used_of(member, key) for member in self.tree.groups.get(group, ()))
        return self.totals.get(group, _NOTHING).get(key, 0) - used

    @property
    def flat_min(self) -> Amounts:
        """Return what all quotas without a parent are guaranteed together: they borrow from one another only."""
        return self.totals.get(FLAT, _NOTHING)
