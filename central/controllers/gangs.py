"""Run gangs: track members, plan complete gangs, send Bindings only once all members are ready, and end late plans.

    watch ─▶ GangFeed ─▶ gang ─▶ plan, in slices ─▶ members are requeued ─▶ filter names the node ─▶ bind ─▶ barrier ─▶ Bindings

Gangs are planned one at a time, in queue order (decide/line.py); gangs with bound members come first. A gang that cannot be
placed lets the next gang pass, and make_room.py frees devices for it.

Any user can create gangs, and there may be ten thousand. So a scan visits only gangs that changed since the last scan or are
due. Waiting gangs are compared all together only if the cluster changed. All work is done in slices.

Every plan has a deadline. Once a member has its node, other members must be sent to bind at most ARRIVED_S apart. Otherwise, or
without a first Binding within PLAN_S, the plan is dropped. The gang then pauses, longer after each plan, until its minimum is
bound. No gang is planned on the nodes of a dropped plan for SINGLES_S, so that single pods get a turn. Plans of gangs without a
bound member hold a bounded part of the cluster, and yield to pods of higher priority (decide/yielding.py). If the minimum
is not bound in time after the first Binding, the bound members of a strict gang are evicted.

Tests: tests/properties/test_gang_changes.py
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Final

from central.api.cached_objects import Ident
from central.api.decoded import Unreadable
from central.api.pod_groups import GangKind, PodGroup
from central.api.times import parse_seconds
from central.controllers.event_reasons import EventReason
from central.controllers.make_room import OF_QUOTA, Evictions, RoomMaker
from central.controllers.take_back import TakeBack
from central.decide.gangs import FoundPlan, GangPlanner, NoPlan
from central.decide.line import Place, gang_place
from central.decide.scheduler import Scheduler
from central.gang.gang import Gang, Member
from central.gang.gangs import Gangs
from central.gang.life import Phase, Stage
from central.gang.starts import Starts
from central.ledger.ledger import Ledger
from central.loop.agenda import Agenda
from central.loop.faults import Faults, Work
from central.loop.slices import Slices, in_slices, result_in_slices
from central.request.gang import GangKey, Membership, Mode, ObjectKey, parse_membership
from central.request.model import MalformedRequest
from central.request.parse import OWN_ONLY, Dialects, mentions_devices
from central.request.pod import Pod
from central.request.reasons import OfBinding, OfPod
from lading.log import Event, Log
from lading.vocabulary import ASSIGNMENT, PodUid

SCAN_S: Final = 0.1
MAX_SCAN_S: Final = 0.5  # maximum seconds for plans in one scan
# An unchanged gang is visited at these intervals. Gangs with a plan (VISIT_S) are few, but can exceed several deadlines.
VISIT_S: Final = 1.0
QUEUED_S: Final = 30.0
# The first Binding must follow a plan in this time. kube-scheduler tries some hundred pods a second, a pod again after 1 s.
PLAN_S: Final = 60.0
# The minimum must be bound within this time after the first Binding, by default; a gang may set a shorter time.
FINISH_S: Final = 60.0
KEPT_S: Final = 20.0  # seconds for which a deleted member's place is kept: a Job creates another pod after 10 s
# kube-scheduler gives up a bind request after 5 s, and the Binding is sent after the wait at the barrier.
BARRIER_S: Final = 4.0
ARRIVED_S: Final = 10.0  # maximum seconds between two members that are sent to bind
SINGLES_S: Final = 2.0  # seconds from the end of a plan until another plan may use its nodes
TRIALS_S: Final = 0.5  # without a request for this long, kube-scheduler has tried the gang in each domain
MAX_JUDGING_S: Final = 2.0  # kube-scheduler sends a request for a new pod by then; other pods are requeued
QUOTA_S: Final = 0.5  # seconds until a gang that its quota refused is tried again
REST: Final = 4  # pause of a gang after a search without result, as a multiple of the search's duration
CLOCKS_S: Final = 30.0  # maximum difference of a node's clock


class GangFeed:
    """Keep gang members from the watch of pods. The ledger must receive each event first."""

    def __init__(
        self,
        starts: Starts,
        ledger: Ledger,
        *,
        finish_s: float = FINISH_S,
        now: Callable[[], float] = time.time,
        dialects: Dialects = OWN_ONLY,
    ) -> None:
        """Create the handler. `finish_s`: as for GangKeeper. `now`: Unix seconds."""
        self._dialects = dialects
        self._starts = starts
        self._gangs = starts.gangs
        self._ledger = ledger
        self._finish_s = finish_s
        self._now = now

    def replaced(self, objects: Sequence[Pod | Unreadable], version: str) -> None:
        listed = {PodUid(one.metadata.uid) for one in objects}
        for uid in [uid for uid in self._gangs.uids() if uid not in listed]:
            self._end(uid)
        for one in objects:
            self.changed(one)

    def changed(self, obj: Pod | Unreadable) -> None:
        if isinstance(obj, Unreadable):
            return
        metadata, spec = obj.metadata, obj.spec
        text = None if obj.ended else parse_membership(obj)
        if text is None or isinstance(text, MalformedRequest):
            self._end(metadata.uid)
            return
        record = self._ledger.pod(metadata.uid)
        member = Member(
            uid=metadata.uid,
            namespace=metadata.namespace,
            name=metadata.name,
            labels=metadata.labels,
            membership=text,
            created=metadata.creation_timestamp or "",
            priority=spec.priority,
            node=spec.node_name,
            old=bool(spec.node_name) and self._is_old(obj, text),
            assigned=ASSIGNMENT in metadata.annotations,
            bound_with=record.gang if record is not None else "",
            is_judged=mentions_devices(obj, self._dialects),
            deleting=metadata.deletion_timestamp is not None,
            gated=bool(spec.scheduling_gates),
        )
        self._gangs.put(member)
        self._starts.follow()

    def _is_old(self, pod: Pod, membership: Membership) -> bool:
        """Return whether the pod runs for longer than its gang may take to start. It may have started under another leader."""
        started, wait_s = pod.status.start_time, membership.terms.wait_s if membership.terms else None
        return started is not None and self._now() - parse_seconds(started) > finish_s(wait_s, self._finish_s) + CLOCKS_S

    def removed(self, deleted: Ident, version: str) -> None:
        self._end(PodUid(deleted.uid))

    def _end(self, uid: PodUid) -> None:
        self._gangs.remove(uid)
        self._starts.follow()


class GangObjectFeed:
    """Keep gang sizes from the watch of one kind of object, such as PodGroup."""

    def __init__(self, starts: Starts, kind: GangKind) -> None:
        self._starts = starts
        self._gangs = starts.gangs
        self._read = kind.read
        self._keys_of: dict[str, set[ObjectKey]] = {}  # keys in `gangs`, by uid of the watched object

    def replaced(self, objects: Sequence[PodGroup | Unreadable], version: str) -> None:
        for uid in self._keys_of.keys() - {one.metadata.uid for one in objects}:
            self._forget(uid)
        for one in objects:
            self.changed(one)

    def changed(self, obj: PodGroup | Unreadable) -> None:
        if isinstance(obj, Unreadable):
            return
        text = list(self._read(obj))
        now = {one.key for one in text}
        for key in self._keys_of.get(obj.metadata.uid, set()) - now:
            self._gangs.remove_object(key)
        self._keys_of[obj.metadata.uid] = now
        for one in text:
            self._gangs.put_object(one)
        self._starts.follow()

    def removed(self, deleted: Ident, version: str) -> None:
        self._forget(deleted.uid)

    def _forget(self, uid: str) -> None:
        for key in self._keys_of.pop(uid, set()):
            self._gangs.remove_object(key)
        self._starts.follow()


class GangKeeper:
    """Plan for gangs and hold their members at the barrier."""

    def __init__(
        self,
        scheduler: Scheduler,
        planner: GangPlanner,
        *,
        requeue: Callable[[Iterable[PodUid]], None],
        evictions: Evictions,
        take_back: TakeBack | None = None,
        patience_s: float,
        finish_s: float = FINISH_S,
        clock: Callable[[], float],
        log: Log,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        faults: Faults | None = None,
    ) -> None:
        """Create the keeper. `requeue` has kube-scheduler try these refused pods again. `patience_s`: seconds that a gang waits
        before free devices are reserved for it; 0: never. `finish_s`: maximum seconds from the first Binding until the missing
        members are bound. `clock`: the scheduler's clock."""
        self._faults = Faults(clock=clock, log=log) if faults is None else faults
        self._scheduler = scheduler
        self._planner = planner
        self._requeue = requeue
        self._evictions = evictions
        self._clock = clock
        self._log = log
        self._sleep = sleep
        self._finish_s = finish_s
        self._opened: dict[GangKey, asyncio.Event] = {}  # for gangs with members at the barrier; set when it opens
        self._planned_on: dict[GangKey, frozenset[str]] = {}  # the nodes of plans without a bound member
        self._for_singles: dict[str, float] = {}  # time until which only single pods may use a node of an ended plan
        self._visits = Agenda[GangKey]()  # when each gang is visited next, unless it changes before
        self._waiting: dict[GangKey, None] = {}  # gangs that wait for a plan, as of their last visit
        self._rests = Agenda[GangKey]()  # earliest time of the next search for a plan, by waiting gang
        self._searched: object = None  # the state of the cluster in which all waiting gangs had their turn
        self._scan_at = -math.inf  # earliest time of the next comparison of all waiting gangs
        self.phases: dict[GangKey, Phase] = {}  # phase of each gang at its last visit
        self._room_maker = RoomMaker(
            scheduler,
            planner,
            evictions=evictions,
            take_back=take_back,
            patience_s=patience_s,
            clock=clock,
            log=log,
            faults=self._faults,
        )

    @property
    def _gangs(self) -> Gangs:
        return self._scheduler.gangs

    @property
    def _starts(self) -> Starts:
        return self._scheduler.starts

    @property
    def _ledger(self) -> Ledger:
        return self._scheduler.ledger

    async def run(self) -> None:
        while True:
            await self.scan()
            await self._sleep(SCAN_S)

    async def scan(self) -> None:
        """Update gangs that changed or are due, then plan for the waiting gangs, one after the other."""
        slices = Slices(self._clock)
        changed = dict.fromkeys((*self._gangs.take_unvisited(), *self._visits.take_due(self._clock())))
        for key in changed:
            await self._visit(key)
            await slices.pause()
        self._leave_to_singles()
        await self._plan_in_line(await self._line(changed, slices))
        await self._room_maker.scan(self._waiting)

    async def _visit(self, key: GangKey) -> None:
        """Update the gang, and record the time of its next visit."""
        gang = self._gangs.get(key)
        if gang is not None:
            if not self._faults.sets_aside(Work.GANGS, str(key)):
                with self._faults.handling(Work.GANGS, str(key)):
                    await in_slices(self._gangs.compressing(gang), self._clock)
                    await self._follow(key)
            if (gang := self._gangs.get(key)) is not None:
                self._put_off(gang)
        if not self._gangs.has(key):
            self._visits.drop(key)
            self._rests.drop(key)
            for known in (self._waiting, self._opened, self.phases):
                known.pop(key, None)

    def _put_off(self, gang: Gang) -> None:
        """Record the time of the gang's next visit, and whether it waits for a plan."""
        now, phase, at, life, search = self._clock(), gang.phase, math.inf, gang.life, gang.search
        self.phases[gang.key] = phase
        if phase is Phase.QUEUED or gang.finishing:
            self._waiting[gang.key] = None
        else:
            self._waiting.pop(gang.key, None)
        if phase is Phase.QUEUED:
            due = max(search.since, search.judged_at[1]) + MAX_JUDGING_S
            soon = search.reason is OfPod.GANG_WAITS_FOR_MEMBERS
            at = due if due > now else now + (VISIT_S if soon else QUEUED_S)
        elif phase in {Phase.PLANNED, Phase.BINDING} or gang.plan or life.kept:
            late = max(life.arrived_at, life.named_at if life.named else -math.inf) + ARRIVED_S + SCAN_S
            at = min(now + VISIT_S, late if late > now else math.inf)
        if self._faults.sets_aside(Work.GANGS, str(gang.key)):
            at = now + VISIT_S
        self._visits.put(gang.key, min(at, max(life.until, now)))

    async def _line(self, changed: Iterable[GangKey], slices: Slices) -> list[tuple[Place, Gang]]:
        """Return a heap of the gangs that may get a plan now. If the cluster changed, all waiting gangs are considered; else
        only gangs that changed or whose pause ended."""
        began = self._clock()
        cluster = self._ledger.version, self._ledger.loads_version, self._planner.for_singles
        whole = cluster != self._searched and began >= self._scan_at
        keys = dict.fromkeys((*changed, *self._rests.take_due(began)))
        line, place = list[tuple[Place, Gang]](), gang_place(self._scheduler)
        for key in [*self._waiting] if whole else [key for key in keys if key in self._waiting]:
            gang = self._gangs.get(key)
            if gang is not None and not self._faults.sets_aside(Work.GANGS, str(key)) and self.is_due(gang):
                heappush(line, (place(gang), gang))  # not in one step at the end, which would take long for thousands of gangs
            elif gang is not None:
                self._rest(gang)
            await slices.pause()
        if whole:
            now = self._clock()
            self._searched, self._scan_at = cluster, now + (now - began if now - began > SCAN_S else 0.0)
        return line

    def _rest(self, gang: Gang) -> None:
        """Schedule the next comparison of the gang for the end of its pause, if it has a pause."""
        trials = gang.search.judged_at[1] + TRIALS_S if self._in_trials(gang) else -math.inf
        times = max(gang.search.not_before, gang.life.resumes), trials
        self._rests.put(gang.key, min((at for at in times if at > self._clock()), default=math.inf))

    async def _plan_in_line(self, line: list[tuple[Place, Gang]]) -> None:
        """Plan for these gangs in queue order. Each new plan counts for the order of the gangs after it."""
        until, place, slices = self._clock() + MAX_SCAN_S, gang_place(self._scheduler), Slices(self._clock)
        while line:
            await slices.pause()  # thousands of gangs may be planned here, and other tasks of the loop go on between two plans
            before, gang = heappop(line)
            current = self._gangs.get(gang.key)
            if current is None or not self.is_due(current):
                continue
            now = place(current)
            if line and now > before and now > line[0][0]:
                heappush(line, (now, current))
                continue
            with self._faults.handling(Work.GANGS, str(gang.key)):
                if await self._plan(current):
                    place = gang_place(self._scheduler)
            if (current := self._gangs.get(gang.key)) is not None:
                self._put_off(current)
                self._rest(current)
            if line and self._clock() >= until:
                # The next scan compares all gangs: the first may fit by then, and later gangs get a turn while these pause.
                self._searched = None
                break

    def _leave_to_singles(self) -> None:
        """Exclude the nodes of plans that ended before their first Binding from gang plans for SINGLES_S."""
        now = self._clock()
        for key, nodes in [*self._planned_on.items()]:
            gang = self._gangs.get(key)
            if gang is not None and (gang.life.is_open or gang.finishing or gang.ordinary):
                del self._planned_on[key]
            elif gang is None or not gang.plan:
                self._for_singles.update(dict.fromkeys(nodes, now + SINGLES_S))
                del self._planned_on[key]
        self._for_singles = {node: until for node, until in self._for_singles.items() if until > now}
        self._planner.for_singles = frozenset(self._for_singles)

    # ---- the course of a gang

    async def _follow(self, key: GangKey) -> None:
        gang = self._gangs.get(key)
        if gang is None:
            return
        now, gang = self._clock(), self._starts.end_kept(gang, min(KEPT_S, self._finish_s))
        match gang.phase:
            case Phase.PLACED:
                self._settle(gang)
            case Phase.BINDING:
                await self._finish(gang, now)
            case Phase.PLANNED if now >= gang.life.until or self._is_late(gang, now) or self._stalls(gang, now):
                self._undo(gang, "its members were not all sent to bind in time")
            case Phase.QUEUED:
                self._call_members(gang, now)
            case Phase.GATHERING:
                self._gangs.note(gang, since=math.inf)
            case _:
                pass

    def _settle(self, gang: Gang) -> None:
        """Requeue the members that waited for their gang's start, and drop the rest of the plan at its deadline."""
        gang = self._drop_late(self._starts.settle(gang), self._clock())
        if gang.search.since < math.inf:
            gang = self._gangs.note(gang, since=math.inf)
        if gang.life.until < math.inf and (self._clock() >= gang.life.until or not gang.plan):
            self._starts.end(gang)
            self._log.info(Event.GANG_PLACED, gang=str(gang.key), members=len(gang.members))
        waiting = [uid for uid, member in gang.members.items() if member.waits]
        held = [pod for uid in waiting if (pod := self._scheduler.pending.get_refused(uid)) and pod.in_gang]
        for pod in held:
            self._scheduler.pending.refused(pod, self._clock())  # the pod may now start without other members
        self._requeue(pod.uid for pod in held)

    async def _finish(self, gang: Gang, now: float) -> None:
        """End the start of a partly bound gang at its deadline."""
        if gang.life.stage is Stage.ABANDONED:
            await self._evict_bound(gang)
            return
        if gang.life.until == math.inf:  # another leader began the start, or the plan was dropped
            gang = self._starts.limit(gang, now + finish_s(gang.terms.wait_s, self._finish_s))
        if now < gang.life.until:
            planned = gang.plan.keys()
            gang = self._drop_late(gang, now)
            if gang.plan.keys() != planned:
                self._starts.pause(gang, starts=1)
            return
        strict = gang.terms.mode is Mode.STRICT and not gang.started
        reason = "its minimum was not bound in time" + ("; its bound members are evicted" if strict else "")
        self._undo(gang, reason, starts=1, fails=strict)

    async def _evict_bound(self, gang: Gang) -> None:
        for member in gang.members.values():
            record = self._ledger.pod(member.uid)
            if member.runs and record is not None and not record.deleting:
                await self._evictions.evict(record, EventReason.GANG_INCOMPLETE, f"gang {gang.key} was not complete in time")

    def _undo(self, gang: Gang, reason: str, *, starts: int = 0, fails: bool = False) -> None:
        """End the plan, and let the gang pause. `starts`: the failed starts to count. `fails`: bound members are evicted."""
        if self._in_trials(gang) and not gang.life.named:  # kube-scheduler did not try the gang's domain again
            self._gangs.calls.forget(gang.members)
        gang = self._starts.fail(gang) if fails else self._starts.end(gang)
        gang = self._starts.pause(gang, starts=starts)
        message = f"{reason}; it is planned again after a pause of {gang.life.resumes - self._clock():.1f} s"
        # The gang's patience begins anew.
        self._gangs.note(gang, guesses=False, since=math.inf, reason=OfPod.GANG_WAITS_FOR_TURN, message=message)
        self._log.warning(Event.GANG_UNDONE, reason, gang=str(gang.key), members=len(gang.members))

    def _drop_late(self, gang: Gang, now: float) -> Gang:
        """Drop the planned places of members that are not sent to bind in time after the first Binding."""
        if now - gang.life.arrived_at <= ARRIVED_S:
            return gang
        gang = self._starts.lose(gang, [uid for uid in gang.plan if uid not in gang.life.arrived])
        return self._starts.follow_change(gang)

    def _is_late(self, gang: Gang, now: float) -> bool:
        """Return whether a member has its node, and no further member was sent to bind for ARRIVED_S."""
        return now - max(gang.life.named_at, gang.life.arrived_at) > ARRIVED_S

    def _stalls(self, gang: Gang, now: float) -> bool:
        """Return whether kube-scheduler sends no more filter calls about planned members. It may have no node for one."""
        return now - gang.life.arrived_at > ARRIVED_S and not all(map(self._gangs.calls.names, gang.plan))

    def _in_trials(self, gang: Gang) -> bool:
        """Return whether kube-scheduler tries the gang in one domain after the other."""
        return self._gangs.calls.are_trials(gang.members)

    def _call_members(self, gang: Gang, now: float) -> None:
        """Requeue members without a request from kube-scheduler since this leadership began."""
        calls = self._gangs.calls
        since, count = min(gang.search.since, now), calls.count(gang.members)
        judged_at = gang.search.judged_at if count == gang.search.judged_at[0] else (count, now)
        if (since, judged_at) != (gang.search.since, gang.search.judged_at):
            gang = self._gangs.note(gang, since=since, judged_at=judged_at)
        if now < max(since, judged_at[1]) + MAX_JUDGING_S:
            return
        silent = [uid for uid, member in gang.members.items() if member.waits and not calls.names(uid)]
        known = [pod for uid in silent if (pod := self._scheduler.pending.get(uid)) is not None]
        # Some pods were refused as single pods before they became members.
        pods = [pod for pod in known if pod.refused_at is None or not pod.in_gang]
        for pod in pods:
            self._scheduler.pending.waits_for_gang(pod, now)
        self._requeue(pod.uid for pod in pods)
        if gang.search.reason is OfPod.GANG_WAITS_FOR_MEMBERS:
            self._requeue_waiting(gang)

    # ---- plans

    def is_due(self, gang: Gang) -> bool:
        """Return whether a plan may be found now, because something changed since the last search."""
        lacks = gang.finishing and gang.life.stage is not Stage.ABANDONED and gang.has_minimum and not gang.covered
        now, search = self._clock(), gang.search
        if not (gang.phase is Phase.QUEUED or lacks) or now < max(search.not_before, gang.life.resumes):
            return False
        if self._in_trials(gang) and now < search.judged_at[1] + TRIALS_S:
            return False
        return search.tried != self._planner.state(gang)

    async def _plan(self, gang: Gang) -> bool:
        """Search for a plan. Return whether one was found."""
        began, state = self._clock(), self._planner.state(gang)
        result = await result_in_slices(self._planner.planning(gang), self._clock)
        current = self._gangs.get(gang.key)
        if current is None:
            return False
        if self.apply(current, result):
            return True
        current = self._gangs.get(gang.key) or current
        of_quota = current.search.reason in OF_QUOTA  # quotas change without a change of the ledger
        if current.search.reason is not OfPod.GANG_WAITS_FOR_MEMBERS:  # _call_members requeues the members of those gangs
            current = self._requeue_waiting(current)
        pause_s = max(REST * (self._clock() - began), QUOTA_S if of_quota else 0.0)
        self._gangs.note(current, tried=None if of_quota else state, not_before=self._clock() + pause_s)
        return False

    def _requeue_waiting(self, gang: Gang) -> Gang:
        """Requeue the waiting members: once for each reason, so that the members' Events report it; and when the number of
        nodes changed, because kube-scheduler has not judged new nodes yet."""
        notified = gang.search.reason, len(self._ledger.nodes())
        if gang.search.notified != notified:
            gang = self._gangs.note(gang, notified=notified)
            self._requeue(member.uid for member in gang.waiting())
        return gang

    def apply(self, gang: Gang, result: FoundPlan | NoPlan) -> bool:
        """Hold the plan of a search until its deadline, and requeue its members. Return whether a plan is held."""
        now, until, finishing = self._clock(), gang.life.until, gang.finishing
        if not finishing or until == math.inf:
            until = now + (finish_s(gang.terms.wait_s, self._finish_s) if finishing else PLAN_S)
        if not self._planner.apply(gang, result, until=until, counts=not finishing):
            return False
        gang = self._gangs.note(gang, tried=None, notified=None)
        if not finishing:
            self._planned_on[gang.key] = gang.life.nodes
        self._log.info(Event.GANG_PLANNED, gang=str(gang.key), members=len(gang.plan), nodes=len(gang.life.nodes))
        self._requeue([uid for uid in gang.plan if self._scheduler.pending.get_refused(uid)])
        return True

    # ---- the barrier

    async def arrive(self, uid: PodUid, node: str) -> str:
        """Wait until all members of the pod's gang that start together were sent to bind. Return an empty text if the pod may
        be bound now, else the reason why not."""
        waits = self.enter(uid, node)
        if isinstance(waits, str):
            return waits
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BARRIER_S):
                await self._opened.setdefault(waits.key, asyncio.Event()).wait()
        again = self.enter(uid, node)
        if isinstance(again, str):
            return again
        gang = again
        counts = ", ".join(
            f"{arrived} of {lacking}{f' of role {role}' if role else ''}" for role, lacking, arrived in gang.required()
        )
        return OfBinding.GANG_INCOMPLETE.about(f"gang {gang.key}: {counts} members are ready to be bound; this is retried")

    def enter(self, uid: PodUid, node: str) -> str | Gang:
        """Enter a pod at the barrier of its gang. Return an empty text if the pod may be bound; the reason if it cannot be
        bound there; or the gang, if it must wait for other members."""
        waits = self._scheduler.waits_for_gang(uid)
        if waits is None:
            return ""
        gang, _ = waits
        planned = gang.life.places.get(uid)
        if planned is None or planned.node != node:
            return OfBinding.GANG_INCOMPLETE.about(f"gang {gang.key} has no place for the pod on {node} any more")
        gang = self._starts.arrive(gang, uid)
        if not (gang.ordinary or gang.life.is_open) and gang.at_barrier:
            gang = self._starts.open(gang, self._clock() + finish_s(gang.terms.wait_s, self._finish_s))
            if opened := self._opened.pop(gang.key, None):
                opened.set()
        return "" if gang.ordinary or gang.life.is_open else gang


def finish_s(wait_s: float | None, most_s: float) -> float:
    """Return the seconds from the first Binding until the missing members must be bound. `wait_s`: the gang's own value."""
    return min(wait_s or most_s, most_s)
