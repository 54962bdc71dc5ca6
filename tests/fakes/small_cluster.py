"""Build the API server's objects of a few simulated nodes, with running and waiting pods, the same in each run.

Pods are placed and their assignments written by central's own code, and signed with a fixed key. Nodes report grants, the use
of their cards, and former holders. Tests of the command line and the page show this cluster.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import NAMESPACE_DNS, uuid5

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from central.api.objects import Node
from central.assignment.annotation import BadAssignment, parse_own
from central.controllers.conditions import Conditions
from central.controllers.informer import DevicesFeed, NodeFeed, PodFeed
from central.daemon.keys import Signer
from central.decide.scheduler import Reservation, Scheduler
from central.ledger.ledger import Ledger
from central.quota.model import KOORDINATOR_PREFIX
from central.request.model import Policy
from central.request.pod import Pod, roles_of
from central.state.pending import PendingPods
from lading.kube.resource import ELASTIC_QUOTAS, EVENTS, NODE_DEVICES, NODES, PODS
from lading.nodedevices import NodeDevices, Status
from lading.vocabulary import ASSIGNMENT, ASSIGNMENT_SIGNATURE, PREFIX, RESOURCE_GPU, PodUid
from simnode.api_store import Store
from simnode.reported import read_status
from tests.fakes.records import Records

Json = dict[str, Any]

NOW: Final = 1_795_262_400  # 2026-11-21 12:00:00 UTC
KEY_ID: Final = "central-1"
_KEY: Final = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC_PEM: Final = _KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

NODES_OF: Final = {"h100-1": "demo-8gpu", "h100-2": "dgx-h100", "a100-1": "mn2a", "mig-1": "mig", "desk-1": "workstation"}

USED: Final = ((71_680, 95), (68_864, 90), (30_208, 35))  # use of the first cards of h100-1: MiB, and percent busy


def uid_of(name: str) -> PodUid:
    return PodUid(str(uuid5(NAMESPACE_DNS, name)))


def _prefixed(text: Mapping[str, str | int]) -> dict[str, str]:
    return {PREFIX + key.replace("_", "-"): str(value) for key, value in text.items()}


def _at(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def a_pod(
    name: str,
    containers: Mapping[str, Mapping[str, str | int]],
    *,
    namespace: str = "team-a",
    age_s: int = 3600,
    **annotations: str,
) -> Json:
    """Return a pod. `containers`: limits by container name; keys are written without `lading.dev/`, and with `_` for `-`."""
    specs = [{"name": one, "resources": {"limits": _prefixed(limits)}} for one, limits in containers.items()]
    metadata = {"name": name, "namespace": namespace, "uid": uid_of(name), "creationTimestamp": _at(NOW - age_s)}
    spec = {"schedulerName": "lading", "priority": 0, "containers": specs}
    return {"metadata": metadata | {"annotations": _prefixed(annotations)}, "spec": spec, "status": {"phase": "Pending"}}


# Where each is, in the order in which they come; None: it waits.
PLACED: Final[Sequence[tuple[Json, str]]] = (
    (a_pod("train-0", {"train": {"gpu": 2, "rdma": 2}, "log": {}}, age_s=86_400, topology="switch"), "h100-1"),
    (a_pod("train-1", {"train": {"gpu": 4, "rdma": 4}}, age_s=86_000), "h100-2"),
    (a_pod("serve-a", {"server": {"gpu_memory": "24Gi", "gpu_core": 40}}, namespace="team-b"), "h100-1"),
    (a_pod("serve-b", {"server": {"gpu_memory": "16Gi", "gpu_core": 30}}, namespace="team-b"), "h100-1"),
    (a_pod("notebook", {"main": {"gpu_core": 25}}, namespace="team-b", age_s=600), "desk-1"),
    (a_pod("finetune", {"main": {"gpu": 1, "rdma": 2}}, age_s=7200), "a100-1"),
    (a_pod("slice", {"main": {"gpu": 1}}, namespace="team-b", mig_profile="2g.20gb"), "mig-1"),
)
WAITING: Final = (
    a_pod("too-many", {"train": {"gpu": 16}}, age_s=300),
    a_pod("next-run", {"train": {"gpu": 8, "rdma": 8}}, age_s=120),
)


def a_quota(name: str, least: int, most: int, **labels: str) -> Json:
    """Return Koordinator's object for a quota of cards; `namespaces` is an annotation."""
    annotations = {"namespaces": labels.pop("namespaces")} if "namespaces" in labels else {}
    text = [
        {KOORDINATOR_PREFIX + key.replace("_", "-"): value for key, value in message.items()}
        for message in (labels, annotations)
    ]
    metadata = {"name": name, "namespace": "quotas", "labels": text[0], "annotations": text[1]}
    spec = {"min": {RESOURCE_GPU: least}, "max": {RESOURCE_GPU: most, "nvidia.com/gpu": 8}}
    return {"metadata": metadata, "spec": spec}


