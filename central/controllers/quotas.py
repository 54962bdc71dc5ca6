"""Pass watched ElasticQuotas to central's `Quotas`, and update the quotas from the cluster in slices.

Pods of an ElasticQuota that cannot be decoded are refused with a reason, instead of being admitted without a limit.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from central.api.cached_objects import Ident
from central.api.watch import Unreadable
from central.loop.slices import in_slices
from central.quota.model import Quota, QuotaDialect
from central.quota.objects import ElasticQuota, read_quota, unreadable_quota
from central.quota.status import NO_STATUS, QuotaStatus, read_status
from central.state.quotas import Quotas
from lading.kube.resource import ELASTIC_QUOTAS, NAMESPACE_QUOTAS

QUOTA_RESOURCES: Final = {QuotaDialect.KOORDINATOR: ELASTIC_QUOTAS, QuotaDialect.SCHEDULER_PLUGINS: NAMESPACE_QUOTAS}
SCAN_S: Final = 1.0  # seconds until a new node counts


class QuotaFeed:
    """Handle the ElasticQuotas of one dialect."""

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


class QuotaKeeper:
    """Update the quotas from the cluster. `clock`: seconds, monotonic."""

    def __init__(self, quotas: Quotas, *, clock: Callable[[], float]) -> None:
        self._quotas = quotas
        self._clock = clock

    async def run(self) -> None:
        """Run until it is cancelled."""
        while True:
            await self.scan()
            await asyncio.sleep(SCAN_S)

    async def scan(self) -> None:
        await in_slices(self._quotas.scan(), self._clock)
