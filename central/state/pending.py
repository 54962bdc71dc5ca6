"""Keep the unbound pods that request devices, each with its request, the time of its refusal and its last requeue.

Pods are added from the watch or from kube-scheduler's requests, whichever is first. A pod is removed when it is bound, has
ended or was deleted.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from central.ledger.model import Holder, NodeCapacity, version_of
from central.quota.checks import QuotaRefusal
from central.quota.model import NO_OWNER, Owner, owner_of
from central.request.cpu_memory import cpu_memory_of
from central.request.model import NO_CPU_MEMORY, CpuMemory, DeviceRequest, Role, Shape
from central.request.node_rules import ANY_NODE, NodeRules, read_node_rules
from central.request.pod import Pod, roles_of
from central.request.reasons import Coded
from central.search.placement import Placement
from lading.vocabulary import NETWORKS, PodUid

NEVER: Final = "Never"  # PreemptionPolicy


@dataclass(slots=True, kw_only=True)
class Pending:
    uid: PodUid
    namespace: str
    name: str
    request: DeviceRequest
    roles: tuple[tuple[str, Role], ...]  # every container, in starting order
    resource_version: str = ""
    priority: int = 0
    may_preempt: bool = True  # preemptionPolicy is not Never
    created: str = ""  # RFC 3339, in UTC, so that it compares as text
    cpu_memory: CpuMemory = NO_CPU_MEMORY
    node_rules: NodeRules | None = ANY_NODE  # None: the pod has rules that central cannot judge
    unschedulable: bool = False  # kube-scheduler's last try found no node, with or without a request to central
    owner: Owner = NO_OWNER  # namespace and labels that determine the pod's quota
    networks: str = ""  # Multus' annotation, as the user wrote it
    gen: int = 0  # number of the last attempted assignment
    refused_at: float | None = None  # monotonic seconds; None: not refused since the pod last fitted
    refused_for: Coded | None = None  # reason of most nodes at the refusal; None: no request in this leadership
    quota: QuotaRefusal | None = None  # refusal of its quota; the pod waits only for its quota
    undecided: bool = False  # refused before all nodes were judged
    requeued_in: int = 0  # last round of central.controllers.requeue in which the pod was requeued
    in_gang: bool = False  # the pod waits for its gang, and is requeued with it
    predicted: tuple[NodeCapacity, Placement] | None = None  # the expected placement, and the node's state with it taken

    @property
    def shape(self) -> Shape:
        return Shape(request=self.request, cpu_memory=self.cpu_memory)

    @property
    def shown(self) -> str:
        """Return the pod's name as namespace/name."""
        return f"{self.namespace}/{self.name}"

    @property
    def holder(self) -> Holder:
        return Holder(pod=self.uid, namespace=self.namespace, name=self.name)


def pending_of(pod: Pod, request: DeviceRequest) -> Pending:
    metadata, spec = pod.metadata, pod.spec
    return Pending(
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        request=request,
        roles=roles_of(pod),
        resource_version=metadata.resource_version,
        priority=spec.priority,
        may_preempt=spec.preemption_policy != NEVER,
        created=metadata.creation_timestamp or "",
        cpu_memory=cpu_memory_of(pod),
        node_rules=read_node_rules(pod),
        unschedulable=pod.status.unschedulable,
        owner=owner_of(metadata.namespace, metadata.labels),
        networks=metadata.annotations.get(NETWORKS, ""),
    )


def in_line(pod: Pending) -> tuple[int, str, PodUid]:
    """Return the sort key of the queue: by priority, then by age."""
    return -pod.priority, pod.created, pod.uid


class PendingPods:
    def __init__(self) -> None:
        """Create the collection. `changed` is called with each pod that is added, changed or removed."""
        self.changed: Callable[[PodUid], None] = lambda uid: None
        self._pods: dict[PodUid, Pending] = {}
        self._refused: defaultdict[DeviceRequest, dict[PodUid, Pending]] = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[Pending]:
        return iter(self._pods.values())

    def get(self, uid: PodUid) -> Pending | None:
        return self._pods.get(uid)

    def in_version(self, pod: Pod) -> Pending | None:
        """Return the pending pod if it is cached in this version."""
        known, version = self._pods.get(pod.metadata.uid), pod.metadata.resource_version
        return known if known is not None and version and known.resource_version == version else None

    def get_refused(self, uid: PodUid) -> Pending | None:
        """Return the pod's current state if it is refused, else None."""
        pod = self._pods.get(uid)
        return pod if pod is not None and pod.refused_at is not None else None

    def add(self, pod: Pending) -> Pending:
        """Add the pod. Return its newer version: this one, or the cached one."""
        known = self._pods.get(pod.uid)
        if known is not None:
            if version_of(known.resource_version) > version_of(pod.resource_version):
                return known
            pod.gen, pod.refused_at, pod.requeued_in = known.gen, known.refused_at, known.requeued_in
            pod.refused_for, pod.undecided, pod.in_gang = known.refused_for, known.undecided, known.in_gang
            pod.quota = known.quota
            if pod.request == known.request:
                pod.predicted = known.predicted
            self._forget_refusal(known)
        self._pods[pod.uid] = pod
        self.changed(pod.uid)
        if pod.refused_at is not None and pod.quota is None and not pod.in_gang:
            self._refused[pod.request][pod.uid] = pod
        return pod

    def remove(self, uid: PodUid) -> None:
        if pod := self._pods.pop(uid, None):
            self._forget_refusal(pod)
            self.changed(uid)

    def refused(self, pod: Pending, now: float) -> None:
        pod.quota = None
        if pod.refused_at is None:
            pod.refused_at = now
        pod.in_gang = False
        self._refused[pod.request][pod.uid] = pod

    def waits_for_gang(self, pod: Pending, now: float) -> None:
        """Record that the pod waits for its gang: free capacity for this pod alone does not help."""
        self._forget_refusal(pod)
        if pod.refused_at is None:
            pod.refused_at = now
        pod.in_gang = True

    def refused_by_quota(self, pod: Pending, refusal: QuotaRefusal, now: float) -> None:
        """Record that its quota refused the pod: free capacity on a node does not help."""
        self._forget_refusal(pod)
        pod.quota, pod.refused_for = refusal, refusal.code
        if pod.refused_at is None:
            pod.refused_at = now

    def fitted(self, pod: Pending) -> None:
        self._forget_refusal(pod)
        pod.refused_at, pod.undecided, pod.in_gang, pod.quota = None, False, False, None

    def refused_requests(self) -> list[DeviceRequest]:
        return list(self._refused)

    def refused_with(self, request: DeviceRequest) -> list[Pending]:
        """Return the refused pods with this request, in the order of the queue."""
        return sorted(self._refused.get(request, {}).values(), key=in_line)

    def _forget_refusal(self, pod: Pending) -> None:
        same = self._refused.get(pod.request)
        if same is not None:
            same.pop(pod.uid, None)
            if not same:
                del self._refused[pod.request]