QUOTAS: Final = (
    a_quota("research", 12, 32, is_parent="true"),
    a_quota("vision", 6, 24, parent="research", namespaces='["team-a"]'),
    a_quota("speech", 4, 8, parent="research", namespaces='["team-b"]'),
    a_quota("robots", 2, 8, parent="research"),
    a_quota("service", 4, 2),
)


class SmallCluster:
    """Hold the cluster's objects by path. A test changes the objects before it serves them."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self._version = 100
        self.ledger, self._pending = Ledger(), PendingPods()
        self._scheduler = Scheduler(self.ledger, self._pending, clock=lambda: 0.0, policy=Policy.BINPACK)
        self._feed = PodFeed(self.ledger, self._pending, Conditions(), log=Records().log, unassigned=lambda pod: None)
        for name, profile in NODES_OF.items():
            self.add_node(name, read_status(profile))
        self.add_node("old-1", read_status("pcie-8gpu"), ready=False)
        for pod, node in PLACED:
            self.bind(pod, node)
        for pod in WAITING:
            self.keep_pod(pod)
        self._report()
        self._tell()
        for quota in QUOTAS:
            self._keep(ELASTIC_QUOTAS.path("quotas", quota["metadata"]["name"]), quota)

    def add_node(self, name: str, status: Status, *, ready: bool = True, **metadata: Any) -> None:
        conditions = [{"type": "Ready", "status": str(ready)}]
        allocatable = {"cpu": "96", "memory": "1024Gi", "pods": "110"}
        node = {"metadata": {"name": name}, "status": {"conditions": conditions, "allocatable": allocatable}}
        reported = msgspec.structs.replace(status, reporter="0.1.0", reconciled=True, driver=status.driver or "580.95.05")
        self.set_report(name, reported, **metadata)
        NodeFeed(self.ledger).changed(msgspec.convert(self._keep(NODES.path(name=name), node), Node))

    def status(self, name: str) -> Status:
        return msgspec.convert(self.objects[NODE_DEVICES.path(name=name)]["status"], Status)

    def set_report(self, name: str, status: Status, **metadata: Any) -> None:
        report = {"metadata": {"name": name, **metadata}, "status": msgspec.to_builtins(status)}
        DevicesFeed(self.ledger).changed(msgspec.convert(self._keep(NODE_DEVICES.path(name=name), report), NodeDevices))

    def bind(self, pod: Json, node: str) -> None:
        """Bind the pod to the node, with the assignment that central would give it there."""
        uid = pod["metadata"]["uid"]
        self.keep_pod(pod)
        reserved = self._scheduler.reserve(uid, node)
        assert isinstance(reserved, Reservation), f"{pod['metadata']['name']} does not fit on {node}: {reserved}"
        given = {
            ASSIGNMENT: reserved.assignment,
            ASSIGNMENT_SIGNATURE: Signer(_KEY, KEY_ID).sign(reserved.assignment),
        }
        metadata = pod["metadata"] | {"annotations": pod["metadata"]["annotations"] | given}
        self.keep_pod({"metadata": metadata, "spec": pod["spec"] | {"nodeName": node}, "status": {"phase": "Running"}})

    def keep_pod(self, pod: Json) -> None:
        metadata = pod["metadata"]
        kept = self._keep(PODS.path(metadata["namespace"], metadata["name"]), pod)
        self._feed.changed(msgspec.convert(kept, Pod))

    def pod(self, name: str) -> Json:
        return next(one for path, one in self.objects.items() if "/pods/" in path and one["metadata"]["name"] == name)

    def say(
        self, pod: str, reason: str, message: str, *, source: str, good: bool = False, age_s: int = 60, count: int = 1
    ) -> None:
        """Add a Kubernetes Event about the pod."""
        metadata = self.pod(pod)["metadata"]
        about = {"kind": "Pod", "name": pod, "namespace": metadata["namespace"], "uid": metadata["uid"]}
        event: Json = {
            "metadata": {"name": f"{pod}.{len(self.objects)}", "namespace": metadata["namespace"]},
            "involvedObject": about,
            "reason": reason,
            "message": message,
            "type": "Normal" if good else "Warning",
            "source": {"component": source},
            "firstTimestamp": _at(NOW - age_s),
            "lastTimestamp": _at(NOW - age_s),
            "count": count,
        }
        self._keep(EVENTS.path(metadata["namespace"], event["metadata"]["name"]), event)

    def fill(self, store: Store) -> None:
        for path, one in self.objects.items():
            store.load(path, one)

    def _keep(self, path: str, obj: Json) -> Json:
        self._version += 1
        metadata = {"uid": str(uuid5(NAMESPACE_DNS, path))} | obj["metadata"] | {"resourceVersion": str(self._version)}
        self.objects[path] = obj | {"metadata": metadata}
        return self.objects[path]

    def _report(self) -> None:
        """Report the nodes' grants. The nodes with H100 also report the use (h100-2: none), former holders, and problems."""
        for pod, node in PLACED:
            status = self.status(node)
            self.set_report(node, msgspec.structs.replace(status, grants=(*status.grants, *self._grants(pod, status))))
        status = self.status("h100-1")
        observed = [*USED, *[(0, 0)] * len(status.gpus)]
        used: list[Json] = [
            {"uuid": gpu.uuid, "memoryUsedMiB": mib, "busyPercent": busy}
            for gpu, (mib, busy) in zip(status.gpus, observed, strict=False)
        ]
        sharers = [one for one in status.grants if any(gpu.uuid == status.gpus[2].uuid for gpu in one.gpus)]
        used[2]["containers"] = [
            {"pod": one.pod, "container": one.container, "memoryUsedMiB": mib}
            for one, mib in zip(sharers, (20_480, 9728), strict=True)
        ]
        gpus = list(status.gpus)
        gpus[6] = msgspec.structs.replace(gpus[6], unhealthy="NVML: GPU is lost")
        gpus[7] = msgspec.structs.replace(gpus[7], used_by="pod kube-system/burn-in")
        changed = msgspec.to_builtins(msgspec.structs.replace(status, gpus=tuple(gpus))) | {
            "use": used,
            "usedAt": NOW - 40,
            "past": [self._past(status.gpus[0].uuid, "train-9"), self._past(status.pfs[0].vfs[0].bdf, "train-9")],
            "problems": ["cannot read /sys/class/infiniband/mlx5_9: Input/output error"],
        }
        self.set_report("h100-1", msgspec.convert(changed, Status))
        other = self.status("h100-2")
        idle = [{"uuid": gpu.uuid, "memoryUsedMiB": 0, "busyPercent": 0} for gpu in other.gpus]
        self.set_report("h100-2", msgspec.convert(msgspec.to_builtins(other) | {"use": idle, "usedAt": NOW - 20}, Status))
        desk = self.objects[NODE_DEVICES.path(name="desk-1")]
        self.set_report("desk-1", self.status("desk-1"), annotations={"lading.dev/cordon": "all"}, **_named(desk))

    def _grants(self, pod: Json, status: Status) -> tuple[Any, ...]:
        kept = self.pod(pod["metadata"]["name"])
        text = kept["metadata"]["annotations"][ASSIGNMENT]
        own = parse_own(text, roles_of(msgspec.convert(kept, Pod)), namespace=kept["metadata"]["namespace"])
        assert not isinstance(own, BadAssignment)
        granted = [
            {
                "pod": own.pod,
                "container": name,
                "namespace": kept["metadata"]["namespace"],
                "podName": kept["metadata"]["name"],
                "form": "signed",
                "gen": own.gen,
                "gpus": [
                    {"uuid": gpu.uuid, "migUuid": gpu.mig_uuid, "memoryMiB": gpu.memory_mib, "corePercent": gpu.core_percent}
                    for gpu in placed.gpus
                ],
                "vfs": [vf.bdf for vf in placed.vfs],
            }
            for name, placed in own.placed.items()
        ]
        return msgspec.convert({"grants": granted}, Status).grants

    def _past(self, device: str, pod: str) -> Json:
        return {
            "device": device,
            "pod": uid_of(pod),
            "namespace": "team-a",
            "podName": pod,
            "container": "train",
            "since": NOW - 300_000,
            "until": NOW - 90_000,
            "by": "signed",
        }

    def _tell(self) -> None:
        shown = "0/5 nodes are available: 4 node has too few GPUs (too-few-gpus), 1 too few free GPUs (too-few-free-gpus)."
        self.say("next-run", "FailedScheduling", shown, source="lading-scheduler", count=3)
        held = "Error: rpc error: code = FailedPrecondition desc = lading: device-held: GPU 0 is held by team-a/train-9"
        self.say("train-0", "Failed", held, source="kubelet", age_s=86_300)
        self.say(
            "train-0",
            "Scheduled",
            "Successfully assigned team-a/train-0 to h100-1",
            source="lading-scheduler",
            good=True,
            age_s=86_390,
        )


def _named(obj: Json) -> Json:
    return {"uid": obj["metadata"]["uid"]}
