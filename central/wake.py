"""Wakes pods that were refused, once there is room for them.

kube-scheduler does not know when devices become free: a pod that an extender refused waits up to five minutes, unless something
happens to it. So central *touches* it: a patch of its status moves it to the front of kube-scheduler's queue at once (seen with
1.36; any change does). It happens after the ledger released, never before, or the pod would be refused again and wait.

Room that appears begins a new *round* for each ask that it fits. In a round every refused pod is woken at most once, while
there is room, a few for each node with room at a time, whatever they ask. One half of these places is for the first in line,
by priority and then by age; the other half for those who had no turn for the longest time, because the first in line may be
pods for which this is no room (another taint, no cpu), and new rounds may come faster than one ends. A pod that is refused once
more had its turn: it waits for the next round.

Room that is held for a pod (*nominated*) is in nobody's round: that pod is woken when its room is complete.

Source: k8s.io/kubernetes/pkg/scheduler (activeQ, backoffQ, unschedulable pods), checked in tests/cluster.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from central.ask.model import Ask
from central.assignment.sharing import groups_of
from central.pending import Pending, in_line
from central.scheduler import Scheduler
from lading.kube.backoff import Backoff
from lading.kube.errors import ConflictError, KubeError, NotFoundError, RefusedError, TooManyRequestsError
from lading.log import Event, Log
from lading.vocabulary import PodUid

LOOK_S: Final = 0.1  # between two looks; kube-scheduler's own back-off of up to 1 s comes on top
FOR_EACH_NODE: Final = 8  # pods woken in one look: most nodes have so many cards
AT_ONCE: Final = 64  # touches under way; the API server has others to serve


@dataclass(slots=True, eq=False)
class _Round:
    number: int
    nodes: set[str]  # that gained room, and fitted the ask then


_Waiting = tuple[Pending, _Round]


class Waker:
    """`touch` changes the pod's status."""

    def __init__(self, scheduler: Scheduler, touch: Callable[[Pending], Awaitable[object]], *, log: Log) -> None:
        self._scheduler = scheduler
        self._touch = touch
        self._log = log
        self._rounds: dict[Ask, _Round] = {}
        self._number = 0
        self._waking: set[PodUid] = set()
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as touches:
            while True:
                for pod in self.decide():
                    self._waking.add(pod.uid)
                    touches.create_task(self._wake(pod))
                await asyncio.sleep(LOOK_S)

    def decide(self) -> list[Pending]:
        """Whom to wake now. A pod that it names had its turn in this round."""
        freed = frozenset(self._scheduler.ledger.take_freed())
        asks = self._scheduler.pending.refused_asks()
        self._begin_rounds(asks, freed)
        line = [one for ask in asks for one in self._waiting(ask)]
        line.sort(key=lambda one: in_line(one[0]))
        chosen = [*_seated(line, FOR_EACH_NODE // 2)]
        had = {pod.uid for pod, _ in chosen}
        others = sorted((one for one in line if one[0].uid not in had), key=lambda one: one[0].woken_in)
        chosen += _seated(others, FOR_EACH_NODE - FOR_EACH_NODE // 2)
        for pod, current in chosen:
            pod.woken_in = current.number
        return [*self._nominated(freed), *(pod for pod, _ in chosen)]

    def _begin_rounds(self, asks: Iterable[Ask], freed: AbstractSet[str]) -> None:
        self._rounds = {ask: self._rounds[ask] for ask in asks if ask in self._rounds}
        self._number += 1
        moved = self._scheduler.ledger.take_moved_groups()
        for ask in asks if freed or moved else ():
            fitting = self._scheduler.fitting(ask)
            # A group that left its card may open another one where there was room all the time.
            anywhere = ask.sharing is not None and not moved.isdisjoint(groups_of([ask.sharing]))
            gained = set(fitting) if anywhere else {name for name in freed if name in fitting}
            if gained:
                before = self._rounds.get(ask)
                self._rounds[ask] = _Round(self._number, gained | (before.nodes if before else set()))

    def _waiting(self, ask: Ask) -> list[_Waiting]:
        """Those who had no turn in the present round. It ends when there are none, or no room."""
        current = self._rounds.get(ask)
        if current is None:
            return []
        fitting = self._scheduler.fitting(ask)
        current.nodes = {name for name in current.nodes if name in fitting}
        waiting = [pod for pod in self._scheduler.pending.refused_with(ask) if pod.woken_in != current.number]
        if not current.nodes or not waiting:
            del self._rounds[ask]
            return []
        return [(pod, current) for pod in waiting if pod.uid not in self._waking]

    def _nominated(self, freed: AbstractSet[str]) -> Iterator[Pending]:
        for claim in self._scheduler.ledger.nominations():
            pod = self._scheduler.pending.get_refused(claim.holder.pod)
            if claim.node not in freed or pod is None or pod.uid in self._waking:
                continue
            if self._scheduler.placement(pod, claim.node):
                yield pod

    async def _wake(self, pod: Pending) -> None:
        try:
            await self._touch_while_refused(pod)
        finally:
            self._waking.discard(pod.uid)

    async def _touch_while_refused(self, pod: Pending) -> None:
        fields = {"namespace": pod.namespace, "pod": pod.name, "pod_uid": pod.uid}
        backoff = Backoff()
        while known := self._scheduler.pending.get_refused(pod.uid):
            try:
                async with self._slots:
                    await self._touch(known)
            except (NotFoundError, ConflictError):
                return  # the watch will say so
            except KubeError as e:
                self._log.warning(Event.POD_WOKEN, f"not yet: {e}", **fields)
                if isinstance(e, RefusedError) and not isinstance(e, TooManyRequestsError):
                    return  # once more would be refused once more; the next round asks again
                await asyncio.sleep(backoff.failed(at_least_s=e.retry_after_s))
            else:
                self._log.info(Event.POD_WOKEN, **fields)
                return


def _seated(line: Iterable[_Waiting], for_each: int) -> Iterator[_Waiting]:
    """Of those in line the ones for whom there is a place: so many for each node with room."""
    seats: Counter[str] = Counter()
    open_nodes: dict[_Round, list[str]] = {}
    for pod, current in line:
        nodes = open_nodes.setdefault(current, [*current.nodes])
        while nodes and seats[nodes[-1]] >= for_each:
            nodes.pop()
        if nodes:
            seats[nodes[-1]] += 1
            yield pod, current
