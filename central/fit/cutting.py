"""Compute what the rest of a card is worth to shares: cards are stock, shares are cut from it.

It takes how often shares of each size come, in percent of a card. It returns, for each rest, in percent, what part of a whole
card the shares are worth that fit into it, if every share is worth what it costs in cards where cards are cut with the least
waste. A rest into which only sizes fit that fill the gaps of other cards anyway is worth little, whatever its size; one that
takes a half is worth half a card.

The prices are the duals of the cutting stock problem: the fewest cards for all shares, in parts of cards. It is solved by the
simplex method, where the pattern that enters the basis is the one with the highest price: a knapsack.

Source: Gilmore and Gomory, A Linear Programming Approach to the Cutting-Stock Problem, 1961.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

WHOLE: Final = 100  # percent
_MOST_PATTERNS: Final = 1000  # that enter the basis; some dozens do
_NEARLY: Final = 1e-9

Floats = NDArray[np.float64]


def worth_of_rests(demand: Mapping[int, float]) -> Floats:
    """Return what each rest of a card is worth, by its size in percent from 0 to 100; a whole card is worth 1. `demand` says
    how often a share of each size comes; sizes are percent from 1 to 100. Without any share, only a whole card is worth
    something."""
    return _solve(tuple(sorted((size, often) for size, often in demand.items() if often > 0)))


@lru_cache(maxsize=16)  # to cards of all kinds the demand is mostly the same
def _solve(demand: tuple[tuple[int, float], ...]) -> Floats:
    if not demand:
        return np.concatenate([np.zeros(WHOLE), np.ones(1)])
    sizes = [size for size, _ in demand]
    wanted = np.array([often for _, often in demand], np.float64)
    basis = np.diag([float(WHOLE // size) for size in sizes])  # a column is a pattern: how many of each size
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
    """Return a pattern that is worth more than the card that it costs. It never has more of a size than is wanted: there is
    also the pattern without it."""
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
    """Return, by capacity, the highest price of the sizes that fit, and the number of the size that was put in last, or -1."""
    worth, last = np.zeros(WHOLE + 1), [-1] * (WHOLE + 1)
    for capacity in range(1, WHOLE + 1):
        worth[capacity] = worth[capacity - 1]
        for number, size in enumerate(sizes):
            if size <= capacity and worth[capacity - size] + prices[number] > worth[capacity] + _NEARLY:
                worth[capacity], last[capacity] = worth[capacity - size] + prices[number], number
    return worth, last
