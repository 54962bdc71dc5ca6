"""Keep the cluster's state as JSON by node for the page: as a whole, or as changes since a revision.

The inputs are the ledger, node reports, and the scheduler; the results are parts of one JSON object. A node is encoded again
only if it may have changed, and counts as changed only if its JSON differs. Nothing runs in the background: a request starts an
update, at most every EVERY_S, for all requests at that time.

kube-scheduler's requests come first, so work is done in slices of SLICE_S. While other tasks use the event loop, a pause longer
than a slice follows each slice. So a request mostly finds the loop idle, and otherwise waits for one slice.
"""

import asyncio
import re
import secrets
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from central.decide.scheduler import Scheduler
from central.ledger.changes import Changes
from central.loop.slices import Slices
from central.page.waiting import SENTENCES, Waiting, read_waiting
from central.state.node_reports import Reports
from central.view.build import node_view, totals
from central.view.model import NodeView, Totals
from lading import __version__

EVERY_S: Final = 0.5
PENDING_EVERY_S: Final = 2.0  # each pending request counts the reasons of all nodes
SLICE_S: Final = 0.0005  # enough for four or five nodes
REST_S: Final = 0.001
QUIET_S: Final = 0.0001  # an empty turn of the event loop takes some 0.03 ms; to read a request takes longer than QUIET_S
NOTHING: Final = Totals(nodes=0)

_encode = msgspec.json.Encoder().encode
_FIELDS: Final = Totals.__struct_fields__
_NONE: Final = (0,) * len(_FIELDS)
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,17}")


class PageSnapshot(NamedTuple):
    """Hold one JSON object as parts, which joined are its text."""

    revision: str
    parts: list[bytes]


class Live:
    """Keep the JSON of one leadership. `clock`: monotonic seconds."""

    def __init__(self, scheduler: Scheduler, reports: Reports, *, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._ledger = scheduler.ledger
        self._reports = reports
        self._clock = clock
        self._name = secrets.token_hex(4)  # makes the revisions of other leaderships invalid
        # These dicts hold only bytes and numbers, so that the garbage collector need not visit them.
        self._nodes: dict[str, bytes] = {}
        self._totals_of: dict[str, tuple[int, ...]] = {}
        self._sum = msgspec.structs.astuple(NOTHING)
        self._changes = Changes()
        self._waiting = Waiting()
        self._waiting_changed = 0  # version of the last change of the pending pods
        self._observed_claims = self._observed_reports = -1
        self._busy = asyncio.Lock()
        self._caught_up_at = self._waited_at = float("-inf")

    @property
    def revision(self) -> str:
        return f"{self._name}.{self._changes.version}"

    async def catch_up(self) -> None:
        async with self._busy:
            if self._clock() - self._caught_up_at < EVERY_S:
                return
            slices = Slices(self._clock, slice_s=SLICE_S, rest_s=REST_S, quiet_s=QUIET_S)
            claimed, observed_claims = self._ledger.claims_changed_since(self._observed_claims)
            reported, observed_reports = self._reports.changed_since(self._observed_reports)
            for name in dict.fromkeys([*claimed, *reported]):
                self._update_node(name)
                await slices.pause()
            self._observed_claims, self._observed_reports = observed_claims, observed_reports
            if self._clock() - self._waited_at >= PENDING_EVERY_S:
                await self._update_waiting(slices)
            self._caught_up_at = self._clock()

    def _update_node(self, name: str) -> None:
        view = self._view(name)
        now = None if view is None else _encode(view)
        if now == self._nodes.get(name):
            return
        before = self._totals_of.pop(name, _NONE)
        come = _NONE if view is None else msgspec.structs.astuple(totals([view]))
        self._sum = tuple(total - less + more for total, less, more in zip(self._sum, before, come, strict=True))
        if now is None:
            del self._nodes[name]
        else:
            self._nodes[name], self._totals_of[name] = now, come
        self._changes.mark(name)

    def _view(self, name: str) -> NodeView | None:
        """Return the view of a node; None if there is nothing to show."""
        report = self._reports.get(name)
        if report is None and not any(self._ledger.holds_on(name)):
            return None
        return node_view(self._ledger, report, name)

    async def _update_waiting(self, slices: Slices) -> None:
        now = await read_waiting(self._scheduler, self._clock(), slices)
        if not now.is_as(self._waiting):
            self._waiting_changed = self._changes.mark("")
        self._waiting = now
        self._waited_at = self._clock()

    # ---- answers, as of the last `catch_up`

    @property
    def moment(self) -> tuple[str, float]:
        """Return the identity of an answer. Answers of one moment are equal; answers of one revision may differ in the time
        that pods wait."""
        return self.revision, self._waited_at

    def whole(self) -> PageSnapshot:
        head = {"revision": self.revision, "version": __version__, "totals": self._totals(), "sentences": SENTENCES}
        return self._joined(head | self._pending(), self._nodes.values())

    def since(self, revision: str) -> PageSnapshot | None:
        """Return the changes since a revision; None if the revision is not from this leadership."""
        leadership, _, number = revision.partition(".")
        if leadership != self._name or not _NUMBER.fullmatch(number) or int(number) > self._changes.version:
            return None
        names = self._changes.since(int(number))
        removed = [name for name in names if name and name not in self._nodes]
        head = {"revision": self.revision, "after": revision, "totals": self._totals(), "gone": removed}
        if self._waiting_changed > int(number):
            head |= self._pending()
        return self._joined(head, [self._nodes[name] for name in names if name in self._nodes])

    def _totals(self) -> Totals:
        return Totals(**dict(zip(_FIELDS, self._sum, strict=True)))

    def _pending(self) -> dict[str, object]:
        """Return the pending pods, with `refused_s` as of the last reading."""
        return {"pending": self._waiting.pods, "pending_count": self._waiting.total}

    def _joined(self, head: dict[str, object], nodes: Iterable[bytes]) -> PageSnapshot:
        start = _encode(head)[:-1] + b',"nodes":['
        commas = [part for node in nodes for part in (b",", node)][1:]
        return PageSnapshot(self.revision, [start, *commas, b"]}"])
