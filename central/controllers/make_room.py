"""Free devices for waiting gangs: evict pods of lower priority, and reserve released devices for the first gang in the queue.

Once the first gang has waited for `patience_s`, devices for all of its members are reserved as pods end. Only one gang has a
reservation at a time. decide/gang_room.py searches the nodes; decide/reservation.py decides when a node is abandoned.

Tests: tests/unit/central/gang/test_room.py
"""

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop
from typing import Final, Protocol, TypeVar

from central.controllers.event_reasons import EventReason
from central.controllers.take_back import TakeBack
from central.decide.gang_room import Kept, Made, evicting, keeping, taking_back
from central.decide.gangs import GangPlanner
from central.decide.line import Place, gang_place
from central.decide.reservation import Attempts, NodeReservation
from central.decide.scheduler import Scheduler
from central.decide.victims import Protection
from central.gang.draft import Where
from central.gang.gang import Gang
from central.gang.life import Phase
from central.ledger.claims import NOMINATION_S
from central.ledger.model import PodRecord
from central.loop.faults import Faults, Work
from central.loop.slices import Slices, result_in_slices
from central.request.gang import GangKey
from central.request.reasons import OfPod
from lading.log import Event, Log
from lading.vocabulary import PodUid

SCAN_S: Final = 1.0  # seconds between two scans
MAX_SCAN_S: Final = 0.5  # maximum seconds for evictions in one scan
KEPT_S: Final = 30.0  # lifetime of a reservation in seconds; each scan renews it
OF_QUOTA: Final = frozenset({OfPod.QUOTA_EXCEEDED, OfPod.QUOTA_TURN, OfPod.QUOTA_INVALID})

T = TypeVar("T")


class Evictions(Protocol):
    """Evict pods; see central.controllers.evict."""

    def protection(self) -> Protection | None: ...

    async def evict(self, victim: PodRecord, reason: str, cause: str, *, dry_run: bool = False) -> bool: ...


@dataclass(slots=True, kw_only=True)
class _GangReservation:
    gang: GangKey
    attempts: Attempts
    nodes: dict[PodUid, str] = field(default_factory=dict)  # node by member
    reservations: dict[str, NodeReservation] = field(default_factory=dict)  # current attempt by node
    until: float = -math.inf  # end of the reservation unless it is renewed

    def update(self, result: Kept, now: float) -> None:
        """Reserve these nodes. Record other nodes as abandoned: pods do not end there, or the gang cannot fit there now."""
        self.nodes = {uid: planned.node for uid, planned in result.where.items()}
        self.until = now + KEPT_S
        for node in self.reservations.keys() - result.in_the_way.keys():
            self.attempts.abandon(node, math.inf)
            del self.reservations[node]
        for node, pods in result.in_the_way.items():
            if node not in self.reservations:
                self.reservations[node] = self.attempts.begin(now)
            self.reservations[node].observe(pods, now)


