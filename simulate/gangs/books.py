"""Book the devices of each job and the running jobs, and measure them: the same books for all rules.

Every placement is booked in the Cluster too, which ends the replay if the free capacity is exceeded. Rules place pods through
`place`, or choose the placement and call `book`; a job whose pods are all placed runs from `start` on.

Tests: tests/unit/simulate/gangs/test_rules.py
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from simulate.cluster import Cluster, Placed
from simulate.gangs.jobs import Times
from simulate.gangs.model import GangStay, Job, Rules
from simulate.product import Product
from simulate.replay import TurnedAwayError


class Held(NamedTuple):
    pod: int  # number of the pod, for the policy
    where: Placed


class Books:
    def __init__(self, cluster: Cluster, product: Product, times: Times) -> None:
        self.cluster = cluster
        self._product = product
        self._times = times
        self._held: dict[int, list[Held]] = defaultdict(list)  # placed pods, by number of the job
        self._numbers = 0
        self._ends: list[tuple[float, Job]] = []
        self._waiting: dict[int, Job] = {}
        self._measured_s = 0.0
        self.running = 0  # milli of running jobs
        self._sums = [0.0, 0.0, 0.0]  # milli times seconds, after the warm-up: running, idle, queued
        self._waits: dict[str, list[float]] = defaultdict(list)
        self._had: dict[str, float] = defaultdict(float)
        self._wanted: dict[str, float] = defaultdict(float)
        self._runs_of: dict[str, int] = defaultdict(int)  # milli of running jobs, by tenant
        self.given_back = 0

    # ---- placed pods

    def arrive(self, job: Job) -> None:
        self._waiting[job.number] = job
        until = min(self._times.end_s, job.at + job.runs)
        self._wanted[job.tenant] += job.milli * max(0.0, until - max(self._times.warm_up_s, job.at))

    def missing(self, job: Job) -> int:
        """Return the number of the job's pods that are not placed."""
        return job.members - len(self._held.get(job.number, ()))

    def holds(self, job: Job) -> bool:
        return bool(self._held.get(job.number))

    def runs(self, job: Job) -> bool:
        """Return whether all pods of the job are placed, and it has not ended."""
        return job.number not in self._waiting and self.holds(job)

    def next_pod(self) -> int:
        """Return a new, unique number for a pod."""
        self._numbers += 1
        return self._numbers

    def place(self, job: Job, *, sees_all: bool = True) -> bool:
        """Place one more pod of the job by the policy, and return whether it fits. `sees_all`: the policy has no reservations
        for other pods, so that it must place a pod that fits."""
        if not self.cluster.fits[job.kind].any():
            return False
        pod = self.next_pod()
        where = self._product.place(job.kind, pod, job.tenant)
        if where is None:
            if sees_all:
                raise TurnedAwayError(f"{job.pod} is placed nowhere, and it fits on a node")
            return False
        self.book(job, pod, where)
        return True

    def book(self, job: Job, pod: int, where: Placed) -> None:
        self.cluster.take(where.node, job.kind, where.cards, where.vfs)
        self._product.changed(where.node)
        self._held[job.number].append(Held(pod, where))

    def give_back(self, job: Job) -> None:
        """Release all devices of the job, whether or not it runs."""
        for pod, where in self._held.pop(job.number, ()):
            self.cluster.give_back(where.node, job.kind, where.cards, where.vfs)
            self._product.ended(pod)
            self._product.changed(where.node)

    # ---- running jobs

    def start(self, job: Job, now: float) -> None:
        """Start a job whose pods are all placed. Raise AssertionError."""
        if self.missing(job):
            raise AssertionError(f"job {job.number} was started, and {self.missing(job)} of its {job.members} pods are missing")
        del self._waiting[job.number]
        self.running += job.milli
        self._runs_of[job.tenant] += job.milli
        heapq.heappush(self._ends, (now + job.runs, job))
        self._waited(job, now)

    def end_due(self, now: float) -> Iterator[Job]:
        """End the jobs whose time is over, and yield each."""
        while self._ends and self._ends[0][0] <= now:
            _, job = heapq.heappop(self._ends)
            self.running -= job.milli
            self._runs_of[job.tenant] -= job.milli
            self.give_back(job)
            yield job

    # ---- figures

    def pass_time(self, now: float) -> None:
        """Count the time since the last call; nothing may have changed in it."""
        seconds = max(0.0, now - max(self._measured_s, self._times.warm_up_s))
        self._measured_s = now
        if not seconds:
            return
        queued = sum(job.milli for job in self._waiting.values())
        for number, milli in enumerate((self.running, self.cluster.allocated - self.running, queued)):
            self._sums[number] += milli * seconds
        for tenant, milli in self._runs_of.items():
            self._had[tenant] += milli * seconds

    def stay(self, rules: Rules, seed: int) -> GangStay:
        """Return the figures; jobs that still wait count with their wait so far."""
        for job in self._waiting.values():
            self._waited(job, self._measured_s)
        whole = self.cluster.capacity * (self._times.end_s - self._times.warm_up_s) / 100
        running, idle, queued = (total / whole for total in self._sums)
        return GangStay(
            rules=rules,
            seed=seed,
            running=running,
            idle=idle,
            queued=queued,
            waits={label: tuple(waits) for label, waits in self._waits.items()},
            had={tenant: self._had[tenant] / whole for tenant in self._wanted},
            wanted={tenant: wanted / whole for tenant, wanted in self._wanted.items()},
            given_back=self.given_back,
        )

    def _waited(self, job: Job, until: float) -> None:
        if job.at >= self._times.warm_up_s:
            self._waits[job.label].append((until - job.at) / 60)
