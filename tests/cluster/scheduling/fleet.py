"""Simulate nodes without kubelets: Node and NodeDevices objects, and one thread that acts as every kubelet and every reporter.

Honest about order: a pod runs after it was bound, its grant is reported after that, and is taken back after the pod is gone.
What is granted is what the assignment says. Every report is made as its node's own user.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from lading.vocabulary import ASSIGNMENT
from simnode.control_plane import ControlPlane
from simnode.kube_api import KubeApi, KubeError
from tests.cluster.scheduling.books import NODE_DEVICES
from tests.cluster.scheduling.looking import Looking

CARDS: Final = 8
CARD_MIB: Final = 81_920
RESERVED_MIB: Final = 512
SCAN_S: Final = 0.3
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"


class Fleet(Looking):
    def __init__(self, plane: ControlPlane, names: Sequence[str]) -> None:
        super().__init__(every_s=SCAN_S)
        self._api = plane.api
        self._own = {name: plane.api_of(f"system:node:{name}", group="system:nodes") for name in names}
        self._reported: dict[str, Any] = {}
        self._running: set[str] = set()

    def __enter__(self) -> Self:
        for number, (name, own) in enumerate(self._own.items()):
            add_node(self._api, name)
            add_devices(own, name, number)
        return super().__enter__()

    def scan(self) -> None:
        pods = [pod for pod in self._api.call("GET", "/api/v1/pods")["items"] if pod["spec"].get("nodeName") in self._own]
        for pod in pods:
            self._settle(pod)
        grants: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for pod in pods:
            grants[pod["spec"]["nodeName"]] += grants_of(pod)
        for name, own in self._own.items():
            if self._reported.get(name, []) != grants[name]:
                patch_status(own, name, {"grants": grants[name]})
                self._reported[name] = grants[name]

    def _settle(self, pod: Mapping[str, Any]) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        try:
            if "deletionTimestamp" in metadata:
                self._api.call("DELETE", path, {"gracePeriodSeconds": 0})
            elif metadata["uid"] not in self._running:
                ready = {"type": "Ready", "status": "True"}
                self._api.call(
                    "PATCH", f"{path}/status", {"status": {"phase": "Running", "conditions": [ready]}}, content_type=STRATEGIC
                )
                self._running.add(metadata["uid"])
        except KubeError as e:
            if e.status != 404:
                raise


def add_node(api: KubeApi, name: str, *, cpu: str = "64", pods: str = "250") -> None:
    """Create a Node that is ready and does not have the taint that the API server gives a new node."""
    node = api.call("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    node["spec"].pop("taints")
    node = api.call("PUT", f"/api/v1/nodes/{name}", node)
    amounts = {"cpu": cpu, "memory": "512Gi", "pods": pods}
    node["status"] = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    api.call("PUT", f"/api/v1/nodes/{name}/status", node)


def add_devices(own: KubeApi, name: str, number: int) -> None:
    identity = {"apiVersion": "devices.lading.dev/v1alpha1", "kind": "NodeDevices", "metadata": {"name": name}}
    own.call("POST", NODE_DEVICES, identity)
    gpus = [
        {
            "uuid": f"GPU-{number:08x}-0000-4000-8000-{card:012x}",
            "bdf": f"0000:{card + 16:02x}:00.0",
            "model": "NVIDIA H100",
            "memoryMiB": CARD_MIB,
            "reservedMiB": RESERVED_MIB,
        }
        for card in range(CARDS)
    ]
    patch_status(own, name, {"reconciled": True, "gpus": gpus})


def patch_status(own: KubeApi, name: str, status: Mapping[str, Any]) -> None:
    own.call("PATCH", f"{NODE_DEVICES}/{name}/status", {"status": status}, content_type=MERGE)


def grants_of(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the pod's grants as its node would report them."""
    metadata = pod["metadata"]
    text = metadata.get("annotations", {}).get(ASSIGNMENT)
    if text is None or pod["status"].get("phase") in ("Succeeded", "Failed"):
        return []
    names = {"uuid": "uuid", "memory_mib": "memoryMiB", "core_percent": "corePercent"}
    written = json.loads(text)
    return [
        {
            "pod": metadata["uid"],
            "container": container,
            "namespace": metadata["namespace"],
            "podName": metadata["name"],
            "form": "signed",
            "gen": written["gen"],
            "gpus": [{names[key]: value for key, value in gpu.items() if key in names} for gpu in parts.get("gpus", [])],
        }
        for container, parts in written["containers"].items()
    ]
