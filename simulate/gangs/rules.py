"""Start gangs by the rules of other projects, for comparison in a replay. Each set of rules follows its documentation only.

    greedy       Pods are placed one by one, in the order of their jobs' arrival, and hold their devices. A gang that is still
                 incomplete HOLD_S after its first pod was placed releases all, and is tried again after PAUSE_S.
    koordinator  One gang at a time: all its pods are tried, one after the other. If one fits nowhere, the whole gang is
                 refused (Strict), and the next one passes. Refused gangs are tried again when a job has ended. As all pods of
                 a gang exist when it is tried, none waits at Permit, and its waiting-time does not matter.
    kueue        A job is admitted if the quota (all cpu, memory and GPUs of the cluster) has enough left; jobs that do not
                 fit are passed (BestEffortFIFO). Pods of admitted jobs are placed one by one, and hold their devices. A job
                 that is incomplete READY_S after its admission (waitForPodsReady) is evicted, and waits for BACK_OFF_S at the
                 end of the queue, twice as long each further time.

All rules choose the node of one pod by the same policy of central. Waiting jobs are tried in the order of their arrival.

Source: kubernetes-sigs/scheduler-plugins (coscheduling), koordinator.sh gang scheduling, kueue.sigs.k8s.io.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from simulate.gangs.books import Books
from simulate.gangs.model import Job

HOLD_S: Final = 300.0
PAUSE_S: Final = 60.0
READY_S: Final = 300.0  # the value of Kueue's examples
BACK_OFF_S: Final = 60.0  # requeuingStrategy.backoffBaseSeconds
LONGEST_BACK_OFF_S: Final = 3600.0  # requeuingStrategy.backoffMaxSeconds, the default


class Starter(Protocol):
    """Start the jobs of one replay by some rules."""

    def arrive(self, job: Job) -> None:
        """Record that the job arrived and waits."""

    def ended(self, job: Job) -> None:
        """Record that the job ended; its devices are already released."""

    def step(self, now: float) -> None:
        """Start the jobs that can start now."""


class OneByOne:
    """Start gangs by the greedy rules: pods are placed one by one, and hold their devices."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._waiting: dict[int, Job] = {}
        self._since: dict[int, float] = {}  # time at which a job's first pod was placed, in seconds
        self._not_before: dict[int, float] = {}

    def arrive(self, job: Job) -> None:
        self._waiting[job.number] = job

    def ended(self, job: Job) -> None:
        pass

    def step(self, now: float) -> None:
        for number, since in [*self._since.items()]:
            if now >= since + HOLD_S:
                self._books.give_back(self._waiting[number])
                self._books.given_back += 1
                self._not_before[number] = now + PAUSE_S
                del self._since[number]
        ready = [job for number, job in self._waiting.items() if now >= self._not_before.get(number, 0.0)]
        place_in_turn(self._books, ready)
        for job in ready:
            if not self._books.missing(job):
                self._books.start(job, now)
                for known in (self._waiting, self._since, self._not_before):
                    known.pop(job.number, None)
            elif self._books.holds(job):
                self._since.setdefault(job.number, now)


class GangByGang:
    """Start gangs by Koordinator's rules in Strict mode: one gang at a time, all of its pods or none."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._waiting: dict[int, Job] = {}
        self._tried: set[int] = set()  # jobs refused since a job last ended

    def arrive(self, job: Job) -> None:
        self._waiting[job.number] = job

    def ended(self, job: Job) -> None:
        self._tried.clear()

    def step(self, now: float) -> None:
        refused: dict[int, int] = {}  # smallest gang that was refused in this step, by kind of pod
        for number, job in [*self._waiting.items()]:
            if number in self._tried:
                continue
            if job.members < refused.get(job.kind, job.members + 1) and self._place_all(job):
                self._books.start(job, now)
                del self._waiting[number]
            else:
                self._tried.add(number)
                refused[job.kind] = min(job.members, refused.get(job.kind, job.members))

    def _place_all(self, job: Job) -> bool:
        for _ in range(job.members):
            if not self._books.place(job):
                self._books.give_back(job)
                return False
        return True


@dataclass(slots=True)
class _Admitted:
    job: Job
    since: float


@dataclass(slots=True)
class _Quota:
    """Hold the remaining quota: cpu in milli, memory in MiB, GPUs in milli."""

    left: list[int]

    def take(self, job: Job) -> bool:
        requested = _amounts_of(job)
        if any(one > left for one, left in zip(requested, self.left, strict=True)):
            return False
        self.left = [left - one for one, left in zip(requested, self.left, strict=True)]
        return True

    def give_back(self, job: Job) -> None:
        self.left = [left + one for one, left in zip(_amounts_of(job), self.left, strict=True)]


def _amounts_of(job: Job) -> tuple[int, int, int]:
    return job.members * job.pod.cpu_milli, job.members * job.pod.memory_mib, job.milli


@dataclass(slots=True)
class _Queued:
    job: Job
    not_before: float = 0.0
    evictions: int = 0


class ByQuota:
    """Start gangs by Kueue's rules, with one ClusterQueue and the whole cluster as its quota."""

    def __init__(self, books: Books) -> None:
        self._books = books
        cluster = books.cluster
        self._quota = _Quota([int(cluster.cpu_milli.sum()), int(cluster.memory_mib.sum()), cluster.capacity])
        self._queue: dict[int, _Queued] = {}
        self._admitted: dict[int, _Admitted] = {}  # admitted jobs that do not run yet, in the order of admission

    def arrive(self, job: Job) -> None:
        self._queue[job.number] = _Queued(job)

    def ended(self, job: Job) -> None:
        self._quota.give_back(job)

    def step(self, now: float) -> None:
        self._evict(now)
        for number, queued in self._queue.items():
            if number not in self._admitted and now >= queued.not_before and self._quota.take(queued.job):
                self._admitted[number] = _Admitted(queued.job, now)
        place_in_turn(self._books, (one.job for one in self._admitted.values()))
        for number, one in [*self._admitted.items()]:
            if not self._books.missing(one.job):
                self._books.start(one.job, now)
                del self._admitted[number], self._queue[number]

    def _evict(self, now: float) -> None:
        for number, one in [*self._admitted.items()]:
            if now >= one.since + READY_S:
                queued = self._queue[number] = self._queue.pop(number)  # moved to the end of the queue: timestamp Eviction
                self._books.given_back += self._books.holds(one.job)
                self._books.give_back(one.job)
                self._quota.give_back(one.job)
                queued.not_before = now + min(LONGEST_BACK_OFF_S, BACK_OFF_S * 2**queued.evictions)
                queued.evictions += 1
                del self._admitted[number]


def place_in_turn(books: Books, jobs: Iterable[Job]) -> None:
    """Place pods of these jobs one by one, as far as they fit. Placed pods hold their devices."""
    full: set[int] = set()  # kinds of pods that fit on no node; no pod ends meanwhile
    for job in jobs:
        while job.kind not in full and books.missing(job):
            if not books.place(job):
                full.add(job.kind)
