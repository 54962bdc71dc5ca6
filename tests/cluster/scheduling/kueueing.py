"""Create jobs in Kueue's queues, and read their Workloads, the state of central's admission check, and their pods."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from lading.vocabulary import WORKLOAD
from simnode.kueue import Kueue
from tests.cluster.pods import Pods, container
from tests.cluster.scheduling.world import World, asks

API: Final = "/apis/kueue.x-k8s.io/v1beta2"
JOBS: Final = "/apis/batch/v1/namespaces/default/jobs"
WORKLOADS: Final = f"{API}/namespaces/default/workloads"
JOB_LABEL: Final = "batch.kubernetes.io/job-name"
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
CHECK: Final = "fits"
OTHER_CHECK: Final = "other"  # a second admission check, which the test answers
TWO_CHECKS: Final = "two-checks"  # a queue
NODE_LABELS: Final = {"kubernetes.io/os": "linux"}
LONG_AGO: Final = "2026-01-01T00:00:00Z"
UNTIL_TOLD: Final = ("sh", "-c", "until [ -e /tmp/end ]; do sleep 0.2; done")

Json = dict[str, Any]


def kueue_object(kind: str, name: str, **fields: Any) -> Json:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, **fields}


def cluster_queue(name: str, gpus: int, checks: Sequence[str] = (CHECK,)) -> Json:
    quotas = [{"name": resource, "nominalQuota": gpus} for resource in ("lading.dev/gpu", "lading.dev/rdma")]
    group = {"coveredResources": [one["name"] for one in quotas], "flavors": [{"name": "default", "resources": quotas}]}
    spec = {
        "namespaceSelector": {},
        "queueingStrategy": "BestEffortFIFO",
        "admissionChecksStrategy": {"admissionChecks": [{"name": check} for check in checks]},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [group],
    }
    return kueue_object("ClusterQueue", name, spec=spec)


def is_true(one: Json, kind: str) -> bool:
    return any(text["type"] == kind and text["status"] == "True" for text in one.get("status", {}).get("conditions", []))


class Kueueing:
    """Run Kueue with Lading's admission check and a queue for each quota of GPUs, named by the number (`gpus-64`); a further
    queue has another controller's check too."""

    def __init__(self, world: World, kueue: Kueue) -> None:
        self.world = world
        self.kueue = kueue
        self.api = world.api

    def install(self, quotas: tuple[int, ...], priorities: Mapping[str, int]) -> None:
        """Make the objects, and wait until central has found the check: it asks for a kind that was missing once a minute."""
        create = partial(self.api.call, "POST")
        create(f"{API}/resourceflavors", kueue_object("ResourceFlavor", "default", spec={"nodeLabels": NODE_LABELS}))
        create(f"{API}/admissionchecks", kueue_object("AdmissionCheck", CHECK, spec={"controllerName": "lading.dev/fits"}))
        for name, value in priorities.items():
            create(f"{API}/workloadpriorityclasses", kueue_object("WorkloadPriorityClass", name, value=value))
        create(f"{API}/admissionchecks", kueue_object("AdmissionCheck", OTHER_CHECK, spec={"controllerName": "another.dev/it"}))
        active = {"type": "Active", "status": "True", "reason": "Test", "message": "", "lastTransitionTime": LONG_AGO}
        self.apply(f"{API}/admissionchecks", "AdmissionCheck", OTHER_CHECK, {"conditions": [active]})
        queues = {f"gpus-{gpus}": (gpus, [CHECK]) for gpus in quotas} | {TWO_CHECKS: (max(quotas), [CHECK, OTHER_CHECK])}
        for name, (gpus, checks) in queues.items():
            create(f"{API}/clusterqueues", cluster_queue(name, gpus, checks))
            local = kueue_object("LocalQueue", name, spec={"clusterQueue": name})
            create(f"{API}/namespaces/default/localqueues", local)
        self.world.cluster.eventually(self._usable, "ClusterQueues that admit", within_s=150)

    def apply(self, collection: str, kind: str, name: str, status: Json) -> None:
        """Apply a status as another controller would, by server-side apply."""
        path = f"{collection}/{name}/status?fieldManager=test&force=true"
        self.api.call("PATCH", path, kueue_object(kind, name, status=status), content_type="application/apply-patch+yaml")

    def _usable(self) -> bool:
        """Return whether all queues are active: Kueue says so only if all of their checks are."""
        queues = self.api.call("GET", f"{API}/clusterqueues")["items"]
        return all(is_true(queue, "Active") for queue in queues)

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
        of_pods: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        """Create a Job whose pods run until they are told to end. `of_pods`: their annotations; `spec`: theirs."""
        main = container(command=UNTIL_TOLD, resources=asks(gpu=gpu, rdma=gpu))
        pod = {"schedulerName": "lading", "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [main]}
        metadata = {"name": name, "labels": {QUEUE_LABEL: queue, **(labels or {})}, "annotations": dict(annotations or {})}
        template = {"metadata": {"annotations": dict(of_pods or {})}, "spec": pod | spec}
        body = {"parallelism": pods, "completions": pods, "suspend": True, "template": template}
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
        return sorted(one["metadata"]["name"] for one in self._pods(name))

    def _pods(self, name: str) -> list[Json]:
        return [pod for pod in self.api.pods() if pod["metadata"].get("labels", {}).get(JOB_LABEL) == name]

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
        since = self.condition(name, "QuotaReserved")["lastTransitionTime"]
        assert self.entry(name)["lastTransitionTime"] >= since, "the answer is about an earlier reservation"
        return names

    def ready(self, name: str) -> list[str]:
        return sorted(one["metadata"]["name"] for one in self._pods(name) if is_true(one, "Ready"))

    # ---- their Workloads

    def workload(self, name: str) -> Json:
        """Return the Workload of a job, or of a pod group with that name. Raises LookupError while there is none."""
        for one in self.api.call("GET", WORKLOADS)["items"]:
            owners = [owner["name"] for owner in one["metadata"].get("ownerReferences", [])]
            if name in (one["metadata"]["name"], *owners):
                result: Json = one
                return result
        raise LookupError(f"{name} has no Workload")

    def status(self, name: str) -> Json:
        try:
            result: Json = self.workload(name).get("status", {})
        except LookupError:
            return {}
        return result

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

    def await_answer(self, name: str, state: str, *, within_s: float = 60.0) -> Json:
        """Wait until the check says so. Return its entry."""
        result: list[Json] = []

        def answered() -> bool:
            result[:] = [entry] if (entry := self.entry(name)).get("state") == state else []
            return bool(result)

        self.world.cluster.eventually(answered, f"{state} of {name}", within_s=within_s)
        return result[0]
