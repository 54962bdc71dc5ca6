"""Answer Kueue's AdmissionChecks: whether all pods of a Workload fit now. Devices are reserved until the pods are created.

    watch ─▶ Workloads with quota ─▶ plan, in slices ─▶ reservation in the ledger ─▶ Ready ─▶ Kueue starts the job
                                                       pods with the Workload's annotation ─▶ take over the reservation

An answer is valid for one version of the Workload: if Kueue changes the Workload meanwhile, central plans again. A reservation
ends when the Workload loses its quota, when it ends, or at its deadline. Reservations are only in memory: after a change of
leader, the pods of a Ready Workload are placed like others.

Tests: tests/unit/central/gang/test_kueue.py
"""

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from central.api.cached_objects import Ident
from central.api.decoded import Unreadable
from central.api.kueue import CONTROLLER, AdmissionCheck, ResourceFlavor, Workload
from central.decide.workloads import WorkloadPlanner
from central.gang.admission import AdmissionAnswer, AnswerState, in_line, is_due, may_hold, render_active, render_answer
from central.gang.workload_places import WorkloadPlaces
from central.ledger.model import Holder
from central.loop.faults import Faults, Work
from central.loop.slices import result_in_slices
from central.request.pod import Pod
from lading.kube.backoff import Backoff
from lading.kube.client import KubeClient
from lading.kube.errors import ConflictError, KubeError, NotFoundError
from lading.kube.objects import is_true
from lading.kube.resource import ADMISSION_CHECKS, WORKLOADS
from lading.log import Event, Log
from lading.vocabulary import CENTRAL, WORKLOAD, PodUid

SCAN_S: Final = 0.2
SETTLE_S: Final = 10.0  # minimum seconds before Retry: a node reports devices as free only after the pod is deleted
RESCAN_S: Final = 1.0
TIMEOUT_S: Final = 4.0
AGAIN_S: Final = 60.0  # the longest pause after a write that failed

Kept = TypeVar("Kept", bound=AdmissionCheck | ResourceFlavor)


def is_ours(check: AdmissionCheck) -> bool:
    return check.spec.controller_name == CONTROLLER


class Queued:
    """Hold Kueue's objects that concern central."""

    def __init__(self, places: WorkloadPlaces) -> None:
        self.places = places
        self.checks: dict[str, AdmissionCheck] = {}  # checks of central's controller, by name
        self.workloads: dict[str, Workload] = {}  # Workloads that wait for a check, by uid
        self.flavors: dict[str, ResourceFlavor] = {}

    @property
    def ours(self) -> Collection[str]:
        return self.checks.keys()

    def flavor_labels(self, name: str) -> Mapping[str, str]:
        return self.flavors[name].spec.node_labels if name in self.flavors else {}

    def due(self) -> list[Workload]:
        """Return the Workloads that wait for an answer, in the order in which they are planned."""
        return in_line(one for one in self.workloads.values() if is_due(one, self.ours)) if self.checks else []

    def put(self, workload: Workload) -> None:
        uid = workload.metadata.uid
        if workload.has_quota and any(check.state == AnswerState.PENDING for check in workload.status.admission_checks):
            self.workloads[uid] = workload
        else:
            self.workloads.pop(uid, None)
        if not may_hold(workload, self.ours):
            self.places.release(uid)
        elif workload.admitted:
            self.places.admit(uid)

    def remove(self, uid: str) -> None:
        self.workloads.pop(uid, None)
        self.places.release(uid)


class NamedFeed(Generic[Kept]):
    """Keep the watched objects of one kind by name. `counts`: whether to keep an object."""

    def __init__(self, kind: type[Kept], kept: dict[str, Kept], counts: Callable[[Kept], bool] = lambda _: True) -> None:
        self._kind = kind
        self._kept = kept
        self._counts = counts

    def replaced(self, objects: Sequence[Kept | Unreadable], version: str) -> None:
        self._kept.clear()
        for one in objects:
            self.changed(one)

    def changed(self, obj: Kept | Unreadable) -> None:
        if isinstance(obj, self._kind) and self._counts(obj):
            self._kept[obj.metadata.name] = obj

    def removed(self, deleted: Ident, version: str) -> None:
        self._kept.pop(deleted.name, None)


