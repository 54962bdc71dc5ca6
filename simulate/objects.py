"""Render the trace's nodes and pods as Kubernetes manifests that an API server accepts and central reads.

A node becomes a Node and a NodeDevices. A node of a CSV file has cards of one model at unknown positions. Each card has 16,000
MiB, a multiple of 100, so that a share in percent is a whole number of MiB too. A node described by a report has everything in
the report, except for UUIDs: each GPU and MIG instance gets one from the number of its node and its index there. A pod has one
container. A `gpu_milli` below 1000 becomes `lading.dev/gpu-core` in percent, whole cards `lading.dev/gpu`, `gpu_spec`
`lading.dev/gpu-model`, VFs `lading.dev/rdma`, and other columns the annotations of the same names.

Tests: tests/unit/simulate/test_product.py
"""

from typing import Any, Final

import msgspec

from central.request.model import RdmaPolicy, Scope
from lading.kube.resource import NODE_DEVICES
from lading.nodedevices import KIND, Gpu, Status
from lading.vocabulary import (
    GPU_MODEL,
    POLICY,
    RDMA_POLICY,
    RESOURCE_GPU,
    RESOURCE_GPU_CORE,
    RESOURCE_RDMA,
    TOPOLOGY,
    GpuUuid,
)
from simulate.trace import PERCENT, TraceNode, TracePod

CARD_MIB: Final = 16_000
_MOST_PODS: Final = 1000  # no limit for the replay: more pods than any node gets
CONTAINER: Final = "main"
NAMESPACE: Final = "replay"

Manifest = dict[str, Any]


def gpu_uuid(node: int, card: int) -> GpuUuid:
    return GpuUuid(f"GPU-{node:08x}-0000-0000-0000-{card:012x}")


def card_of(uuid: str) -> int:
    return int(uuid[-12:], 16)


def render_devices(number: int, node: TraceNode) -> Manifest:
    """Return the NodeDevices manifest of a node. `number` must be unique for each node."""
    return {
        "apiVersion": NODE_DEVICES.api_version,
        "kind": KIND,
        "metadata": {"name": node.name},
        "status": _cards_alone(number, node) if node.devices is None else msgspec.to_builtins(_renamed(number, node.devices)),
    }


def _cards_alone(number: int, node: TraceNode) -> Manifest:
    gpus = [
        {
            "uuid": gpu_uuid(number, card),
            "bdf": f"0000:{card + 1:02x}:00.0",
            "model": node.model,
            "memoryMiB": CARD_MIB,
        }
        for card in range(node.gpus)
    ]
    return {"reconciled": True, "gpus": gpus}


def _renamed(number: int, devices: Status) -> Status:
    """Return the devices with UUIDs that are unique in the cluster."""
    uuids = {gpu.uuid: gpu_uuid(number, card) for card, gpu in enumerate(devices.gpus)}

    def renamed(gpu: Gpu) -> Gpu:
        uuid = uuids[gpu.uuid]
        links = tuple(msgspec.structs.replace(link, to=uuids.get(link.to, link.to)) for link in gpu.links)
        mig = tuple(msgspec.structs.replace(one, uuid=f"MIG-{uuid[4:]}-{place}") for place, one in enumerate(gpu.mig))
        return msgspec.structs.replace(gpu, uuid=uuid, links=links, mig=mig)

    return msgspec.structs.replace(devices, gpus=tuple(map(renamed, devices.gpus)))


def render_node(node: TraceNode) -> Manifest:
    amounts = {"cpu": f"{node.cpu_milli}m", "memory": f"{node.memory_mib}Mi", "pods": str(_MOST_PODS)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def render_pod(name: str, pod: TracePod, *, policy: str = "") -> Manifest:
    """Return the manifest of a pod. `policy` is the value of its annotation; if it is empty, there is no annotation, and the
    cluster's default applies."""
    limits = {}
    if pod.share:
        limits[RESOURCE_GPU_CORE] = str(pod.share // PERCENT)
    elif pod.whole:
        limits[RESOURCE_GPU] = str(pod.whole)
    if pod.vfs:
        limits[RESOURCE_RDMA] = str(pod.vfs)
    annotations = {GPU_MODEL: "|".join(pod.models)} if pod.models else {}
    if pod.rdma_policy is not RdmaPolicy.NEAREST:
        annotations[RDMA_POLICY] = pod.rdma_policy.value
    if pod.scope is not Scope.ANY:
        annotations[TOPOLOGY] = pod.scope.value
    if policy and pod.has_devices:
        annotations[POLICY] = policy
    requests = {"cpu": f"{pod.cpu_milli}m", "memory": f"{pod.memory_mib}Mi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "annotations": annotations},
        "spec": {
            "containers": [{"name": CONTAINER, "image": "none", "resources": {"requests": requests, "limits": limits}}],
            **({"priority": pod.priority} if pod.priority else {}),
        },
    }
