"""The ways to share a card that the bench compares: each behaves as it is known to."""

import pytest

from bench.isolation import CASES, WAYS, merge, model, render
from bench.isolation_real import Results
from bench.other_cards import partition, react
from bench.virtual_card import Work
from shares.policy.model import MS

SECONDS = 20
UNTIL = SECONDS * 1000 * MS


def parts(*works: Work) -> list[float]:
    return [work.share_of(5000 * MS, UNTIL) for work in works]


def test_a_partition_gives_each_its_request_and_leaves_the_rest() -> None:
    a, b = Work(name="a", request=0.5), Work(name="b", request=0.2, burst_ms=5, every_ms=50)
    partition([a, b], seconds=SECONDS)
    busy, bursts = parts(a, b)
    assert busy * 0.5 == pytest.approx(0.5, abs=0.01)
    assert bursts * 0.2 == pytest.approx(0.1, abs=0.01)


def test_a_limiter_that_reacts_to_use_gives_no_guarantee() -> None:
    """HAMi-core, measured: equal parts for limits of 50, 30 and 20; a kernel costs the same however long it runs."""
    works = [Work(name=name, request=part) for name, part in zip("abc", (0.5, 0.3, 0.2), strict=True)]
    react(works, seconds=SECONDS)
    assert parts(*works) == pytest.approx([1 / 3] * 3, abs=0.05)
    short, long = Work(name="a", request=0.5, kernels_ms=(1.0,)), Work(name="b", request=0.5, kernels_ms=(100.0,))
    react([short, long], seconds=SECONDS)
    assert parts(long)[0] > 0.9


def test_a_limiter_that_reacts_to_use_overshoots_alone() -> None:
    alone = Work(name="a", request=0.3)
    react([alone], seconds=SECONDS)
    assert parts(alone)[0] > 0.4


@pytest.mark.parametrize("way", WAYS)
def test_no_way_gives_more_than_the_card(way: str) -> None:
    said = model(CASES["inference_beside_training"], WAYS[way], seconds=SECONDS)
    assert said.share_error >= 0
    assert 0 < said.held <= 1.01
    assert said.wait_max_ms >= 0


def test_turns_keep_the_promised_shares() -> None:
    said = model(CASES["busy"], WAYS["fair"], seconds=SECONDS)
    assert said.share_error < 0.02  # with kernels of 5 ms and a synchronisation after each, a turn has one or two
    assert said.held > 0.97
    assert said.second_error is not None
    assert said.second_error < 0.05


@pytest.mark.parametrize("name", ["limits", "limit_alone"])
def test_limits_are_kept_without_long_stalls(name: str) -> None:
    said = model(CASES[name], WAYS["fair"], seconds=SECONDS)
    assert said.limit_error is not None
    assert said.limit_error < 0.02
    assert said.wait_max_ms < 100


def test_the_wait_of_a_container_that_comes_back_is_measured() -> None:
    said = model(CASES["one_comes_back"], WAYS["fair"], seconds=31)
    assert said.wait_back_ms is not None
    assert said.wait_back_ms < 65


def test_figures_of_models_and_of_real_processes_are_one_table() -> None:
    models: Results = {"share_error": {"busy": {"fair": 0.01, "window": 0.02}}}
    real: Results = {"work": {"answer, training": {"alone": 1.0, "slices": 0.9, "tokens": 0.95}}, "share_error": {"real": 0.03}}
    merged = merge(models, real)
    assert merged["share_error"] == {"busy": {"fair": 0.01, "window": 0.02}, "real": 0.03}
    rows = [line.split() for line in render(merged).splitlines()]
    assert rows[-2:] == [["alone", "slices", "tokens"], ["work.answer,", "training", "1.0", "0.9", "0.95"]]
