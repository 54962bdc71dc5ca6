"""Jobs in Kueue's queues, as a test makes and sees them: their Workloads, the answer of central's check, their pods."""

from collections.abc import Mapping
from typing import Any, Final

from lading.vocabulary import WORKLOAD
from simnode.kube_api import KubeError
from simnode.kueue import Kueue
from tests.cluster.pods import Pods, container
from tests.cluster.scheduling.world import MERGE, World, asks

API: Final = "/apis/kueue.x-k8s.io/v1beta2"
JOBS: Final = "/apis/batch/v1/namespaces/default/jobs"
WORKLOADS: Final = f"{API}/namespaces/default/workloads"
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
CHECK: Final = "fits"
UNTIL_TOLD: Final = ("sh", "-c", "until [ -e /tmp/end ]; do sleep 0.2; done")

Json = dict[str, Any]


def kueue_object(kind: str, name: str, **fields: Any) -> Json:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, **fields}


def cluster_queue(name: str, gpus: int) -> Json:
    quotas = [{"name": resource, "nominalQuota": gpus} for resource in ("lading.dev/gpu", "lading.dev/rdma")]
    group = {"coveredResources": [one["name"] for one in quotas], "flavors": [{"name": "default", "resources": quotas}]}
    spec = {
        "namespaceSelector": {},
        "queueingStrategy": "BestEffortFIFO",
        "admissionChecksStrategy": {"admissionChecks": [{"name": CHECK}]},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [group],
    }
    return kueue_object("ClusterQueue", name, spec=spec)


class Kueueing:
    """Kueue with our check and one queue for each quota of GPUs; the queue has the number as its name: `gpus-64`."""

    def __init__(self, world: World, kueue: Kueue) -> None:
        self.world = world
        self.kueue = kueue
        self.api = world.api

    def install(self, quotas: tuple[int, ...], priorities: Mapping[str, int]) -> None:
        post = self.api.call
        post("POST", f"{API}/resourceflavors", kueue_object("ResourceFlavor", "default", spec={}))
        check = kueue_object("AdmissionCheck", CHECK, spec={"controllerName": "lading.dev/fits"})
        post("POST", f"{API}/admissionchecks", check)
        for name, value in priorities.items():
            post("POST", f"{API}/workloadpriorityclasses", kueue_object("WorkloadPriorityClass", name, value=value))
        for gpus in quotas:
            name = f"gpus-{gpus}"
            post("POST", f"{API}/clusterqueues", cluster_queue(name, gpus))
            local = kueue_object("LocalQueue", name, spec={"clusterQueue": name})
            post("POST", f"{API}/namespaces/default/localqueues", local)

    # ---- jobs

    def submit(
        self,
        name: str,
        pods: int,
        gpu: int,
        *,
        queue: str = "gpus-64",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        """Create a Job whose pods run until they are told to end. `spec`: of the pods."""
        main = container(command=UNTIL_TOLD, resources=asks(gpu=gpu, rdma=gpu))
        pod = {"schedulerName": "lading", "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [main]}
        metadata = {"name": name, "labels": {QUEUE_LABEL: queue, **(labels or {})}, "annotations": dict(annotations or {})}
        body = {"parallelism": pods, "completions": pods, "suspend": True, "template": {"spec": pod | spec}}
        self.api.call("POST", JOBS, {"metadata": metadata, "spec": body})

    def delete(self, name: str) -> None:
        self.api.call("DELETE", f"{JOBS}/{name}", {"propagationPolicy": "Background"})
        self.world.cluster.eventually(lambda: not self.pods(name), f"the end of the pods of {name}")

    def clear(self) -> None:
        """Delete all jobs, and wait until nothing of them is left."""
        for job in self.api.call("GET", JOBS)["items"]:
            self.api.call("DELETE", f"{JOBS}/{job['metadata']['name']}", {"propagationPolicy": "Background"})
        self.world.cluster.eventually(lambda: not self.api.call("GET", WORKLOADS)["items"], "no Workload")
        self.world.cluster.eventually(lambda: not self.api.call("GET", JOBS)["items"], "no Job")

    def end(self, pods: Pods, name: str) -> None:
        """Let the pods of a job end well, and wait until Kueue knows."""
        for pod in self.pods(name):
            pods.sh(pod, "touch /tmp/end")
        self.await_true(name, "Finished")

    def pods(self, name: str) -> list[str]:
        found = self.api.call("GET", f"/api/v1/namespaces/default/pods?labelSelector=batch.kubernetes.io%2Fjob-name%3D{name}")
        return sorted(pod["metadata"]["name"] for pod in found["items"])

    def suspended(self, name: str) -> bool:
        return bool(self.api.call("GET", f"{JOBS}/{name}")["spec"].get("suspend"))

    def await_running(self, name: str, count: int, *, within_s: float = 60.0) -> list[str]:
        """Wait until so many pods of the job run, each with the mark of its place. Return their names."""

        def running() -> bool:
            return len(self.ready(name)) == count

        self.world.cluster.eventually(running, f"{count} running pods of {name}", within_s=within_s)
        names = self.ready(name)
        uid = self.workload(name)["metadata"]["uid"]
        for pod in names:
            assert self.api.pod(pod)["metadata"]["annotations"][WORKLOAD].startswith(f"{uid}/")
        return names

    def ready(self, name: str) -> list[str]:
        statuses = {one: self.api.pod(one)["status"].get("conditions", []) for one in self.pods(name)}
        return [one for one, said in statuses.items() if any(c["type"] == "Ready" and c["status"] == "True" for c in said)]

    # ---- their Workloads

    def workload(self, name: str) -> Json:
        """Return the Workload of a job, or of a pod group with that name. Raises LookupError while there is none."""
        for one in self.api.call("GET", WORKLOADS)["items"]:
            if any(owner["name"] == name for owner in one["metadata"].get("ownerReferences", [])) or name == one["metadata"]["name"]:
                found: Json = one
                return found
        raise LookupError(f"{name} has no Workload")

    def status(self, name: str) -> Json:
        try:
            found: Json = self.workload(name).get("status", {})
        except LookupError:
            return {}
        return found

    def condition(self, name: str, kind: str) -> Json:
        return next((one for one in self.status(name).get("conditions", []) if one["type"] == kind), {})

    def entry(self, name: str) -> Json:
        """Return what the check says in the Workload."""
        return next((one for one in self.status(name).get("admissionChecks", []) if one["name"] == CHECK), {})

    def await_true(self, name: str, kind: str, *, within_s: float = 60.0) -> Json:
        def true() -> bool:
            return self.condition(name, kind).get("status") == "True"

        self.world.cluster.eventually(true, f"{kind} of {name}", within_s=within_s)
        return self.condition(name, kind)

    def await_sent_back(self, name: str) -> str:
        """Wait until Kueue took the quota back because of our check. Return the message."""
        self.world.cluster.eventually(
            lambda: self.condition(name, "Evicted").get("reason") == "AdmissionCheck"
            and self.condition(name, "QuotaReserved").get("status") == "False",
            f"{name}, sent back",
        )
        return str(self.condition(name, "Evicted")["message"])

    def patch(self, path: str, change: Json) -> None:
        self.api.call("PATCH", path, change, content_type=MERGE)

    def has_kind(self) -> bool:
        try:
            return any(
                one["type"] == "Active" and one["status"] == "True"
                for one in self.api.call("GET", f"{API}/admissionchecks/{CHECK}").get("status", {}).get("conditions", [])
            )
        except KubeError:
            return False
