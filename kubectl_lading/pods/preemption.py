"""Which pods central would evict for a pod that fits nowhere, or why none. Pure.

Enters: the scheduler as things are, the pod with its priority, nodes, disruption budgets. Leaves: a `Preemption`, by central's
own plan (central.scheduling.preempt). Before it evicts, central also asks the Eviction API by a dry run, which may refuse.
"""

from collections.abc import Iterator, Sequence

import msgspec

from central.scheduling.preempt import Protection, plans
from central.scheduling.scheduler import Scheduler
from central.state.budgets import NO_BUDGETS, Budgets
from central.state.pending import Pending
from central.view.helps import Ending
from kubectl_lading.terminal.amounts import pod_name


class Preemption(msgspec.Struct, frozen=True, omit_defaults=True):
    """What central would evict for the pod. Without victims: why it evicts none."""

    said: str
    node: str = ""
    victims: tuple[Ending, ...] = ()

    def in_words(self) -> str:
        if not self.victims:
            return f"none: {self.said}"
        victims = ", ".join(f"{pod_name(one)} (priority {one.priority})" for one in self.victims)
        return f"on {self.node} central can evict {victims}; {self.said}"


def find_preemption(
    scheduler: Scheduler, pod: Pending, names: Sequence[str], budgets: Budgets = NO_BUDGETS
) -> Iterator[Preemption | None]:
    """Yield None between two steps, and the answer last."""
    lowest = scheduler.ledger.lowest_priority()
    if not pod.may_preempt:
        yield Preemption(said="its preemptionPolicy is Never")
        return
    if lowest is None or lowest >= pod.priority:
        yield Preemption(said=f"no pod that holds devices has a lower priority than its {pod.priority}")
        return
    best, protection = None, Protection(budgets=budgets)
    for found in plans(scheduler, pod, names, protection):
        best = found or best
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
