"""Whom central would have evicted for a pod that fits nowhere, or why nobody. Pure.

Enters: the scheduler as things are, the pod with its priority, nodes. Leaves: a `Preemption`, by central's own plan
(central.preempt). Disruption budgets are not looked at: central asks for them when it evicts.
"""

from collections.abc import Iterator, Sequence

import msgspec

from central.pending import Pending
from central.preempt import plans
from central.scheduler import Scheduler
from central.view.helps import Ending
from kubectl_lading.terminal.amounts import pod_name


class Preemption(msgspec.Struct, frozen=True, omit_defaults=True):
    """What central would do for it by itself. Without victims: why nothing."""

    said: str
    node: str = ""
    victims: tuple[Ending, ...] = ()

    def in_words(self) -> str:
        if not self.victims:
            return f"none: {self.said}"
        victims = ", ".join(f"{pod_name(one.namespace, one.pod, one.uid)} (priority {one.priority})" for one in self.victims)
        return f"on {self.node} central can evict {victims}; {self.said}"


def find_preemption(scheduler: Scheduler, pod: Pending, names: Sequence[str]) -> Iterator[Preemption | None]:
    """None between two steps; the last one is the answer."""
    lowest = scheduler.ledger.lowest_priority()
    if not pod.may_preempt:
        yield Preemption(said="its preemptionPolicy is Never")
        return
    if lowest is None or lowest >= pod.priority:
        yield Preemption(said=f"no pod that holds devices has a lower priority than its {pod.priority}")
        return
    best = None
    for found in plans(scheduler, pod, names):
        best = found or best
        yield None
    if best is None:
        yield Preemption(said=f"the pods of lower priority than its {pod.priority} have too little")
        return
    victims = tuple(
        Ending(uid=one.uid, namespace=one.namespace, pod=one.name, priority=one.priority, deleting=one.deleting)
        for one in best.victims
    )
    yield Preemption(said="it does so by itself, where all but the devices suffices", node=best.node, victims=victims)
