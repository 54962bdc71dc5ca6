"""Score the placement of a pod under the policy fragmentation, by the free capacity that remains on the node.

Take the free capacity of nodes before and after a pod (columns.States), the expected pods (workload.py), and the turnover, from
0 to 1 (turnover.py). Return a score for each choice, the higher the better. The same code scores nodes, and the cards within a
node.

The free capacity of a node has a *worth*, in milli of cards, the sum of five terms (worth.py). The turnover interpolates the
weights of the terms. They lie between those for a cluster that is being filled and those for one where as many pods end as
begin:

    filling  turning
      12       1     cut       value of the cards' remainders for shares, if cards are cut with the least waste
       1       1     usable    part of the node's cards that a pod drawn at random could use (fragmentation gradient descent);
                               pods for which few places are left weigh more (scarcity.py), the less the higher the turnover
       1       0.05  fed       part of the node's cards for which its cpu would last, with pods drawn at random
       0.5     0.025 fed       the same by memory
       0     100     together  the square of the number of its free cards

Where no pod ends, each remainder is final, so the weights favour capacity that the last pods can use. Where pods end,
remainders come and go, and many free cards on one node become scarce. *Together* makes a card worth more if more cards are free
beside it. So pods fill nodes that are nearly full, and nodes that are nearly empty become empty.

The score is the amount that the pod takes, less the lost worth, in steps of 30 milli: finer differences are noise. Among
equals, the first node by a fixed order does better than the best by a hair, because it fills some nodes and leaves others
whole. Where pods end, the node with the least cpu and cards left comes first (best fit). All amounts are integers, so that one
node alone and thousands at once get equal scores, on every machine.

All workloads use one set of weights. They were chosen by replays of nine published workloads, filling without departures and
turning with departures. The seeds of these replays are not used for any figure in the docs. docs/performance.md describes the
effect of each weight.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from central.rank.columns import FULL, Columns, Ints, States, joined
from central.rank.forecast import STEPS
from central.rank.scarcity import Factors, WorkloadGroups, differ
from central.rank.workload import MASS, ExpectedWorkload
from central.rank.worth import Tables, Weights

_PARTS: Final = 40  # parts of a milli, the unit of worth, so that the weights are whole numbers
_TOGETHER: Final = 100 * _PARTS * MASS // FULL**2  # weight of the square of one milli
FILLING: Final = Weights(cut=12 * _PARTS, usable=_PARTS, fed_by_cpu=_PARTS, fed_by_memory=_PARTS // 2)
_TURNING: Final = Weights(cut=_PARTS, usable=_PARTS, fed_by_cpu=2, fed_by_memory=1, together=_TOGETHER)
_UNIT: Final = STEPS * _PARTS * MASS  # one milli of a card
STEP_MILLI: Final = 30
_CPU_OF_A_CARD: Final = 16  # milli of cpu with each milli of a card, as on most nodes
_LEVEL_MILLI: Final = 250  # step of the free capacity that best fit distinguishes
_LEVELS: Final = 64


class Scoring(Protocol):
    def scores(self, before: States, after: States, of: Ints) -> Ints:
        """Return a score for each state in `after`, the higher the better. The n-th state in `after` may follow from the
        `of[n]`-th state in `before`. Scores for one pod can be compared among all nodes."""

    def is_current(self) -> bool:
        """Return False if the cluster has changed so much since this scoring was made that a new one would give other
        scores."""


class Fragmentation:
    """Score placements for one workload and one turnover."""

    def __init__(self, workload: ExpectedWorkload, columns: Columns, turnover: int = 0) -> None:
        """Create the scoring. `columns` provides the kinds of nodes, the number of cards of each kind, and their free capacity.
        They are read when the tables are made: before the first score, and when there is a new kind. `turnover` is in STEPS."""
        self._workload = workload
        self._groups = WorkloadGroups(workload)
        self._columns = columns
        self._turnover = turnover
        self._tables: Tables | None = None
        self._factors: Factors = {}
        self._cards: Sequence[int] = ()  # number of cards, by kind of node

    def scores(self, before: States, after: States, of: Ints) -> Ints:
        both = joined(before, after)  # one lookup in the tables for both
        left = self.worth(both) - _UNIT * both.free.sum(1)
        count = len(before.kind)
        scores: Ints = (left[count:] - left[:count][of]) // (_UNIT * STEP_MILLI)
        return scores * _LEVELS - _left(after) if self._turnover else scores

    def worth(self, states: States) -> Ints:
        """Return the worth of each state, in milli of cards times `_UNIT`."""
        tables, columns, most_cards = self._tables, self._columns, states.free.shape[1]
        if tables is None or len(tables.kinds) < len(columns.kinds):
            self._factors, self._cards = self._weigh(), columns.cards_by_kind()
            tables = self._make_tables(most_cards)
        elif tables.most_cards < most_cards:  # the worth of smaller nodes stays the same
            tables = self._make_tables(most_cards)
        return tables.worth(states)

    def is_current(self) -> bool:
        return self._tables is None or self._turnover == STEPS or not differ(self._weigh(), self._factors)

    def _make_tables(self, most_cards: int) -> Tables:
        both = zip(FILLING, _TURNING, strict=True)
        weigh = Weights(*(filling * (STEPS - self._turnover) + turning * self._turnover for filling, turning in both))
        self._tables = Tables(
            self._workload,
            self._columns.kinds,
            self._cards,
            self._factors,
            turnover=self._turnover / STEPS,
            most_cards=most_cards,
            weigh=weigh,
        )
        return self._tables

    def _weigh(self) -> Factors:
        return self._groups.weigh(self._columns)


def _left(states: States) -> Ints:
    """Return the remaining cpu and cards of each state as one level; the last level stands for all larger amounts."""
    left: Ints = np.minimum((states.left[0] // _CPU_OF_A_CARD + states.free.sum(1)) // _LEVEL_MILLI, _LEVELS - 1)
    return left
