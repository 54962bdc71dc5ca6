"""Serve simnode's API server with a generated cluster: nodes, NodeDevices, pods, and a free lease.

A real API server would add its own latency to the measured time of central. Pods are about 4 KB each, as in a real cluster.

    python -m bench.api_server PORT NODES HOLDING OTHERS
"""

import asyncio
import json
import sys
import zlib
from collections.abc import Iterator
from typing import Any, Final

from lading.kube.resource import LEASES, NODE_DEVICES, NODES, PODS
from lading.vocabulary import CENTRAL, SYSTEM_NAMESPACE
from simnode.api_server import ApiServer

GPUS: Final = 8
PFS: Final = 8
VFS: Final = 16
SHAPES: Final[tuple[dict[str, str], ...]] = (
    {"lading.dev/gpu": "1"},
    {"lading.dev/gpu": "1", "lading.dev/rdma": "1"},
    {"lading.dev/gpu": "2", "lading.dev/rdma": "2"},
    {"lading.dev/gpu": "4", "lading.dev/rdma": "4"},
    {"lading.dev/gpu-memory": "8Gi"},
    {"lading.dev/gpu-memory": "20Gi", "lading.dev/gpu-core": "30"},
    {"lading.dev/gpu-core": "10"},
)
_MIB: Final = 81_559
_VERSION: Final = 1000  # above the numbers of the existing pods


def node_name(number: int) -> str:
    return f"gpu-node-{number:05d}"


def gpu_uuid(node: int, card: int) -> str:
    return f"GPU-{node:08x}-0000-4000-8000-{card:012x}"


def nodes(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {
            "metadata": {"name": node_name(number), "uid": f"node-{number}", "resourceVersion": "10"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }


def reports(count: int) -> Iterator[dict[str, Any]]:
    """Yield reports: eight cards and eight ports, two of each below a switch, four switches."""
    for number in range(count):
        gpus, pfs = [], []
        for card in range(GPUS):
            switch = {"path": ["pci0000:17", f"0000:{card // 2 + 1:02x}:00.0"], "numa": card // 4, "socket": card // 4}
            bdf = f"0000:{card + 0x10:02x}:00.0"
            uuid = gpu_uuid(number, card)
            gpus.append({"uuid": uuid, "bdf": bdf, "model": "NVIDIA H100 80GB HBM3", "memoryMiB": _MIB, "place": switch})
            vfs = [{"bdf": f"0000:{card + 0x40:02x}:00.{vf + 1}", "driver": "mlx5_core"} for vf in range(VFS // PFS)]
            pfs.append({"bdf": f"0000:{card + 0x40:02x}:00.0", "driver": "mlx5_core", "place": switch, "vfs": vfs})
        status = {"reporter": "0.1.0", "bootID": "b", "reconciled": True, "gpus": gpus, "pfs": pfs}
        yield {"metadata": {"name": node_name(number), "uid": f"devices-{number}", "resourceVersion": "11"}, "status": status}


def pods(node_count: int, holding: int, others: int) -> Iterator[dict[str, Any]]:
    """Yield `holding` pods of one card each, spread evenly over all nodes, and `others` without Lading's annotations."""
    for number in range(holding):
        node = number % node_count
        card = number // node_count
        pod = render_pod(
            f"train-{number:06d}", f"{number:08x}-aaaa-4000-8000-000000000000", node_name(node), {"lading.dev/gpu": "1"}
        )
        gpu = {"uuid": gpu_uuid(node, card), "bdf": f"0000:{card + 0x10:02x}:00.0"}
        assignment = {
            "v": 1,
            "pod": pod["metadata"]["uid"],
            "node": node_name(node),
            "gen": 1,
            "containers": {"train": {"gpus": [gpu]}},
        }
        pod["metadata"]["annotations"]["lading.dev/assignment"] = json.dumps(assignment, separators=(",", ":"))
        yield pod
    for number in range(others):
        yield render_pod(f"web-{number:06d}", f"{number:08x}-bbbb-4000-8000-000000000000", node_name(number % node_count), {})


def pod_uid(name: str) -> str:
    return f"{zlib.crc32(name.encode()):08x}-cccc-4000-8000-000000000000"


def render_pending(name: str, number: int) -> dict[str, Any]:
    """Render a pending pod of about 3 KB that requests one of the SHAPES in turn."""
    pod = render_pod(name, pod_uid(name), "", SHAPES[number % len(SHAPES)])
    pod["status"] = {"phase": "Pending"}
    return pod


def render_pod(name: str, uid: str, node: str, limits: dict[str, str]) -> dict[str, Any]:
    env = [{"name": f"SETTING_{i}", "value": "x" * 40} for i in range(12)]
    container = {
        "name": "train",
        "image": "registry.example/team/train:v1.2.3",
        "env": env,
        "resources": {"limits": {"cpu": "8", "memory": "32Gi", **limits}, "requests": {"cpu": "8", "memory": "32Gi", **limits}},
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}],
        "terminationMessagePath": "/dev/termination-log",
        "imagePullPolicy": "IfNotPresent",
    }
    fields: dict[str, Any] = {"f:labels": {f"f:label-{i}": {} for i in range(10)}, "f:spec": {"f:containers": {"f:env": {}}}}
    conditions = [
        {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-11-20T10:00:00Z"}
        for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid,
            "resourceVersion": "12",
            "creationTimestamp": "2026-11-20T10:00:00Z",
            "labels": {f"label-{i}": f"value-{i}" for i in range(10)},
            "annotations": {"kubernetes.io/config.seen": "2026-11-20T10:00:00Z", "checksum/config": "0" * 64},
            "managedFields": [{"manager": manager, "fieldsV1": fields} for manager in ("kube-controller-manager", "kubelet")],
        },
        "spec": {
            "nodeName": node,
            "schedulerName": "lading",
            "containers": [container],
            "priority": 0,
            "volumes": [{"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        },
        "status": {"phase": "Running", "conditions": conditions, "hostIP": "10.0.0.1", "podIP": "10.1.0.1"},
    }


async def serve(port: int, node_count: int, holding: int, others: int) -> None:
    async with ApiServer(port=port, first_version=_VERSION) as server:
        for node in nodes(node_count):
            server.store.load(NODES.path(name=node["metadata"]["name"]), node)
        for report in reports(node_count):
            server.store.load(NODE_DEVICES.path(name=report["metadata"]["name"]), report)
        for pod in pods(node_count, holding, others):
            server.store.load(PODS.path("default", pod["metadata"]["name"]), pod)
        released = {"spec": {"leaseDurationSeconds": 1}}  # a former leader leaves the lease like this: it can be taken at once
        server.store.load(LEASES.path(SYSTEM_NAMESPACE, CENTRAL), released)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(*map(int, sys.argv[1:5])))
