"""What central counts, and the gauges that it reads from the ledger."""

from pathlib import Path

import pytest
from prometheus_client import generate_latest

from central.metrics import Metrics
from tests.fakes.led import Led, play


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_requests_by_verb_and_status() -> None:
    metrics = Metrics(lambda: None, lambda: False)
    metrics.answered("filter", 200, 0.003)
    metrics.answered("filter", 503, 0.001)
    assert sample(metrics, "lading_central_requests_total", verb="filter", status="200") == 1
    assert sample(metrics, "lading_central_requests_total", verb="filter", status="503") == 1
    assert sample(metrics, "lading_central_request_seconds_count", verb="filter") == 1


def test_who_does_not_lead_knows_nothing_of_devices() -> None:
    metrics = Metrics(lambda: None, lambda: False)
    assert sample(metrics, "lading_central_leader") == 0
    assert b"lading_central_gpus" not in generate_latest(metrics.registry)


@pytest.mark.parametrize("leads", [True, False])
def test_gauges_of_the_ledger(tmp_path: Path, leads: bool) -> None:
    async def story(one: Led) -> None:
        await one.put_node("n1", 2, 2)
        await one.put_node("n2", 1, unhealthy="Xid 79")
        await one.put_pod("a", {"lading.dev/gpu": "1", "lading.dev/rdma": "1"})
        assert await one.schedule("a") == ""
        await one.pause()
        await one.put_pod("b")
        await one.put_pod("c", {"lading.dev/gpu": "7"})
        await one.schedule("c")
        metrics = Metrics(lambda: one.term, lambda: leads)
        if not leads:
            assert sample(metrics, "lading_central_nodes") is None
            return
        assert [sample(metrics, "lading_central_gpus", state=state) for state in ("free", "held", "unusable")] == [1, 1, 1]
        assert [sample(metrics, "lading_central_vfs", state=state) for state in ("free", "held", "unusable")] == [1, 1, 0]
        assert [sample(metrics, "lading_central_pods_pending", state=state) for state in ("refused", "other")] == [1, 1]
        assert sample(metrics, "lading_central_nodes") == 2
        assert sample(metrics, "lading_central_bindings_open") == 0
        sources = [sample(metrics, "lading_central_workload_source", source=source) for source in ("prior", "online", "both")]
        assert sources == [0, 1, 0]
        assert sample(metrics, "lading_central_workload_learned_pods") == 2
        assert sample(metrics, "lading_central_workload_kinds") == 6

    play(story, tmp_path)
