"""Pass ElasticQuotas of the API server to the quotas that are kept, and keep up with the cluster, in slices.

An object that cannot be decoded is a quota that cannot be used: its pods are refused in words, not let in without a limit.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from central.api.known import Ident
from central.api.watch import Unreadable
from central.loop.slices import in_slices
from central.quota.model import Dialect, Quota
from central.quota.objects import ElasticQuota, read_quota, unreadable_quota
from central.quota.status import NOTHING_SAID, QuotaStatus, read_status
from central.state.quotas import Quotas
from lading.kube.resource import ELASTIC_QUOTAS, NAMESPACE_QUOTAS

QUOTA_RESOURCES: Final = {Dialect.KOORDINATOR: ELASTIC_QUOTAS, Dialect.SCHEDULER_PLUGINS: NAMESPACE_QUOTAS}
LOOK_S: Final = 1.0  # until a node that came counts


class QuotaFeed:
    """Handle the ElasticQuotas of one dialect."""

    def __init__(self, quotas: Quotas, dialect: Dialect) -> None:
        self._quotas = quotas
        self._dialect = dialect
        self._said: dict[str, QuotaStatus] = {}

    def said(self, uid: str) -> QuotaStatus:
        """Return what the object says of what is used, as it was last seen."""
        return self._said.get(uid, NOTHING_SAID)

    def replaced(self, objects: Sequence[ElasticQuota | Unreadable], version: str) -> None:
        self._said.clear()
        self._quotas.replace_quotas(self._dialect, {one.metadata.uid: self._read(one) for one in objects})

    def changed(self, obj: ElasticQuota | Unreadable) -> None:
        self._quotas.set_quota(obj.metadata.uid, self._read(obj))

    def removed(self, gone: Ident, version: str) -> None:
        self._said.pop(gone.uid, None)
        self._quotas.remove_quota(self._dialect, gone.uid)

    def _read(self, obj: ElasticQuota | Unreadable) -> Quota:
        if isinstance(obj, ElasticQuota):
            self._said[obj.metadata.uid] = read_status(obj)
            return read_quota(self._dialect, obj)
        return unreadable_quota(self._dialect, obj.metadata.namespace, obj.metadata.name, obj.why)


class QuotaKeeper:
    """Keep up with the cluster. `clock`: seconds, monotonic."""

    def __init__(self, quotas: Quotas, *, clock: Callable[[], float]) -> None:
        self._quotas = quotas
        self._clock = clock

    async def run(self) -> None:
        """Run until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        await in_slices(self._quotas.look(), self._clock)
