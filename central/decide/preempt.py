"""Plan preemption for a pod of higher priority: the node, and the pods that must be evicted there.

kube-scheduler's own preemption ignores devices in its dry run: on a node with too few devices it finds that no eviction is
needed. So central makes its own plan if a pod fits on none of the nodes where everything else suffices.

Take a pod that was refused for its devices or by its quota, the nodes that kube-scheduler named, and the ledger. Return the
node, the victims, and the pod's devices there. The evictable pods are the same as for gangs (decide/victims.py). If the pod
fits without all of them, they are put back, the most important first, while it still fits. The remaining pods are the victims.
Claims for unbound pods of lower priority count as free (decide/yielding.py). A pod that is being deleted counts as deleted,
and costs nothing. No disruption budget is exceeded: otherwise the Eviction API refuses the last victim after the first victims
ended for nothing. Nodes are compared as in kube-scheduler: lowest highest priority of victims, lowest sum, fewest victims,
youngest of the most important victims. The number of whole gangs is added as the second criterion: fewer are better. A gang's
victims on other nodes count too.

The search for victims takes a dozen fits for each node. A lower bound of their number, and so of the cost, follows from the
numbers of cards and VFs. So the nodes with the lowest bound come first, and the search ends when no other node can be cheaper.

Source: KubeSchedulerConfiguration's DefaultPreemption (pickOneNodeForPreemption), k8s.io/kubernetes/pkg/scheduler.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import accumulate
from operator import sub
from typing import Final

from central.assignment.model import Taken
from central.decide.scheduler import Scheduler
from central.decide.victims import Protection, Unit, Victims, gangs_in, pods_of
from central.ledger.model import NodeCapacity, PodRecord
from central.quota.preemption import Preemption
from central.search.demand import Demand
from central.search.placement import MAY_FIT_LATER, Placement
from central.search.shortage import requested_cards
from central.state.pending import Pending
from lading.vocabulary import PodUid

# kube-scheduler adds this to each priority, so that fewer victims have a lower sum even with negative priorities.
_ABOVE_ZERO: Final = 2**31
# The number of nodes is bounded, because a node takes about 2 ms if every pod holds a GPU and some VFs. The search mostly ends
# early. If many nodes have an equally low bound and cost more, the remaining nodes are left out.
MAX_NODES: Final = 200

_Cost = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    node: str
    victims: tuple[PodRecord, ...]  # the least important first
    placement: Placement
    gangs: int = 0  # number of gangs that are evicted as a whole


def can_preempt(scheduler: Scheduler, pod: Pending) -> bool:
    """Return whether the pod may preempt, and some possible victim with devices has a lower priority."""
    lowest = scheduler.preemption([pod]).lowest
    return pod.may_preempt and lowest is not None and lowest < pod.priority


def plans(
    scheduler: Scheduler, pod: Pending, names: Collection[str], protection: Protection | None = None
) -> Iterator[Plan | None]:
    """Yield the best plan so far after each small step; the last plan is the best among these nodes. A caller that lets other
    tasks run between two steps calls `renewed` at the end."""
    protection = protection or Protection()
    if not can_preempt(scheduler, pod):
        return
    rule = scheduler.preemption([pod])
    yield from scheduler.verdicts.judging(pod.request)
    verdicts = scheduler.judged(pod.request)
    demand = scheduler.demand(pod.request)
    yielding = _yielding(scheduler, pod)
    lower = Victims(scheduler, pod.priority, protection, rule)
    candidates = []
    for name in _within_reach(scheduler, pod, names):
        fits = name in verdicts.fits
        if fits and pod.quota is None:
            return  # devices became free meanwhile
        if (fits or verdicts.reasons.get(name) in MAY_FIT_LATER) and (units := lower.on([name])):
            there = [victim for victim in pods_of(units) if victim.node == name]
            least = _least(scheduler.ledger.without(pod.uid, *yielding).capacity(name), demand, there)
            candidates += [(least, name, units)] if least else []
        yield None
    best = None
    for least, name, units in nsmallest(MAX_NODES, candidates, key=lambda one: one[:2]):
        if best is not None and _rank(best) <= (least, name):
            return  # the following nodes cannot be cheaper either
        plan = _plan_on(scheduler, pod, name, units, protection, rule, yielding, _rank(best)[0] if best else None)
        if plan is not None and (best is None or _rank(plan) < _rank(best)):
            best = plan
        yield best


def renewed(scheduler: Scheduler, pod: Pending, names: Collection[str], plan: Plan, protection: Protection) -> Plan | None:
    """Make the plan again on its node, for the current state. Return None if the victims are not enough any more, or not
    needed."""
    verdicts = scheduler.judged(pod.request)
    if not verdicts.complete:
        return None  # a node that changed meanwhile may fit without evictions
    if pod.quota is None and any(name in verdicts.fits for name in _within_reach(scheduler, pod, names)):
        return None
    rule = scheduler.preemption([pod])
    units = Victims(scheduler, pod.priority, protection, rule).on([plan.node])
    return _plan_on(scheduler, pod, plan.node, units, protection, rule, _yielding(scheduler, pod))


def _within_reach(scheduler: Scheduler, pod: Pending, names: Collection[str]) -> Collection[str]:
    group = scheduler.group_nodes(pod.request, scheduler.ledger.without(pod.uid))
    return group.intersection(names) if group else names


def _yielding(scheduler: Scheduler, pod: Pending) -> list[PodUid]:
    """Return the pods of lower priority whose claims end if this one needs them."""
    return [uid for one in scheduler.yielding(pod.priority) for uid in one.uids]


# ---- lower bound of the cost


def _least(capacity: NodeCapacity, demand: Demand, victims: Sequence[PodRecord]) -> _Cost | None:
    """Return a lower bound of the cost on the node; None if even without all victims there are too few cards or VFs."""
    going = sorted((victim for victim in victims if not victim.deleting), key=lambda v: (v.priority, -v.created))
    by_themselves = sum(_vfs_of(victim) for victim in victims if victim.deleting)
    vfs = _fewest(demand.vfs_peak - by_themselves - sum(vf.free for vf in capacity.vfs), map(_vfs_of, going))
    holds = 0 if demand.mig_profile else _least_holds(capacity, demand, victims)
    cards = None if holds is None else _fewest(holds, map(_cards_of, going))
    if vfs is None or cards is None:
        return None
    at_least = 0 if len(going) < len(victims) else 1
    return _cost(going[: max(at_least, vfs, cards)])


def _least_holds(capacity: NodeCapacity, demand: Demand, victims: Sequence[PodRecord]) -> int | None:
    """Return the minimum number of holds (a pod on a card) that have to end until enough cards are free; None if impossible."""
    pods = Counter(uuid for victim in victims for uuid in _held(victim).gpus)
    going = Counter(uuid for victim in victims if not victim.deleting for uuid in _held(victim).gpus)
    cards = requested_cards(capacity, demand) if demand.whole_peak else ()
    to_free = sorted(going[card.gpu.uuid] for card in cards if card.usable and card.pods <= pods[card.gpu.uuid])
    return sum(to_free[: demand.whole_peak]) if len(to_free) >= demand.whole_peak else None


def _fewest(lacking: int, of_each: Iterable[int]) -> int | None:
    """Return the minimum number of pods that have to end until `lacking` devices are free; each pod frees all of its devices.
    Return None if all pods are not enough."""
    left = accumulate(sorted(of_each, reverse=True), sub, initial=lacking)
    return next((count for count, short in enumerate(left) if short <= 0), None)


def _held(victim: PodRecord) -> Taken:
    return victim.taken or Taken()


def _vfs_of(victim: PodRecord) -> int:
    return len(_held(victim).vfs)


def _cards_of(victim: PodRecord) -> int:
    return len(_held(victim).gpus)


# ---- which pods are evicted


def _plan_on(
    scheduler: Scheduler,
    pod: Pending,
    name: str,
    units: Sequence[Unit],
    protection: Protection,
    rule: Preemption,
    yielding: Collection[PodUid],
    most: _Cost | None = None,
) -> Plan | None:
    """Return the plan for the node; None if there is none, or if it costs more than `most`. `yielding`: pods whose claims count
    as free."""

    def without(evicted: Collection[PodUid]) -> Placement | None:
        state = scheduler.ledger.without(pod.uid, *yielding, *evicted)
        return scheduler.fit_devices(pod.shape, name, state) if rule.allows(evicted) else None

    left = [*units]
    placement = without([victim.uid for victim in pods_of(left)])
    if placement is None:
        return None
    going: list[Unit] = []

    def put_back(some: Sequence[Unit]) -> bool:
        """Put back the units that can stay, the first units first, many at once to need fewer fits. Return False if the cost is
        too high."""
        nonlocal placement, left
        staying = set(map(id, some))
        others = [unit for unit in left if id(unit) not in staying]
        if kept := without([victim.uid for victim in pods_of(others)]):
            left, placement = others, kept
            return True
        if len(some) > 1:
            return put_back(some[: len(some) // 2]) and put_back(some[len(some) // 2 :])
        going.extend(some)
        return most is None or _cost(pods_of(going), gangs_in(going)) <= most

    beyond = protection.budgets.beyond(pods_of(units))
    # Units that exceed a disruption budget are put back first, as in kube-scheduler.
    if not put_back(sorted(units, key=lambda unit: beyond.isdisjoint(victim.uid for victim in unit.pods))) or not going:
        return None  # too expensive, or the pod fits with its own claims there
    victims = pods_of(going)
    if protection.forbids(victims):
        return None
    ordered = tuple(sorted(victims, key=lambda v: (v.priority, -v.created, v.uid)))
    return Plan(node=name, victims=ordered, placement=placement, gangs=gangs_in(going))


def _rank(plan: Plan) -> tuple[_Cost, str]:
    return _cost(plan.victims, plan.gangs), plan.node


def _cost(victims: Sequence[PodRecord], gangs: int = 0) -> _Cost:
    victims = [victim for victim in victims if not victim.deleting]
    priorities = [victim.priority + _ABOVE_ZERO for victim in victims]
    highest = max(priorities, default=0)
    eldest = min((victim.created for victim in victims if victim.priority + _ABOVE_ZERO == highest), default=0)
    return highest, gangs, sum(priorities), len(priorities), -eldest
