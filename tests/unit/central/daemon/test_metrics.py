"""Test what central counts, and the gauges that it reads from the leadership."""

import pytest
from prometheus_client import generate_latest

from central.controllers.event_reasons import EventReason
from central.daemon.metrics import MOST_QUOTAS, Metrics
from central.quota.model import LABEL_QUOTA
from central.request.reasons import OfPod
from central.search.placement import Missing
from central.state.counts import BindOutcome, Counts, EvictOutcome
from tests.fakes.led import Led


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def alone(counts: Counts | None = None) -> Metrics:
    """Return the metrics of a replica that does not lead."""
    return Metrics(counts or Counts(), leadership=lambda: None, leads=lambda: False, transitions=lambda: 7)


def test_requests_by_verb_and_status() -> None:
    metrics = alone()
    metrics.answered("filter", 200, 0.003)
    metrics.answered("filter", 503, 0.001)
    assert sample(metrics, "lading_central_requests_total", verb="filter", status="200") == 1
    assert sample(metrics, "lading_central_requests_total", verb="filter", status="503") == 1
    assert sample(metrics, "lading_central_request_seconds_count", verb="filter") == 1


def test_a_replica_that_does_not_lead_has_no_metrics_of_devices() -> None:
    metrics = alone()
    assert sample(metrics, "lading_central_leader") == 0
    assert sample(metrics, "lading_central_lease_transitions_total") == 7
    assert b"lading_central_gpus" not in generate_latest(metrics.registry)


def test_counters_survive_a_change_of_leader() -> None:
    counts = Counts(nominated=2, requeued=3)
    counts.refused[Missing.GROUP_FULL] = 4
    counts.bound[BindOutcome.UNCLEAR] = 5
    counts.evicted[EventReason.PREEMPTED, EvictOutcome.SPARED] = 6
    counts.evicted[EventReason.SHARE_BYPASSED, EvictOutcome.EVICTED] = 2
    metrics = alone(counts)
    assert sample(metrics, "lading_central_refusals_total", reason="group-full") == 4
    assert sample(metrics, "lading_central_bindings_total", outcome="unclear") == 5
    assert sample(metrics, "lading_central_evictions_total", reason="Preempted", outcome="spared") == 6
    assert sample(metrics, "lading_central_evictions_total", reason="ShareBypassed", outcome="evicted") == 2
    assert sample(metrics, "lading_central_preemptions_total") == 2
    assert sample(metrics, "lading_central_wakes_total") == 3


def test_every_label_value_is_there_before_it_is_counted() -> None:
    """Check that every series exists from the start, so that `increase` sees the first count, and that none is added later."""
    counts = Counts()
    before = {line.split(" ")[0] for line in generate_latest(alone(counts).registry).decode().splitlines()}
    for reason in (*Missing, *OfPod):
        counts.refused[reason] += 1
    for outcome in BindOutcome:
        counts.bound[outcome] += 1
    after = {line.split(" ")[0] for line in generate_latest(alone(counts).registry).decode().splitlines()}
    assert after == before


