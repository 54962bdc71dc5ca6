"""Test that the product decides in a replay as for kube-scheduler: filter, prioritize, bind, and the pod in the watch."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from central.assignment.model import Taken
from central.controllers.conditions import Conditions
from central.controllers.informer import PodFeed
from central.decide.scheduler import Reservation, Scheduler
from central.rank.forecast import FIRST_UPDATE, Forecast, Source
from central.request.model import ContainerRequest, DeviceRequest, Policy, RdmaPolicy, Scope, Share
from central.request.parse import parse_request
from central.search.demand import Limits
from central.state.pending import PendingPods
from lading.vocabulary import ASSIGNMENT, PodUid
from simnode.reported import read_status
from simulate.arrivals import draw_arrivals, run_order
from simulate.cluster import Cluster, Placed
from simulate.model import Prior
from simulate.objects import card_of, gpu_uuid
from simulate.product import Product, forecast_of, read_pod, start_ledger
from simulate.trace import Trace, TracePod
from tests.fakes.records import Records
from tests.unit.simulate import shipped
from tests.unit.simulate.shipped import described, entry, pod
from tests.unit.simulate.small import NODES, PODS, TRACE, share, whole

GPUS = {profile: len(read_status(profile).gpus) for profile in shipped.PROFILES}
NOTHING = Taken(gpus={}, vfs=frozenset())


def by_the_extender(of: Cluster, policy: Policy, forecast: Forecast, kinds: list[int]) -> list[Placed | None]:
    """Decide with all objects that kube-scheduler and the API server would send."""
    ledger, pending = start_ledger(of), PendingPods()
    feed = PodFeed(ledger, pending, Conditions(), log=Records().log, unassigned=lambda pod: None)
    limits = Limits(partition=of.partition)
    scheduler = Scheduler(ledger, pending, clock=lambda: 0.0, policy=policy, limits=limits, forecast=forecast)
    names = [node.name for node in of.nodes]
    placed: list[Placed | None] = []
    for number, kind in enumerate(kinds):
        pod = read_pod(of.kinds.all[kind])
        uid = PodUid(f"uid-{number}")
        metadata = msgspec.structs.replace(pod.metadata, name=uid, uid=uid, resource_version=str(2 * number + 1))
        pod = msgspec.structs.replace(pod, metadata=metadata)
        requested = of.kinds.all[kind]
        left = [
            name
            for name, cpu_milli, memory_mib in zip(names, of.cpu_milli, of.memory_mib, strict=True)
            if cpu_milli >= requested.cpu_milli and memory_mib >= requested.memory_mib
        ]
        node = scheduler.prioritize(pod, scheduler.filter(pod, left).fitting)
        if node is None:
            placed.append(None)
            continue
        annotations: dict[str, str] = {}
        if requested.has_devices:
            reservation = scheduler.reserve(uid, node)
            assert isinstance(reservation, Reservation)
            annotations = {ASSIGNMENT: reservation.assignment}
        metadata = msgspec.structs.replace(metadata, annotations=annotations, resource_version=str(2 * number + 2))
        bound = msgspec.structs.replace(pod, metadata=metadata, spec=msgspec.structs.replace(pod.spec, node_name=node))
        feed.changed(bound)
        record = ledger.pod(uid)
        taken = record.taken if record is not None and record.taken is not None else NOTHING
        where = Placed(names.index(node), tuple(sorted(map(card_of, taken.gpus))), taken.vfs)
        of.take(where.node, kind, where.cards, where.vfs)
        placed.append(where)
    return placed


def by_the_product(of: Cluster, policy: Policy, forecast: Forecast, kinds: list[int]) -> list[Placed | None]:
    player, placed = Product(of, policy, forecast), []
    for number, kind in enumerate(kinds):
        where = player.place(kind, number)
        assert (where is None) == (not of.fits[kind].any())
        if where is not None:
            of.take(where.node, kind, where.cards, where.vfs)
            where = Placed(where.node, tuple(where.cards), frozenset(where.vfs))
        placed.append(where)
    return placed


def eight_clusters() -> Cluster:
    """Return clusters with enough free devices after the pods from which the product learns."""
    nodes = [replace(node, name=f"{node.name}-{number}") for number in range(8) for node in NODES]
    return Cluster(run_order(nodes, 42), tuple(dict.fromkeys(PODS)))


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("prior", Prior)
def test_as_through_the_extender(policy: Policy, prior: Prior) -> None:
    trace = replace(TRACE, expected=(whole(4), share(500), share(500)))
    arriving = [pod for pod in draw_arrivals(PODS, 8 * TRACE.capacity, 1.1, 5) if pod.gpus or policy is Policy.FRAGMENTATION]
    of = eight_clusters()
    kinds = [of.kinds.all.index(pod) for pod in arriving]
    placed = by_the_product(of, policy, forecast_of(trace, prior), kinds)
    assert sum(where is not None for where in placed) > FIRST_UPDATE
    assert placed == by_the_extender(eight_clusters(), policy, forecast_of(trace, prior), kinds)


def test_another_workload_is_expected_at_first_and_forgotten() -> None:
    trace = replace(TRACE, expected=(whole(4), share(500)))
    own, other = forecast_of(trace, Prior.WORKLOAD), forecast_of(trace, Prior.OTHER)
    assert {kind.gpus for kind, _ in other.workload.kinds} == {0, 4}
    assert (own.source, other.source) == (Source.PRIOR, Source.BOTH)
    assert own.turnover.share == 0
    assert forecast_of(trace, Prior.WORKLOAD, pods_end=True).turnover.share == 1


def with_profiles(folder: Path, *profiles: str, partition: str = "prefer") -> Trace:
    """Return some 40 GPUs, and pods that request some: kube-scheduler places the others."""
    entries = [entry(profile, -(-40 // len(profiles) // GPUS[profile])) for profile in profiles]
    result = described(folder, *entries, partition=partition)
    pods = tuple(pod for pod in shipped.PODS if pod.has_devices)
    return Trace(nodes=result.nodes, pods=pods, partition=result.partition)


def played_on(trace: Trace, seed: int = 42) -> tuple[Cluster, list[int]]:
    """Play the pods, and return the kinds that arrive too."""
    of = Cluster(run_order(trace.nodes, seed), tuple(dict.fromkeys(trace.pods)), trace.partition)
    return of, [of.kinds.all.index(pod) for pod in draw_arrivals(trace.pods, trace.capacity, 2.0, seed)]


@pytest.mark.parametrize("policy", Policy)
def test_as_through_the_extender_with_vfs_and_places(tmp_path: Path, policy: Policy) -> None:
    trace = with_profiles(tmp_path, "mn2a", "dgx-h100", "pcie-8gpu", partition="honor")
    of, kinds = played_on(trace)
    placed = by_the_product(of, policy, forecast_of(trace, Prior.WORKLOAD), kinds)
    assert placed == by_the_extender(played_on(trace)[0], policy, forecast_of(trace, Prior.WORKLOAD), kinds)


@pytest.mark.parametrize("policy", [Policy.FRAGMENTATION, Policy.BINPACK])
@pytest.mark.parametrize(
    ("profiles", "partition"),
    [
        *[((profile,), "prefer") for profile in shipped.PROFILES],
        (("dgx-h100", "dgx-a100"), "honor"),
        (shipped.PROFILES, "prefer"),
    ],
)
def test_devices_are_as_asked(tmp_path: Path, policy: Policy, profiles: Sequence[str], partition: str) -> None:
    """Check every shipped profile by its file alone; by_the_product checks that no pod is refused."""
    trace = with_profiles(tmp_path, *profiles, partition=partition)
    of, kinds = played_on(trace)
    judges = [shipped.Judge(node.name.rpartition("-")[0], trace.partition) for node in of.nodes]
    served = set()
    placed = by_the_product(of, policy, forecast_of(trace, Prior.WORKLOAD), kinds)
    for kind, where in zip(kinds, placed, strict=True):
        if where is not None:
            requested = of.kinds.all[kind]
            judges[where.node].take(requested, where)
            served.add((requested.vfs > 0, requested.scope is not Scope.ANY))
    vfs, given = (sum(counts) for counts in zip(*[(judge.vfs, judge.given) for judge in judges], strict=True))
    assert served == {(False, False), (False, True), *([(True, False), (True, True)] if vfs else [])}
    assert of.vf_allocation == (pytest.approx(100 * given / vfs) if vfs else None)


def test_how_a_pod_of_the_trace_asks() -> None:
    def requested(pod: TracePod) -> DeviceRequest:
        ask = parse_request(read_pod(pod))
        assert isinstance(ask, DeviceRequest)
        return ask

    part = requested(share(460, 6_000, "T4", "A10"))
    assert part.containers[0].share == Share(core_percent=46)
    assert part.gpu_models == ("A10", "T4")
    assert requested(whole(8)).containers[0].gpus == 8
    assert parse_request(read_pod(TracePod(cpu_milli=1_000))) is None
    placed = requested(pod(2, 1, "per-switch", "numa"))
    assert placed.containers == (ContainerRequest(name="main", gpus=2, vfs=1),)
    assert (placed.rdma_policy, placed.scope) == (RdmaPolicy.PER_SWITCH, Scope.NUMA)


def test_cards_are_distinguished() -> None:
    assert card_of(gpu_uuid(1212, 7)) == 7
    assert len({gpu_uuid(node, card) for node in range(20) for card in range(16)}) == 320
