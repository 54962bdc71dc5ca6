"""Pass watched ElasticQuotas to central's `Quotas`, update these from the cluster, and write the objects' status.

Pods of an ElasticQuota that cannot be decoded are refused with a reason, instead of being admitted without a limit.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from central.api.cached_objects import Ident
from central.api.decoded import Unreadable
from central.loop.faults import Faults, Work
from central.loop.slices import Slices, in_slices
from central.quota.model import Quota, QuotaDialect
from central.quota.objects import NO_STATUS, ElasticQuota, QuotaStatus, read_quota, read_status, render_status, unreadable_quota
from central.quota.quota_snapshot import QuotaSnapshot
from central.state.quotas import ObjectKey, Quotas
from lading.kube.client import KubeClient
from lading.kube.errors import ConflictError, KubeError, NotFoundError, RefusedError
from lading.kube.resource import ELASTIC_QUOTAS, NAMESPACE_QUOTAS
from lading.log import Event, Log

QUOTA_RESOURCES: Final = {QuotaDialect.KOORDINATOR: ELASTIC_QUOTAS, QuotaDialect.SCHEDULER_PLUGINS: NAMESPACE_QUOTAS}
SCAN_S: Final = 1.0  # seconds until a new node counts


class QuotaFeed:
    def __init__(self, quotas: Quotas, dialect: QuotaDialect) -> None:
        self._quotas = quotas
        self._dialect = dialect
        self._statuses: dict[str, QuotaStatus] = {}

    def status_of(self, uid: str) -> QuotaStatus:
        """Return the usage that the ElasticQuota object had when it was last observed."""
        return self._statuses.get(uid, NO_STATUS)

    def replaced(self, objects: Sequence[ElasticQuota | Unreadable], version: str) -> None:
        self._statuses.clear()
        self._quotas.replace_quotas(self._dialect, {one.metadata.uid: self._read(one) for one in objects})

    def changed(self, obj: ElasticQuota | Unreadable) -> None:
        self._quotas.set_quota(obj.metadata.uid, self._read(obj))

    def removed(self, deleted: Ident, version: str) -> None:
        self._statuses.pop(deleted.uid, None)
        self._quotas.remove_quota(self._dialect, deleted.uid)

    def _read(self, obj: ElasticQuota | Unreadable) -> Quota:
        if isinstance(obj, ElasticQuota):
            self._statuses[obj.metadata.uid] = read_status(obj)
            return read_quota(self._dialect, obj)
        return unreadable_quota(self._dialect, obj.metadata.namespace, obj.metadata.name, obj.why)


async def keep_quotas(quotas: Quotas, clock: Callable[[], float]) -> None:
    """Update the quotas from the cluster until this is cancelled. `clock`: monotonic seconds."""
    while True:
        await in_slices(quotas.scan(), clock)
        await asyncio.sleep(SCAN_S)


WRITE_S: Final = 5.0  # seconds between two scans for changed statuses
MAX_WRITES_PER_SCAN: Final = 50  # maximum objects in one scan, that is 10 a second; a cluster has some hundred quotas
REFUSED_S: Final = 60.0  # seconds until the next attempt after a refusal, such as a missing RBAC right
TIMEOUT_S: Final = 4.0


class QuotaWriter:
    """Write the use and the runtime of each quota into its ElasticQuota object: only changes, and a few objects in each scan.

    Koordinator's CRD has no status subresource by default, so annotations and status are written in one patch. If a cluster's
    CRD has one, a second patch writes the status there. If another scheduler writes the same keys, set `quota_status = false`.
    """

    def __init__(
        self,
        quotas: Quotas,
        feeds: Mapping[QuotaDialect, QuotaFeed],
        client: KubeClient,
        *,
        leads: Callable[[], bool],
        clock: Callable[[], float],
        log: Log,
        faults: Faults | None = None,
    ) -> None:
        """Create the writer. `feeds` have the current status of the objects. `clock`: seconds, monotonic."""
        self._faults = Faults(clock=clock, log=log) if faults is None else faults
        self._quotas = quotas
        self._feeds = feeds
        self._client = client
        self._leads = leads
        self._clock = clock
        self._log = log
        self._order: dict[ObjectKey, None] = {}  # objects, the one written the longest ago first
        self._failing = False  # the last scan failed, which is logged already

    async def run(self) -> None:
        while True:
            try:
                await self.scan()
                self._failing = False
                await asyncio.sleep(WRITE_S)
            except KubeError as e:
                if not self._failing:
                    self._failing = True
                    self._log.warning(Event.QUOTA_UNWRITTEN, str(e))
                await asyncio.sleep(REFUSED_S if isinstance(e, RefusedError) else WRITE_S)

    async def scan(self) -> None:
        """Write the changes of at most MAX_WRITES_PER_SCAN objects. Raises KubeError."""
        slices, written = Slices(self._clock), 0
        known = self._quotas.quotas
        self._order = {key: None for key in self._order if key in known} | dict.fromkeys(known)
        for key in [*self._order]:
            quota, snapshot = known.get(key), self._quotas.snapshot()
            if snapshot is None or not self._leads() or written == MAX_WRITES_PER_SCAN:
                return
            counts = quota is not None and quota.id in snapshot.tree.quotas
            if quota is not None and counts and not self._faults.sets_aside(Work.QUOTA_STATUS, quota.id):
                written += await self._try_to_write(key, quota, snapshot)
            await slices.pause()

    async def _try_to_write(self, key: ObjectKey, quota: Quota, snapshot: QuotaSnapshot) -> bool:
        """Write the quota's status if it changed. Return whether it did. Raises KubeError, which concerns all quotas."""
        refused: KubeError | None = None
        with self._faults.handling(Work.QUOTA_STATUS, quota.id):
            try:
                written = await self._write(key, quota, snapshot)
            except KubeError as e:
                refused = e
            else:
                if written:
                    del self._order[key]
                    self._order[key] = None
                return written
        if refused is not None:
            raise refused
        return False

    async def _write(self, key: ObjectKey, quota: Quota, snapshot: QuotaSnapshot) -> bool:
        """Write the quota's status if the object has another one. Return whether it was written."""
        text, status = self._feeds[quota.dialect].status_of(key[1]), render_status(snapshot, quota)
        if text == status:
            return False
        with contextlib.suppress(NotFoundError, ConflictError):  # the object was deleted or replaced
            await self._patch(key[1], quota, text, status)
        return True

    async def _patch(self, uid: str, quota: Quota, usage: QuotaStatus, status: QuotaStatus) -> None:
        resource = QUOTA_RESOURCES[quota.dialect]
        metadata: dict[str, object] = {"uid": uid}
        used = {"status": {"used": dict.fromkeys(usage.used) | dict(status.used)}}
        if quota.dialect is QuotaDialect.KOORDINATOR:
            body = {"metadata": metadata | {"annotations": status.annotations}, **used}
            answer = await self._client.merge(resource.path(quota.namespace, quota.name), body, timeout_s=TIMEOUT_S)
            if read_status(msgspec.json.decode(answer, type=ElasticQuota)).used == status.used:
                return
        path = resource.path(quota.namespace, quota.name, "status")
        await self._client.merge(path, {"metadata": metadata, **used}, timeout_s=TIMEOUT_S)
