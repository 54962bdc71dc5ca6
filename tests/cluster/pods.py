"""Create pods and read their states, their Events, and what kubectl prints about them."""

import contextlib
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simnode import images
from simnode.cluster import Cluster
from simnode.kube_api import KubeError


def container(name: str = "main", *, command: Sequence[str] = ("pause",), **more: Any) -> dict[str, Any]:
    return {"name": name, "image": images.BUSYBOX, "imagePullPolicy": "Never", "command": list(command), **more}


class Pods:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._made: list[str] = []

    def create(
        self,
        name: str,
        *,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        containers: Sequence[Mapping[str, Any]] = (),
        **spec: Any,
    ) -> None:
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": dict(annotations or {}), "labels": dict(labels or {})},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": list(containers) or [container()], **spec},
        }
        self._cluster.api.create_pod(manifest)
        self._made.append(name)

    def run(
        self,
        name: str,
        *,
        annotations: Mapping[str, str] | None = None,
        containers: Sequence[Mapping[str, Any]] = (),
        **spec: Any,
    ) -> None:
        """Create a pod, and wait until it is ready."""
        self.create(name, annotations=annotations, containers=containers, **spec)
        self.wait_ready(name)

    def wait_ready(self, name: str) -> None:
        self._cluster.eventually(lambda: self.ready(name), f"a ready pod {name}")

    def ready(self, name: str) -> bool:
        conditions = self._cluster.api.pod(name)["status"].get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def status(self, name: str, container: str = "main") -> Any:
        """Return the container's status; an empty mapping while the pod has none."""
        pod = self._cluster.api.pod(name)["status"]
        statuses = [*pod.get("initContainerStatuses", []), *pod.get("containerStatuses", [])]
        return next((s for s in statuses if s["name"] == container), {"restartCount": 0, "containerID": "", "state": {}})

    def wait_restarts(self, name: str, count: int) -> None:
        self._cluster.eventually(lambda: self.status(name)["restartCount"] >= count, f"{count} restarts of {name}")

    def wait_event(self, name: str, text: str) -> str:
        """Return the first Event of the pod that contains the text, once there is one."""
        result: list[str] = []

        def seen() -> bool:
            result[:] = [event for event in self._cluster.api.pod_events(name) if text in event]
            return bool(result)

        self._cluster.eventually(seen, f"an event of {name} with {text!r}")
        return result[0]

    def sh(self, name: str, script: str, *, container: str = "main") -> list[str]:
        """Return the lines that a script prints in the container, through `kubectl exec`."""
        done = self._cluster.kubectl("exec", name, "--container", container, "--", "sh", "-c", script)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def cards(self, name: str, *, container: str = "main") -> list[str]:
        """Return the device nodes of GPUs in the container."""
        return self.sh(name, "ls /dev | grep -E '^nvidia[0-9]+$' | sort || true", container=container)

    def verbs(self, name: str, *, container: str = "main") -> list[str]:
        return self.sh(name, "ls /dev/infiniband 2>/dev/null | grep uverbs || true", container=container)

    def logs(self, name: str, *, container: str = "main", previous: bool = False) -> list[str]:
        done = self._cluster.kubectl("logs", name, "--container", container, *(["--previous"] if previous else []))
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    @contextlib.contextmanager
    def forwarded(self, name: str, port: int) -> Iterator[int]:
        """Yield a port of this machine that `kubectl port-forward` connects to the pod's port."""
        command = self._cluster.kubectl_argv("port-forward", name, f":{port}")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forward:
            try:
                assert forward.stdout is not None
                match = re.match(r"Forwarding from 127\.0\.0\.1:(\d+)", forward.stdout.readline())
                assert match
                yield int(match[1])
            finally:
                forward.terminate()

    def forget(self, name: str) -> None:
        """Leave the deletion of this pod to the test."""
        self._made.remove(name)

    def delete(self, name: str) -> None:
        """Delete the pod, and wait until its node has ended it."""
        self._cluster.api.delete_pod(name)
        self._made.remove(name)
        self._cluster.eventually(lambda: not self._there(name), f"the end of pod {name}")

    def delete_all(self) -> None:
        for name in filter(self._there, self._made):
            self._cluster.api.delete_pod(name)
        self._cluster.eventually(lambda: not any(map(self._there, self._made)), "the end of the test's pods", within_s=120.0)

    def _there(self, name: str) -> bool:
        try:
            self._cluster.api.pod(name)
        except KubeError as e:
            if e.status == 404:
                return False
            raise
        return True
