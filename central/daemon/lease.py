"""Elect one leader by a Lease. The leader knows at every moment whether it still leads.

    leader    writes the lease every `retry_s`; a success counts from the moment *before it was sent*, for `renew_deadline_s`
    standby   takes over once the lease is unchanged for `duration_s`, from the moment *after* its first read of that state

The standby reads the leader's last success after the leader sent it, so the standby waits past the leader's deadline. Calls
that the leader sent just before its deadline must be over too: request_timeout_s < duration_s - renew_deadline_s. The rest of
the difference allows for clocks that do not run equally fast. Each replica uses its own monotonic clock; times in the lease are
for people. Only a write that was certainly accepted makes or keeps a leader, and of two writes over one version the API server
accepts only one.

A missing lease may have been deleted while a leader has not noticed, and a missing object has no version. So any replica
creates the lease without a holder, and waits as if another replica held it. Only a lease that `release` wrote is acquired at
once.

`is_leader` reads only the clock, so a process that was suspended is no leader when it continues. Source: coordination.k8s.io/v1
Lease; optimistic concurrency in "API concepts"; clock_gettime(2).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from random import random
from typing import Final, NoReturn, Protocol
from uuid import uuid4

import msgspec

from central.api.times import micro_time_now
from lading.errors import ConfigError
from lading.kube.client import KubeClient
from lading.kube.errors import KubeError, MalformedError, NotFoundError
from lading.kube.objects import Lease
from lading.kube.resource import LEASES
from lading.log import Event, Log

_NEVER: Final = float("-inf")
_RELEASED_S: Final = 1  # lease duration without a holder, as client-go's release writes it


def boot_time() -> float:
    """Return monotonic seconds that also pass while the machine sleeps, unlike time.monotonic."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """Hold the intervals of the election, by default those of client-go where it has the same. If the replicas differ, the
    longest duration counts."""

    duration_s: int = 15
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0
    request_timeout_s: float = 4.0  # limit of renewals, and of every write that only a leader may send

    def __post_init__(self) -> None:
        if not 0 < self.request_timeout_s < self.duration_s - self.renew_deadline_s:
            raise ConfigError(f"request timeout {self.request_timeout_s:g} s: not shorter than lease duration - renew deadline")
        if not 0 < self.retry_s < self.renew_deadline_s:
            raise ConfigError(f"retry period {self.retry_s:g} s: not shorter than the renew deadline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    holder: str  # "" if no replica holds the lease
    duration_s: int
    version: str = ""  # resourceVersion; "" if the object does not exist yet
    acquired: str = ""
    transitions: int = 0

    @property
    def released(self) -> bool:
        return not self.holder and self.duration_s == _RELEASED_S


class Store(Protocol):
    """Read and write the Lease. The methods raise KubeError."""

    async def read(self, *, timeout_s: float) -> Record | None: ...
    async def write(self, record: Record, *, timeout_s: float) -> Record:
        """Write over exactly `record.version`. Return the record's new version."""


class KubeLease:
    def __init__(self, client: KubeClient, *, namespace: str, name: str) -> None:
        self._client = client
        self._collection = LEASES.path(namespace)
        self._path = LEASES.path(namespace, name)
        self._name = name

    async def read(self, *, timeout_s: float) -> Record | None:
        try:
            return self._parse(await self._client.get(self._path, timeout_s=timeout_s))
        except NotFoundError:
            return None

    async def write(self, record: Record, *, timeout_s: float) -> Record:
        spec = {
            "holderIdentity": record.holder or None,
            "leaseDurationSeconds": record.duration_s,
            "acquireTime": record.acquired or None,
            "renewTime": micro_time_now(),
            "leaseTransitions": record.transitions,
        }
        if record.version:
            change = {"metadata": {"resourceVersion": record.version}, "spec": spec}
            return self._parse(await self._client.merge(self._path, change, timeout_s=timeout_s))
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self._name}, "spec": spec}
        return self._parse(await self._client.create(self._collection, lease, timeout_s=timeout_s))

    def _parse(self, body: bytes) -> Record:
        try:
            lease = msgspec.json.decode(body, type=Lease)
        except msgspec.DecodeError as e:
            raise MalformedError(f"cannot read {self._path}: {e}") from e
        return Record(
            holder=lease.spec.holder_identity or "",
            duration_s=lease.spec.lease_duration_seconds,
            version=lease.metadata.resource_version,
            acquired=lease.spec.acquire_time or "",
            transitions=lease.spec.lease_transitions,
        )


