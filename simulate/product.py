"""Run a policy of the product in a replay: the ledger, choice of a node and fit that answer kube-scheduler, without event loop.

Each pod is decided as in a cluster. kube-scheduler leaves the nodes with enough cpu and memory, and the Scheduler names the
best of them. The fit chooses the cards, and the ledger counts the pod there. Predictions, reservations and the messages between
the two daemons are left out. They make no difference where pods arrive one by one and every Binding succeeds (a test replays
with them too, and finds the same placements). A pod without devices goes to the Scheduler's node, or else to that of
kube-scheduler's own LeastAllocated.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from central.api.objects import Node
from central.controllers.informer import DevicesFeed, NodeFeed
from central.decide.scheduler import Scheduler
from central.ledger.ledger import Ledger
from central.ledger.model import PodLoad, PodRecord
from central.rank.forecast import STEPS, Forecast
from central.rank.workload import PodKind, kind_of, workload_of
from central.request.cpu_memory import cpu_memory_of
from central.request.model import DeviceRequest, MalformedRequest, Policy, Shape
from central.request.parse import parse_request
from central.request.pod import Pod
from central.search.demand import Limits
from central.search.placement import NoFit, Placement
from central.state.pending import Pending, PendingPods, pending_of
from lading.nodedevices import NodeDevices
from lading.vocabulary import PodUid
from simulate.cluster import Cluster, OverCapacityError, Placed
from simulate.model import Prior
from simulate.objects import NAMESPACE, card_of, render_devices, render_node, render_pod
from simulate.trace import Trace, TracePod

VERSION: Final = "1"  # resource version of the initial lists of objects
_UID: Final = "uid-"


class Product:
    def __init__(self, cluster: Cluster, policy: Policy, forecast: Forecast) -> None:
        """Create the policy. `forecast` holds the expected pods of the policy fragmentation."""
        self._cluster = cluster
        self._names = np.array([node.name for node in cluster.nodes], dtype=object)
        self.row_of = {name: row for row, name in enumerate(self._names)}
        self._all_cpu_milli, self._all_memory_mib = cluster.cpu_milli.copy(), cluster.memory_mib.copy()
        self._pods = [read_pod(pod) for pod in cluster.kinds.all]
        self._shapes = [shape_of(pod) for pod in self._pods]
        self._ledger = start_ledger(cluster)
        self._decided = 0
        self.scheduler = Scheduler(
            self._ledger,
            PendingPods(),
            clock=lambda: float(self._decided),
            policy=policy,
            limits=Limits(partition=cluster.partition),
            forecast=forecast,
        )

    def place(self, kind: int, pod: int, namespace: str = NAMESPACE) -> Placed | None:
        self._decided += 1
        enough = self._has_cpu_and_memory(kind)
        if self._cluster.kinds.all[kind].has_devices:
            placed = self._place(kind, uid_of(pod), self._able(enough), namespace)
        else:
            placed = self._place_beside(kind, uid_of(pod), self._able(enough), enough)
        if placed is not None:
            self.scheduler.pending.remove(uid_of(pod))
        return placed

    def able(self, kind: int) -> Collection[str]:
        """Return the nodes with enough cpu and memory, about which kube-scheduler asks central."""
        return self._able(self._has_cpu_and_memory(kind))

    def pending(self, kind: int, pod: int) -> Pending:
        uid = uid_of(pod)
        metadata = msgspec.structs.replace(self._pods[kind].metadata, name=uid, uid=uid, creation_timestamp=f"{pod:012d}")
        return pending_of(msgspec.structs.replace(self._pods[kind], metadata=metadata), self._shapes[kind].request)

    def ended(self, pod: int) -> None:
        """End the pod as kubelet does: the pod is terminal before it is removed."""
        record = self._ledger.pod(uid_of(pod))
        if record is not None:
            self._ledger.facts.set_pod(replace(record, version=record.version + 1, terminal=True))
        self._ledger.facts.remove_pod(uid_of(pod))

    def changed(self, node: int) -> None:
        """Do nothing, because the ledger already has the change."""

    def _place(self, kind: int, uid: PodUid, names: Collection[str], namespace: str) -> Placed | None:
        shape = self._shapes[kind]
        self.scheduler.verdicts.learn(uid, shape)
        self.scheduler.judged(shape.request)
        nominated = self.scheduler.nominated_node(uid)
        if nominated in names and isinstance(self._verdict(shape, nominated, uid), Placement):
            name: str | None = nominated
        else:
            name = self.scheduler.verdicts.best(shape, names)
        if name is None:
            return None
        placement = self._verdict(shape, name, uid)
        if isinstance(placement, NoFit):
            raise OverCapacityError(f"{name} is the best node for {shape}, and it does not fit there: {placement.missing}")
        self._ledger.facts.set_pod(
            PodRecord(
                uid=uid,
                namespace=namespace,
                name=uid,
                version=self._decided,
                node=name,
                taken=placement.taken,
                cpu_memory=shape.cpu_memory,
                priority=self._cluster.kinds.all[kind].priority,
            )
        )
        return Placed(self.row_of[name], sorted(map(card_of, placement.taken.gpus)), placement.taken.vfs)

    def _verdict(self, shape: Shape, name: str, uid: PodUid) -> Placement | NoFit:
        return self.scheduler.verdict(shape.request, name, self._ledger.without(uid), shape.cpu_memory)

    def _able(self, enough: NDArray[np.bool_]) -> Collection[str]:
        return _Able(self._names, self.row_of, enough)

    def _place_beside(self, kind: int, uid: PodUid, names: Collection[str], enough: NDArray[np.bool_]) -> Placed | None:
        if not names:
            return None
        pod = self._pods[kind]
        metadata = msgspec.structs.replace(pod.metadata, uid=uid)
        name = self.scheduler.prioritize(msgspec.structs.replace(pod, metadata=metadata), names)
        row = self._least_allocated(kind, enough) if name is None else self.row_of[name]
        self._ledger.facts.set_load(PodLoad(uid, self._names[row], self._shapes[kind].cpu_memory))
        return Placed(row, ())

    def _has_cpu_and_memory(self, kind: int) -> NDArray[np.bool_]:
        request, cluster = self._cluster.kinds.all[kind], self._cluster
        enough: NDArray[np.bool_] = (cluster.cpu_milli >= request.cpu_milli) & (cluster.memory_mib >= request.memory_mib)
        return enough

    def _least_allocated(self, kind: int, enough: NDArray[np.bool_]) -> int:
        request, cluster = self._cluster.kinds.all[kind], self._cluster
        cpu = (cluster.cpu_milli - request.cpu_milli) / np.maximum(self._all_cpu_milli, 1)
        memory = (cluster.memory_mib - request.memory_mib) / np.maximum(self._all_memory_mib, 1)
        return int(np.where(enough, cpu + memory, -np.inf).argmax())


def uid_of(pod: int) -> PodUid:
    return PodUid(f"{_UID}{pod}")


def number_of(uid: PodUid) -> int:
    return int(uid.removeprefix(_UID))


class _Able(Collection[str]):
    """Hold the nodes that kube-scheduler leaves. Their names are created only when they are read, because this cost is not part
    of a real scheduler's decision."""

    def __init__(self, names: NDArray[np.object_], row_of: Mapping[str, int], able: NDArray[np.bool_]) -> None:
        self._names = names
        self._row_of = row_of
        self._able = able

    def __contains__(self, name: object) -> bool:
        row = self._row_of.get(str(name))
        return row is not None and bool(self._able[row])

    def __len__(self) -> int:
        return int(np.count_nonzero(self._able))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names[self._able].tolist())


