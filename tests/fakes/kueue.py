"""Simulate Kueue on the fake API server, with the same steps as a real Kueue (tests/cluster/scheduling).

The simulation reserves quota for a Workload and waits for the admission checks. If all are Ready, it admits the Workload and
creates its pods, with the pod set's label and the updates that the checks request. After Retry, it waits as long as the check
requests, keeping the quota, evicts the Workload, and reserves quota again. After Rejected, it deactivates the Workload. An
eviction has two steps: the checks become Pending while quota is still reserved, then the quota is released. The test sets the
amount of quota.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lading.kube.resource import ADMISSION_CHECKS, FLAVORS, WORKLOADS
from lading.vocabulary import RESOURCE_GPU
from tests.fakes.kube_objects import NAMESPACE, Json, pod, pod_path
from tests.fakes.led import Led

CHECK: Final = "fits"
GATE: Final = "kueue.x-k8s.io/admission"


def workload_path(name: str) -> str:
    return WORKLOADS.path(NAMESPACE, name)


def condition(kind: str, status: bool) -> Json:
    return {"type": kind, "status": str(status), "reason": "Test", "message": ""}


@dataclass
class Kueue:
    one: Led
    checks: tuple[str, ...] = (CHECK,)
    makes_pods: bool = True
    requeued: dict[str, float] = field(default_factory=dict)  # Workloads that were sent back, until when
    again: set[str] = field(default_factory=set)  # evicted for that, which get quota again
    waited: dict[str, list[int]] = field(default_factory=dict)  # how long, each time

    async def install(self, controller: str = "lading.dev/fits") -> None:
        body: Json = {"metadata": {"name": CHECK}, "spec": {"controllerName": controller}}
        await self.one.server.put(ADMISSION_CHECKS.path(name=CHECK), body)
        await self.one.pause()

    async def put_flavor(self, name: str, labels: Mapping[str, str]) -> None:
        await self.one.server.put(FLAVORS.path(name=name), {"metadata": {"name": name}, "spec": {"nodeLabels": dict(labels)}})
        await self.one.pause()

    async def submit(
        self,
        name: str,
        sets: Mapping[str, tuple[int, int]],
        *,
        flavor: str = "",
        priority: int = 0,
        created: str = "2026-11-21T00:00:00Z",
        limits: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """Create a Workload, and reserve quota for it at once. `sets`: the number of pods and the cards of each pod."""
        pod_sets = []
        for pod_set, (count, gpus) in sets.items():
            made = pod(pod_set, limits or ({RESOURCE_GPU: str(gpus)} if gpus else {}), **options)
            metadata = {key: made["metadata"][key] for key in ("labels", "annotations") if key in made["metadata"]}
            pod_sets.append({"name": pod_set, "count": count, "template": {"metadata": metadata, "spec": made["spec"]}})
        metadata = {"name": name, "namespace": NAMESPACE, "creationTimestamp": created}
        body: Json = {"metadata": metadata, "spec": {"podSets": pod_sets, "priority": priority}, "status": {}}
        self.one.server.objects[workload_path(name)] = body | {"metadata": metadata | {"uid": f"uid-{name}"}}
        self.reserve(name, flavor)
        await self.one.pause()

    def json(self, name: str) -> Json:
        return self.one.server.objects[workload_path(name)]

    def state(self, name: str, check: str = CHECK) -> str:
        return str(self.entry(name, check)["state"])

    def entry(self, name: str, check: str = CHECK) -> Json:
        result: Json = next(one for one in self.json(name)["status"]["admissionChecks"] if one["name"] == check)
        return result

    def is_true(self, name: str, kind: str) -> bool:
        return any(one["type"] == kind and one["status"] == "True" for one in self.json(name)["status"]["conditions"])

    def reserve(self, name: str, flavor: str = "") -> None:
        body = self.json(name)
        before = {one["name"]: one for one in body["status"].get("admissionChecks", [])}
        flavors = {"flavors": {RESOURCE_GPU: flavor}} if flavor else {}
        sets = [{"name": one["name"], "count": one["count"]} | flavors for one in body["spec"]["podSets"]]
        body["status"] |= {
            "conditions": [condition("QuotaReserved", True)],
            "admission": {"clusterQueue": "q", "podSetAssignments": sets},
            "admissionChecks": [self._pending(before.get(check, {}), check) for check in self.checks],
        }
        self.one.server.store.put(workload_path(name), body)

    def _pending(self, before: Json, check: str) -> Json:
        kept = {key: before[key] for key in ("retryCount", "requeueAfterSeconds") if key in before}
        return {"name": check, "state": "Pending", "lastTransitionTime": "2026-11-21T00:00:00Z", "message": ""} | kept

    def say(self, name: str, check: str, state: str) -> None:
        """Answer as the controller of another check."""
        body = self.json(name)
        for one in body["status"]["admissionChecks"]:
            if one["name"] == check:
                one["state"] = state
        self.one.server.store.put(workload_path(name), body)

    def evict(self, name: str) -> None:
        """Take the first step of an eviction; `run` takes the second."""
        body = self.json(name)
        for one in body["status"]["admissionChecks"]:
            if one["state"] != "Pending":
                retries = one.pop("retryCount", 0)
                if one["state"] == "Retry":
                    one["retryCount"] = retries + 1
                one["message"] = f"Reset to Pending after eviction. Previously: {one['state']}"
                one["state"] = "Pending"
        body["status"]["conditions"].append(condition("Evicted", True))
        self.one.server.store.put(workload_path(name), body)

    def take_quota(self, name: str) -> None:
        body = self.json(name)
        body["status"].pop("admission", None)
        body["status"]["conditions"] = [condition(kind, False) for kind in ("QuotaReserved", "Admitted")]
        body["status"]["conditions"].append(condition("Evicted", True))
        self.one.server.store.put(workload_path(name), body)

    def finish(self, name: str) -> None:
        body = self.json(name)
        body["status"]["conditions"].append(condition("Finished", True))
        self.one.server.store.put(workload_path(name), body)

    async def run(self, seconds: float) -> None:
        """React for so long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            for path in [path for path in self.one.server.objects if "/workloads/" in path]:
                self._follow(path.rpartition("/")[2], loop.time())
            await asyncio.sleep(0.1)

    def _follow(self, name: str, now: float) -> None:
        body = self.json(name)
        states = {one["state"] for one in body["status"]["admissionChecks"]}
        if self.is_true(name, "Evicted") and self.is_true(name, "QuotaReserved"):
            self.take_quota(name)
        elif not body["spec"].get("active", True):
            return
        elif name in self.again:
            self.again.remove(name)
            self.reserve(name)
        elif name in self.requeued:
            if now >= self.requeued[name]:
                del self.requeued[name]
                self.again.add(name)
                self.evict(name)
        elif "Rejected" in states:
            body["spec"]["active"] = False
            self.one.server.store.put(workload_path(name), body)
            self.evict(name)
        elif "Retry" in states:
            self._send_back(name, now)
        elif states == {"Ready"} and self.is_true(name, "QuotaReserved") and not self.is_true(name, "Admitted"):
            body["status"]["conditions"].append(condition("Admitted", True))
            self.one.server.store.put(workload_path(name), body)
            if self.makes_pods:
                self.make_pods(name)

    def _send_back(self, name: str, now: float) -> None:
        for one in self.json(name)["status"]["admissionChecks"]:
            if one["state"] == "Retry":
                wait_s = one["requeueAfterSeconds"]
                self.requeued[name] = now + wait_s
                self.waited.setdefault(name, []).append(wait_s)

    def make_pods(self, name: str, *, without: int = 0) -> None:
        """Make the job's pods that do not exist, but for so many of each set."""
        body = self.json(name)
        for pod_set in body["spec"]["podSets"]:
            for number in range(pod_set["count"] - without):
                path = pod_path(f"{name}-{pod_set['name']}-{number}")
                if path not in self.one.server.objects:
                    self.one.server.store.put(path, self._pod(body, pod_set))

    def _pod(self, body: Json, pod_set: Json) -> Json:
        template = pod_set["template"]
        updates = [one for check in body["status"]["admissionChecks"] for one in check.get("podSetUpdates", [])]
        added = {key: value for one in updates if one["name"] == pod_set["name"] for key, value in one["annotations"].items()}
        metadata = {
            "labels": template["metadata"].get("labels", {}) | {"kueue.x-k8s.io/podset": pod_set["name"]},
            "annotations": template["metadata"].get("annotations", {}) | added,
            "creationTimestamp": "2026-11-21T00:00:00Z",
        }
        return {"metadata": metadata, "spec": template["spec"], "status": {"phase": "Pending"}}
