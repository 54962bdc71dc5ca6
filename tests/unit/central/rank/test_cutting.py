"""Test what rests of cards are worth to shares."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from central.rank.cutting import WHOLE, worth_of_rests

demands = st.dictionaries(st.integers(1, WHOLE), st.integers(1, 50), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("demand", "worth"),
    [
        ({50: 1}, {49: 0, 50: 0.5, 99: 0.5, 100: 1}),
        ({30: 1}, {29: 0, 30: 1 / 3, 60: 2 / 3, 89: 2 / 3, 100: 1}),
        ({100: 3}, {99: 0, 100: 1}),
        ({60: 10, 40: 1}, {40: 0, 60: 1, 100: 1}),  # the small ones fill what the large ones leave
        ({60: 1, 40: 10}, {40: 0.5, 60: 0.5, 80: 1}),
    ],
)
def test_prices_that_are_known(demand: dict[int, float], worth: dict[int, float]) -> None:
    result = worth_of_rests(demand)
    assert {rest: pytest.approx(result[rest]) for rest in worth} == worth


def test_where_no_one_asks_only_whole_cards_are_worth_anything() -> None:
    for demand in ({}, {50: 0}):
        worth = worth_of_rests(demand)
        assert worth[WHOLE] == 1
        assert not worth[:WHOLE].any()


@given(demands)
def test_prices_are_those_of_the_fewest_cards(demand: dict[int, float]) -> None:
    """Check that the prices are a feasible dual solution: no card is worth more than itself, and the remainder of two cards is
    worth no more in parts. Their total is then at most the fewest cards, at least the total size of the shares, and at most one
    size a card."""
    worth = worth_of_rests(demand)
    assert worth[0] == 0
    assert worth[WHOLE] == pytest.approx(1)
    for rest in range(WHOLE + 1):
        for part in range(rest // 2 + 1):
            assert worth[part] + worth[rest - part] <= worth[rest] + 1e-6
    total = sum(often * worth[size] for size, often in demand.items())
    assert total >= sum(often * size for size, often in demand.items()) / WHOLE - 1e-6
    assert total <= sum(often / (WHOLE // size) for size, often in demand.items()) + 1e-6


@given(demands, st.integers(2, 1000))
def test_only_proportions_count(demand: dict[int, float], times: int) -> None:
    more = worth_of_rests({size: often * times for size, often in demand.items()})
    total = sum(often * more[size] for size, often in demand.items())
    assert total == pytest.approx(sum(often * worth_of_rests(demand)[size] for size, often in demand.items()))
