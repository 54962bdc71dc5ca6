"""Test what the pods of a cluster show of the installation."""

from typing import Any

import msgspec
import pytest

from kubectl_lading.deciding import compute_deciding
from kubectl_lading.installation.installation import Workload
from kubectl_lading.installation.workload import summarise
from kubectl_lading.objects import Node, Pod, Report
from tests.fakes.installed_cluster import InstalledCluster
from tests.fakes.small_cluster import a_pod
from tests.unit.kubectl_lading.installation.installations import NOW, at

DEVICES_HEALTHY = "lading.dev/DevicesHealthy"


def workload(cluster: InstalledCluster) -> Workload:
    def of(plural: str, kind: Any) -> tuple[list[Any], str]:
        return [msgspec.convert(one, kind) for path, one in cluster.objects.items() if f"/{plural}/" in path], "9999"

    return summarise(compute_deciding(of("nodedevices", Report), of("nodes", Node), of("pods", Pod)), NOW)


def running(cluster: InstalledCluster, name: str, *, since_s: float, phase: str = "Running", **status: Any) -> None:
    cluster.pod(name)["status"] = {"phase": phase, "startTime": at(since_s), **status}


def forget_grants(cluster: InstalledCluster, node: str) -> None:
    cluster.set_report(node, msgspec.structs.replace(cluster.status(node), grants=()))


@pytest.fixture
def cluster() -> InstalledCluster:
    return InstalledCluster()


def test_pods_of_the_small_cluster_have_no_problem() -> None:
    result = workload(InstalledCluster())
    assert result == Workload(bound=7, pending={"too-few-gpus": 1, "too-few-free-gpus": 1})


def test_a_pod_that_can_never_fit_on_most_nodes_waits_for_those_where_it_can(cluster: InstalledCluster) -> None:
    """Check that the other model of most nodes does not count as a reason to give up."""
    cluster.keep_pod(a_pod("picky", {"main": {"gpu": 8}}, gpu_model="NVIDIA H100 80GB HBM3"))
    assert workload(cluster).pending["too-few-free-gpus"] == 2


def test_requests_without_a_meaning_and_pods_that_fit(cluster: InstalledCluster) -> None:
    cluster.keep_pod(a_pod("misspelt", {"main": {"gpu_mem": "8Gi"}}))
    cluster.keep_pod(a_pod("fits", {"main": {"gpu_core": 5}}))
    pending = workload(cluster).pending
    assert (pending["request-malformed"], pending["fits"]) == (1, 1)


def test_a_pod_that_runs_without_a_grant(cluster: InstalledCluster) -> None:
    forget_grants(cluster, "h100-1")
    running(cluster, "train-0", since_s=61)
    running(cluster, "serve-a", since_s=10)  # the node's report may be on its way
    running(cluster, "serve-b", since_s=500, phase="Pending")
    assert workload(cluster).ungranted == ("team-a/train-0",)


def test_pods_on_nodes_without_a_reconciled_report_are_not_reported(cluster: InstalledCluster) -> None:
    for node in ("h100-1", "h100-2"):
        forget_grants(cluster, node)
    cluster.set_report("h100-1", msgspec.structs.replace(cluster.status("h100-1"), reconciled=False))
    cluster.add_node("h100-2", cluster.status("h100-2"), ready=False)
    running(cluster, "train-0", since_s=500)
    running(cluster, "train-1", since_s=500)
    assert workload(cluster).ungranted == ()


def test_a_pod_that_does_not_start(cluster: InstalledCluster) -> None:
    running(cluster, "train-0", since_s=601, phase="Pending")
    running(cluster, "train-1", since_s=599, phase="Pending")
    running(cluster, "serve-a", since_s=9000)
    assert workload(cluster).unstarted == ("team-a/train-0",)


def test_a_node_without_a_report(cluster: InstalledCluster) -> None:
    del cluster.objects["/apis/devices.lading.dev/v1alpha1/nodedevices/mig-1"]
    assert workload(cluster).unreported == ("mig-1",)


def test_ill_devices_and_missing_assignments(cluster: InstalledCluster) -> None:
    running(cluster, "train-0", since_s=1, conditions=[{"type": DEVICES_HEALTHY, "status": "False"}])
    running(cluster, "train-1", since_s=1, conditions=[{"type": DEVICES_HEALTHY, "status": "True"}])
    stray = a_pod("stray", {"main": {"gpu": 1}})
    stray["spec"]["nodeName"] = "desk-1"
    cluster.keep_pod(stray)
    result = workload(cluster)
    assert (result.unhealthy, result.unassigned) == (("team-a/train-0",), ("team-a/stray",))


def test_a_pod_for_which_no_node_was_found_has_no_ill_devices(cluster: InstalledCluster) -> None:
    found_none = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    running(cluster, "train-0", since_s=1, phase="Pending", conditions=found_none)
    assert workload(cluster).unhealthy == ()


def test_two_pods_with_one_card(cluster: InstalledCluster) -> None:
    grants = cluster.status("h100-1").grants
    twice = msgspec.structs.replace(grants[0], pod="another", pod_name="other")
    cluster.set_report("h100-1", msgspec.structs.replace(cluster.status("h100-1"), grants=(*grants, twice)))
    clashes = workload(cluster).clashes
    assert len(clashes) >= 1
    assert all("h100-1" in one and "another" in one and "team-a/train-0" in one for one in clashes)