class WorkloadFeed:
    """Pass watched Workloads to `Queued`."""

    def __init__(self, queued: Queued) -> None:
        self._queued = queued

    def replaced(self, objects: Sequence[Workload | Unreadable], version: str) -> None:
        known = self._queued.workloads.keys() | self._queued.places.workloads()
        for uid in known - {one.metadata.uid for one in objects}:
            self._queued.remove(uid)
        for one in objects:
            self.changed(one)

    def changed(self, obj: Workload | Unreadable) -> None:
        if isinstance(obj, Workload):
            self._queued.put(obj)

    def removed(self, deleted: Ident, version: str) -> None:
        self._queued.remove(deleted.uid)


class PlaceFeed:
    """Hand a Workload's reservation to its pods when they are observed. The ledger must receive each event first."""

    def __init__(self, places: WorkloadPlaces) -> None:
        self._places = places

    def replaced(self, objects: Sequence[Pod | Unreadable], version: str) -> None:
        for one in objects:
            self.changed(one)

    def changed(self, obj: Pod | Unreadable) -> None:
        if isinstance(obj, Unreadable) or WORKLOAD not in obj.metadata.annotations:
            return
        metadata = obj.metadata
        if not obj.ended and metadata.deletion_timestamp is None:
            holder = Holder(pod=metadata.uid, namespace=metadata.namespace, name=metadata.name)
            self._places.give(holder, metadata.annotations[WORKLOAD], bound=bool(obj.spec.node_name))

    def removed(self, deleted: Ident, version: str) -> None:
        """Do nothing: the ledger releases the pod's devices."""


@dataclass(slots=True, kw_only=True)
class _Failing:
    """Hold the back-off of one object after consecutive failed writes."""

    backoff: Backoff = field(default_factory=lambda: Backoff(limit_s=AGAIN_S))
    not_before: float = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settling:
    """Hold the times of a Workload that did not fit when it was planned."""

    until: float  # earliest time of the answer Retry
    again: float  # time of the next plan


