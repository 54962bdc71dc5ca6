"""Makes room for a pod of higher priority: which pods would have to go, on which node.

kube-scheduler's own preemption does not see devices: in its dry run they are ignored, so that a node where they are short looks
as if evicting nobody sufficed. So central plans itself, when a pod fits on none of the nodes where all else suffices.

Enters: a pod that was refused, the nodes that kube-scheduler asked about, the ledger. Leaves: the node, the victims, and where
the pod's devices will be. A victim has strictly lower priority, is bound by an assignment, and really frees something that is
asked: with all lower pods away the pod must fit, then they are put back, the most important first, while it still fits; who can
not be put back goes. A pod that is being deleted goes by itself: it is counted as gone, and costs nothing. Nodes are compared
as kube-scheduler compares them: the lowest highest priority, then the lowest sum, then the fewest victims, then the youngest of
the most important victims.

Source: KubeSchedulerConfiguration's DefaultPreemption (pickOneNodeForPreemption), k8s.io/kubernetes/pkg/scheduler.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from central.fit.model import MAY_FIT_LATER, Placement
from central.ledger.model import PodRecord
from central.pending import Pending
from central.scheduler import Scheduler
from lading.vocabulary import PodUid

# kube-scheduler's: added to each priority, so that of pods with negative priorities fewer are less.
_ABOVE_ZERO: Final = 2**31
MAX_NODES: Final = 200  # planned for one pod; the others wait for the next refusal. 200 cost some 30 ms of the loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    node: str
    victims: tuple[PodRecord, ...]  # the least important first
    placement: Placement


def plan(scheduler: Scheduler, pod: Pending, names: Iterable[str], *, spared: frozenset[PodUid] = frozenset()) -> Plan | None:
    """The best plan among these nodes. `spared`: pods that a disruption budget does not let go now."""
    lowest = scheduler.ledger.lowest_priority()
    if not pod.may_preempt or lowest is None or lowest >= pod.priority:
        return None
    group = scheduler.group_nodes(pod.ask, [pod.uid])
    standing = scheduler.standing(pod.ask)
    candidates = []
    for name in sorted(group.intersection(names) if group else names):
        if name in standing.fits:
            return None  # room appeared meanwhile
        if standing.reasons.get(name) not in MAY_FIT_LATER:
            continue
        victims = [held for held in scheduler.ledger.bound_on(name) if _may_go(held, pod, spared)]
        if victims:
            candidates.append((max(victim.priority for victim in victims), name, victims))
    plans = [found for _, name, victims in sorted(candidates, key=lambda c: c[:2])[:MAX_NODES]
             if (found := _plan_on(scheduler, pod, name, victims))]  # fmt: skip
    return min(plans, key=_cost, default=None)


def _may_go(held: PodRecord, pod: Pending, spared: frozenset[PodUid]) -> bool:
    """Bound by an assignment: what only the node grants is nobody's to evict."""
    return held.priority < pod.priority and (held.deleting or held.uid not in spared)


def _plan_on(scheduler: Scheduler, pod: Pending, name: str, victims: Sequence[PodRecord]) -> Plan | None:
    def without(gone: Iterable[PodUid]) -> Placement | None:
        placement = scheduler.verdict(pod.ask, name, [pod.uid, *gone])
        return placement if isinstance(placement, Placement) else None

    gone = {victim.uid for victim in victims}
    placement = without(gone)
    if placement is None:
        return None
    # Those that go already are put back last: to keep one of them must not make another one go.
    for victim in sorted(victims, key=lambda v: (v.deleting, -v.priority, v.created, v.uid)):
        if kept := without(gone - {victim.uid}):
            gone.discard(victim.uid)
            placement = kept
    going = [victim for victim in victims if victim.uid in gone]
    if not going:
        return None  # it fits by what it holds there itself
    return Plan(node=name, victims=tuple(sorted(going, key=lambda v: (v.priority, -v.created, v.uid))), placement=placement)


def _cost(found: Plan) -> tuple[int, int, int, int, str]:
    victims = [victim for victim in found.victims if not victim.deleting]
    priorities = [victim.priority + _ABOVE_ZERO for victim in victims]
    highest = max(priorities, default=0)
    eldest = min((victim.created for victim in victims if victim.priority + _ABOVE_ZERO == highest), default=0)
    return highest, sum(priorities), len(priorities), -eldest, found.node
