"""Build the small cluster with few free cards, and pods that each have a different reason not to run.

Node busy-a has one free card of eight and node busy-b two; on node busy-c each card has a share of 30Gi. Pods on busy-b have a
disruption budget that allows one eviction; pods on busy-c belong to a DaemonSet.
"""

from typing import Any, Final

import msgspec

from lading.kube.resource import BUDGETS
from lading.nodedevices import Status
from simnode.reported import read_status
from tests.fakes.small_cluster import Json, SmallCluster, a_pod

A100: Final = "NVIDIA A100-SXM4-40GB"
L40S: Final = "NVIDIA L40S"
REFUSED: Final = "lading: device-held: GPU-b0000020-4c61-6469-6e67-00000003dded is held by team-a/busy-b-0"


def a_pod_that_waits(name: str, limits: Json, *, gpu_model: str = "", age_s: int = 3600, cpu: str = "", **spec: Any) -> Json:
    """Return a pending pod. `spec`: additional fields of its spec, by Kubernetes' keys."""
    annotations = {"gpu_model": gpu_model} if gpu_model else {}
    pod = a_pod(name, {"main": limits}, age_s=age_s, **annotations)
    pod["spec"] |= spec
    if cpu:
        pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] = cpu
    return pod


class BusyCluster(SmallCluster):
    def __init__(self) -> None:
        super().__init__()
        for node, profile, pods, limits in (
            ("busy-a", "mn2a", 7, {"gpu": 1}),
            ("busy-b", "mn2a", 6, {"gpu": 1}),
            ("busy-c", "pcie-8gpu", 8, {"gpu_memory": "30Gi"}),
        ):
            self.add_node(node, _of_its_own(node, profile))
            for number in range(pods):
                self._fill(node, number, limits)
        self.keep_pod(_refused(self.pod("busy-b-5")))
        self.say("busy-b-5", "Failed", f"Error: {REFUSED}", source="kubelet", count=17)
        for pod in _waiting():
            self.keep_pod(pod)
        budget = {"selector": {"matchLabels": {"on": "busy-b"}}}
        made = {"metadata": {"name": "most-stay", "namespace": "team-a"}, "spec": budget, "status": {"disruptionsAllowed": 1}}
        self._keep(BUDGETS.path("team-a", "most-stay"), made)

    def _fill(self, node: str, number: int, limits: Json) -> None:
        pod = a_pod_that_waits(f"{node}-{number}", limits, age_s=9000 - number, priority=number)
        kind = "DaemonSet" if node == "busy-c" else "ReplicaSet"
        owner = {"kind": kind, "name": f"of-{node}", "controller": True}
        pod["metadata"] |= {"labels": {"on": node}, "ownerReferences": [owner]}
        self.bind(pod, node)


def _refused(pod: Json) -> Json:
    waiting = {"reason": "CreateContainerError", "message": REFUSED}
    return pod | {"status": {"phase": "Pending", "containerStatuses": [{"name": "main", "state": {"waiting": waiting}}]}}


def _waiting() -> list[Json]:
    eight = a_pod_that_waits("eight", {"gpu": 8}, gpu_model=A100, age_s=500, priority=3)
    says = (
        "0/9 nodes are available: 4 node has no GPU of the model asked for (no-model), 3 too few free GPUs (too-few-free-gpus)."
    )
    eight["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": says}]
    gates = [{"name": "kueue.x-k8s.io/admission"}]
    return [
        eight,
        a_pod_that_waits("three", {"gpu": 3}, gpu_model=A100, age_s=400),
        a_pod_that_waits("share", {"gpu_memory": "20Gi"}, gpu_model=L40S, age_s=300),
        a_pod_that_waits("hungry", {"gpu": 2}, cpu="100", age_s=250),
        a_pod_that_waits("misspelt", {"gpu_mem": "8Gi"}),
        a_pod_that_waits("gated", {"gpu": 1}, schedulingGates=gates, age_s=200),
        a_pod_that_waits("elsewhere", {"gpu": 1}, schedulerName="default-scheduler", age_s=100),
        a_pod_that_waits("plain", {}),
    ]


def _of_its_own(node: str, profile: str) -> Status:
    """Return the profile's report, with the node's last letter in the UUIDs."""
    text = msgspec.json.encode(read_status(profile)).decode()
    return msgspec.json.decode(text.replace("GPU-0", f"GPU-{node[-1]}"), type=Status)