@pytest.mark.parametrize("leads", [True, False])
async def test_gauges_of_the_term(cluster: Led, leads: bool) -> None:
    await cluster.put_node("n1", 2, 2)
    await cluster.put_node("n2", 1, unhealthy="Xid 79")
    await cluster.place("a", {"lading.dev/gpu": "1", "lading.dev/rdma": "1"})
    await cluster.put_pod("b")
    await cluster.put_pod("c", {"lading.dev/gpu": "7"})
    await cluster.schedule("c")
    await cluster.pause()
    await cluster.leadership.statistics.scan()
    for _ in range(2):
        await cluster.leadership.gpu_hours.scan()
        await cluster.pause()
    counts = cluster.leadership.scheduler.counts
    metrics = Metrics(counts, leadership=lambda: cluster.leadership, leads=lambda: leads, transitions=lambda: 0)
    assert sample(metrics, "lading_central_watch_failures_total", resource="pods") == 0
    silent_s = sample(metrics, "lading_central_watch_silent_seconds", resource="nodedevices")
    assert silent_s is not None
    assert 0 <= silent_s < 1
    assert sample(metrics, "lading_central_refusals_total", reason="too-few-gpus") == 1
    assert sample(metrics, "lading_central_bindings_total", outcome="bound") == 1
    if not leads:
        assert sample(metrics, "lading_central_nodes", state="ready") is None
        assert sample(metrics, "lading_central_pods_waiting", reason="too-few-gpus") is None
        return
    gpus = [sample(metrics, "lading_central_gpus", state=state) for state in ("free", "held", "unusable", "mig")]
    assert gpus == [1, 1, 1, 0]
    seconds = [sample(metrics, f"lading_central_gpu_{what}_seconds_total", namespace="default") for what in ("asked", "held")]
    assert all(seconds), seconds
    assert [sample(metrics, "lading_central_vfs", state=state) for state in ("free", "held", "unusable")] == [1, 1, 0]
    shares = [sample(metrics, "lading_central_gpu_core_percent", state=state) for state in ("free", "held", "unusable")]
    assert shares == [100, 100, 100]
    memory = [sample(metrics, "lading_central_gpu_memory_mib", state=state) for state in ("free", "held", "unusable")]
    assert memory == [81920, 81920, 81920]
    assert [sample(metrics, "lading_central_pods_pending", state=state) for state in ("refused", "other")] == [1, 1]
    waiting = [sample(metrics, "lading_central_pods_waiting", reason=reason) for reason in ("too-few-gpus", "unknown")]
    assert waiting == [1, 0]
    states = ("ready", "unreachable", "not-reconciled")
    assert [sample(metrics, "lading_central_nodes", state=state) for state in states] == [2, 0, 0]
    assert sample(metrics, "lading_central_bindings_open") == 0
    assert sample(metrics, "lading_central_bindings_unclear") == 0
    assert sample(metrics, "lading_central_fragmentation_free_gpus") == 1
    assert [sample(metrics, "lading_central_fragmentation_places", gpus=size) for size in ("1", "2")] == [1, 0]
    sources = [sample(metrics, "lading_central_workload_source", source=source) for source in ("prior", "online", "both")]
    assert sources == [0, 1, 0]
    assert sample(metrics, "lading_central_workload_learned_pods") == 2
    assert sample(metrics, "lading_central_workload_kinds") == 6


async def test_quotas(cluster: Led) -> None:
    metrics = Metrics(Counts(), leadership=lambda: cluster.leadership, leads=lambda: True, transitions=lambda: 0)
    assert b"quota_gpus" not in generate_latest(metrics.registry)
    await cluster.put_node("n1", 4)
    await cluster.put_quota("team", least=2, most=3)
    await cluster.put_quota("wrong", least=2, most=1)
    await cluster.pause(2)
    for name in ("a", "b"):
        await cluster.put_pod(name, {"lading.dev/gpu": "2"}, labels={LABEL_QUOTA: "team"})
        await cluster.schedule(name)
    states = [sample(metrics, "lading_central_quotas", state=state) for state in ("counted", "refused")]
    assert states == [1, 1]
    amounts = ("min", "max", "runtime", "used", "waiting")
    gpus = [sample(metrics, "lading_central_quota_gpus", quota="team", amount=amount) for amount in amounts]
    assert gpus == [2, 3, 3, 2, 2]
    assert sample(metrics, "lading_central_pods_waiting", reason=OfPod.QUOTA_EXCEEDED) == 1
    for number in range(MOST_QUOTAS):
        await cluster.put_quota(f"a{number}")
    lines = generate_latest(metrics.registry).decode().splitlines()
    assert sum(line.startswith("lading_central_quota_gpus{") for line in lines) == MOST_QUOTAS * len(amounts)
    assert sample(metrics, "lading_central_quota_gpus", quota="team", amount="used") is None
