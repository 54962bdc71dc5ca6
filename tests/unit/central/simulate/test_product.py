"""The product in a replay decides as it decides for kube-scheduler: filter, prioritize, bind, and the pod in the watch."""

from dataclasses import replace

import msgspec
import pytest

from central.ask.model import Ask, Policy, Share
from central.ask.parse import parse_ask
from central.feed import PodFeed
from central.fit.forecast import LOOK_FIRST
from central.pending import PendingPods
from central.scheduler import Reservation, Scheduler
from central.simulate.arrivals import draw_arrivals, run_order
from central.simulate.cluster import Cluster
from central.simulate.objects import card_of, gpu_uuid
from central.simulate.product import Product, forecast_of, read_pod, start_ledger
from central.simulate.trace import TracePod
from lading.vocabulary import ASSIGNMENT, PodUid
from tests.fakes.records import Records
from tests.unit.central.simulate.small import NODES, PODS, TRACE, share, whole

Placed = list[tuple[int, tuple[int, ...]] | None]


def by_the_extender(of: Cluster, policy: Policy, expected: tuple[TracePod, ...], kinds: list[int]) -> Placed:
    """Everything that kube-scheduler and the API server would say, as objects."""
    ledger, pending = start_ledger(of), PendingPods()
    feed = PodFeed(ledger, pending, log=Records().log, unassigned=lambda pod: None)
    scheduler = Scheduler(ledger, pending, clock=lambda: 0.0, policy=policy, forecast=forecast_of(expected))
    names = [node.name for node in of.nodes]
    placed: Placed = []
    for number, kind in enumerate(kinds):
        pod = read_pod(of.kinds.all[kind])
        uid = PodUid(f"uid-{number}")
        metadata = msgspec.structs.replace(pod.metadata, name=uid, uid=uid, resource_version=str(2 * number + 1))
        pod = msgspec.structs.replace(pod, metadata=metadata)
        asked = of.kinds.all[kind]
        left = [
            name
            for name, cpu_milli, memory_mib in zip(names, of.cpu_milli, of.memory_mib, strict=True)
            if cpu_milli >= asked.cpu_milli and memory_mib >= asked.memory_mib
        ]
        node = scheduler.prioritize(pod, scheduler.filter(pod, left).NodeNames)
        if node is None:
            placed.append(None)
            continue
        annotations: dict[str, str] = {}
        if asked.gpus:
            reservation = scheduler.reserve(uid, node)
            assert isinstance(reservation, Reservation)
            annotations = {ASSIGNMENT: reservation.assignment}
        metadata = msgspec.structs.replace(metadata, annotations=annotations, resource_version=str(2 * number + 2))
        bound = msgspec.structs.replace(pod, metadata=metadata, spec=msgspec.structs.replace(pod.spec, node_name=node))
        feed.changed(bound)
        record = ledger.pod(uid)
        cards = sorted(map(card_of, record.taken.gpus)) if record is not None and record.taken is not None else []
        of.take(names.index(node), kind, cards)
        placed.append((names.index(node), tuple(cards)))
    return placed


def eight_clusters() -> Cluster:
    """So that there is still room when enough pods came to learn from."""
    nodes = [replace(node, name=f"{node.name}-{number}") for number in range(8) for node in NODES]
    return Cluster(run_order(nodes, 42), tuple(dict.fromkeys(PODS)))


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("expected", [PODS, ()], ids=["workload", "online"])
def test_as_through_the_extender(policy: Policy, expected: tuple[TracePod, ...]) -> None:
    arriving = [pod for pod in draw_arrivals(PODS, 8 * TRACE.capacity, 1.1, 5) if pod.gpus or policy is Policy.FRAGMENTATION]
    of = eight_clusters()
    kinds = [of.kinds.all.index(pod) for pod in arriving]
    player, placed = Product(of, policy, expected), []
    for kind in kinds:
        where = player.place(kind)
        if where is not None:
            of.take(where[0], kind, where[1])
        placed.append(where and (where[0], tuple(where[1])))
    assert sum(where is not None for where in placed) > LOOK_FIRST
    assert placed == by_the_extender(eight_clusters(), policy, expected, kinds)


def test_how_a_pod_of_the_trace_asks() -> None:
    def asked(pod: TracePod) -> Ask:
        ask = parse_ask(read_pod(pod))
        assert isinstance(ask, Ask)
        return ask

    part = asked(share(460, 6_000, "T4", "A10"))
    assert part.containers[0].share == Share(core_percent=46)
    assert part.gpu_models == ("A10", "T4")
    assert asked(whole(8)).containers[0].gpus == 8
    assert parse_ask(read_pod(TracePod(cpu_milli=1_000))) is None


def test_cards_are_told_apart() -> None:
    assert card_of(gpu_uuid(1212, 7)) == 7
    assert len({gpu_uuid(node, card) for node in range(20) for card in range(16)}) == 320
