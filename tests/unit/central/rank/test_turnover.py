"""Test the estimate of how many placed pods replace ended ones, from counts."""

from itertools import pairwise

from central.ledger.load import Turnover
from central.rank.forecast import STEPS, TurnoverShare


def shares(*counts: tuple[int, int], learns: bool = True) -> list[float]:
    turnover = TurnoverShare(learns=learns)
    result = []
    for bound, ended in counts:
        turnover.scan(Turnover(bound, ended))
        result.append(turnover.share)
    return result


def test_a_cluster_is_expected_to_run_already() -> None:
    assert shares((0, 0)) == [1.0]


def test_pods_from_before_the_first_scan_do_not_count() -> None:
    assert shares((20_000, 0), (20_000, 0)) == [1.0, 1.0]
    assert shares((20_000, 0), (20_100, 100)) == [1.0, 1.0]


def test_in_a_cluster_that_fills_no_placed_pod_replaces_an_ended_pod() -> None:
    result = shares(*((bound, 0) for bound in range(0, 1000, 10)))
    assert all(before >= after for before, after in pairwise(result))
    assert result[0] == 1.0
    assert result[-1] == 0.0


def test_the_part_rises_again_when_pods_end() -> None:
    filling = [(bound, 0) for bound in range(0, 2001, 10)]
    turning = [(2000 + more, more) for more in range(0, 5001, 10)]
    result = shares(*filling, *turning)
    assert result[len(filling) - 1] == 0.0
    assert result[-1] == 1.0


def test_a_small_change_keeps_the_part() -> None:
    """Check a small change, because each change costs a new score of all nodes."""
    result = shares(*((number, number // 8 * 7) for number in range(0, 20_000, 8)))
    assert len(set(result)) == 1


def test_a_new_part_is_reported_once() -> None:
    turnover = TurnoverShare()
    turnover.scan(Turnover())
    assert turnover.scan(Turnover(bound=1000))
    assert not turnover.scan(Turnover(bound=1000))
    assert turnover.steps in range(STEPS)


def test_counts_of_another_ledger_start_again() -> None:
    assert shares((5000, 5000), (0, 0), (10, 10)) == [1.0, 1.0, 1.0]


def test_the_part_stays_if_it_does_not_learn() -> None:
    assert shares((0, 0), (5000, 0), learns=False) == [1.0, 1.0]
