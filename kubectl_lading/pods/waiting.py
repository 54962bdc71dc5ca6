"""Explain why a pod waits: nodes by reason, those that lack the least first, and changes that would help. Pure.

Take the cluster in central's data structures, one pending pod, and central's own answer if there is one. Central's answer takes
precedence over the API server's objects, because central also knows the pods that it is binding right now. Return a `Wait`,
with the victims that central would choose (central.decide.preempt). Before an eviction, central also asks the Eviction API
by a dry run, which may refuse it.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from central.decide import why_pod
from central.decide.preempt import plans
from central.decide.scheduler import Scheduler
from central.decide.victims import Protection
from central.decide.why_pod import FITS, NodeWhy, Why, why_pending
from central.ledger.model import NodeCapacity
from central.search.demand import Demand
from central.search.placement import Missing
from central.state.budgets import NO_BUDGETS, Budgets
from central.state.pending import Pending
from central.view.helps import NodeHelp, find_helps
from central.view.model import Ending
from kubectl_lading.deciding import NOT_ALLOWED, DecidingCluster
from kubectl_lading.next_step import next_step
from kubectl_lading.pods.situation import FIXES
from kubectl_lading.terminal.format import pod_name
from lading.amounts import format_mib
from lading.vocabulary import PodUid


class Preemption(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold the victims that central would evict for the pod; without victims, the reason why it evicts none."""

    said: str
    node: str = ""
    victims: tuple[Ending, ...] = ()

    def as_text(self) -> str:
        if not self.victims:
            return f"none: {self.said}"
        victims = ", ".join(f"{pod_name(one)} (priority {one.priority})" for one in self.victims)
        return f"on {self.node} central can evict {victims}; {self.said}"


def find_preemption(
    scheduler: Scheduler, pod: Pending, names: Sequence[str], budgets: Budgets = NO_BUDGETS
) -> Iterator[Preemption | None]:
    """Find the victims for the pod. Yield None between two steps, and the result last."""
    lowest = scheduler.ledger.lowest_priority()
    if not pod.may_preempt:
        yield Preemption(said="its preemptionPolicy is Never")
        return
    if lowest is None or lowest >= pod.priority:
        yield Preemption(said=f"no pod that holds devices has a lower priority than its {pod.priority}")
        return
    best, protection = None, Protection(budgets=budgets)
    for plan in plans(scheduler, pod, names, protection):
        best = plan or best
        yield None
    if best is None:
        without = ", without those that disruption budgets protect," if protection.applied else ""
        yield Preemption(said=f"the pods of lower priority than its {pod.priority}{without} have too little")
        return
    victims = tuple(
        Ending(uid=one.uid, namespace=one.namespace, pod=one.name, priority=one.priority, deleting=one.deleting)
        for one in best.victims
    )
    yield Preemption(said="it does so by itself, where all but the devices suffices", node=best.node, victims=victims)


NEVER: Final = frozenset(missing.value for missing in Missing if missing.unresolvable)
SENTENCES: Final = why_pod.SENTENCES | {
    NOT_ALLOWED: "its devices are free, and kubectl cordon, a taint, nodeSelector or affinity keeps the pod away"
}
LATER: Final = frozenset(missing.value for missing in Missing if not missing.unresolvable)  # reasons that may go away


class Scattered(msgspec.Struct, frozen=True):
    """Represent a node with enough free memory on all cards together, but not on any single card."""

    node: str
    free_mib: int
    cards: int


class Wait(msgspec.Struct, frozen=True, omit_defaults=True):
    why: Why
    from_central: bool  # True: `why` is central's answer; False: computed from the API server's objects
    helps: tuple[NodeHelp, ...] = ()  # pods whose end would help, by node; nodes that lack the least first
    not_looked_at: int = 0  # number of further nodes, not searched, where the end of other pods may help
    scattered: tuple[Scattered, ...] = ()
    preemption: Preemption | None = None
    fixes: Mapping[str, str] = {}  # advice to the user, by reason
    next_step: str = ""  # command to run next if no node reports devices

    def help_on(self, node: str) -> NodeHelp | None:
        return next((one for one in self.helps if one.node == node), None)


