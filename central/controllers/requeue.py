"""Requeue pods that were refused, once there is room for them.

kube-scheduler does not know when devices become free: a pod that an extender refused waits up to five minutes, unless something
happens to it. So central *touches* it: a patch of its status moves it to the front of kube-scheduler's queue at once (seen with
1.36; any change does). It happens after the ledger released the devices, never before: else the pod would be refused again.

Room that appears begins a new *round* for each request that it fits. In a round every refused pod is woken at most once, while
there is room, a few for each node with room at a time, whatever they ask. One half of these places is for the first in line, by
priority, fair between namespaces, and then by age (central.state.tenants); the other half for the pods that had no turn for the
longest time, because the first in line may be pods that cannot use this room (another taint, no cpu), and new rounds may come
faster than one ends. A pod that is refused once more had its turn: it waits for the next round.

For each request only nodes that got room are judged, never all nodes, except for a request whose affinity group left its card.
That may be more than one look has time for (all nodes of a cluster at once when central starts, ten thousand requests). Then
the newest and the oldest take turns, so that a release is seen soon whatever else waits, and nothing waits for ever. All of it
is done in slices: a look never blocks the loop.

Pods that their quota refused are in no round: they are woken when the quota has room for them.

Room that is held for a pod (*nominated*) is in no round: that pod is woken when its room is complete.

Source: k8s.io/kubernetes/pkg/scheduler (activeQ, backoffQ, unschedulable pods), checked in tests/cluster.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from typing import Final

from central.assignment.sharing import groups_of
from central.loop.faults import Faults, Work
from central.loop.slices import Slices
from central.request.model import DeviceRequest
from central.scheduling.scheduler import Scheduler
from central.state.pending import Pending, in_line
from lading.kube.backoff import Backoff
from lading.kube.errors import ConflictError, KubeError, NotFoundError, RefusedError, TooManyRequestsError
from lading.log import Event, Log
from lading.vocabulary import PodUid

LOOK_S: Final = 0.1  # between two looks; kube-scheduler's own back-off of up to 1 s comes on top
JUDGED_S: Final = 0.3  # of one look for judging what got room; then the pods found so far are woken
GOING_ON_S: Final = 0.1  # of one look for what a filter had no time for
FOR_EACH_NODE: Final = 8  # pods woken in one look: most nodes have so many cards
FIRST: Final = FOR_EACH_NODE // 2  # of these: the first in line
AT_ONCE: Final = 32  # touches under way; the API server has others to serve


@dataclass(slots=True, eq=False)
class _Round:
    """Hold a round of one request. `nodes` are those that gained free capacity and fitted, each with the look in which it
    last did."""

    request: DeviceRequest
    number: int = 0  # that of the look in which it began
    nodes: dict[str, int] = field(default_factory=dict)


_Waiting = tuple[Pending, _Round]


class Requeuer:
    """Requeue refused pods. `touch` changes the pod's status. `clock`: seconds, monotonic."""

    def __init__(
        self,
        scheduler: Scheduler,
        touch: Callable[[Pending], Awaitable[object]],
        *,
        clock: Callable[[], float],
        log: Log,
        faults: Faults | None = None,
    ) -> None:
        self._faults = Faults(clock=clock, log=log) if faults is None else faults
        self._scheduler = scheduler
        self._touch = touch
        self._clock = clock
        self._log = log
        # To be judged: a node for all requests, an ask for all nodes. What is in it already keeps its place.
        self._unjudged: OrderedDict[str | DeviceRequest, None] = OrderedDict()
        self._newest_next = True
        self._rounds: dict[DeviceRequest, _Round] = {}
        self._look = 0
        self._waking: set[PodUid] = set()
        self._wanted: dict[PodUid, None] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Run until it is cancelled."""
        async with asyncio.TaskGroup() as touches:
            while True:
                for pod in await self.look():
                    self._waking.add(pod.uid)
                    touches.create_task(self._wake(pod))
                await asyncio.sleep(LOOK_S)

    def want(self, uids: Iterable[PodUid]) -> None:
        """Requeue these refused pods with the next look, all at once."""
        self._wanted.update(dict.fromkeys(uids))

    async def look(self) -> list[Pending]:
        """Return the pods to wake now. A returned pod had its turn in this round."""
        self._look += 1
        slices = Slices(self._clock)
        ledger = self._scheduler.ledger
        freed, moved = ledger.take_freed(), ledger.take_moved_groups()
        for name in freed:
            self._unjudged.setdefault(name)
        for request in self._scheduler.pending.refused_requests() if moved else ():
            # A group that left its card may open another one where there was room all the time.
            if request.sharing is not None and not moved.isdisjoint(groups_of([request.sharing])):
                self._unjudged.setdefault(request)
        await self._judge(slices)
        decided = await self._go_on(slices)
        nominated = [pod async for pod in self._nominated(frozenset(freed), slices)]
        chosen = await self._choose(slices)
        together = [pod for uid in self._wanted if (pod := self._scheduler.pending.get_refused(uid))]
        self._wanted = {pod.uid: None for pod in together if pod.uid in self._waking}  # once more, when that is over
        free = self._scheduler.quotas.take_free(self._scheduler.tenants.in_turn)
        others = [pod for pod in (*together, *free) if pod.uid not in self._waking]
        return [*{pod.uid: pod for pod in (*others, *nominated, *decided, *chosen)}.values()]

    # ---- what got room

    async def _judge(self, slices: Slices) -> None:
        """Judge at least one unjudged node or request, and as many as there is time for."""
        until = self._clock() + JUDGED_S
        while self._unjudged:
            next_one, _ = self._unjudged.popitem(last=self._newest_next)
            self._newest_next = not self._newest_next
            for request, name in self._pairs(next_one):
                if self._fits_on(request, name):
                    current = self._rounds.setdefault(request, _Round(request))
                    current.number = current.nodes[name] = self._look
                await slices.pause()
            if self._clock() >= until:
                break

    def _fits_on(self, request: DeviceRequest, name: str) -> bool:
        """Return whether the request fits on the node now. It fits on none that is set aside."""
        if self._faults.sets_aside(Work.REQUEUE, name):
            return False
        with self._faults.handling(Work.REQUEUE, name):
            return self._scheduler.fits_on(request, name)
        return False

    def _pairs(self, unjudged: str | DeviceRequest) -> Iterator[tuple[DeviceRequest, str]]:
        pending, ledger = self._scheduler.pending, self._scheduler.ledger
        if isinstance(unjudged, DeviceRequest):
            return ((unjudged, name) for name in ledger.nodes())
        return ((request, unjudged) for request in pending.refused_requests())

    # ---- what a filter had no time for

    async def _go_on(self, slices: Slices) -> list[Pending]:
        """Judge nodes for one request that was refused before all were judged. Return its pods, once some node fits or all are
        judged. Requests take turns, so that none waits for the others' end."""
        unfinished = self._scheduler.unfinished
        request = next(iter(unfinished), None)
        if request is None:
            return []
        del unfinished[request]
        until = self._clock() + GOING_ON_S
        with self._faults.handling(Work.REQUEUE, ""):  # a request has no name
            for _ in self._scheduler.verdicts.judging(request):
                await slices.pause()
                if self._clock() >= until:
                    unfinished.setdefault(request)
                    break
        if request in unfinished and not self._scheduler.judged(request).fits:
            return []
        waiting = [
            pod for pod in self._scheduler.pending.refused_with(request) if pod.undecided and pod.uid not in self._waking
        ]
        for pod in waiting:
            pod.undecided = False
        return waiting

    # ---- whose turn it is

    async def _choose(self, slices: Slices) -> list[Pending]:
        line: list[_Waiting] = []
        longest: list[_Waiting] = []
        in_turn = self._scheduler.tenants.in_turn
        for request in [*self._rounds]:
            waiting, current = self._waiting(request), self._rounds[request]
            if not waiting or not current.nodes:
                del self._rounds[request]
                continue
            seats = len(current.nodes)
            ready = [pod for pod in waiting if pod.uid not in self._waking]
            line += [(pod, current) for pod in islice(in_turn(ready), FIRST * seats)]
            # Of which those before may be as many as there are.
            longest += [(pod, current) for pod in nsmallest(FOR_EACH_NODE * seats, ready, key=_last_turn)]
            await slices.pause()
        of = {pod.uid: current for pod, current in line}
        line = [(pod, of[pod.uid]) for pod in in_turn(pod for pod, _ in line)]
        chosen = [one async for one in self._seated(line, FIRST, slices)]
        had = {pod.uid for pod, _ in chosen}
        others = sorted((one for one in longest if one[0].uid not in had), key=lambda one: _last_turn(one[0]))
        chosen += [one async for one in self._seated(others, FOR_EACH_NODE - FIRST, slices)]
        for pod, current in chosen:
            pod.woken_in = current.number
        return [pod for pod, _ in chosen]

    def _waiting(self, request: DeviceRequest) -> list[Pending]:
        """Return the pods that had no turn in the current round, in line. The round ends when there are none, or no room."""
        number = self._rounds[request].number
        return [pod for pod in self._scheduler.pending.refused_with(request) if pod.woken_in != number]

    async def _seated(self, line: Iterable[_Waiting], for_each: int, slices: Slices) -> AsyncIterator[_Waiting]:
        """Yield the pods in line for which there is a place: a fixed number for each node that still has room."""
        seats: Counter[str] = Counter()
        open_nodes: dict[_Round, list[str]] = {}
        for pod, current in line:
            nodes = open_nodes.setdefault(current, [*current.nodes])
            while nodes and (seats[nodes[-1]] >= for_each or not self._still_fits(current, nodes[-1])):
                nodes.pop()
                await slices.pause()
            await slices.pause()
            if nodes:
                seats[nodes[-1]] += 1
                yield pod, current

    def _still_fits(self, current: _Round, name: str) -> bool:
        """Return whether the request still fits the node; evaluated once in a look."""
        if current.nodes.get(name) != self._look:
            if not self._fits_on(current.request, name):
                current.nodes.pop(name, None)
                return False
            current.nodes[name] = self._look
        return True

    # ---- room that was made for one pod

    async def _nominated(self, freed: AbstractSet[str], slices: Slices) -> AsyncIterator[Pending]:
        for claim in self._scheduler.ledger.nominations():
            pod = self._scheduler.pending.get_refused(claim.holder.pod)
            if claim.node not in freed or pod is None or pod.uid in self._waking:
                continue
            if self._has_place(pod, claim.node):
                yield pod
            await slices.pause()

    def _has_place(self, pod: Pending, node: str) -> bool:
        if self._faults.sets_aside(Work.REQUEUE, pod.shown):
            return False
        with self._faults.handling(Work.REQUEUE, pod.shown):
            return self._scheduler.placement(pod, node) is not None
        return False

    # ---- waking them

    async def _wake(self, pod: Pending) -> None:
        try:
            with self._faults.handling(Work.REQUEUE, pod.shown):
                await self._touch_while_refused(pod)
        finally:
            self._waking.discard(pod.uid)

    async def _touch_while_refused(self, pod: Pending) -> None:
        fields = {"namespace": pod.namespace, "pod": pod.name, "pod_uid": pod.uid}
        backoff = Backoff()
        while True:
            try:
                async with self._slots:
                    known = self._scheduler.pending.get_refused(pod.uid)  # kube-scheduler may have asked meanwhile
                    if known is None:
                        return
                    await self._touch(known)
            except (NotFoundError, ConflictError):
                return  # the watch will say so
            except KubeError as e:
                self._log.warning(Event.POD_WOKEN, f"cannot requeue, retrying unless refused: {e}", **fields)
                if isinstance(e, RefusedError) and not isinstance(e, TooManyRequestsError):
                    return  # once more would be refused once more; the next round asks again
                await asyncio.sleep(backoff.failed(at_least_s=e.retry_after_s))
            else:
                self._scheduler.counts.woken += 1
                self._log.info(Event.POD_WOKEN, **fields)
                return


def _last_turn(pod: Pending) -> tuple[int, tuple[int, str, PodUid]]:
    """Return the sort key of the last turn. Pods without a turn come first."""
    return pod.woken_in, in_line(pod)
