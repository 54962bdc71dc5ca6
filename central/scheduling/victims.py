"""Find which pods may be evicted for others of higher priority: one rule, for pods alone and for gangs that wait.

It takes a priority, what quotas allow, and what is protected. It returns *units*, pods that go together: a pod alone, a member
beyond the minimum of its gang, or a whole gang. All pods of a unit have a lower priority, are bound by an assignment (what only
the node grants cannot be evicted), may go by their quota, and are protected neither alone nor together. A pod that is being
deleted is a unit of its own, of any quota: it goes by itself.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from central.gang.model import Gang
from central.ledger.model import PodRecord
from central.quota.preemption import Preemption
from central.request.gang import GangKey
from central.scheduling.scheduler import Scheduler
from central.state.budgets import NO_BUDGETS, Budgets
from lading.vocabulary import PodUid


@dataclass(slots=True, kw_only=True)
class Protection:
    """Pods that cannot be victims now. `applied` tells whether that made a difference: then another plan may be found later."""

    spared: frozenset[PodUid] = frozenset()  # the Eviction API refused them, or they did not end in time
    budgets: Budgets = NO_BUDGETS
    applied: bool = False

    def covers(self, pod: PodRecord) -> str:
        """Return why this pod cannot go now; empty: it can. A pod that is being deleted goes by itself, whatever its budget
        says."""
        if pod.uid in self.spared:
            why = "it was not evicted, or did not end, when that was tried last"
        else:
            why = "" if pod.deleting else self.budgets.refuse(pod.namespace, pod.labels, Counter())
        self.applied |= bool(why)
        return why

    def forbids(self, going: Sequence[PodRecord]) -> str:
        """Return why these pods cannot go together; empty: they can."""
        taken: Counter[tuple[str, str]] = Counter()
        refusals = (self.budgets.refuse(pod.namespace, pod.labels, taken) for pod in going if not pod.deleting)
        why = next(filter(None, refusals), "")
        self.applied |= bool(why)
        return why


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Pods that go together."""

    pods: tuple[PodRecord, ...]

    @property
    def deleting(self) -> bool:
        return all(pod.deleting for pod in self.pods)

    @property
    def importance(self) -> tuple[bool, int, int, int, str]:
        """Return the sort key: the most important first, as kube-scheduler compares pods; of equal priority a gang before pods
        alone. What goes already comes last: to keep it must not make others go."""
        eldest = min(pod.created for pod in self.pods)
        return self.deleting, -max(pod.priority for pod in self.pods), -len(self.pods), eldest, self.pods[0].uid


def pods_of(units: Iterable[Unit]) -> list[PodRecord]:
    """Return the pods of these, each once: a member beyond the minimum may go alone, and goes with its gang too."""
    return [*{pod.uid: pod for unit in units for pod in unit.pods}.values()]


def gangs_in(units: Iterable[Unit]) -> int:
    """Return how many of these are gangs of several pods."""
    return sum(len(unit.pods) > 1 for unit in units)


class Victims:
    """Find units as things are now, for one search: what is found of a gang is kept."""

    def __init__(self, scheduler: Scheduler, priority: int, protection: Protection, rule: Preemption) -> None:
        """Create it. `priority`: of those that wait. `rule`: what quotas allow them."""
        self._ledger = scheduler.ledger
        self._gangs = scheduler.gangs
        self._priority = priority
        self._protection = protection
        self._rule = rule
        self._surplus: dict[GangKey, Collection[PodUid]] = {}
        self._whole: dict[GangKey, Unit | str] = {}

    def on(self, names: Iterable[str]) -> list[Unit]:
        """Return the units with a pod on these nodes, the most important first. They may have pods on other nodes too."""
        found = (unit for name in names for pod in self._ledger.bound_on(name) if isinstance(unit := self._unit(pod), Unit))
        once = {tuple(pod.uid for pod in unit.pods): unit for unit in found}  # a whole gang is found from each of its members
        return sorted(once.values(), key=lambda unit: unit.importance)

    def protected(self, names: Iterable[str]) -> dict[str, int]:
        """Return what protects pods of lower priority on these nodes, in words, with the number of these pods."""
        lower = (pod for name in names for pod in self._ledger.bound_on(name) if pod.priority < self._priority)
        return dict(Counter(why for pod in lower if isinstance(why := self._unit(pod), str)).most_common())

    def _unit(self, pod: PodRecord) -> Unit | str:
        """Return the unit of this pod, or why it stays."""
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
            if why := self._stays(pod):
                return f"gang {gang.key} goes only as a whole, and of {pod.namespace}/{pod.name}: {why}"
        if why := self._protection.forbids(pods):
            return f"gang {gang.key} goes only as a whole: {why}"
        return Unit(pods=pods)

    def _stays(self, pod: PodRecord) -> str:
        """Return why this pod cannot go; empty: it can."""
        if pod.priority >= self._priority:
            return f"its priority is {pod.priority}"
        if not (pod.deleting or self._rule.takes(pod.uid)):
            return "its quota does not allow it" + (f": evicted are {self._rule.said}" if self._rule.said else "")
        return self._protection.covers(pod)
