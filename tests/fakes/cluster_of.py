"""Return the cluster of a test in the form in which commands read it."""

from central.decide.gangs import GangPlanner
from central.decide.scheduler import Scheduler
from central.ledger.ledger import Ledger
from central.state.nodes import Nodes
from central.state.pending import PendingPods
from kubectl_lading.cluster import Cluster


def cluster_of(ledger: Ledger, pending: PendingPods, scheduler: Scheduler, hosts: Nodes | None = None) -> Cluster:
    hosts = hosts or Nodes()
    planner = GangPlanner(scheduler, hosts)
    return Cluster(
        ledger=ledger, pending=pending, scheduler=scheduler, reports={}, nodes={}, pods=(), hosts=hosts, planner=planner
    )
