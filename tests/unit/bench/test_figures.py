import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.figures import Results, Verdict, judge, percentile, render

RESULTS: Results = {
    "version": {
        "direct": {"p50_us": 100.0, "cpu_us": 50.0},
        "relay": {"p50_us": 205.0, "cpu_us": 40.0},
        "grpc_aio": {"p50_us": 900.0, "cpu_us": 500.0},
    },
    "concurrent16": {
        "direct": {"calls_per_s": 30_000.0},
        "relay": {"calls_per_s": 20_000.0},
        "grpc_aio": {"calls_per_s": 2_500.0},
    },
    "list_2mb": {"direct": {"p50_us": 2000.0}, "relay": {"p50_us": 3000.0}},
    "create_with_gpu_hook": {"direct": {"p50_us": 12_000.0}, "relay": {"p50_us": 13_500.0}},
    "create_remove_cpu_ms": {"direct": 4.0, "relay": 1.0, "hooks": 1.75},
    "memory": {"start_mb": 45.0, "after_200k_calls_mb": 46.0, "after_5k_creates_mb": 47.0},
    "stuck_hook": {"idle": {"p99_us": 300.0}, "stuck": {"p99_us": 450.0}},
    "loop_stall_max_ms": 8.0,
}


def test_percentile_is_a_value_that_was_measured() -> None:
    assert percentile([5.0, 1.0, 3.0], 0.5) == 3.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert percentile([float(n) for n in range(1, 101)], 0.99) == 99.0
    assert percentile([7.0], 0.99) == 7.0


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1))
def test_percentile_leaves_the_share_below_and_the_rest_above(values: list[float], share: float) -> None:
    result = percentile(values, share)
    assert sum(value <= result for value in values) >= share * len(values)
    assert sum(value < result for value in values) < share * len(values)


def test_every_target_has_its_verdict() -> None:
    measured = [round(verdict.measured, 3) for verdict in judge(RESULTS)]
    assert measured == [105.0, 40.0, 0.08, 8.0, 1.5, 1.125, 2.75, 45.0, 1.0, 2.0, 1.5, 8.0]
    assert all(verdict.met for verdict in judge(RESULTS))


@pytest.mark.parametrize(
    ("part", "worse"),
    [
        ("version", {"direct": {"p50_us": 100.0}, "relay": {"p50_us": 211.0}}),
        ("version", {"relay": {"cpu_us": 51.0}, "grpc_aio": {"cpu_us": 500.0}}),
        ("version", {"relay": {"cpu_us": 49.0}, "grpc_aio": {"cpu_us": 400.0}}),
        ("concurrent16", {"relay": {"calls_per_s": 17_000.0}, "grpc_aio": {"calls_per_s": 2_500.0}}),
        ("list_2mb", {"direct": {"p50_us": 1000.0}, "relay": {"p50_us": 1700.0}}),
        ("create_with_gpu_hook", {"direct": {"p50_us": 1000.0}, "relay": {"p50_us": 1260.0}}),
        ("create_remove_cpu_ms", {"relay": 1.0, "hooks": 2.1}),
        ("memory", {"start_mb": 61.0}),
        ("memory", {"start_mb": 40.0, "after_200k_calls_mb": 44.0}),
        ("stuck_hook", {"idle": {"p99_us": 100.0}, "stuck": {"p99_us": 201.0}}),
        ("loop_stall_max_ms", 10.1),
    ],
)
def test_a_missed_target_is_reported(part: str, worse: Results | float) -> None:
    missed = [verdict for verdict in judge({part: worse}) if not verdict.met]
    assert len(missed) == 1
    assert "MISSED" in render({part: worse}, [])


def test_a_figure_that_was_not_measured_has_no_verdict() -> None:
    assert judge({}) == []
    assert [verdict.unit for verdict in judge({"version": {"relay": {"cpu_us": 40.0}}})] == ["µs"]


def test_at_least_and_at_most_are_met_at_their_limit() -> None:
    assert Verdict(what="", measured=7, limit=7, at_most=False, unit="x").met
    assert Verdict(what="", measured=7, limit=7, at_most=True, unit="x").met


def test_the_table_has_every_figure_and_note() -> None:
    table = render(RESULTS, ["by whom"])
    for cell in ("205", "20,000", "13,500", "47.0", "450.0", "by whom"):
        assert cell in table
    assert "MISSED" not in table
