"""Decide whose pods may be evicted for a pod of higher priority, where quotas count.

Pods of one quota preempt one another by priority; no pod preempts across quotas, and pods without a quota only one another.
What a quota lent comes back by taking back (central.controllers.take_back), whatever the priorities. By system:

    Koordinator         pods of the same quota, but those that are never preempted
    scheduler-plugins   over its min: pods of the same namespace. Within its min: none, for then others use what it is
                        guaranteed, and those over their min give back

Pods whose quota does not allow them evict others only if they fit in the quota then.

Source: Koordinator a7a1b76, pkg/scheduler/plugins/elasticquota (preempt.go); scheduler-plugins 903da7d, pkg/capacityscheduling.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from central.quota.model import DEFAULT, SYSTEM, Amounts, QuotaId
from central.quota.quota_snapshot import QuotaSnapshot
from lading.vocabulary import PodUid


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """Say which pods may be evicted for some that wait, and whether that is of use."""

    lowest: int | None  # the lowest priority of those that may go; None: there are none
    takes: Callable[[PodUid], bool]  # whether this one may go, whatever its priority
    allows: Callable[[Collection[PodUid]], bool]  # whether the quotas allow those that wait once these are gone
    said: str = ""  # whose pods may go, in words; empty: quotas make no difference


def guaranteed_by(snapshot: QuotaSnapshot, quotas: Sequence[QuotaId], more: Amounts) -> QuotaId | None:
    """Return the quota of scheduler-plugins within whose min these amounts still are beside what is used; None if there is
    none."""
    for quota in (snapshot.tree.quotas[one] for one in quotas if one in snapshot.tree.quotas):
        limited = [key for key in more if key in quota.min or key in quota.max]
        within = all(snapshot.used_of(quota.id, key) + more[key] <= quota.min.get(key, 0) for key in limited)
        if quota.flat and within:
            return quota.id
    return None


def in_words(quotas: Sequence[QuotaId] | None, guaranteed: QuotaId | None) -> str:
    """Return whose pods may go. `quotas`: of the pods that wait; None: they are of several."""
    if quotas is None:
        return "no pod, because its gang is of several quotas"
    if guaranteed is not None:
        return f"no pod by priority, because quota {guaranteed} is within its min: what others borrowed is taken back"
    named = [quota for quota in quotas if quota not in {DEFAULT, SYSTEM}]
    whose = f"of its quota {' and '.join(named)}" if named else "without a quota"
    return f"only pods of lower priority {whose}"
