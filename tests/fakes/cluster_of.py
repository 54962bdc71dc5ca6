"""Return the cluster of a test in the form in which commands read it."""

from central.decide.gangs import GangPlanner
from central.decide.scheduler import Scheduler
from central.ledger.ledger import Ledger
from central.state.nodes import Nodes
from central.state.pending import PendingPods
from kubectl_lading.deciding import DecidingCluster


def cluster_of(ledger: Ledger, pending: PendingPods, scheduler: Scheduler, hosts: Nodes | None = None) -> DecidingCluster:
    hosts = hosts or Nodes()
    planner = GangPlanner(scheduler, hosts)
    return DecidingCluster(
        ledger=ledger, pending=pending, scheduler=scheduler, reports={}, nodes={}, pods=(), hosts=hosts, planner=planner
    )