def read_pod(pod: TracePod) -> Pod:
    """Return the pod as central reads it from the API server, without an identity."""
    return msgspec.convert(render_pod("", pod), Pod)


def shape_of(pod: Pod) -> Shape:
    """Return the shape of the pod. A pod without devices has a request without containers."""
    request = parse_request(pod)
    if isinstance(request, MalformedRequest):
        raise AssertionError(request.message)  # noqa: TRY004  (read_pods lets no such pod through)
    return Shape(request=request or DeviceRequest(containers=()), cpu_memory=cpu_memory_of(pod))


def start_ledger(cluster: Cluster) -> Ledger:
    """Return a ledger with all nodes of the cluster, without pods."""
    ledger = Ledger()
    reports = [render_devices(row, node) for row, node in enumerate(cluster.nodes)]
    NodeFeed(ledger).replaced([msgspec.convert(render_node(node), Node) for node in cluster.nodes], VERSION)
    DevicesFeed(ledger).replaced([msgspec.convert(report, NodeDevices) for report in reports], VERSION)
    return ledger


def forecast_of(trace: Trace, prior: Prior, *, pods_end: bool = False) -> Forecast:
    """Return the initial forecast of the policy fragmentation. It learns, unless its prior is the replayed workload; then it
    also knows whether pods end."""
    match prior:
        case Prior.WORKLOAD:
            return Forecast.settled(workload_of(_count_kinds(trace.pods)), STEPS if pods_end else 0)
        case Prior.ONLINE:
            return Forecast()
        case Prior.OTHER:
            return Forecast(_count_kinds(trace.expected))


def _count_kinds(pods: Sequence[TracePod]) -> Mapping[PodKind, float]:
    counts: Counter[PodKind] = Counter()
    for pod, count in Counter(pods).items():
        counts[kind_of(shape_of(read_pod(pod)))] += count
    return counts
