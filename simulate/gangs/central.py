"""Start gangs by central's own code: its ledger, scheduler, planner and keeper of gangs, on the clock of the replay.

    pod of a gang ─▶ GangFeed, filter ─▶ GangKeeper.scan: order, plan, patience, reservations ─▶ filter names the node
                  ─▶ barrier ─▶ reserve ─▶ bound

This module has only the parts of kube-scheduler and of the watches. kube-scheduler asks again about requeued pods, and about
all pods after a job ended. In each step, gangs are planned before single pods are tried: a plan holds its devices at once, but
requeued pods are tried later. All pods have the same priority, so that none is evicted.

Tests: tests/unit/simulate/gangs/test_replay.py
"""

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from central.api.cached_objects import Ident
from central.controllers.gangs import GangFeed, GangKeeper
from central.decide.gangs import GangPlanner
from central.decide.scheduler import Reservation
from central.decide.victims import Protection
from central.gang.gang import Gang
from central.gang.life import Phase
from central.ledger.model import PodRecord
from central.request.pod import Pod
from lading.log import Level, open_log
from lading.vocabulary import GANG, GANG_MIN, PodUid
from simulate.central_actions import complete
from simulate.cluster import Placed
from simulate.gangs.books import Books
from simulate.gangs.model import Job
from simulate.objects import card_of
from simulate.product import Product, read_pod, uid_of

PATIENCE_S: Final = 600.0  # central's default


class _NoEvictions:
    """Refuse all evictions, because all pods have one priority."""

    def protection(self) -> Protection | None:
        return None

    async def evict(self, victim: PodRecord, reason: str, cause: str, *, dry_run: bool = False) -> bool:
        raise AssertionError(f"{victim.uid} is evicted {cause}")


class _Member(msgspec.Struct, frozen=True):
    job: Job
    number: int  # number of the pod, for the policy
    pod: Pod


class ByPlan:
    """Start gangs by Lading's planner."""

    def __init__(self, books: Books, product: Product) -> None:
        self._books = books
        self._product = product
        self._scheduler = product.scheduler
        self._now = 0.0
        self._members: dict[PodUid, _Member] = {}
        self._of: dict[int, list[PodUid]] = {}  # UIDs of a gang's members, by job
        self._alone: dict[str, dict[int, Job]] = {}  # waiting jobs of one pod, by tenant and number
        self._pending: dict[PodUid, None] = {}
        self._feed = GangFeed(self._scheduler.starts, self._scheduler.ledger, now=lambda: self._now)
        self._keeper = GangKeeper(
            self._scheduler,
            GangPlanner(self._scheduler),
            requeue=self._requeue,
            evictions=_NoEvictions(),
            patience_s=PATIENCE_S,
            clock=lambda: self._now,
            log=open_log("simulate", Level.ERROR),
        )

    def arrive(self, job: Job) -> None:
        if job.members == 1:
            self._alone.setdefault(job.tenant, {})[job.number] = job
            return
        members = [self._member(job) for _ in range(job.members)]
        self._of[job.number] = [member.pod.metadata.uid for member in members]
        for member in members:
            self._members[member.pod.metadata.uid] = member
            self._feed.changed(member.pod)
        self._requeue(self._of[job.number])

    def ended(self, job: Job) -> None:
        for uid in self._of.pop(job.number, ()):
            del self._members[uid]
            self._feed.removed(Ident(job.tenant, uid, uid), "")
        self._requeue(uid for uid in self._members if self._scheduler.pending.get(uid) is not None)

    def step(self, now: float) -> None:
        self._now = now
        self._scheduler.ledger.expire(now)
        requested, self._pending = self._pending, {}
        for uid in requested:
            self._ask(uid)
        complete(self._keeper.scan())
        for gang in self._scheduler.gangs:
            if gang.phase is Phase.PLANNED:
                self._bind(gang, now)
        self._place_alone(now)

    # ---- kube-scheduler's part

    def _requeue(self, uids: Iterable[PodUid]) -> None:
        self._pending.update(dict.fromkeys(uid for uid in uids if uid in self._members))

    def _ask(self, uid: PodUid) -> str:
        """Filter one pod, and return its node; empty if it is refused."""
        member = self._members.get(uid)
        if member is None:
            return ""
        return next(iter(self._scheduler.filter(member.pod, list(self._product.able(member.job.kind))).fitting), "")

    def _bind(self, gang: Gang, now: float) -> None:
        """Filter all members of the plan, let them enter the barrier, and bind them once it opens."""
        nodes = {uid: self._ask(uid) for uid in [*gang.plan]}
        if not all(nodes.values()):
            self._requeue(nodes)
            return
        for uid, node in nodes.items():
            if isinstance(refused := self._keeper.enter(uid, node), str) and refused:
                raise AssertionError(refused)
        job = self._members[next(iter(nodes))].job
        for uid, node in nodes.items():
            self._bind_one(self._members[uid], node)
        self._books.start(job, now)

    def _bind_one(self, member: _Member, node: str) -> None:
        uid = member.pod.metadata.uid
        reserved = self._scheduler.reserve(uid, node)
        result = self._scheduler.gangs.of(uid)
        planned = result[0].life.places.get(uid) if result is not None else None
        if not isinstance(reserved, Reservation) or result is None or planned is None:
            raise AssertionError(f"{uid} is planned on {node}, and cannot be bound there: {reserved}")
        self._scheduler.confirm(reserved)
        taken = planned.placement.taken
        record = PodRecord(
            uid=uid,
            namespace=member.job.tenant,
            name=uid,
            version=1,
            node=node,
            taken=taken,
            cpu_memory=reserved.pod.cpu_memory,
            gang=result[0].key.text,
        )
        self._scheduler.ledger.facts.set_pod(record)
        self._scheduler.pending.remove(uid)
        bound = msgspec.structs.replace(member.pod.spec, node_name=node)
        self._feed.changed(msgspec.structs.replace(member.pod, spec=bound))
        row = self._product.row_of[node]
        self._books.book(member.job, member.number, Placed(row, sorted(map(card_of, taken.gpus)), taken.vfs))

    def _place_alone(self, now: float) -> None:
        """Place single pods in the order of central's queue: the tenant with the least first, then the oldest."""
        full: set[int] = set()  # kinds that fit nowhere now
        while job := self._next_alone(full):
            if self._books.place(job, sees_all=False):
                self._books.start(job, now)
                del self._alone[job.tenant][job.number]
            else:
                full.add(job.kind)

    def _next_alone(self, full: Collection[int]) -> Job | None:
        tenants = self._scheduler.tenants
        tenants.catch_up()
        oldest = (next((job for job in jobs.values() if job.kind not in full), None) for jobs in self._alone.values())
        ready = [job for job in oldest if job is not None]
        return min(ready, key=lambda job: (tenants.part(job.tenant), job.number), default=None)

    def _member(self, job: Job) -> _Member:
        number, pod = self._books.next_pod(), read_pod(job.pod)
        uid = uid_of(number)
        metadata = msgspec.structs.replace(
            pod.metadata,
            namespace=job.tenant,
            name=uid,
            uid=uid,
            creation_timestamp=f"{number:012d}",  # sorts by age
            annotations={**pod.metadata.annotations, GANG: f"job-{job.number}", GANG_MIN: str(job.members)},
        )
        return _Member(job, number, msgspec.structs.replace(pod, metadata=metadata))
