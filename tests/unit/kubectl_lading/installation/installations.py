"""Build an installation as `deploy/` creates it, without findings, and changes of it, for checks without an API server."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from central.request.parse import OWN_ONLY
from kubectl_lading.installation.control_checks import NAME_LABEL, POLICIES, SCHEDULER
from kubectl_lading.installation.daemonset_checks import GUARD, HOOKS, REMOVER
from kubectl_lading.installation.installation import Installation, Replica, SchedulerConfig
from kubectl_lading.objects import (
    Crd,
    DaemonSet,
    Deployment,
    EndpointSlice,
    FullPod,
    Lease,
    Node,
    Policy,
    PolicyBinding,
    Report,
)
from lading.nodedevices import VERSION
from lading.vocabulary import CENTRAL, FRONT_END

NOW: Final = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
BOOT: Final = "11111111-2222-3333-4444-555555555555"
LEADER: Final = "lading-central-6d5f-abcde"
STANDBY: Final = "lading-central-6d5f-fghij"
ADDRESS: Final = "10.0.0.7"

Json = dict[str, Any]


def at(seconds: float) -> str:
    """Return the time so long ago."""
    return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def deployment(name: str, image: str, *, ready: int = 2, wanted: int = 2, **status: int) -> Deployment:
    text = {"observedGeneration": 1, "readyReplicas": ready, "updatedReplicas": wanted, "replicas": wanted, **status}
    template = {"spec": {"containers": [{"name": "it", "image": image}]}}
    spec = {"replicas": wanted, "template": template}
    return msgspec.convert({"metadata": {"name": name, "generation": 1}, "spec": spec, "status": text}, Deployment)


def daemonset(name: str, *, tag: str = "0.1.0", ready: int = 2, wanted: int = 2, **status: int) -> DaemonSet:
    counts = dict.fromkeys(("desiredNumberScheduled", "updatedNumberScheduled"), wanted)
    template = {"spec": {"containers": [{"name": "it", "image": f"registry.example/lading-node:{tag}"}]}}
    text = {"observedGeneration": 1, "numberReady": ready, **counts, **status}
    metadata = {"name": name, "generation": 1}
    return msgspec.convert({"metadata": metadata, "spec": {"template": template}, "status": text}, DaemonSet)


def node_pod(name: str, node: str, *, ready: bool = True) -> FullPod:
    """Return a pod of a DaemonSet."""
    metadata = {"name": f"{name}-{node}", "labels": {NAME_LABEL: name}}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
    return msgspec.convert({"metadata": metadata, "spec": {"nodeName": node}, "status": status}, FullPod)


def lease(holder: str = f"{LEADER}_0b6f", renewed_s: float = 1.0) -> Lease:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": at(renewed_s)}
    return msgspec.convert({"metadata": {"name": CENTRAL}, "spec": spec}, Lease)


def endpoints(*addresses: str) -> EndpointSlice:
    result = {"metadata": {"name": CENTRAL}, "endpoints": [{"addresses": list(addresses)}]}
    return msgspec.convert(result, EndpointSlice)


def crd(*, established: bool = True, version: str = VERSION, fields: Json | None = None) -> Crd:
    condition = {"type": "Established", "status": str(established), "message": "the names are taken"}
    schema = {"openAPIV3Schema": {"properties": {"status": {"properties": fields or {}}}}}
    versions = [{"name": version, "served": True, "storage": True, "schema": schema}]
    result = {"metadata": {"name": "nodedevices"}, "spec": {"versions": versions}, "status": {"conditions": [condition]}}
    return msgspec.convert(result, Crd)


def policy(name: str, *, warning: str = "") -> Policy:
    text = {"typeChecking": {"expressionWarnings": [{"fieldRef": "spec", "warning": warning}]}} if warning else {}
    return msgspec.convert({"metadata": {"name": name}, "status": text}, Policy)


def policy_binding(name: str, action: str = "Deny") -> PolicyBinding:
    return msgspec.convert(
        {"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": [action]}}, PolicyBinding
    )


def system_pod(name: str, address: str) -> FullPod:
    return msgspec.convert({"metadata": {"name": name}, "status": {"phase": "Running", "podIP": address}}, FullPod)


def node(
    name: str = "n1",
    *,
    boot: str = BOOT,
    kubelet: str = "v1.36.2",
    runtime: str = "containerd://1.7.28",
    ready: str = "True",
    front_end: str = "nri",
    taint: str = "",
    **conditions: str,
) -> Node:
    text = [{"type": kind, "status": status} for kind, status in {"Ready": ready, **conditions}.items()]
    info = {"bootID": boot, "kubeletVersion": kubelet, "containerRuntimeVersion": runtime}
    metadata = {"name": name, "labels": {FRONT_END: front_end}}
    spec = {"taints": [{"key": taint, "effect": "NoSchedule"}]} if taint else {}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"conditions": text, "nodeInfo": info}}, Node)


def report(name: str = "n1", *, changed_s: float = 5.0, **status: Any) -> Report:
    text = {"reporter": "0.1.0", "bootID": BOOT, "reconciled": True, **status}
    managed = [{"manager": "lading-hooks", "subresource": "status", "time": at(changed_s)}]
    return msgspec.convert({"metadata": {"name": name, "managedFields": managed}, "status": text}, Report)


def installation(**changes: Any) -> Installation:
    well = Installation(
        at=NOW,
        cli="0.1.0",
        namespace="lading-system",
        api_server="v1.36.2",
        crd=crd(),
        policies={name: policy(name) for name in POLICIES},
        bindings=[policy_binding(name) for name in POLICIES],
        central=deployment(CENTRAL, "registry.example/lading-central:0.1.0"),
        lease=lease(),
        endpoints=endpoints(ADDRESS),
        scheduler=deployment(SCHEDULER, "registry.k8s.io/kube-scheduler:v1.36.2"),
        scheduler_config=SchedulerConfig(profiles=("lading",), asks_central=OWN_ONLY.resources),
        system_pods=[system_pod(LEADER, ADDRESS), system_pod(STANDBY, "10.0.0.8")],
        replicas={LEADER: Replica(version="0.1.0", leads=True, bindings_open=0), STANDBY: Replica(version="0.1.0")},
        daemonsets={HOOKS: daemonset(HOOKS), GUARD: daemonset(GUARD), REMOVER: daemonset(REMOVER, ready=0, wanted=0)},
        node_pods=[node_pod(name, node) for name in (HOOKS, GUARD) for node in ("n1", "n2")],
        nodes={"n1": node("n1"), "n2": node("n2")},
        reports={"n1": report("n1"), "n2": report("n2", changed_s=7200.0)},
    )
    return replace(well, **changes)