class AdmissionChecks:
    """Answer the waiting Workloads, one after the other."""

    def __init__(
        self,
        queued: Queued,
        planner: WorkloadPlanner,
        client: KubeClient,
        *,
        ready: Callable[[], bool],
        leads: Callable[[], bool],
        clock: Callable[[], float],
        now: Callable[[], str],
        log: Log,
        faults: Faults | None = None,
    ) -> None:
        """Create the task. `ready`: whether all of Kueue's objects were read. `leads` is called before each write. `clock`:
        seconds, monotonic; `now`: RFC 3339."""
        self._faults = Faults(clock=clock, log=log) if faults is None else faults
        self._queued = queued
        self._planner = planner
        self._client = client
        self._ready = ready
        self._leads = leads
        self._clock = clock
        self._now = now
        self._log = log
        self._answered: dict[str, str] = {}  # resourceVersion that was answered, by uid of the Workload
        self._failing: dict[str, _Failing] = {}  # failed writes by uid of the check or Workload
        self._settling: dict[str, _Settling] = {}  # Workloads that did not fit, by uid

    async def run(self) -> None:
        while True:
            await self.scan()
            await asyncio.sleep(SCAN_S)

    async def scan(self) -> None:
        """Activate the checks, and answer each waiting Workload."""
        self._queued.places.expire()
        if not self._ready():
            return
        for check in [*self._queued.checks.values()]:
            if self._faults.sets_aside(Work.ADMISSION_CHECKS, check.metadata.name):
                continue
            with self._faults.handling(Work.ADMISSION_CHECKS, check.metadata.name):
                if not is_true(check.status.conditions, "Active") and self._may_write(check.metadata.uid):
                    path = ADMISSION_CHECKS.path(name=check.metadata.name, subresource="status")
                    await self._write(check.metadata.uid, path, render_active(check.metadata.name, self._now()))
        for workload in self._queued.due():
            settling = self._settling.get(workload.metadata.uid)
            waits = self._waits(workload) and not self._faults.sets_aside(Work.ADMISSION_CHECKS, str(workload))
            if waits and (settling is None or self._clock() >= settling.again):
                with self._faults.handling(Work.ADMISSION_CHECKS, str(workload)):
                    await self._answer(workload)
        due = {workload.metadata.uid for workload in self._queued.due()}
        self._answered = {uid: version for uid, version in self._answered.items() if uid in due}
        self._settling = {uid: settling for uid, settling in self._settling.items() if uid in due}

    def _waits(self, workload: Workload) -> bool:
        """Return whether this version of the Workload still waits for an answer."""
        uid = workload.metadata.uid
        current = self._queued.workloads.get(uid) is workload
        return current and self._answered.get(uid) != workload.metadata.resource_version and self._may_write(uid)

    async def _answer(self, workload: Workload) -> None:
        uid, places = workload.metadata.uid, self._queued.places
        result = await result_in_slices(self._planner.planning(workload), self._clock)
        if not self._waits(workload):
            return
        if isinstance(result, AdmissionAnswer):
            places.release(uid)
            if result.state is not AnswerState.RETRY or self._has_settled(uid):
                await self._write_answer(workload, result, ())
            return
        holder = Holder(pod=PodUid(uid), namespace=workload.metadata.namespace, name=workload.metadata.name)
        if places.hold(uid, holder, result) is None:  # else another pod took devices meanwhile, and the next scan plans again
            count = sum(map(len, result.values()))
            message = f"there is room for all of {count} pods" if count else "no pod asks for a device"
            await self._write_answer(workload, AdmissionAnswer(state=AnswerState.READY, message=message), [*result])

    def _has_settled(self, uid: str) -> bool:
        """Return whether the Workload has waited SETTLE_S for released devices; if not, it is planned again soon."""
        now = self._clock()
        before = self._settling.get(uid)
        until = now + SETTLE_S if before is None else before.until
        self._settling[uid] = _Settling(until=until, again=now + RESCAN_S)
        return now >= until

    async def _write_answer(self, workload: Workload, answer: AdmissionAnswer, pod_sets: Sequence[str]) -> None:
        metadata = workload.metadata
        body = render_answer(workload, self._queued.ours, answer, pod_sets, self._now())
        path = WORKLOADS.path(metadata.namespace, metadata.name, "status")
        if await self._write(metadata.uid, path, body):
            self._answered[metadata.uid] = metadata.resource_version
            self._log.info(Event.ADMISSION_ANSWERED, answer.message, workload=str(workload), state=answer.state)

    # ---- writing

    def _may_write(self, uid: str) -> bool:
        failing = self._failing.get(uid)
        return self._leads() and (failing is None or self._clock() >= failing.not_before)

    async def _write(self, uid: str, path: str, body: object) -> bool:
        """Write the object. Return whether that succeeded. Deleted or changed objects are left to the watch."""
        try:
            await self._client.apply(path, body, manager=CENTRAL, force=True, timeout_s=TIMEOUT_S)
        except (NotFoundError, ConflictError):
            self._failing.pop(uid, None)
            return False
        except KubeError as e:
            failing = self._failing.setdefault(uid, _Failing())
            failing.not_before = self._clock() + failing.backoff.failed(at_least_s=e.retry_after_s)
            if failing.backoff.failures == 1:
                self._log.warning(Event.ADMISSION_FAILED, str(e), path=path)
            return False
        self._failing.pop(uid, None)
        return True
