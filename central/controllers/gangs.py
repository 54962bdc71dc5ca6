"""Follow gangs: who belongs to them, plans for those that are complete, one Binding after all are ready, and the end of a plan.

    watch ─▶ GangFeed ─▶ gang ─▶ plan, in slices ─▶ members are requeued ─▶ filter names the node ─▶ bind ─▶ barrier ─▶ Bindings

One gang is planned at a time, in the order of the queue: a gang of which some members are bound comes first, then by the
line (gang/queue.py). A gang that cannot be placed lets the next one pass, and room is made for it (make_room.py).

No plan is waited for without an end: if the first Binding is not possible in PLAN_S, the plan is dropped, and made again after
a pause. If the minimum is not bound in time after the first Binding, the bound members of a strict gang are evicted.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from central.api.known import Ident
from central.api.pod_groups import GangKind, PodGroup
from central.api.times import parse_seconds
from central.api.watch import Unreadable
from central.ask.gang import GangKey, Membership, Mode, ObjectKey, parse_membership
from central.ask.model import BadAsk
from central.ask.parse import mentions_devices
from central.ask.pod import Pod
from central.ask.reasons import OfBinding, OfPod
from central.controllers.make_room import OF_QUOTA, Evictions, RoomMaker
from central.controllers.take_back import TakeBack
from central.gang.claims import drop_plan, follow_end
from central.gang.gangs import Gangs
from central.gang.model import Gang, Member, Phase
from central.ledger.ledger import Ledger
from central.loop.slices import result_in_slices
from central.scheduling.gangs import GangPlanner
from central.scheduling.line import gangs_in_line
from central.scheduling.scheduler import Scheduler
from lading.log import Event, Log
from lading.vocabulary import PodUid

LOOK_S: Final = 0.1
LOOK_MOST_S: Final = 0.5  # of one look, for plans
# From a plan to the first Binding. kube-scheduler asks about some hundred pods a second, and tries a pod again after 1 s.
PLAN_S: Final = 60.0
# From the first Binding until the minimum is bound, where the gang says nothing else.
FINISH_S: Final = 60.0
LONGEST_FINISH_S: Final = 3600.0
# kube-scheduler gives up a request after 5 s, and a Binding follows the wait.
BARRIER_S: Final = 4.0
ARRIVED_S: Final = 10.0  # how long a member counts that was sent to bind and was not waited for
LONGEST_PAUSE_S: Final = 60.0
TRIALS_S: Final = 0.5  # without a new question: kube-scheduler has tried a gang in each domain
ASKED_WITHIN_S: Final = 2.0  # kube-scheduler asks about a new pod by then; of others it is told again
QUOTA_S: Final = 0.5  # until a gang that its quota refused is tried again
REST: Final = 4  # a search without result is followed by so many times its duration without another one for that gang
CLOCKS_S: Final = 30.0  # by which a node's clock may differ
INCOMPLETE: Final = "GangIncomplete"


class GangFeed:
    """Take in the watch of pods, after the ledger did."""

    def __init__(self, gangs: Gangs, ledger: Ledger, *, now: Callable[[], float] = time.time) -> None:
        """Create the handler. `now`: Unix seconds."""
        self._gangs = gangs
        self._ledger = ledger
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
        said = None if obj.ended else parse_membership(obj)
        if said is None or isinstance(said, BadAsk):
            self._end(metadata.uid)
            return
        member = Member(
            uid=metadata.uid,
            namespace=metadata.namespace,
            name=metadata.name,
            membership=said,
            created=metadata.creation_timestamp or "",
            priority=spec.priority,
            node=spec.node_name,
            old=bool(spec.node_name) and self._is_old(obj, said),
            asks=mentions_devices(obj),
            deleting=metadata.deletion_timestamp is not None,
            gated=bool(spec.scheduling_gates),
        )
        self._gangs.put(member)

    def _is_old(self, pod: Pod, said: Membership) -> bool:
        """Return whether the pod runs for longer than its gang may take to start. Another leader may have seen it start."""
        started, wait_s = pod.status.start_time, said.terms.wait_s if said.terms else None
        return started is not None and self._now() - parse_seconds(started) > finish_s(wait_s) + CLOCKS_S

    def removed(self, gone: Ident, version: str) -> None:
        self._end(PodUid(gone.uid))

    def _end(self, uid: PodUid) -> None:
        found = self._gangs.remove(uid)
        if found is not None:
            follow_end(self._ledger, *found)


class GangObjectFeed:
    """Take in the watch of one kind of objects that say how many members start together."""

    def __init__(self, gangs: Gangs, kind: GangKind) -> None:
        self._gangs = gangs
        self._read = kind.read
        self._known: dict[str, set[ObjectKey]] = {}  # by uid

    def replaced(self, objects: Sequence[PodGroup | Unreadable], version: str) -> None:
        for uid in self._known.keys() - {one.metadata.uid for one in objects}:
            self._forget(uid)
        for one in objects:
            self.changed(one)

    def changed(self, obj: PodGroup | Unreadable) -> None:
        if isinstance(obj, Unreadable):
            return
        said = list(self._read(obj))
        now = {one.key for one in said}
        for key in self._known.get(obj.metadata.uid, set()) - now:
            self._gangs.remove_object(key)
        self._known[obj.metadata.uid] = now
        for one in said:
            self._gangs.put_object(one)

    def removed(self, gone: Ident, version: str) -> None:
        self._forget(gone.uid)

    def _forget(self, uid: str) -> None:
        for key in self._known.pop(uid, set()):
            self._gangs.remove_object(key)


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
        clock: Callable[[], float],
        log: Log,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Create it. `requeue` has kube-scheduler ask about these refused pods again. `patience_s`: how long a gang waits until
        room is kept for it; 0: never. `clock`: that of the scheduler."""
        self._scheduler = scheduler
        self._planner = planner
        self._requeue = requeue
        self._evictions = evictions
        self._clock = clock
        self._log = log
        self._sleep = sleep
        self._opened: dict[GangKey, asyncio.Event] = {}  # of gangs with members at the barrier
        self._room = RoomMaker(
            scheduler, planner, evictions=evictions, take_back=take_back, patience_s=patience_s, clock=clock, log=log
        )

    @property
    def _gangs(self) -> Gangs:
        return self._scheduler.gangs

    @property
    def _ledger(self) -> Ledger:
        return self._scheduler.ledger

    async def run(self) -> None:
        """Run until it is cancelled."""
        while True:
            await self.look()
            await self._sleep(LOOK_S)

    async def look(self) -> None:
        """Follow what became of each gang, then plan for those that wait, one after the other."""
        for gang in self._gangs:
            await self._follow(gang)
        self._opened = {key: opened for key, opened in self._opened.items() if self._gangs.has(key)}
        until = self._clock() + LOOK_MOST_S
        line = self._in_line(gang for gang in self._gangs if self._is_due(gang))
        while line:
            gang = line.pop(0)
            if gang.members and self._is_due(gang) and await self._plan(gang):
                line = self._in_line(line)  # what it has counts from now on
            if self._clock() >= until:
                break  # those first in line may have room by now; those after them have their turn while these rest
        await self._room.look()

    def _in_line(self, gangs: Iterable[Gang]) -> list[Gang]:
        return gangs_in_line(self._scheduler, gangs)

    # ---- what became of it

    async def _follow(self, gang: Gang) -> None:
        now, phase = self._clock(), gang.phase
        self._forget_arrivals(gang, now)
        gang.undone &= phase is Phase.BINDING
        match phase:
            case Phase.PLACED:
                self._settle(gang)
            case Phase.BINDING:
                await self._finish(gang, now)
            case Phase.PLANNED if now >= gang.until or self._stalls(gang, now):
                self._undo(gang, "its members could not all be bound in time")
            case Phase.QUEUED:
                self._call_members(gang, now)
            case Phase.GATHERING:
                gang.since = math.inf
                if gang.plan:
                    drop_plan(self._ledger, gang)
            case _:
                pass

    def _settle(self, gang: Gang) -> None:
        """Requeue the members that waited for the start of their gang, and drop what is left of its plan in time."""
        if gang.until < math.inf and (self._clock() >= gang.until or not gang.plan):
            drop_plan(self._ledger, gang)
            gang.failures = 0
            self._log.info(Event.GANG_PLACED, gang=str(gang.key), members=len(gang.members))
        waiting = [uid for uid, member in gang.members.items() if member.waits]
        held = [pod for uid in waiting if (pod := self._scheduler.pending.get_refused(uid)) and pod.in_gang]
        for pod in held:
            self._scheduler.pending.refused(pod, self._clock())  # from now on room for it alone will do
        self._requeue(pod.uid for pod in held)

    async def _finish(self, gang: Gang, now: float) -> None:
        """End a gang that is bound in part when its time is over."""
        if gang.undone:
            await self._evict_bound(gang)
            return
        if gang.until == math.inf:  # another leader began it, or its plan was dropped
            gang.until = now + finish_s(gang.terms.wait_s)
        if now < gang.until:
            return
        strict = gang.terms.mode is Mode.STRICT and not gang.started
        self._undo(gang, "its minimum was not bound in time" + ("; its bound members are evicted" if strict else ""))
        gang.undone = strict

    async def _evict_bound(self, gang: Gang) -> None:
        for member in [*gang.members.values()]:
            record = self._ledger.pod(member.uid)
            if member.node and member.asks and record is not None and not record.deleting:
                await self._evictions.evict(record, INCOMPLETE, f"gang {gang.key} was not complete in time")

    def _undo(self, gang: Gang, why: str) -> None:
        if gang.in_trials and not gang.named:  # its domain was not tried again
            for member in gang.members.values():
                member.names.clear()
        drop_plan(self._ledger, gang)
        gang.guesses = False
        gang.failures += 1
        gang.not_before = self._clock() + min(LONGEST_PAUSE_S, 2.0 ** (gang.failures - 1))
        gang.refuse(OfPod.GANG_WAITS_FOR_TURN, f"{why}; it is planned again")
        self._log.warning(Event.GANG_UNDONE, why, gang=str(gang.key), members=len(gang.members))

    def _stalls(self, gang: Gang, now: float) -> bool:
        """Return whether kube-scheduler seems to ask about no more members. It may have no node for one of them."""
        return now - gang.arrived_at > ARRIVED_S and any(not gang.members[uid].names for uid in gang.plan)

    def _call_members(self, gang: Gang, now: float) -> None:
        """Have kube-scheduler ask about members that it did not ask about since this leadership began."""
        gang.since = min(gang.since, now)
        if gang.questions != gang.asked[0]:
            gang.asked = gang.questions, now
        if now < max(gang.since, gang.asked[1]) + ASKED_WITHIN_S:
            return
        silent = [uid for uid, member in gang.members.items() if member.waits and not member.names]
        pods = [pod for uid in silent if (pod := self._scheduler.pending.get(uid)) is not None and pod.refused_at is None]
        for pod in pods:
            self._scheduler.pending.waits_for_gang(pod, now)
        self._requeue(pod.uid for pod in pods)
        if gang.refused_for is OfPod.GANG_WAITS_FOR_MEMBERS:
            self._tell(gang)

    # ---- plans

    def _is_due(self, gang: Gang) -> bool:
        """Return whether a plan may be found now that could not be found before."""
        missing = gang.phase is Phase.QUEUED or (gang.finishing and not gang.undone and self._lacks_places(gang))
        now = self._clock()
        if not missing or now < gang.not_before or (gang.in_trials and now < gang.asked[1] + TRIALS_S):
            return False
        return gang.tried != self._planner.state(gang)

    def _lacks_places(self, gang: Gang) -> bool:
        planned = gang.planned()
        return any(planned[role] < lacking for role, lacking in gang.lacking().items())

    async def _plan(self, gang: Gang) -> bool:
        """Search a plan. Return whether there is one."""
        began, state = self._clock(), self._planner.state(gang)
        if await result_in_slices(self._planner.planning(gang), self._clock):
            self._planned(gang)
            return True
        if gang.members:
            if gang.refused_for is not OfPod.GANG_WAITS_FOR_MEMBERS:  # for these, see _call_members
                self._tell(gang)
            gang.tried = None if gang.refused_for in OF_QUOTA else state  # quotas change without a change of the ledger
            gang.not_before = self._clock() + max(
                REST * (self._clock() - began), QUOTA_S if gang.refused_for in OF_QUOTA else 0.0
            )
        return False

    def _tell(self, gang: Gang) -> None:
        """Have kube-scheduler ask again: once for each reason, so that the members' events say why they wait; and when there
        are other nodes, of which it has not said yet whether they are possible."""
        told = gang.refused_for, len(self._ledger.nodes())
        if gang.told != told:
            gang.told = told
            self._requeue(member.uid for member in gang.waiting())

    def _planned(self, gang: Gang) -> None:
        now = self._clock()
        if not gang.finishing:
            gang.until = now + PLAN_S
        gang.tried = gang.told = None
        gang.arrived_at = now
        self._log.info(Event.GANG_PLANNED, gang=str(gang.key), members=len(gang.plan), nodes=len(gang.nodes))
        refused = [uid for uid in gang.plan if self._scheduler.pending.get_refused(uid)]
        self._requeue(refused)

    # ---- the barrier

    async def arrive(self, uid: PodUid, node: str) -> str:
        """Wait until all members of the pod's gang that start together were sent to bind. Return an empty text: the pod may be
        bound now; or why not."""
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
        """Have a pod enter the barrier of its gang. Return an empty text if it may be bound, why it cannot be bound there, or
        the gang whose other members it has to wait for."""
        found = self._gangs.of(uid)
        if found is None or (found[0].ordinary and found[1].planned is None):
            return ""
        gang, member = found
        if member.planned is None or member.planned.node != node:
            return OfBinding.GANG_INCOMPLETE.about(f"gang {gang.key} has no place for the pod on {node} any more")
        now = self._clock()
        if not member.arrived:
            gang.arrived_at = now
        member.arrived, member.arrived_at = True, now
        return "" if gang.ordinary or self._open(gang) else gang

    def _open(self, gang: Gang) -> bool:
        """Open the barrier if all that start together are there."""
        if not gang.opened and gang.at_barrier:
            gang.opened = True
            gang.until = self._clock() + finish_s(gang.terms.wait_s)
            if opened := self._opened.pop(gang.key, None):
                opened.set()
        return gang.opened

    def _forget_arrivals(self, gang: Gang, now: float) -> None:
        """Members that were sent to bind long ago, and not again, are not about to be bound. As long as more of them arrive,
        kube-scheduler has only not come to the others yet."""
        if gang.opened or now - gang.arrived_at <= ARRIVED_S:
            return
        for member in gang.members.values():
            if member.arrived and now - member.arrived_at > ARRIVED_S:
                member.arrived = False


def finish_s(wait_s: float | None) -> float:
    """Return how long the members that are missing after the first Binding are waited for. `wait_s`: what the gang says."""
    return min(wait_s or FINISH_S, LONGEST_FINISH_S)
