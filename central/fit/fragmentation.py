"""Score the placement of a pod under the policy fragmentation, by what it leaves behind.

It takes what nodes have left, before and after a pod (columns.States), the distribution of the pods to expect (workload.py),
and the turnover, a share from 0 to 1 (turnover.py). It returns a number for each choice, the higher the better. It is the one
place where that is decided, for the choice of a node and for that of a card within it.

What a node has left is *worth*, in milli of cards, the sum of five terms (worth.py). By the turnover, their weights lie between
those for a cluster that is being filled and those for one where as many pods end as begin:

    filling  turning
      12       1     cut       what the rests of its cards are worth to shares, if cards are cut with the least waste
       1       1     usable    how much of its cards a pod drawn at random could use there (fragmentation gradient descent);
                               those for which few places are left weigh more (scarcity.py), the less the higher the turnover
       1       0.05  fed       for how much of its cards its cpu would last, with pods drawn at random
       0.5     0.025 fed       the same by memory
       0     100     together  the square of the number of its free cards

Where no pod ends, every rest is final: what counts is what the last pods find in it. Where pods end, rests come and go, and
many free cards on one node become scarce. *Together* makes a card worth the more, the more are free beside it: pods fill nodes
that are nearly full, and nodes that are nearly empty become empty.

The score is what the pod takes, less the worth that goes with it, in steps of 30 milli: finer differences are noise. Among
equals the first by a fixed order, which fills some nodes and leaves others whole, does better than the best by a hair; where
pods end, the node with the least cpu and cards left comes first (best fit). All is counted in integers, so that one node alone
and thousands of them at once get equal scores, on every machine.

The weights are one set for all workloads. They were chosen by replays of nine published workloads, those of filling without
departures and those of turning with them, on seeds of which no figure in the docs comes. docs/performance.md has what each
weight does.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from central.fit.columns import FULL, Columns, Ints, States, joined
from central.fit.scarcity import Factors, Groups, differ
from central.fit.turnover import STEPS
from central.fit.workload import MASS, Workload
from central.fit.worth import Tables, Weights

_PARTS: Final = 40  # of a milli, in which worth is counted, so that the weights are whole numbers
_TOGETHER: Final = 100 * _PARTS * MASS // FULL**2  # for the square of one milli; the others are for one milli, times MASS
_FILLING: Final = Weights(cut=12 * _PARTS, usable=_PARTS, fed_by_cpu=_PARTS, fed_by_memory=_PARTS // 2)
_TURNING: Final = Weights(cut=_PARTS, usable=_PARTS, fed_by_cpu=2, fed_by_memory=1, together=_TOGETHER)
_UNIT: Final = STEPS * _PARTS * MASS  # one milli
STEP_MILLI: Final = 30
_CPU_OF_A_CARD: Final = 16  # milli, with a milli of a card: as nodes mostly have them
_LEVEL_MILLI: Final = 250  # of what is left, that best fit tells apart
_LEVELS: Final = 64


class Scoring(Protocol):
    def scores(self, before: States, after: States, of: Ints) -> Ints:
        """Return a score for each state in `after`, the higher the better. The n-th state in `after` is one that the `of[n]`-th
        state in `before` may become. Scores are compared among all nodes for one pod."""

    def is_current(self) -> bool:
        """Return False if the cluster has changed since this was made, so that one made now would give other scores."""


class Fragmentation:
    """The scoring for one workload and one turnover."""

    def __init__(self, workload: Workload, columns: Columns, turnover: int = 0) -> None:
        """Create the scoring. Of `columns` the kinds of nodes are read, how many cards of each there are, and what is free of
        them: all when the tables are made, before the first score and when there is a new kind. `turnover`: in STEPS."""
        self._workload = workload
        self._groups = Groups(workload)
        self._columns = columns
        self._turnover = turnover
        self._tables: Tables | None = None
        self._factors: Factors = {}
        self._cards: Sequence[int] = ()  # by kind

    def scores(self, before: States, after: States, of: Ints) -> Ints:
        both = joined(before, after)  # so that there is one look at the tables
        left = self.worth(both) - _UNIT * both.free.sum(1)
        count = len(before.kind)
        scores: Ints = (left[count:] - left[:count][of]) // (_UNIT * STEP_MILLI)
        return scores * _LEVELS - _left(after) if self._turnover else scores

    def worth(self, states: States) -> Ints:
        """Return what each state is worth, in milli of cards times `_UNIT`."""
        tables, columns, most_cards = self._tables, self._columns, states.free.shape[1]
        if tables is None or len(tables.kinds) < len(columns.kinds):
            self._factors, self._cards = self._weigh(), columns.cards_by_kind()
            tables = self._make_tables(most_cards)
        elif tables.most_cards < most_cards:  # of the nodes that were there it says what it said
            tables = self._make_tables(most_cards)
        return tables.worth(states)

    def is_current(self) -> bool:
        return self._tables is None or self._turnover == STEPS or not differ(self._weigh(), self._factors)

    def _make_tables(self, most_cards: int) -> Tables:
        both = zip(_FILLING, _TURNING, strict=True)
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
    """Return what is left of cpu and cards, in levels; the last one is for all that have more."""
    left: Ints = np.minimum((states.left[0] // _CPU_OF_A_CARD + states.free.sum(1)) // _LEVEL_MILLI, _LEVELS - 1)
    return left
