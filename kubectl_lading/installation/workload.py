"""Derive facts about the installation from the pods of a cluster: waiting pods by reason, pods without their devices. Pure.

Take a `DecidingCluster` and the time, and return a `Workload`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from central.decide.why_pod import FITS
from central.ledger.model import Clash
from central.request.model import DeviceRequest, MalformedRequest
from central.request.node_rules import NodeRules
from central.request.parse import Dialects, parse_request
from central.request.reasons import OfPod
from central.search.placement import Missing
from central.state.pending import Pending
from kubectl_lading.deciding import NOT_ALLOWED, DecidingCluster
from kubectl_lading.installation.installation import Workload
from kubectl_lading.objects import Pod
from lading.vocabulary import ASSIGNMENT, PodUid

# Younger pods are no finding: kubelet and the node's reporter each report a container within seconds.
UNREPORTED_S: Final = 60.0
# Younger pods are no finding: pulling a large image takes minutes.
UNSTARTED_S: Final = 600.0


def summarise(cluster: DecidingCluster, now: datetime) -> Workload:
    names = {pod.metadata.uid: pod.full_name for pod in cluster.pods}
    there = [pod for pod in cluster.pods if not pod.ended]
    bound = [pod for pod in there if pod.spec.node_name and ASSIGNMENT in pod.metadata.annotations]
    granted = {grant.pod for report in cluster.reports.values() for grant in report.status.grants}
    unstarted = [pod for pod in bound if pod.status.phase == "Pending" and pod.started_s(now) > UNSTARTED_S]
    return Workload(
        bound=len(bound),
        pending=_pending(cluster, there),
        unassigned=tuple(sorted(names[pod.metadata.uid] for pod in cluster.unassigned)),
        unhealthy=_named(pod for pod in there if (health := pod.status.healthy) is not None and health.status == "False"),
        ungranted=_named(pod for pod in bound if _is_ungranted(pod, cluster, granted, now)),
        unstarted=_named(unstarted),
        clashes=tuple(_as_text(clash, names) for clash in cluster.ledger.conflicts()),
        unreported=tuple(sorted({pod.spec.node_name for pod in bound} - set(cluster.reports))),
        problems=tuple(cluster.problems),
    )


def _named(pods: Iterable[Pod]) -> tuple[str, ...]:
    return tuple(sorted(pod.full_name for pod in pods))


def _is_ungranted(pod: Pod, cluster: DecidingCluster, granted: set[PodUid], now: datetime) -> bool:
    """Return whether the pod runs and its node reports no grant for it. False if the node is unreachable or has no report,
    because other checks report that."""
    node = pod.spec.node_name
    report = cluster.reports.get(node)
    if pod.status.phase != "Running" or pod.metadata.uid in granted or pod.started_s(now) <= UNREPORTED_S:
        return False
    return report is not None and report.status.reconciled and node in cluster.nodes and cluster.nodes[node].ready


def _as_text(clash: Clash, names: Mapping[PodUid, str]) -> str:
    return f"{clash.device} on {clash.node} ({' and '.join(names.get(uid, uid) for uid in clash.pods)})"


def _pending(cluster: DecidingCluster, pods: Sequence[Pod]) -> dict[str, int]:
    """Return the number of waiting pods by reason; each pod counts once."""
    known: dict[tuple[DeviceRequest, NodeRules | None], str] = {}
    reasons: Counter[str] = Counter()
    for pending in cluster.pending:
        kind = pending.request, pending.node_rules
        if kind not in known:
            known[kind] = _reason(cluster, pending)
        reasons[known[kind]] += 1
    reasons.update(_malformed(pods, cluster.dialects))
    return dict(reasons)


def _malformed(pods: Sequence[Pod], dialects: Dialects) -> Iterator[str]:
    """Yield `request-malformed` for each unbound pod with an invalid request, since informers do not count it as pending."""
    for pod in pods:
        request = None if pod.spec.node_name else parse_request(pod, dialects)
        if isinstance(request, MalformedRequest) and not request.unread:
            yield OfPod.REQUEST_MALFORMED.value


def _reason(cluster: DecidingCluster, pod: Pending) -> str:
    """Return the reason of most nodes; FITS, NOT_ALLOWED and reasons that may go away come first. GROUP_ELSEWHERE is ignored:
    the pod only fits on its affinity group's card."""
    counts = cluster.count_reasons(pod)
    for reason in (FITS, NOT_ALLOWED):
        if reason in counts:
            return reason
    missing = [one for one in Missing if one.value in counts and one is not Missing.GROUP_ELSEWHERE]
    return max(missing, key=lambda one: (not one.unresolvable, counts[one.value], one.value), default=Missing.NO_REPORT).value
