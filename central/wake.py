"""Wakes pods that were refused, once there is room for them.

kube-scheduler does not know when devices become free: a pod that an extender refused waits up to five minutes, unless something
happens to it. So central *touches* it: a patch of its status moves it to the front of kube-scheduler's queue at once (seen with
1.36; any change does). It happens after the ledger released, never before, or the pod would be refused again and wait.

Room that appears begins a new *round* for each ask that it fits. In a round every refused pod is woken at most once, those of
the highest priority first and of these the oldest, a few for each node with room at a time, while there is room. A pod that is
refused once more had its turn: the room went to others, or is none for it (another taint, no cpu), until the next round.

Source: k8s.io/kubernetes/pkg/scheduler (activeQ, backoffQ, unschedulable pods), checked in tests/cluster.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from central.ask.model import Ask
from central.pending import Pending
from central.scheduler import Scheduler
from lading.kube.backoff import Backoff
from lading.kube.errors import ConflictError, KubeError, NotFoundError
from lading.log import Event, Log

LOOK_S: Final = 0.1  # between two looks; kube-scheduler's own back-off of up to 1 s comes on top
FOR_EACH_NODE: Final = 8  # pods woken in one look: most nodes have so many cards
AT_ONCE: Final = 64  # touches under way; the API server has others to serve


@dataclass(slots=True)
class _Round:
    number: int
    nodes: set[str]  # that gained room, and fitted the ask then


class Waker:
    """`touch` changes the pod's status."""

    def __init__(self, scheduler: Scheduler, touch: Callable[[Pending], Awaitable[object]], *, log: Log) -> None:
        self._scheduler = scheduler
        self._touch = touch
        self._log = log
        self._rounds: dict[Ask, _Round] = {}
        self._number = 0

    async def run(self) -> None:
        """Until it is cancelled."""
        slots = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as touches:
            while True:
                for pod in self.decide():
                    await slots.acquire()
                    touches.create_task(self._wake(pod)).add_done_callback(lambda _: slots.release())
                await asyncio.sleep(LOOK_S)

    def decide(self) -> list[Pending]:
        """Whom to wake now. A pod that it names had its turn in this round."""
        pending = self._scheduler.pending
        asks = pending.refused_asks()
        self._begin_rounds(asks, self._scheduler.ledger.take_freed())
        chosen = []
        for ask in asks:
            current = self._rounds.get(ask)
            if current is None:
                continue
            current.nodes &= self._scheduler.standing(ask).fits.keys()
            waiting = [pod for pod in pending.refused_with(ask) if pod.woken_in != current.number]
            if not current.nodes or not waiting:
                del self._rounds[ask]
                continue
            for pod in waiting[: FOR_EACH_NODE * len(current.nodes)]:
                pod.woken_in = current.number
                chosen.append(pod)
        return chosen

    def _begin_rounds(self, asks: Iterable[Ask], freed: Iterable[str]) -> None:
        nodes = frozenset(freed)
        self._number += 1
        for ask in asks if nodes else ():
            gained = nodes & self._scheduler.standing(ask).fits.keys()
            if gained:
                before = self._rounds.get(ask)
                self._rounds[ask] = _Round(self._number, set(gained) | (before.nodes if before else set()))

    async def _wake(self, pod: Pending) -> None:
        fields = {"namespace": pod.namespace, "pod": pod.name, "pod_uid": pod.uid}
        backoff = Backoff()
        while pod.refused_at is not None:
            try:
                await self._touch(pod)
            except (NotFoundError, ConflictError):
                return  # the watch will say so
            except KubeError as e:
                self._log.warning(Event.POD_WOKEN, f"not yet: {e}", **fields)
                await asyncio.sleep(backoff.failed(at_least_s=e.retry_after_s))
            else:
                self._log.info(Event.POD_WOKEN, **fields)
                return
