"""Build Pods, Nodes and NodeDevices as JSON of the API server, with short calls.

Cards and VFs have numbers, as in tests/fakes/capacities.py; the UUIDs of a node's cards follow from its name.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import msgspec

from central.quota.model import KOORDINATOR_PREFIX
from central.request.pod import Pod
from lading.kube.resource import BUDGETS, ELASTIC_QUOTAS, NAMESPACE_QUOTAS, NODE_DEVICES, NODES, PODS
from lading.vocabulary import RESOURCE_GPU, RESOURCE_GPU_CORE, RESOURCE_GPU_MEMORY, RESOURCE_RDMA
from tests.fakes.capacities import CARD_MIB, MODEL

Json = dict[str, Any]
NAMESPACE = "default"
# `fieldsV1` of a pod's `managedFields`, nested as deep as a user may nest it: an API server takes 10,000 levels.
DEEP_FIELDS = msgspec.Raw(b'{"f:a":' * 9_000 + b"{}" + b"}" * 9_000)
WHOLE = {RESOURCE_GPU: "1"}


def pod_path(name: str) -> str:
    return PODS.path(NAMESPACE, name)


def budget_path(name: str) -> str:
    return BUDGETS.path(NAMESPACE, name)


def devices_path(node: str) -> str:
    return NODE_DEVICES.path(name=node)


def node_path(node: str) -> str:
    return NODES.path(name=node)


def deep_fields() -> Json:
    """Return metadata that a decoder which recurses cannot read."""
    entry = {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": DEEP_FIELDS}
    return {"managedFields": [entry]}


def share(memory: str = "", core: int = 0) -> dict[str, str]:
    limits = {RESOURCE_GPU_MEMORY: memory} if memory else {}
    return limits | ({RESOURCE_GPU_CORE: str(core)} if core else {})


def vfs(count: int) -> dict[str, str]:
    return {RESOURCE_RDMA: str(count)}


def pod(
    name: str,
    limits: Mapping[str, str] = WHOLE,
    *,
    version: int = 0,
    uid: str = "",
    namespace: str = NAMESPACE,
    node: str = "",
    priority: int = 0,
    never: bool = False,
    created: str = "2026-11-21T00:00:00Z",
    deleting: bool = False,
    phase: str = "Pending",
    annotations: Mapping[str, str] | None = None,
    scheduler: str = "lading",
    requests: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    grace_s: float | None = None,
    gang: str = "",
    rules: Mapping[str, Any] | None = None,
    unschedulable: bool = False,
) -> Json:
    """Return a pod with one container `main`. A pod with a version is as a watch sends it, with the uid `uid-<name>`. `rules`:
    fields of the spec about nodes. `unschedulable`: kube-scheduler found no node."""
    metadata: Json = {"name": name, "namespace": namespace, "creationTimestamp": created}
    if version:
        metadata |= {"uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    if labels:
        metadata["labels"] = dict(labels)
    if annotations:
        metadata["annotations"] = dict(annotations)
    if deleting:
        metadata["deletionTimestamp"] = created
    resources = {"limits": dict(limits)} | ({"requests": dict(requests)} if requests else {})
    containers = [{"name": "main", "resources": resources}]
    spec: Json = {"containers": containers, "schedulerName": scheduler, "priority": priority}
    spec |= {"nodeName": node} if node else {}
    spec |= {"terminationGracePeriodSeconds": int(grace_s)} if grace_s is not None else {}
    spec |= {"preemptionPolicy": "Never"} if never else {}
    spec |= {"schedulingGroup": {"podGroupName": gang}} if gang else {}
    spec |= rules or {}
    found_none = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status: Json = {"phase": phase} | ({"conditions": [found_none]} if unschedulable else {})
    return {"metadata": metadata, "spec": spec, "status": status}


def budget(name: str, labels: Mapping[str, str], allowed: int = 0) -> Json:
    """Return a PodDisruptionBudget for the pods with these labels."""
    metadata = {"name": name, "namespace": NAMESPACE}
    spec = {"selector": {"matchLabels": dict(labels)}}
    return {"metadata": metadata, "spec": spec, "status": {"disruptionsAllowed": allowed}}


def quota_path(name: str, namespace: str = NAMESPACE, *, flat: bool = False) -> str:
    return (NAMESPACE_QUOTAS if flat else ELASTIC_QUOTAS).path(namespace, name)


def elastic_quota(
    name: str,
    least: Mapping[str, str] | None = None,
    most: Mapping[str, str] | None = None,
    *,
    namespace: str = NAMESPACE,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Json:
    """Return an ElasticQuota of either kind. Keys of labels and annotations are written without Koordinator's prefix."""
    metadata: Json = {"name": name, "namespace": namespace}
    metadata["labels"] = {KOORDINATOR_PREFIX + key: value for key, value in (labels or {}).items()}
    metadata["annotations"] = {KOORDINATOR_PREFIX + key: value for key, value in (annotations or {}).items()}
    return {"metadata": metadata, "spec": {"min": dict(least or {}), "max": dict(most or {})}}


def decoded(pod_json: Json) -> Pod:
    return msgspec.convert(pod_json, Pod)


def node(
    name: str,
    *,
    ready: bool = True,
    allocatable: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[str] = (),
    cordoned: bool = False,
) -> Json:
    """Return a Node. `taints`: keys of its taints, which have the effect NoSchedule."""
    status: Json = {"conditions": [{"type": "Ready", "status": str(ready)}]}
    spec: Json = {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]} if taints else {}
    return {
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": spec | ({"unschedulable": True} if cordoned else {}),
        "status": status | ({"allocatable": dict(allocatable)} if allocatable else {}),
    }


def gpu_uuid(node: str, card: int) -> str:
    return f"GPU-{crc32(node.encode()):08x}-0000-0000-0000-{card:012x}"


def vf_address(number: int) -> str:
    return f"0000:60:{(number + 1) // 8:02x}.{(number + 1) % 8}"


def devices(
    name: str,
    gpus: int = 1,
    vfs: int = 0,
    *,
    version: int = 0,
    grants: Sequence[Json] = (),
    unhealthy: str = "",
    cordon: str = "",
    reconciled: bool = True,
    share_bypasses: Sequence[Json] = (),
    isolations: Sequence[str] = (),
    boot_id: str = "",
) -> Json:
    """Return the NodeDevices of a node whose cards have CARD_MIB each. `unhealthy`: reason for all cards."""
    metadata: Json = {"name": name}
    metadata |= {"resourceVersion": str(version), "uid": f"uid-{name}"} if version else {}
    metadata |= {"annotations": {"lading.dev/cordon": cordon}} if cordon else {}
    cards = [
        {"uuid": gpu_uuid(name, card), "bdf": f"0000:{0x10 + card:02x}:00.0", "model": MODEL, "memoryMiB": CARD_MIB}
        | ({"unhealthy": unhealthy} if unhealthy else {})
        for card in range(gpus)
    ]
    port = {"bdf": "0000:60:00.0", "vfs": [{"bdf": vf_address(number)} for number in range(vfs)]}
    status: Json = {"reconciled": reconciled, "gpus": cards, "pfs": [port] if vfs else [], "grants": list(grants)}
    status |= {"shareBypasses": list(share_bypasses)} if share_bypasses else {}
    status |= {"isolations": list(isolations)} if isolations else {}
    status |= {"bootID": boot_id} if boot_id else {}
    return {"metadata": metadata, "status": status}


def grant(uid: str, node: str, card: int) -> Json:
    """Return a node's grant of a whole card."""
    return {"pod": uid, "container": "main", "gpus": [{"uuid": gpu_uuid(node, card)}]}
