"""Score the placement of a pod under the policy fragmentation, by what it leaves behind.

It takes what nodes have left, before and after a pod (columns.States), and the distribution of the pods to expect
(workload.py). It returns a number for each choice, the higher the better. It is the one place where that is decided, for the
choice of a node and for that of a card within it.

What a node has left is *worth*, in milli of cards, the sum of four terms (worth.py):

    12  * cut     what the rests of its cards are worth to shares, if cards are cut with the least waste
     1  * usable  how much of its cards a pod drawn at random could use there (fragmentation gradient descent); those that ask
                  for several cards have the weight of reserve.py
     1  * fed     for how much of its cards its cpu would last, with pods drawn at random
     0.5 * fed    the same by memory

The score is what the pod takes, less the worth that goes with it, in steps of 30 milli: finer differences are noise, and of
equals the first by a fixed order, which fills some nodes and leaves others whole, does better than the best by a hair. All is
counted in integers, so that one node alone and thousands of them at once get equal scores, on every machine.

The weights are one set for all workloads. They were chosen by replays of nine published workloads, on seeds of which no figure
in the docs comes; `bench.weights` replays that. Without usable 0.3 points are lost on average, and 0.7 where many cards are
asked for at once; with twice of it, or half of fed, 0.1. Half or twice of cut, and steps between 15 and 50, are equally good.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from central.fit.columns import Columns, Ints, States, joined
from central.fit.reserve import Factors, differ, weigh_groups
from central.fit.workload import MASS, Workload
from central.fit.worth import Tables, Weights

_PARTS: Final = 2  # of a milli, in which worth is counted, so that the weights are whole numbers
_WEIGHTS: Final = Weights(cut=12 * _PARTS, usable=_PARTS, fed_by_cpu=_PARTS, fed_by_memory=_PARTS // 2)
_UNIT: Final = _PARTS * MASS  # one milli
STEP_MILLI: Final = 30


class Scoring(Protocol):
    def scores(self, before: States, after: States, of: Ints) -> Ints:
        """Return a score for each state in `after`, the higher the better. The n-th state in `after` is one that the `of[n]`-th
        state in `before` may become. Scores are compared among all nodes for one pod."""

    def is_current(self) -> bool:
        """Return False if the cluster has changed since this was made, so that one made now would give other scores."""


class Fragmentation:
    """The fragmentation that one workload finds. The kinds of nodes, the number of cards of each kind, and what is free of them
    are read from `columns`: all of them when the tables are made, before the first score and when there is a new kind."""

    def __init__(self, workload: Workload, columns: Columns) -> None:
        self._workload = workload
        self._columns = columns
        self._tables: Tables | None = None
        self._factors: Factors = {}
        self._cards: Sequence[int] = ()  # by kind

    def scores(self, before: States, after: States, of: Ints) -> Ints:
        both = joined(before, after)  # so that there is one look at the tables
        left = self.worth(both) - _UNIT * both.free.sum(1)
        count = len(before.kind)
        scores: Ints = (left[count:] - left[:count][of]) // (_UNIT * STEP_MILLI)
        return scores

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
        return self._tables is None or not differ(self._weigh(), self._factors)

    def _make_tables(self, most_cards: int) -> Tables:
        kinds = self._columns.kinds
        self._tables = Tables(self._workload, kinds, self._cards, self._factors, most_cards=most_cards, weigh=_WEIGHTS)
        return self._tables

    def _weigh(self) -> Factors:
        columns = self._columns
        return weigh_groups(self._workload, columns.free_milli(), lambda group: columns.places(group.gpus, group.models))
