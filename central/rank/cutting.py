"""Compute the value of a card's remaining capacity for GPU shares: a cutting stock problem with cards as stock.

Take how often shares of each size arrive, in percent of a card. Return, for each remaining size in percent, the value of the
shares that fit into it, as a part of a whole card. Each share is valued at its cost in cards when cards are cut with the least
waste. An example: a remainder that fits a half share is worth half a card. If only sizes fit that also fill the gaps of other
cards, the remainder is worth little.

The prices are the duals of the cutting stock problem: the fewest cards for all shares, in parts of cards. The simplex method
solves the problem. The pattern that enters the basis is the one with the highest price, found as a knapsack.

Source: Gilmore and Gomory, A Linear Programming Approach to the Cutting-Stock Problem, 1961.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

WHOLE: Final = 100  # size of a whole card, in percent
_MOST_PATTERNS: Final = 1000  # maximum number of patterns that enter the basis; some dozens are usual
_NEARLY: Final = 1e-9

Floats = NDArray[np.float64]


def worth_of_rests(demand: Mapping[int, float]) -> Floats:
    """Return the value of each remaining size of a card, in percent from 0 to 100; a whole card is worth 1. `demand` is the
    frequency of each share size, in percent from 1 to 100. Without shares, only a whole card has a value."""
    return _solve(tuple(sorted((size, often) for size, often in demand.items() if often > 0)))


@lru_cache(maxsize=16)  # the demand is mostly the same for all kinds of cards
def _solve(demand: tuple[tuple[int, float], ...]) -> Floats:
    if not demand:
        return np.concatenate([np.zeros(WHOLE), np.ones(1)])
    sizes = [size for size, _ in demand]
    wanted = np.array([often for _, often in demand], np.float64)
    basis = np.diag([float(WHOLE // size) for size in sizes])  # each column is a pattern: the number of shares of each size
    for _ in range(_MOST_PATTERNS):
        inverse = np.linalg.inv(basis)
        prices = inverse.sum(0)  # each pattern costs one card
        pattern = _entering(sizes, prices)
        if pattern is None:
            break
        step, cards = inverse @ pattern, inverse @ wanted
        leaving = min((number for number in range(len(sizes)) if step[number] > _NEARLY), key=lambda n: cards[n] / step[n])
        basis[:, leaving] = pattern
    return np.minimum(_knapsack(sizes, np.maximum(prices, 0.0))[0], 1.0)


def _entering(sizes: list[int], prices: Floats) -> Floats | None:
    """Return a pattern that is worth more than its cost of one card; None if there is none."""
    worth, last = _knapsack(sizes, prices)
    if worth[WHOLE] <= 1.0 + _NEARLY:
        return None
    pattern, rest = np.zeros(len(sizes)), WHOLE
    while rest > 0:
        if last[rest] < 0:
            rest -= 1
        else:
            pattern[last[rest]] += 1.0
            rest -= sizes[last[rest]]
    return pattern


def _knapsack(sizes: list[int], prices: Floats) -> tuple[Floats, list[int]]:
    """Return, for each capacity, the highest total price of the sizes that fit, and the number of the last size added, or
    -1."""
    worth, last = np.zeros(WHOLE + 1), [-1] * (WHOLE + 1)
    for capacity in range(1, WHOLE + 1):
        worth[capacity] = worth[capacity - 1]
        for number, size in enumerate(sizes):
            if size <= capacity and worth[capacity - size] + prices[number] > worth[capacity] + _NEARLY:
                worth[capacity], last[capacity] = worth[capacity - size] + prices[number], number
    return worth, last