class RoomMaker:
    def __init__(
        self,
        scheduler: Scheduler,
        planner: GangPlanner,
        *,
        evictions: Evictions,
        take_back: TakeBack | None,
        patience_s: float,
        clock: Callable[[], float],
        log: Log,
        faults: Faults,
    ) -> None:
        """Create the task. `patience_s`: seconds that a gang waits before devices are reserved for it; 0: never. `clock`: the
        scheduler's clock."""
        self._faults = faults
        self._scheduler = scheduler
        self._ledger = scheduler.ledger
        self._planner = planner
        self._evictions = evictions
        self._take_back = take_back
        self._patience_s = patience_s
        self._clock = clock
        self._log = log
        self._kept: _GangReservation | None = None  # the reservation; only one gang has one at a time
        self._scanned_at = -math.inf

    async def scan(self, waiting: Iterable[GangKey]) -> None:
        """Evict pods for gangs of higher priority, and reserve devices for the first gang that waited for `patience_s`.
        `waiting`: gangs without a plan, and maybe others."""
        if self._clock() < self._scanned_at + SCAN_S:
            return
        self._scanned_at = self._clock()
        before, kept = self._kept.nodes if self._kept else {}, None
        line = await self._line([*waiting])
        until, slices = self._clock() + MAX_SCAN_S, Slices(self._clock)
        while line:
            await slices.pause()
            gang = self._scheduler.gangs.get(heappop(line)[1].key)
            if gang is None:
                continue
            if self._faults.sets_aside(Work.GANGS, str(gang.key)):
                continue
            with self._faults.handling(Work.GANGS, str(gang.key)):
                if self._victims_end(gang) or (self._clock() < until and await self._evict_for(gang)):
                    continue
                gang = self._scheduler.gangs.get(gang.key)
                if gang is None:
                    continue
                waited, allowed = self._clock() - gang.search.since, gang.search.reason not in OF_QUOTA
                if self._patience_s and waited >= self._patience_s and not kept and allowed and gang.phase is Phase.QUEUED:
                    kept = await self._keep_room(gang)
        for uid in before.keys() - (kept.nodes.keys() if kept else ()):
            self._ledger.claims.forget_nomination(uid)
        self._kept = kept

    async def _line(self, keys: Iterable[GangKey]) -> list[tuple[Place, Gang]]:
        """Return a heap of the gangs that may need evictions or a reservation."""
        slices, place, line = Slices(self._clock), gang_place(self._scheduler), list[tuple[Place, Gang]]()
        for key in keys:
            gang = self._scheduler.gangs.get(key)
            if gang is not None and self._wants_room(gang):
                line.append((place(gang), gang))
            await slices.pause()
        heapify(line)
        return line

    def _victims_end(self, gang: Gang) -> bool:
        """Return whether pods are ending for the gang. No other victims are chosen meanwhile."""
        return gang.search.evicting or any(self._scheduler.room_for(member.uid)[0] for member in gang.waiting())

    def _wants_room(self, gang: Gang) -> bool:
        """Return whether the gang may need evictions or a reservation, also if its quota has too little left."""
        waits = gang.phase is Phase.QUEUED and not gang.search.too_large and self._clock() >= gang.life.resumes
        return waits and gang.search.reason not in {OfPod.QUOTA_TURN, OfPod.QUOTA_INVALID}

    async def _keep_room(self, gang: Gang) -> _GangReservation | None:
        """Reserve free and released devices on nodes where the members could fit. Return the reservation."""
        now, kept = self._clock(), self._kept
        if kept is None or kept.gang != gang.key:
            kept = _GangReservation(gang=gang.key, attempts=Attempts(patience_s=self._patience_s))
        before, abandoned = {*kept.reservations}, kept.attempts.abandoned
        staying = [node for node, reservation in kept.reservations.items() if not reservation.is_observed(now)]
        over = {node for node, reservation in kept.reservations.items() if reservation.is_over(now)}
        result = await self._in_slices(keeping(self._planner, gang, kept.nodes, staying, {*abandoned, *over}))
        if result is None and (abandoned or over):  # all other nodes were tried, or cannot fit the gang
            abandoned.clear()
            result = await self._in_slices(keeping(self._planner, gang, kept.nodes, staying, ()))
        current = self._current(gang)
        if current is None:
            return None
        if result is None:  # nodes with Bindings under way may fit soon
            return kept if now < kept.until else None
        kept.update(result, now)
        if not before >= kept.reservations.keys():
            self._log.info(Event.ROOM_KEPT, "room is kept for a gang", gang=str(gang.key), members=len(kept.nodes))
        self._nominate(current, result.where, kept.until, evicts=False)
        message = f"room for {len(kept.nodes)} members is kept on {len(kept.reservations)} nodes as pods end"
        self._scheduler.gangs.note(current, reason=OfPod.GANG_NO_ROOM, message=message)
        return kept

    def _current(self, gang: Gang) -> Gang | None:
        """Return the gang as it is now, after a search; None if it does not wait for a plan any more."""
        current = self._scheduler.gangs.get(gang.key)
        return current if current is not None and current.phase is Phase.QUEUED else None

    async def _evict_for(self, gang: Gang) -> bool:
        """Evict pods of lower priority, or of quotas that borrowed, if the gang then fits. Return whether evictions began."""
        protection = self._evictions.protection()
        if protection is None:
            return False
        state, reason, made = (self._planner.state(gang), protection.spared), EventReason.PREEMPTED, None
        current: Gang | None = gang
        if gang.search.no_victims != state:
            made = await self._in_slices(evicting(self._planner, gang, protection))
            current = self._current(gang)
        if made is None and current is not None:
            gang = self._scheduler.gangs.note(current, no_victims=state)
            reason, made = EventReason.QUOTA_TAKEN_BACK, await self._from_other_quotas(gang, protection)
            current = self._current(gang)
        if made is None or current is None or not self._planner.can_start(current, made.where):
            return False
        victims = [record for uid in made.evicted if (record := self._ledger.pod(uid)) is not None and not record.deleting]
        until = self._clock() + max((victim.grace_s for victim in victims), default=0) + NOMINATION_S
        for planned in made.where.values():
            self._scheduler.take_from_lower(planned.node, planned.placement.taken, current.priority)
        self._nominate(current, made.where, until, victims=frozenset(made.evicted))
        self._scheduler.gangs.note(current, evicting=True)
        try:
            await self._evict_all(current, victims, reason)
        finally:
            if (ended := self._scheduler.gangs.get(current.key)) is not None:
                self._scheduler.gangs.note(ended, evicting=False)
        return True

    def _nominate(
        self, gang: Gang, where: Where, until: float, *, victims: frozenset[PodUid] = frozenset(), evicts: bool = True
    ) -> None:
        """Nominate the planned devices for the members that still wait, whether or not these are free already."""
        for uid, planned in where.items():
            pod, member = self._scheduler.pending.get(uid), gang.members.get(uid)
            if pod is not None and member is not None:
                self._ledger.claims.nominate(
                    uid,
                    planned.node,
                    planned.placement.taken,
                    until,
                    member.holder,
                    cpu_memory=pod.cpu_memory,
                    victims=victims,
                    evicts=evicts,
                )

    async def _from_other_quotas(self, gang: Gang, protection: Protection) -> Made | None:
        """Return the pods that other quotas have to give back so that the gang fits; None if the gang itself would borrow."""
        if self._take_back is None:
            return None
        waiting = [pod for one in gang.waiting() if (pod := self._scheduler.pending.get(one.uid)) is not None]
        owed = self._take_back.units_for(waiting[: sum(gang.lacking().values())], self._ledger.nodes(), protection)
        if owed is None or not owed[1]:
            return None
        return await self._in_slices(taking_back(self._planner, gang, *owed))

    async def _evict_all(self, gang: Gang, victims: Sequence[PodRecord], reason: str) -> None:
        """Evict all victims after a dry run of all of them. If one cannot be evicted, none is."""
        if reason == EventReason.PREEMPTED:
            cause = f"gang {gang.key} of higher priority needs its devices"
        else:
            cause = f"gang {gang.key} needs devices that this quota borrowed"
        for victim in victims:
            if not await self._evictions.evict(victim, reason, cause, dry_run=True):
                for member in gang.waiting():
                    self._ledger.claims.forget_nomination(member.uid)
                return
        for victim in victims:
            await self._evictions.evict(victim, reason, cause)

    async def _in_slices(self, steps: Generator[None, None, T]) -> T:
        return await result_in_slices(steps, self._clock)
