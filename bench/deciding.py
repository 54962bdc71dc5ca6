"""Measure how long a replay takes, one decision, and one node's joint search for cards and VFs.

* `replay_s`: one seed under the policy fragmentation, in processor time, on one core; `replay_s_by_workload` is that of every
  workload, `replay_max_s` the longest.
* `decision_p50_ms`: what filter and prioritize decide about one pod of a trace, on all its nodes, under the policy
  fragmentation, while the cluster fills up; without HTTP and without writing the nodes' names. Beside it p99.
* `joint_search_warm_p99_ms`: the devices of one pod on one node that has something held, of a state that was seen before, in
  processor time; over all shipped profiles of nodes with VFs. Beside it the longest first one (`cold`). The worst cases are in
  bench/joint.py.
"""

import random
import time
from collections.abc import Iterator
from typing import Final

import msgspec

from bench.figures import percentile
from central.assignment.model import Part, Taken
from central.controllers.conditions import Conditions
from central.controllers.informer import PodFeed
from central.decide.scheduler import Reservation, Scheduler
from central.ledger.ledger import Ledger
from central.ledger.model import NodeCapacity, NodeFacts, PodRecord
from central.request.model import ContainerRequest, DeviceRequest, Policy, RdmaPolicy
from central.search import joint
from central.search.fit import fit
from central.state.pending import PendingPods
from lading.kube.objects import AnnotatedMetadata
from lading.log import Level, open_log
from lading.nodedevices import NodeDevices, Status
from lading.vocabulary import ASSIGNMENT, PodUid
from simnode.reported import FILES, read_status
from simulate.arrivals import draw_arrivals, run_order
from simulate.cluster import Cluster
from simulate.model import Prior
from simulate.objects import card_of
from simulate.product import forecast_of, read_pod, start_ledger
from simulate.replay import replay
from simulate.trace import Trace

SEED: Final = 42
PODS: Final = 4000
CAPACITIES: Final = 60  # states of each node
FIRST_TIMES: Final = 3


def measure_replay(trace: Trace, ratio: float) -> float:
    """Return the processor time of one replay, in seconds."""
    began = time.process_time()
    replay(trace, Policy.FRAGMENTATION, SEED, ratio=ratio)
    return time.process_time() - began


def measure_decisions(trace: Trace, *, pods: int = PODS) -> dict[str, float]:
    order = run_order(trace.nodes, SEED)
    cluster = Cluster(order, tuple(dict.fromkeys(trace.pods)))
    ledger, pending = start_ledger(cluster), PendingPods()
    feed = PodFeed(ledger, pending, Conditions(), log=open_log("bench", Level.ERROR), unassigned=lambda pod: None)
    forecast = forecast_of(trace, Prior.WORKLOAD)
    scheduler = Scheduler(ledger, pending, clock=time.monotonic, policy=Policy.FRAGMENTATION, forecast=forecast)
    row_of = {node.name: row for row, node in enumerate(order)}
    kind_of = {pod: kind for kind, pod in enumerate(cluster.kinds.all)}
    took = []
    for number, asked in enumerate(draw_arrivals(trace.pods, trace.capacity, 1.0, SEED)[:pods]):
        kind = kind_of[asked]
        enough = (cluster.cpu_milli >= asked.cpu_milli) & (cluster.memory_mib >= asked.memory_mib)
        names = [name for name, row in row_of.items() if enough[row]]
        pod, uid = read_pod(asked), PodUid(f"uid-{number}")
        metadata = msgspec.structs.replace(pod.metadata, name=uid, uid=uid, resource_version=str(2 * number + 1))
        pod = msgspec.structs.replace(pod, metadata=metadata)
        began = time.perf_counter()
        scheduler.filter(pod, names)
        name = scheduler.prioritize(pod, names)
        took.append(time.perf_counter() - began)
        if name is None:
            continue
        reservation = scheduler.reserve(uid, name)
        annotations = {ASSIGNMENT: reservation.assignment} if isinstance(reservation, Reservation) else {}
        metadata = msgspec.structs.replace(metadata, annotations=annotations, resource_version=str(2 * number + 2))
        spec = msgspec.structs.replace(pod.spec, node_name=name)
        feed.changed(msgspec.structs.replace(pod, metadata=metadata, spec=spec))
        record = ledger.pod(uid)
        cards = record.taken.gpus if record is not None and record.taken is not None else ()
        cluster.take(row_of[name], kind, sorted(map(card_of, cards)))
    return {"decision_p50_ms": percentile(took, 0.5) * 1e3, "decision_p99_ms": percentile(took, 0.99) * 1e3}


def measure_searches() -> dict[str, float]:
    first, again = [], []
    for profile in sorted(path.stem for path in FILES.glob("*.json")):
        status = read_status(profile)
        if any(pf.vfs for pf in status.pfs):
            cold, warm = _search(status)
            first += cold
            again += warm
    return {
        "joint_search_warm_p99_ms": percentile(again, 0.99) * 1e3,
        "joint_search_cold_ms": max(first) * 1e3,
    }


def _search(status: Status) -> tuple[list[float], list[float]]:
    """Return the seconds of each pod on the node in each state: the first time, the least of several, and again."""
    cases = [(capacity, request) for capacity in _capacities(status) for request in _asks(len(status.gpus))]
    cold = []
    for _ in range(FIRST_TIMES):
        joint.find.cache_clear()
        cold.append([_time(*case) for case in cases])
    return [min(times) for times in zip(*cold, strict=True)], [_time(*case) for case in cases]


def _time(capacity: NodeCapacity, request: DeviceRequest) -> float:
    began = time.process_time()
    fit(capacity, request, policy=Policy.BINPACK)
    return time.process_time() - began


def _asks(cards: int) -> Iterator[DeviceRequest]:
    for count in (1, 2, 4, 8):
        if count <= cards:
            for policy in RdmaPolicy.NEAREST, RdmaPolicy.COUNT:
                yield DeviceRequest(containers=(ContainerRequest(name="main", gpus=count, vfs=count),), rdma_policy=policy)


def _capacities(status: Status) -> Iterator[NodeCapacity]:
    """Yield states in which other pods hold some cards and VFs, at random."""
    chance = random.Random(SEED)  # noqa: S311
    for number in range(CAPACITIES):
        ledger = Ledger()
        ledger.facts.set_node("node", NodeFacts(ready=True), 1)
        ledger.facts.set_report(NodeDevices(metadata=AnnotatedMetadata(name="node", resource_version="1"), status=status))
        share = number / CAPACITIES * 0.6
        cards = {gpu.uuid: Part(whole=True) for gpu in status.gpus if chance.random() < share}
        vfs = frozenset(vf.bdf for pf in status.pfs for vf in pf.vfs if chance.random() < share)
        held = PodRecord(
            uid=PodUid("other"), namespace="", name="other", version=1, node="node", taken=Taken(gpus=cards, vfs=vfs)
        )
        ledger.facts.set_pod(held)
        yield ledger.capacity("node")
