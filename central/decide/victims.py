"""Find the pods that may be evicted for pods of higher priority, by one rule for single pods and gangs that wait.

Take a priority, the rule of the quotas, and the protected pods. Return *units*: pods that are evicted together. A unit is a
single pod, a surplus member of a gang, or a whole gang. All pods of a unit have a lower priority, an assignment, and a quota
that allows their eviction. They are protected neither alone nor together. A pod with a grant of the node alone cannot be
evicted. A pod that is being deleted is a unit of its own, of any quota, because it ends anyway.

Tests: tests/unit/central/gang/test_tenants.py
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from central.decide.scheduler import Scheduler
from central.gang.gang import Gang
from central.ledger.model import PodRecord
from central.quota.preemption import Preemption
from central.request.gang import GangKey
from central.state.budgets import NO_BUDGETS, Budgets
from lading.vocabulary import PodUid


@dataclass(slots=True, kw_only=True)
class Protection:
    """Hold the pods that cannot be victims now. `applied`: whether the protection excluded a pod, so that another plan may be
    possible later."""

    spared: frozenset[PodUid] = frozenset()  # the Eviction API refused them, or they did not end in time
    budgets: Budgets = NO_BUDGETS
    applied: bool = False

    def covers(self, pod: PodRecord) -> str:
        """Return why this pod cannot be evicted now; empty if it can. A pod that is being deleted ends anyway, whatever its
        disruption budget says."""
        if pod.uid in self.spared:
            reason = "it was not evicted, or did not end, when that was tried last"
        else:
            reason = "" if pod.deleting else self.budgets.refuse(pod.namespace, pod.labels, Counter())
        self.applied |= bool(reason)
        return reason

    def forbids(self, going: Sequence[PodRecord]) -> str:
        """Return why these pods cannot be evicted together; empty if they can."""
        taken: Counter[tuple[str, str]] = Counter()
        refusals = (self.budgets.refuse(pod.namespace, pod.labels, taken) for pod in going if not pod.deleting)
        refusal = next(filter(None, refusals), "")
        self.applied |= bool(refusal)
        return refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    pods: tuple[PodRecord, ...]

    @property
    def deleting(self) -> bool:
        return all(pod.deleting for pod in self.pods)

    @property
    def importance(self) -> tuple[bool, int, int, int, str]:
        """Return the sort key: the most important unit first, as kube-scheduler compares pods. Gangs come before single pods of
        equal priority. Pods that are being deleted come last, so that keeping them does not cost other pods."""
        eldest = min(pod.created for pod in self.pods)
        return self.deleting, -max(pod.priority for pod in self.pods), -len(self.pods), eldest, self.pods[0].uid


def pods_of(units: Iterable[Unit]) -> list[PodRecord]:
    """Return the pods of these units, each once: a surplus member can be a unit of its own, and a part of its gang's unit."""
    return [*{pod.uid: pod for unit in units for pod in unit.pods}.values()]


def gangs_in(units: Iterable[Unit]) -> int:
    """Return how many of these units are gangs of several pods."""
    return sum(len(unit.pods) > 1 for unit in units)


class Victims:
    """Find units in the current state, for one search: results about a gang are cached."""

    def __init__(self, scheduler: Scheduler, priority: int, protection: Protection, rule: Preemption) -> None:
        """Create the search. `priority`: the waiting pods' priority. `rule`: the victims that quotas allow for these pods."""
        self._ledger = scheduler.ledger
        self._gangs = scheduler.gangs
        self._priority = priority
        self._protection = protection
        self._rule = rule
        self._surplus: dict[GangKey, Collection[PodUid]] = {}
        self._whole: dict[GangKey, Unit | str] = {}

    def on(self, names: Iterable[str]) -> list[Unit]:
        """Return the units with a pod on these nodes, the most important first. They may have pods on other nodes too."""
        result = (unit for name in names for pod in self._ledger.bound_on(name) if isinstance(unit := self._unit(pod), Unit))
        once = {tuple(pod.uid for pod in unit.pods): unit for unit in result}  # `found` has a gang once for each member
        return sorted(once.values(), key=lambda unit: unit.importance)

    def protected(self, names: Iterable[str]) -> dict[str, int]:
        """Return by reason, as text, the number of pods of lower priority on these nodes that cannot be evicted."""
        lower = (pod for name in names for pod in self._ledger.bound_on(name) if pod.priority < self._priority)
        return dict(Counter(reason for pod in lower if isinstance(reason := self._unit(pod), str)).most_common())

    def _unit(self, pod: PodRecord) -> Unit | str:
        """Return the unit of this pod, or why it cannot be evicted."""
        if pod.priority >= self._priority:
            return self._stays(pod)
        gang = self._gangs.bound_with(pod.uid)
        if pod.deleting or gang is None or pod.uid in self._surplus_of(gang):
            return self._stays(pod) or Unit(pods=(pod,))
        if gang.key not in self._whole:
            self._whole[gang.key] = self._whole_gang(gang)
        return self._whole[gang.key]

    def _surplus_of(self, gang: Gang) -> Collection[PodUid]:
        if gang.key not in self._surplus:
            self._surplus[gang.key] = self._gangs.spare(gang)
        return self._surplus[gang.key]

    def _whole_gang(self, gang: Gang) -> Unit | str:
        mates = [self._ledger.pod(uid) for uid, member in gang.members.items() if member.runs]
        pods = tuple(mate for mate in mates if mate is not None and mate.holds is not None and not mate.deleting)
        for pod in pods:
            if reason := self._stays(pod):
                return f"gang {gang.key} goes only as a whole, and of {pod.namespace}/{pod.name}: {reason}"
        if reason := self._protection.forbids(pods):
            return f"gang {gang.key} goes only as a whole: {reason}"
        return Unit(pods=pods)

    def _stays(self, pod: PodRecord) -> str:
        """Return why this pod cannot be evicted; empty if it can."""
        if pod.priority >= self._priority:
            return f"its priority is {pod.priority}"
        if not (pod.deleting or self._rule.takes(pod.uid)):
            return "its quota does not allow it" + (f": evicted are {self._rule.victims}" if self._rule.victims else "")
        return self._protection.covers(pod)
