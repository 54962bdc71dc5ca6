"""Report pods that exceed their shares of cards, from node reports, and evict these pods if central is configured to.

A pod gets an Event when a report names it first, and another one after QUIET_S at the earliest, regardless of further reports.
A node's report counts only for pods that are bound to the node.

Evictions go by the Eviction API, so disruption budgets count. If a pod cannot be evicted now, the eviction is repeated as long
as its node reports the pod.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final, Protocol

from central.api.cached_objects import Ident
from central.api.decoded import Unreadable
from central.controllers.event_reasons import EventReason
from central.ledger.ledger import Ledger
from central.ledger.model import Holder, PodRecord
from central.loop.faults import Faults, Work
from lading.nodedevices import NodeDevices, ShareBypass
from lading.vocabulary import PodUid

SCAN_S: Final = 1.0
QUIET_S: Final = 600.0  # keeps a container that fluctuates around its share from filling the list of Events


class Bypassed(StrEnum):
    """Represent the action for a pod that exceeds its shares."""

    REPORT = "report"
    END = "end"


class Evict(Protocol):
    async def __call__(self, victim: PodRecord, reason: str, cause: str) -> bool: ...


class BypassFeed:
    """Keep the bypassed shares that nodes report. For an object that cannot be decoded, the last report stays."""

    def __init__(self) -> None:
        self.reported: dict[str, tuple[ShareBypass, ...]] = {}  # bypassed shares by node; only nodes that report some

    def replaced(self, objects: Sequence[NodeDevices | Unreadable], version: str) -> None:
        names = {one.metadata.name for one in objects}
        for deleted in self.reported.keys() - names:
            del self.reported[deleted]
        for one in objects:
            self.changed(one)

    def changed(self, obj: NodeDevices | Unreadable) -> None:
        if isinstance(obj, Unreadable):
            return
        if obj.status.share_bypasses:
            self.reported[obj.metadata.name] = obj.status.share_bypasses
        else:
            self.reported.pop(obj.metadata.name, None)

    def removed(self, deleted: Ident, version: str) -> None:
        self.reported.pop(deleted.name, None)


class BypassEnder:
    def __init__(
        self,
        ledger: Ledger,
        feed: BypassFeed,
        *,
        what: Bypassed,
        evict: Evict,
        record_event: Callable[[Holder, str, str], None],
        leads: Callable[[], bool],
        clock: Callable[[], float],
        faults: Faults,
    ) -> None:
        """Create the task. `record_event` writes an Event: pod, reason, message. `clock`: seconds, monotonic."""
        self._faults = faults
        self._ledger = ledger
        self._feed = feed
        self._what = what
        self._evict = evict
        self._record_event = record_event
        self._leads = leads
        self._clock = clock
        self._quiet: dict[tuple[PodUid, str, str], float] = {}  # earliest next Event, by pod, container and card
        self._evicted: set[PodUid] = set()  # evicted pods that the ledger still has

    async def run(self) -> None:
        while True:
            await self.scan()
            await asyncio.sleep(SCAN_S)

    async def scan(self) -> None:
        now = self._clock()
        self._quiet = {key: until for key, until in self._quiet.items() if until > now}
        self._evicted = {uid for uid in self._evicted if self._ledger.pod(uid) is not None}
        for record, one in list(self._find_bypasses()):
            if not self._leads():
                return
            name = f"{record.namespace}/{record.name}"
            if not self._faults.sets_aside(Work.SHARE_BYPASS, name):
                with self._faults.handling(Work.SHARE_BYPASS, name):
                    await self._end(record, one, now)

    async def _end(self, record: PodRecord, one: ShareBypass, now: float) -> None:
        reason = f"container {one.container} {one.why}" if one.container else one.why
        key = (one.pod, one.container, one.uuid)
        if key not in self._quiet:
            self._quiet[key] = now + QUIET_S
            self._record_event(record.holder, EventReason.SHARE_BYPASSED, reason)
        ends = self._what is Bypassed.END and record.uid not in self._evicted
        if ends and await self._evict(record, EventReason.SHARE_BYPASSED, reason):
            self._evicted.add(record.uid)

    def _find_bypasses(self) -> Iterable[tuple[PodRecord, ShareBypass]]:
        """Yield the reports about pods that are bound to the reporting node and are not ending."""
        for node, reported in self._feed.reported.items():
            for one in reported:
                record = self._ledger.pod(one.pod)
                if record is not None and record.node == node and not (record.deleting or record.terminal):
                    yield record, one
