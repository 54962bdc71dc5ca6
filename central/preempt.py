"""Makes room for a pod of higher priority: which pods would have to go, on which node.

kube-scheduler's own preemption does not see devices: in its dry run they are ignored, so that a node where they are short looks
as if evicting nobody sufficed. So central plans itself, when a pod fits on none of the nodes where all else suffices.

Enters: a pod that was refused, the nodes that kube-scheduler asked about, the ledger. Leaves: the node, the victims, and where
the pod's devices will be. A victim has strictly lower priority, is bound by an assignment, and really frees something that is
asked: with all lower pods away the pod must fit, then they are put back, the most important first, while it still fits; who can
not be put back goes. Nodes are compared as kube-scheduler compares them: the lowest highest priority, then the lowest sum, then
the fewest victims, then the youngest.

Source: KubeSchedulerConfiguration's DefaultPreemption (pickOneNodeForPreemption), k8s.io/kubernetes/pkg/scheduler.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from central.fit.fit import fit
from central.fit.model import Placement
from central.ledger.model import Claim, Held, PodRecord
from central.pending import Pending
from central.scheduler import Scheduler
from lading.vocabulary import PodUid

MAX_NODES: Final = 200  # planned for one pod; the others wait for the next refusal. 200 cost some 30 ms of the loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    node: str
    victims: tuple[PodRecord, ...]  # the least important first
    placement: Placement


def plan(scheduler: Scheduler, pod: Pending, names: Iterable[str], *, spared: frozenset[PodUid] = frozenset()) -> Plan | None:
    """The best plan among these nodes. `spared`: pods that a disruption budget does not let go now."""
    if not pod.may_preempt:
        return None
    never = scheduler.standing(pod.ask).never
    candidates = []
    for name in sorted(names):
        if name in never:
            continue
        victims = [held.record for held in scheduler.ledger.holders(name) if held.record and _may_go(held, pod, spared)]
        if victims:
            candidates.append((max(victim.priority for victim in victims), name, victims))
    plans = [found for _, name, victims in sorted(candidates, key=lambda c: c[:2])[:MAX_NODES]
             if (found := _plan_on(scheduler, pod, name, victims))]  # fmt: skip
    return min(plans, key=_cost, default=None)


def _may_go(held: Held, pod: Pending, spared: frozenset[PodUid]) -> bool:
    """A pod that is being deleted already goes by itself; what only the node grants is nobody's to evict."""
    record = held.record
    return (
        record is not None
        and Claim.BOUND in held.claims
        and record.priority < pod.priority
        and not record.terminal
        and record.uid not in spared
    )


def _plan_on(scheduler: Scheduler, pod: Pending, name: str, victims: Sequence[PodRecord]) -> Plan | None:
    def without(gone: Iterable[PodUid]) -> Placement | None:
        placement = fit(scheduler.ledger.room_without(name, [pod.uid, *gone]), pod.ask, policy=scheduler.policy)
        return placement if isinstance(placement, Placement) else None

    gone = {victim.uid for victim in victims}
    placement = without(gone)
    if placement is None:
        return None
    # Those that go already stay away: to keep one of them would make another one go.
    for victim in sorted(victims, key=lambda v: (v.deleting, -v.priority, v.created, v.uid)):
        if not victim.deleting and (kept := without(gone - {victim.uid})):
            gone.discard(victim.uid)
            placement = kept
    going = [victim for victim in victims if victim.uid in gone]
    return Plan(node=name, victims=tuple(sorted(going, key=lambda v: (v.priority, -v.created, v.uid))), placement=placement)


def _cost(found: Plan) -> tuple[int, int, int, int, str]:
    priorities = [victim.priority for victim in found.victims if not victim.deleting]
    youngest = max((victim.created for victim in found.victims), default=0)
    return max(priorities, default=-(2**31)), sum(priorities), len(priorities), -youngest, found.node
