"""Check the upper bound in cases that are computed by hand."""

import pytest

from bench.bound import compute_bound
from simulate.trace import FULL, Trace, TraceNode, TracePod


def node(name: str = "n", gpus: int = 2, cpu_milli: int = 64_000, model: str = "T4") -> TraceNode:
    return TraceNode(name=name, cpu_milli=cpu_milli, memory_mib=65_536, gpus=gpus, model=model)


def pod(gpus: int = 1, milli: int = FULL, cpu_milli: int = 0, models: tuple[str, ...] = ()) -> TracePod:
    return TracePod(cpu_milli=cpu_milli, memory_mib=1_024, gpus=gpus, gpu_milli=milli, models=models)


def bound(nodes: list[TraceNode], pods: list[TracePod], load: float = 1.0) -> tuple[float, float]:
    result = compute_bound(Trace(nodes=tuple(nodes), pods=tuple(pods)), [load])
    return result.at_load[load], result.saturation


def test_whole_cards_fill_everything() -> None:
    assert bound([node()], [pod()]) == pytest.approx((100, 100))
    assert bound([node()], [pod()], load=0.5)[0] == pytest.approx(50)


def test_two_shares_of_60_percent_need_two_cards() -> None:
    assert bound([node()], [pod(milli=600)], load=2.0) == pytest.approx((60, 60))


def test_patterns_of_different_shares_are_found() -> None:
    assert bound([node()], [pod(milli=700), pod(milli=300)]) == pytest.approx((100, 100))
    assert bound([node()], [pod(milli=340)] * 2 + [pod(milli=320)]) == pytest.approx((100, 100))


def test_cpu_and_memory_run_out() -> None:
    assert bound([node(cpu_milli=8_000)], [pod(cpu_milli=8_000)]) == pytest.approx((50, 50))
    much = TracePod(memory_mib=40_960, gpus=1, gpu_milli=FULL)
    assert bound([node()], [much])[0] == pytest.approx(100 * 65_536 / 40_960 / 2)


def test_models_are_kept_separate() -> None:
    nodes = [node("a", 2, model="T4"), node("b", 2, model="A10")]
    assert bound(nodes, [pod(models=("T4",))], load=1.0) == pytest.approx((50, 50))
    assert bound(nodes, [pod(models=("A10", "T4"))]) == pytest.approx((100, 100))


def test_pods_of_several_cards_need_one_node() -> None:
    assert bound([node("a", 6), node("b", 6)], [pod(gpus=4)]) == pytest.approx((100 * 8 / 12, 100 * 8 / 12))
    allocated, saturation = bound([node("a", 2), node("b", 2)], [pod(gpus=4), pod()])
    assert (allocated, saturation) == pytest.approx((20, 500))  # the pod of 4 cards fits nowhere, whatever the load


def test_pods_without_gpus_take_cpu() -> None:
    beside = TracePod(cpu_milli=32_000, memory_mib=0)
    allocated, saturation = bound([node(gpus=4)], [pod(cpu_milli=16_000), beside])
    assert allocated == pytest.approx(100)  # those without are turned away
    assert saturation == pytest.approx(100 / 3)
