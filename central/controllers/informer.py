"""Pass watched objects to the ledger and the pending pods: pods, NodeDevices, Nodes, PodDisruptionBudgets.

A pod may hold devices although it cannot be decoded, or its assignment cannot be read or was signed by no configured key. Such
a pod never counts as deleted. Its node's grants count, its own annotation does not, and that is logged. Of a pod without
devices only cpu and memory are kept, because a cluster has many of these.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b

from central.api.cached_objects import Ident
from central.api.decoded import Unreadable
from central.api.objects import Node
from central.api.times import parse_seconds
from central.assignment.annotation import BadAssignment, OwnAssignment, parse_own
from central.controllers.conditions import Conditions
from central.ledger.ledger import Ledger
from central.ledger.model import NO_LABELS, ONE_EACH, NodeFacts, PodLoad, PodRecord, version_of
from central.ledger.parts import containers_placed
from central.request.cpu_memory import allocatable_of, cpu_memory_of
from central.request.model import NO_CPU_MEMORY, CpuMemory, DeviceRequest, MalformedRequest
from central.request.node_rules import traits_of
from central.request.other_systems import OtherClaim, read_offered, read_other_claim
from central.request.parse import OWN_ONLY, Dialects, mentions_devices, mentions_own, parse_request
from central.request.pod import Pod, roles_of
from central.state.budgets import NO_BUDGETS, Budget, Budgets
from central.state.node_reports import Reports
from central.state.nodes import Nodes
from central.state.pending import PendingPods, pending_of
from lading.log import Event, Log
from lading.nodedevices import NodeDevices
from lading.vocabulary import ASSIGNMENT, ASSIGNMENT_SIGNATURE, PodUid


class PodFeed:
    """Handle pods. `unassigned` is called once with each pod that requests devices by Lading's own resources
    and was bound without an assignment."""

    def __init__(
        self,
        ledger: Ledger,
        pending: PendingPods,
        conditions: Conditions,
        *,
        log: Log,
        unassigned: Callable[[Pod], None],
        accepts: Callable[[str, str], bool] = lambda text, signature: True,
        dialects: Dialects = OWN_ONLY,
    ) -> None:
        """Create the handler. `accepts` returns whether a configured key signed an assignment; by default every assignment
        counts. `dialects`: how pods may request devices."""
        self._dialects = dialects
        self._accepts = accepts
        self._accepted: dict[PodUid, tuple[bytes, bool]] = {}  # the hash of assignment and signature, and the result
        self._ledger = ledger
        self._pending = pending
        self._conditions = conditions
        self._log = log
        self._unassigned = unassigned
        self._reported: set[PodUid] = set()  # pods with a problem that is logged and recorded already

    def replaced(self, objects: Sequence[Pod | Unreadable], version: str) -> None:
        """Replace all pods. A pod that is known only from kube-scheduler's request ends here too, with its reservations, unless
        it is newer than the list."""
        listed = {PodUid(one.metadata.uid) for one in objects}
        self._reported &= listed
        self._accepted = {uid: known for uid, known in self._accepted.items() if uid in listed}
        self._conditions.forget_all_but(listed)
        unlisted = [pod for pod in self._pending if pod.uid not in listed]
        for deleted in [pod.uid for pod in unlisted if version_of(pod.resource_version) <= version_of(version)]:
            self._pending.remove(deleted)
            self._ledger.facts.remove_pod(deleted)
        readable = [one for one in objects if isinstance(one, Pod)]
        self._ledger.facts.replace_other_claims({one.metadata.uid: claim for one in readable if (claim := _other_claim(one))})
        text = [self._record(one) for one in objects]
        records = [one for one in text if isinstance(one, PodRecord)]
        loads = [one for one in text if isinstance(one, PodLoad)]
        self._ledger.facts.replace_pods(records, version_of(version), loads=loads)

    def changed(self, obj: Pod | Unreadable) -> None:
        if isinstance(obj, Pod):
            self._ledger.facts.set_other_claim(obj.metadata.uid, _other_claim(obj))
        match self._record(obj):
            case PodRecord() as record:
                self._ledger.facts.set_pod(record)
            case PodLoad() as load:
                self._ledger.facts.set_load(load)

    def removed(self, deleted: Ident, version: str) -> None:
        uid = PodUid(deleted.uid)
        self._reported.discard(uid)
        self._accepted.pop(uid, None)
        self._conditions.forget(uid)
        self._pending.remove(uid)
        self._ledger.facts.set_other_claim(uid, None)
        self._ledger.facts.remove_pod(uid)

    def verify(self, pod: Pod) -> bool:
        """Return whether a configured key signed the pod's assignment. The first call takes 0.1 ms; the result is cached."""
        annotations = pod.metadata.annotations
        text, signature = annotations.get(ASSIGNMENT, ""), annotations.get(ASSIGNMENT_SIGNATURE, "")
        if not (text and pod.spec.node_name):
            return False
        digest = blake2b(f"{signature}\n{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
        known = self._accepted.get(pod.metadata.uid)
        if known is None or known[0] != digest:
            known = self._accepted[pod.metadata.uid] = digest, self._accepts(text, signature)
        return known[1]

    def _record(self, pod: Pod | Unreadable) -> PodRecord | PodLoad | None:
        """Return the pod's record; for a pod without devices of Lading only its cpu and memory on its node."""
        if isinstance(pod, Unreadable):
            uid = PodUid(pod.metadata.uid)
            return self._ledger.pod(uid) or self._ledger.load_of(uid)
        self._conditions.show(pod)
        metadata, spec = pod.metadata, pod.spec
        ended = pod.ended
        waits = not (spec.node_name or ended or metadata.deletion_timestamp)
        if not waits:
            self._pending.remove(metadata.uid)
        text = metadata.annotations.get(ASSIGNMENT)
        if text is None and not mentions_devices(pod, self._dialects):
            return PodLoad(metadata.uid, "" if ended else sys.intern(spec.node_name), _taken_of_node(pod))
        request = None if spec.node_name and text else parse_request(pod, self._dialects)
        if waits and isinstance(request, DeviceRequest):
            self._pending.add(pending_of(pod, request))
        elif waits:
            self._pending.remove(metadata.uid)  # a change of annotations made the request invalid
        elif (
            _requests_devices(request)
            and spec.node_name
            and not ended
            and mentions_own(pod)  # the scheduler of another system may have bound its pods
            and self._first_time(metadata.uid)
        ):
            self._unassigned(pod)
        return self._holding(pod, text if spec.node_name else None, terminal=ended)

    def _holding(self, pod: Pod, text: str | None, *, terminal: bool) -> PodRecord:
        metadata, spec = pod.metadata, pod.spec
        own = None if text is None else parse_own(text, roles_of(pod), namespace=metadata.namespace)
        if own is not None and not isinstance(own, BadAssignment) and (own.pod, own.node) != (metadata.uid, spec.node_name):
            own = BadAssignment(message=f"it is for pod {own.pod} on node {own.node}")
        if isinstance(own, OwnAssignment) and not self.verify(pod):
            own = BadAssignment(message="no configured key signed it")
        if isinstance(own, BadAssignment):
            if self._first_time(metadata.uid):
                fields = {"namespace": metadata.namespace, "pod": metadata.name, "pod_uid": metadata.uid}
                self._log.error(Event.ASSIGNMENT_UNREADABLE, own.message, **fields, node=spec.node_name)
            own = None
        return PodRecord(
            uid=metadata.uid,
            namespace=metadata.namespace,
            name=metadata.name,
            version=version_of(metadata.resource_version),
            node=spec.node_name,
            terminal=terminal,
            deleting=metadata.deletion_timestamp is not None,
            priority=spec.priority,
            created=parse_seconds(metadata.creation_timestamp),
            taken=own.taken if own else None,
            admitted=own.admitted if own else None,
            containers=containers_placed(own.placed) if own else ONE_EACH,
            cpu_memory=_taken_of_node(pod),
            labels=_shared(metadata.labels),
            gang=own.gang if own else "",
            grace_s=max(spec.termination_grace_period_seconds, metadata.deletion_grace_period_seconds),
        )

    def _first_time(self, uid: PodUid) -> bool:
        first = uid not in self._reported
        self._reported.add(uid)
        return first


def _requests_devices(request: DeviceRequest | MalformedRequest | None) -> bool:
    return bool(request.containers) if isinstance(request, DeviceRequest) else request is not None


def _other_claim(pod: Pod) -> OtherClaim | None:
    return None if pod.ended else read_other_claim(pod)


class DevicesFeed:
    """Handle NodeDevices. For an object that cannot be decoded, the last report stays. `reports` keeps the parts of a report
    that the ledger does not."""

    def __init__(self, ledger: Ledger, reports: Reports | None = None) -> None:
        self._ledger = ledger
        self._reports = reports

    def replaced(self, objects: Sequence[NodeDevices | Unreadable], version: str) -> None:
        readable = [one for one in objects if not isinstance(one, Unreadable)]
        unreadable = {one.metadata.name for one in objects if isinstance(one, Unreadable)}
        self._ledger.facts.replace_reports(readable, version_of(version), unreadable=unreadable)
        if self._reports is not None:
            self._reports.replace(readable, unreadable=unreadable)

    def changed(self, obj: NodeDevices | Unreadable) -> None:
        if not isinstance(obj, Unreadable):
            self._ledger.facts.set_report(obj)
            if self._reports is not None:
                self._reports.set(obj)

    def removed(self, deleted: Ident, version: str) -> None:
        self._ledger.facts.remove_report(deleted.name, version_of(version))
        if self._reports is not None:
            self._reports.remove(deleted.name)


class NodeFeed:
    """Handle Nodes: the Ready condition, the boot id, allocatable cpu and memory, and the labels, taints and cordons, which
    `nodes` keeps."""

    def __init__(self, ledger: Ledger, nodes: Nodes | None = None) -> None:
        self._ledger = ledger
        self._nodes = Nodes() if nodes is None else nodes

    def replaced(self, objects: Sequence[Node | Unreadable], version: str) -> None:
        listed = {one.metadata.name: self._facts_of(one) for one in objects}
        self._ledger.facts.replace_nodes(listed, version_of(version))
        self._nodes.keep_only(listed)
        for one in objects:
            self._offer(one)

    def changed(self, obj: Node | Unreadable) -> None:
        self._ledger.facts.set_node(obj.metadata.name, *self._facts_of(obj))
        self._offer(obj)

    def _facts_of(self, obj: Node | Unreadable) -> tuple[NodeFacts, int]:
        """Return the Node's facts and its version. A Node that cannot be decoded is not Ready, and keeps its other facts."""
        version = version_of(obj.metadata.resource_version)
        if isinstance(obj, Unreadable):
            return self._ledger.facts_of(obj.metadata.name)._replace(ready=False), version
        status = obj.status
        size = allocatable_of(status.allocatable)
        return NodeFacts(obj.ready, status.node_info.boot_id, size, obj.spec.unschedulable), version

    def _offer(self, obj: Node | Unreadable) -> None:
        if not isinstance(obj, Unreadable):
            name, spec = obj.metadata.name, obj.spec
            self._ledger.facts.set_offered(name, read_offered(obj.status.allocatable))
            self._nodes.set(traits_of(name, obj.metadata.labels, spec.taints, unschedulable=spec.unschedulable))

    def removed(self, deleted: Ident, version: str) -> None:
        self._nodes.remove(deleted.name)
        self._ledger.facts.set_offered(deleted.name, frozenset())
        self._ledger.facts.remove_node(deleted.name, version_of(version))


class BudgetFeed:
    """Handle PodDisruptionBudgets. For an object that cannot be decoded, its last state counts."""

    def __init__(self) -> None:
        self._by_uid: dict[str, Budget] = {}  # budgets by uid
        self._budgets = NO_BUDGETS
        self._stale = False

    def replaced(self, objects: Sequence[Budget | Unreadable], version: str) -> None:
        before, self._by_uid = self._by_uid, {}
        for one in objects:
            if isinstance(one, Unreadable):
                self._by_uid |= {uid: before[uid] for uid in [one.metadata.uid] if uid in before}
            else:
                self._by_uid[one.metadata.uid] = one
        self._stale = True

    def changed(self, obj: Budget | Unreadable) -> None:
        if not isinstance(obj, Unreadable):
            self._by_uid[obj.metadata.uid] = obj
            self._stale = True

    def removed(self, deleted: Ident, version: str) -> None:
        self._by_uid.pop(deleted.uid, None)
        self._stale = True

    def budgets(self) -> Budgets:
        if self._stale:
            self._budgets, self._stale = Budgets.of(self._by_uid.values()), False
        return self._budgets


def _taken_of_node(pod: Pod) -> CpuMemory:
    """Return the cpu and memory that the pod takes of its node; none before it is bound."""
    return cpu_memory_of(pod) if pod.spec.node_name else NO_CPU_MEMORY


def _shared(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return one shared value for all pods with equal labels, to save memory: pods of one template mostly have the same."""
    return _labels(tuple(sorted(labels.items()))) if labels else NO_LABELS


@lru_cache(maxsize=4096)
def _labels(items: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    return {sys.intern(key): sys.intern(value) for key, value in items}
