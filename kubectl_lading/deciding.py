"""Add central's scheduler to a cluster that was read, to show how central would decide.

Take a client; return a `DecidingCluster`, with central's effective configuration if central reports it. The state in central's
memory is missing (predictions, reservations, since when a pod is refused): `kubectl_lading.central` asks central for it.

Tests: tests/unit/kubectl_lading/test_cluster.py
"""

import asyncio
import time
from dataclasses import dataclass, fields
from typing import Final

from central.api.decoded import Unreadable
from central.controllers.gangs import GangFeed
from central.decide.configuration import EffectiveConfiguration
from central.decide.gangs import GangPlanner
from central.decide.scheduler import Scheduler
from central.decide.why_pod import FITS
from central.page.waiting import count_reasons
from central.request import pod as request
from central.request.parse import Dialects
from central.state.budgets import Budget
from central.state.pending import Pending
from kubectl_lading.central import CONFIGURATION, Central
from kubectl_lading.cluster import Cluster, compute, read_lists
from kubectl_lading.lists import Listed, read_permitted
from kubectl_lading.objects import Node, Pod, Report, Unread
from kubectl_lading.terminal.output import warn
from lading.kube.client import KubeClient
from lading.kube.resource import BUDGETS

DEFAULT: Final = EffectiveConfiguration()  # central's configuration after a default installation
NOT_ALLOWED: Final = "not-allowed"  # replaces the reason "fits" if kube-scheduler does not let the pod go to the node


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidingCluster(Cluster):
    scheduler: Scheduler
    planner: GangPlanner

    def count_reasons(self, pod: Pending) -> dict[str, int]:
        """Return the number of nodes by reason. A node with fitting devices that the pod's node rules exclude counts as
        NOT_ALLOWED."""
        reasons = count_reasons(self.scheduler, pod)
        if FITS in reasons:
            fits = self.scheduler.judged(pod.request).fits
            away = min(reasons[FITS], sum(not self.allows(pod, name) for name in fits))
            reasons |= {FITS: reasons[FITS] - away, NOT_ALLOWED: away}
        return {reason: nodes for reason, nodes in reasons.items() if nodes}


async def read_deciding(client: KubeClient, central: Central) -> DecidingCluster:
    """Return the cluster with central's effective configuration. Use the defaults, after a warning, if central does not report
    it. Raises KubeError."""
    lists, text = await asyncio.gather(read_lists(client), central.ask(CONFIGURATION, EffectiveConfiguration))
    if isinstance(text, EffectiveConfiguration):
        return compute_deciding(*lists, text)
    reason = text.why if isinstance(text, Unread) else "it is older than this command, and does not tell them"
    warn(f"the settings of central are not known, and taken to be the defaults (policy {DEFAULT.policy.value}): {reason}")
    return compute_deciding(*lists)


async def read_budgets(client: KubeClient) -> list[Budget] | None:
    """Return the disruption budgets, which limit the pods that may be evicted or moved; None, after a warning, if they may not
    be read. Raises KubeError."""
    return await read_permitted(client, BUDGETS.path(), Budget, "disruption budgets were not looked at: {e}")


def compute_deciding(
    devices: Listed[Report], nodes: Listed[Node], pods: Listed[Pod], configuration: EffectiveConfiguration = DEFAULT
) -> DecidingCluster:
    """Compute the cluster from the three lists, and how central decides there."""
    pods = _without_foreign(pods, frozenset(configuration.foreign_annotations))
    cluster = compute(devices, nodes, pods, Dialects(configuration.dialects))
    scheduler = configuration.scheduler(cluster.ledger, cluster.pending, clock=time.monotonic, domains=cluster.hosts.domains)
    GangFeed(scheduler.starts, cluster.ledger, dialects=cluster.dialects).replaced(*pods)
    return DecidingCluster(
        **{one.name: getattr(cluster, one.name) for one in fields(Cluster)},
        scheduler=scheduler,
        planner=GangPlanner(scheduler, cluster.hosts),
    )


def _without_foreign(pods: Listed[Pod], keys: frozenset[str]) -> Listed[Pod]:
    """Return the pods without the annotations of other systems that central is configured to ignore."""
    objects, version = pods
    return [one if isinstance(one, Unreadable) else request.without_annotations(one, keys) for one in objects], version