class Election:
    """Elect the leader. `gained` and `lost` are called alternately on the event loop; `lost` at the renew deadline at the
    latest. Each process has its own identity: a restarted process is another candidate."""

    def __init__(
        self,
        store: Store,
        *,
        name: str,
        terms: LeaseTerms,
        gained: Callable[[], None],
        lost: Callable[[], None],
        log: Log,
        clock: Callable[[], float] = boot_time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.identity = f"{name}_{uuid4()}"
        self._store = store
        self._terms = terms
        self._gained = gained
        self._lost = lost
        self._log = log
        self._clock = clock
        self._sleep = sleep
        self._until = _NEVER  # end of this replica's leadership, unless it is renewed
        self._leading = False  # `gained` was called, and `lost` not yet
        self._record: Record | None = None  # the last observed lease
        self._since: float | None = None  # time when this version was first observed; None before the first read
        self._current = False  # no read is needed before a write: only a replica that took over can have changed the lease
        self._failing = False  # the last attempt failed, which is logged already

    @property
    def transitions(self) -> int:
        """Return the number of leader changes in the last observed lease."""
        return self._record.transitions if self._record is not None else 0

    def is_leader(self) -> bool:
        """Return whether this replica leads at this moment, by the clock alone."""
        return self._clock() < self._until

    async def run(self) -> NoReturn:
        """Run until it is cancelled; `release` then lets another replica take over at once."""
        while True:
            try:
                await self._read_and_write()
                self._failing = False
            except (KubeError, TimeoutError) as e:
                self._current = False
                if not self._failing:
                    self._failing = True
                    self._log.warning(Event.LEASE_FAILED, str(e) or "no answer in time", holder=self.identity)
            self._notice()
            await self._sleep(self._pause_s())
            self._notice()

    async def release(self) -> None:
        """Release the lease, after `run` was cancelled and nothing is sent as leader any more. A replica that does not lead may
        call it too."""
        held, self._until, self._leading = self.is_leader(), _NEVER, False
        if not held:
            return
        try:
            if not self._current:  # a renewal was under way
                await self._read_lease()
            if self._record is not None and self._record.holder == self.identity:
                await self._write(replace(self._record, holder="", duration_s=_RELEASED_S))
                self._log.info(Event.LEASE_RELEASED, holder=self.identity)
        except (KubeError, TimeoutError) as e:
            self._log.warning(Event.LEASE_FAILED, f"not released: {e}", holder=self.identity)

    async def _read_and_write(self) -> None:
        if not self._current:
            await self._read_lease()
        before = self._record
        if before is None:
            await self._write(Record(holder="", duration_s=self._terms.duration_s))
            return
        if not self._may_take(before):
            self._current = False
            return
        ours = before.holder == self.identity
        record = replace(
            before,
            holder=self.identity,
            duration_s=self._terms.duration_s,
            acquired=before.acquired if ours else micro_time_now(),
            transitions=before.transitions + (not ours),
        )
        sent = self._clock()
        await self._write(record)
        self._until = sent + self._terms.renew_deadline_s
        if self.is_leader() and not self._leading:
            self._leading = True
            self._log.info(Event.LEASE_ACQUIRED, holder=self.identity)
            self._gained()

    async def _read_lease(self) -> None:
        limit_s = self._limit_s()
        async with asyncio.timeout(limit_s):
            record = await self._store.read(timeout_s=limit_s)
        observed = None if self._record is None else self._record.version
        if self._since is None or (None if record is None else record.version) != observed:
            self._since = self._clock()
        self._record = record
        if record is None or record.holder != self.identity:
            self._until = _NEVER  # another replica took the lease, or it was deleted

    async def _write(self, record: Record) -> None:
        limit_s = self._limit_s()
        self._current = False  # False until the answer arrives
        async with asyncio.timeout(limit_s):
            self._record = await self._store.write(record, timeout_s=limit_s)
        self._since = self._clock()
        self._current = True

    def _may_take(self, record: Record) -> bool:
        if record.released or record.holder == self.identity:
            return True
        duration_s = max(self._terms.duration_s, record.duration_s)
        return self._since is not None and self._clock() - self._since >= duration_s

    def _limit_s(self) -> float:
        """Return the limit of one call in seconds. A leader's call ends at its deadline at the latest, so that `lost` is not
        late."""
        left_s = self._until - self._clock()
        return min(self._terms.request_timeout_s, left_s) if left_s > 0 else self._terms.request_timeout_s

    def _pause_s(self) -> float:
        pause_s = self._terms.retry_s * (1 + random() / 5)  # noqa: S311  candidates that started together do not stay so
        return min(pause_s, max(0.0, self._until - self._clock())) if self._leading else pause_s

    def _notice(self) -> None:
        if self._leading and not self.is_leader():
            self._leading = False
            self._log.warning(Event.LEASE_LOST, holder=self.identity)
            self._lost()
