"""Decide which pods may be evicted for a pod of higher priority in a cluster with quotas.

Pods of one quota preempt one another by priority, and pods without a quota only one another; no pod preempts across quotas.
Lent amounts are taken back separately (central.controllers.take_back), whatever the priorities. The possible victims, by
system:

    Koordinator         pods of the same quota, except for those that are never preempted
    scheduler-plugins   over its min: pods of the same namespace. Within its min: none, because others then use its guaranteed
                        amounts, and quotas over their min give back

If its quota does not allow a pod, it evicts others only if it fits in the quota afterwards.

Source: Koordinator a7a1b76, pkg/scheduler/plugins/elasticquota (preempt.go); scheduler-plugins 903da7d, pkg/capacityscheduling.

Tests: tests/unit/central/decide/test_preempt_quotas.py
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from central.quota.model import DEFAULT, SYSTEM, Amounts, QuotaId
from central.quota.quota_snapshot import QuotaSnapshot
from lading.vocabulary import PodUid


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """Describe the possible victims for some waiting pods, and whether their eviction is of use."""

    lowest: int | None  # the lowest priority of possible victims; None: there are none
    takes: Callable[[PodUid], bool]  # whether the pod is a possible victim, regardless of its priority
    allows: Callable[[Collection[PodUid]], bool]  # whether the quotas allow the waiting pods after the eviction of these pods
    victims: str = ""  # the possible victims, as text; empty: quotas make no difference


def guaranteed_by(snapshot: QuotaSnapshot, quotas: Sequence[QuotaId], more: Amounts) -> QuotaId | None:
    """Return the quota of scheduler-plugins whose min still covers these amounts beside its used ones; None if there is
    none."""
    for quota in (snapshot.tree.quotas[one] for one in quotas if one in snapshot.tree.quotas):
        limited = [key for key in more if key in quota.min or key in quota.max]
        within = all(snapshot.used_of(quota.id, key) + more[key] <= quota.min.get(key, 0) for key in limited)
        if quota.flat and within:
            return quota.id
    return None


def as_text(quotas: Sequence[QuotaId] | None, guaranteed: QuotaId | None) -> str:
    """Describe the possible victims as text. `quotas` are those of the waiting pods; None if the pods have several."""
    if quotas is None:
        return "no pod, because its gang is of several quotas"
    if guaranteed is not None:
        return f"no pod by priority, because quota {guaranteed} is within its min: what others borrowed is taken back"
    named = [quota for quota in quotas if quota not in {DEFAULT, SYSTEM}]
    whose = f"of its quota {' and '.join(named)}" if named else "without a quota"
    return f"only pods of lower priority {whose}"
