"""Report to pods when their devices become unhealthy or healthy again, by a condition and an Event.

The condition is the state, and stays; the Event follows once the API server has the condition. central.controllers.conditions
computes the conditions from the current state: two changes between two scans are one condition or none. A pod gets the next
condition after QUIET_S at the earliest, regardless of further changes of its devices.

A switch that fails makes the devices of a thousand pods unhealthy: one scan handles AT_ONCE pods, the next scans the others. A
failed write is retried with growing delays until it is not needed any more. If an answer was lost, the watch shows whether the
pod has the condition.

Source: PodCondition (k8s.io/api core/v1); the strategic merge patch of `pods/status` merges conditions by their type.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from central.controllers.conditions import Conditions, HealthChange, concerns, decide_health_changes
from central.ledger.ledger import Ledger
from central.ledger.model import Held, Holder, version_of
from central.loop.faults import Faults, Work
from central.loop.slices import Slices
from lading.kube.backoff import Backoff
from lading.kube.client import KubeClient
from lading.kube.errors import ConflictError, KubeError, NotFoundError
from lading.kube.objects import Metadata
from lading.kube.resource import PODS
from lading.log import Event, Log
from lading.vocabulary import PodUid

SCAN_S: Final = 1.0
AT_ONCE: Final = 32  # pods in one scan; each costs a patch and an Event, and the API server has other clients to serve
QUIET_S: Final = 10.0  # seconds between two conditions of a pod, so that a flapping device does not fill the list of Events
AGAIN_S: Final = 60.0  # longest delay in seconds after failed writes
TIMEOUT_S: Final = 4.0  # ends each write before another replica can lead


class RecordEvent(Protocol):
    def __call__(self, pod: Holder, reason: str, message: str, *, good: bool = False) -> None: ...


@dataclass(slots=True, eq=False)
class _Failing:
    """Keep a condition whose write failed, or may have failed."""

    change: HealthChange
    backoff: Backoff


class _Answer(msgspec.Struct):
    metadata: Metadata


class Warner:
    def __init__(
        self,
        ledger: Ledger,
        conditions: Conditions,
        client: KubeClient,
        *,
        leads: Callable[[], bool],
        record_event: RecordEvent,
        clock: Callable[[], float],
        now: Callable[[], str],
        log: Log,
        faults: Faults | None = None,
    ) -> None:
        """Create the task. `leads` is called before each patch. `clock`: seconds, monotonic; `now`: RFC 3339."""
        self._faults = Faults(clock=clock, log=log) if faults is None else faults
        self._ledger = ledger
        self._conditions = conditions
        self._client = client
        self._leads = leads
        self._record_event = record_event
        self._clock = clock
        self._now = now
        self._log = log
        self._scanned = -1  # version of the ledger at the last scan
        self._unsettled: dict[str, None] = {}  # nodes that changed, or have pods to write to; the last scanned are last
        self._quiet: dict[PodUid, float] = {}  # time until which a pod gets no condition
        self._failing: dict[PodUid, _Failing] = {}

    async def run(self) -> None:
        while True:
            await self.scan()
            await asyncio.sleep(SCAN_S)

    async def scan(self) -> None:
        """Write the conditions of some of the pods that need one."""
        self._settle_failures()
        changes = await self._choose()
        async with asyncio.TaskGroup() as writes:
            for change in changes:
                writes.create_task(self._try_to_write(change))

    async def _choose(self) -> list[HealthChange]:
        slices, chosen = Slices(self._clock), list[HealthChange]()
        changed, self._scanned = self._ledger.changed_since(self._scanned), self._ledger.version
        self._unsettled.update(dict.fromkeys((*changed, *self._conditions.take_changed())))
        now = self._clock()
        self._quiet = {uid: until for uid, until in self._quiet.items() if until > now}
        for name in [*self._unsettled]:
            if self._faults.sets_aside(Work.DEVICE_HEALTH, name):
                continue
            del self._unsettled[name]
            changes, settled = list[HealthChange](), False
            with self._faults.handling(Work.DEVICE_HEALTH, name):
                changes, settled = self._find_changes_on(name)
            if not settled:
                self._unsettled[name] = None
            chosen += [change for change in changes if change.pod.pod not in self._quiet]
            if len(chosen) >= AT_ONCE:
                break
            await slices.pause()
        return chosen[:AT_ONCE]

    def _find_changes_on(self, name: str) -> tuple[list[HealthChange], bool]:
        """Return the conditions to write to pods on the node, and whether the node needs no further scan until it changes."""
        capacity = self._ledger.capacity(name)
        if not concerns(capacity, self._ledger.holds_on(name), self._conditions):
            return [], True
        holders = self._ledger.holders(name)
        there = (held for held in holders if self._is_there(held, name))
        changes = list(decide_health_changes(capacity, there, self._conditions))
        return changes, not changes and not any(map(self._is_coming, holders))

    def _is_there(self, held: Held, name: str) -> bool:
        """Return whether the API server has the pod bound to this node and not ended, so that a node cannot affect the pods of
        other nodes."""
        load = self._ledger.load_of(held.holder.pod)
        ends = held.record is not None and held.record.deleting
        return load is not None and load.node == name and bool(held.holder.name) and not ends

    def _is_coming(self, held: Held) -> bool:
        """Return whether the pod is being bound, or the watch is late. Its devices stay the same, so that no other event would
        lead to a scan."""
        uid = held.holder.pod
        return self._ledger.load_of(uid) is None and not self._ledger.has_ended(uid)

    # ---- writing conditions

    async def _try_to_write(self, change: HealthChange) -> None:
        name = f"{change.pod.namespace}/{change.pod.name}"
        if not self._faults.sets_aside(Work.DEVICE_HEALTH, name):
            with self._faults.handling(Work.DEVICE_HEALTH, name):
                await self._write_condition(change)

    async def _write_condition(self, change: HealthChange) -> None:
        if not self._leads():
            return
        uid, path = change.pod.pod, PODS.path(change.pod.namespace, change.pod.name, "status")
        body = {"metadata": {"uid": uid}, "status": {"conditions": [change.render_condition(self._now())]}}
        quiet_s = QUIET_S
        try:
            answer = await self._client.merge_lists(path, body, timeout_s=TIMEOUT_S)
        except (NotFoundError, ConflictError):
            self._failing.pop(uid, None)  # the pod was deleted or replaced, and the watch will report it
        except KubeError as e:
            failing = self._failing.setdefault(uid, _Failing(change, Backoff(limit_s=AGAIN_S)))
            failing.change = change
            quiet_s = failing.backoff.failed(at_least_s=e.retry_after_s)
            if failing.backoff.failures == 1:
                self._write(change, f"not written yet: {e}: {change.message}")
        else:
            self._failing.pop(uid, None)
            self._conditions.put(change, _version_in(answer))
            self._log_and_record(change)
        self._quiet[uid] = self._clock() + quiet_s

    def _settle_failures(self) -> None:
        for uid, failing in [*self._failing.items()]:
            if self._conditions.is_written(failing.change):
                self._log_and_record(failing.change)
            elif self._ledger.load_of(uid) is not None:
                continue
            del self._failing[uid]

    def _log_and_record(self, change: HealthChange) -> None:
        self._write(change, change.message)
        self._record_event(change.pod, change.reason, change.message, good=change.healthy)

    def _write(self, change: HealthChange, message: str) -> None:
        fields = {"namespace": change.pod.namespace, "pod": change.pod.name, "pod_uid": change.pod.pod, "node": change.node}
        if change.healthy:
            self._log.info(Event.DEVICE_HEALTHY, message, **fields)
        else:
            self._log.warning(Event.DEVICE_UNHEALTHY, message, **fields)


def _version_in(answer: bytes) -> int:
    """Return the answer's resourceVersion; 0 if unreadable, so that the watch decides."""
    try:
        return version_of(msgspec.json.decode(answer, type=_Answer).metadata.resource_version)
    except msgspec.DecodeError:
        return 0