def explain_wait(
    cluster: DecidingCluster,
    pod: Pending,
    text: Why | None,
    *,
    most: int,
    silent: bool = False,
    stay: Collection[PodUid] = frozenset(),
    budgets: Budgets = NO_BUDGETS,
) -> Iterator[Wait | None]:
    """Explain why the pod waits. Yield None between two steps, and a Wait last. `said`: central's answer. `most`: maximum nodes
    for which to search pods whose end would help. `silent`: central did not answer. `stay`: pods that never end."""
    scheduler = cluster.scheduler
    reason = text or why_pending(scheduler, pod, 0.0)
    reason = judge_rules(cluster, pod, reason)
    reason = msgspec.structs.replace(reason, nodes=[_beside_devices(scheduler, pod, node) for node in reason.nodes])
    yield None
    later = [node.node for node in reason.nodes if node.reason in LATER and cluster.allows(pod, node.node)]
    helps = []
    for one in find_helps(scheduler, pod, later, stay=stay):
        helps.append(one)
        yield None
        if len(helps) >= most:
            break
    demand = scheduler.demand(pod.request)
    preemption = None
    if not (reason.gang or reason.preempts or reason.making_room_on or reason.keeping_room_on or reason.reasons.get(FITS)):
        for result in find_preemption(scheduler, pod, later, budgets):
            preemption = result
            yield None
    yield Wait(
        why=reason,
        from_central=text is not None,
        helps=tuple(helps),
        not_looked_at=max(0, len(later) - len(helps)),
        scattered=tuple(_scattered(scheduler, pod, reason.nodes, demand)),
        preemption=preemption,
        fixes=dict(_fixes(scheduler, pod, reason, silent=silent)),
        next_step=" ".join(next_step(cluster)),
    )


def judge_rules(cluster: DecidingCluster, pod: Pending, reason: Why) -> Why:
    """Return `why` with reason NOT_ALLOWED for nodes with fitting devices where kube-scheduler does not let the pod go."""
    away = {node.node for node in reason.nodes if node.reason == FITS and not cluster.allows(pod, node.node)}
    if not away:
        return reason
    nodes = [
        msgspec.structs.replace(node, reason=NOT_ALLOWED, text=SENTENCES[NOT_ALLOWED]) if node.node in away else node
        for node in reason.nodes
    ]
    return msgspec.structs.replace(reason, nodes=nodes, reasons=dict(Counter(node.reason for node in nodes)))


def _fixes(scheduler: Scheduler, pod: Pending, cause: Why, *, silent: bool) -> Iterator[tuple[str, str]]:
    for reason in cause.reasons:
        if reason in FIXES:
            yield reason, FIXES[reason]
        elif reason == NOT_ALLOWED:
            yield reason, "kubectl describe node NODE shows its labels and taints; kubectl uncordon NODE ends a cordon."
    fitting = [node.node for node in cause.nodes if node.reason == FITS]
    own = scheduler.ledger.without(pod.uid)
    if fitting:
        able = any(own.capacity(name).has_resources(pod.cpu_memory) for name in fitting)
        yield FITS, _fix_of_fitting(cause, able=able, silent=silent)


def _fix_of_fitting(reason: Why, *, able: bool, silent: bool) -> str:
    """Return advice for a pod that waits although devices are free on some nodes. `able`: one of these nodes has enough cpu and
    memory, as far as known."""
    if reason.state == "reserved":
        return "nothing: it is being bound."
    if reason.gang is not None:
        return 'nothing: the pod starts together with its gang; see the line "gang".'
    if not able:
        return "ask for less cpu or memory, or wait until pods end there."
    if silent:
        return "central did not answer, and without it no pod gets devices: `kubectl lading status` says what is wrong."
    return (
        "read kube-scheduler's message: a taint, selector, affinity or volume may exclude these nodes. If there is no message: "
        "`kubectl lading status`."
    )


def _beside_devices(scheduler: Scheduler, pod: Pending, node: NodeWhy) -> NodeWhy:
    """Return the node's entry. If its devices are free, add the missing cpu or memory to the detail."""
    capacity, requested = scheduler.ledger.without(pod.uid).capacity(node.node), pod.cpu_memory
    if node.reason != FITS or capacity.has_resources(requested):
        return node
    lacks = (
        [f"{requested.cpu_milli / 1000:g} cpu asked, {capacity.cpu_milli / 1000:g} left"]
        if requested.cpu_milli > capacity.cpu_milli
        else []
    )
    if requested.memory_mib > capacity.memory_mib:
        lacks.append(f"{format_mib(requested.memory_mib)} of its memory asked, {format_mib(capacity.memory_mib)} left")
    return msgspec.structs.replace(node, detail=f"but {'; '.join(lacks)}")


def _scattered(scheduler: Scheduler, pod: Pending, nodes: Sequence[NodeWhy], demand: Demand) -> Iterator[Scattered]:
    """Yield nodes where a single share fits on no card, but in their sum: 20 GiB with two cards that have 12 GiB free each."""
    share = demand.cards[0] if len(demand.cards) == 1 and not demand.cards[0].whole and demand.cards[0].count == 1 else None
    if share is None or share.memory_mib is None:
        return
    for node in nodes:
        if node.reason == Missing.NO_CARD_WITH_ROOM:
            free = _free_mib(scheduler.ledger.without(pod.uid).capacity(node.node), demand)
            if sum(free) >= share.memory_mib and max(free) < share.memory_mib:
                yield Scattered(node=node.node, free_mib=sum(free), cards=len(free))


def _free_mib(capacity: NodeCapacity, demand: Demand) -> list[int]:
    """Return the free memory of each card that has some, in MiB."""
    return [
        card.free_mib
        for card in capacity.cards
        if card.usable and card.free_mib and (not demand.models or card.gpu.model in demand.models)
    ]
