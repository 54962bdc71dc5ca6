"""Describe the pods that wait for devices: the request of each, the time since its refusal, and the reasons by code.

The result has the number of all waiting pods, and the first MOST pods in queue order, each with its own or its gang's queue
position. The reasons are those of kube-scheduler's last request, updated from the ledger. No request is evaluated for the page
alone, so a request that central has not evaluated yet, or has dropped, has no reasons.

Tests: tests/unit/central/page/test_live.py
"""

from collections import Counter
from collections.abc import Iterable
from heapq import nsmallest
from typing import Final, NamedTuple

import msgspec

from central.api.times import parse_seconds
from central.decide.line import Line, gang_lines, line_of, pod_lines
from central.decide.scheduler import Scheduler
from central.decide.why_pod import FITS, view_gang
from central.decide.why_pod import SENTENCES as OF_WHY
from central.loop.slices import Slices
from central.request.describe import describe_request
from central.request.gang import GangKey
from central.request.model import DeviceRequest
from central.search.placement import BY_SHOWN, Missing, NoFit
from central.state.pending import Pending
from central.view.model import PendingView

MOST: Final = 300  # maximum pods on the page: more than people read; kube-scheduler's own lists have the others
_CHUNK: Final = 256  # pods sorted in one step

SENTENCES: Final = OF_WHY | {FITS: "it fits; kube-scheduler has not bound it yet"}


class Waiting(NamedTuple):
    pods: tuple[PendingView, ...] = ()
    total: int = 0  # number of all waiting pods, also those not in `pods`

    def is_as(self, other: "Waiting") -> bool:
        """Return whether both are equal, apart from the waiting times."""
        return self.total == other.total and [*map(_timeless, self.pods)] == [*map(_timeless, other.pods)]


def _timeless(view: PendingView) -> tuple[object, ...]:
    return msgspec.structs.astuple(msgspec.structs.replace(view, refused_s=None)), view.refused_s is None


async def read_waiting(scheduler: Scheduler, now: float, slices: Slices) -> Waiting:
    first: list[Pending] = []
    everybody, place, waiting = list(scheduler.pending), scheduler.tenants.line(), Counter[str | None]()
    for start in range(0, len(everybody), _CHUNK):
        some = everybody[start : start + _CHUNK]
        waiting.update(map(line_of, some))
        first = nsmallest(MOST, [*first, *some], key=place)
        await slices.pause()
    lines, gangs = pod_lines(scheduler, first, waiting), gang_lines(scheduler)
    await slices.pause()
    counts, text_of = dict[DeviceRequest, dict[str, int]](), dict[GangKey, str]()
    views = []
    for pod in first:
        if pod.request.sharing is not None:  # the pod's reasons may depend on its own affinity group
            reasons = _count_in_group(scheduler, pod) or _count(scheduler, pod.request)
        else:
            if pod.request not in counts:
                counts[pod.request] = _count(scheduler, pod.request)
            reasons = counts[pod.request]
        result = scheduler.gangs.of(pod.uid)
        gang = result[0] if result is not None and not result[0].ordinary else None
        if gang is not None and gang.key not in text_of:
            text_of[gang.key] = view_gang(scheduler, gang, gangs.get(gang.key)).as_text()
        views.append(_view(scheduler, pod, reasons, now, lines.get(pod.uid), text_of[gang.key] if gang is not None else ""))
        await slices.pause()
    return Waiting(tuple(views), len(everybody))


def _view(scheduler: Scheduler, pod: Pending, reasons: dict[str, int], now: float, line: Line | None, gang: str) -> PendingView:
    making_room_on, keeping_room_on = scheduler.room_for(pod.uid)
    return PendingView(
        uid=pod.uid,
        namespace=pod.namespace,
        pod=pod.name,
        asks=describe_request(pod.request),
        created=parse_seconds(pod.created),
        refused_s=None if pod.refused_at is None else round(max(0.0, now - pod.refused_at), 1),
        reasons=reasons,
        making_room_on=making_room_on,
        keeping_room_on=keeping_room_on,
        quota=pod.quota.shown if pod.quota is not None else "",
        gang=gang,
        line=line.as_text() if line is not None else "",
    )


def count_reasons(scheduler: Scheduler, pod: Pending) -> dict[str, int]:
    """Count nodes by reason code, judging all nodes now. This is slow: call it rarely, and not while central decides."""
    return _count_in_group(scheduler, pod) or _by_code(scheduler.judged(pod.request).reasons.values())


def _count(scheduler: Scheduler, request: DeviceRequest) -> dict[str, int]:
    return _by_code((scheduler.cached_reasons(request) or {}).values())


def _count_in_group(scheduler: Scheduler, pod: Pending) -> dict[str, int]:
    """Count nodes by reason code for a pod with an affinity group that has a card; return {} for any other pod."""
    own = scheduler.ledger.without(pod.uid)
    group = scheduler.group_nodes(pod.request, own)
    if not group:
        return {}
    verdicts = [scheduler.verdict(pod.request, name, own) for name in group]
    here = _by_code(verdict.missing.shown if isinstance(verdict, NoFit) else "" for verdict in verdicts)
    elsewhere = len(scheduler.ledger.nodes()) - len(group)
    return here | ({Missing.GROUP_ELSEWHERE.value: elsewhere} if elsewhere > 0 else {})


def _by_code(shown: Iterable[str]) -> dict[str, int]:
    """Count the reason codes, the most frequent one first."""
    return {_code(text): nodes for text, nodes in Counter(shown).most_common()}


def _code(shown: str) -> str:
    if not shown:
        return FITS
    missing = BY_SHOWN.get(shown)
    return missing.value if missing else shown
