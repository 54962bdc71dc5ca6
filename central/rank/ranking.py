"""Choose the best of many nodes by their scores, under every policy.

Take the scores of one request, as columns: `scores[part, row]`, the most important part first (score.py, scores.py). The first
part is NOWHERE on rows that do not fit. Equal nodes are in the order of `Columns.order`.
"""

from collections.abc import Collection
from typing import Final

import numpy as np

from central.rank.columns import Columns, Ints, first_of, rows_of

NOWHERE: Final = np.iinfo(np.int64).min
_NO_ROWS: Final[Ints] = np.zeros(0, np.int64)


def best(columns: Columns, scores: Ints, among: Collection[str]) -> str | None:
    """Return the node with the highest score among these nodes; None if none of them fits."""
    rows = _highest(scores)
    if not len(rows):
        return None
    name = columns.names[first_of(columns, rows)]
    if name in among:  # mostly, because `among` has mostly all nodes
        return name
    rows = _highest(scores, rows_of(columns, among))
    return columns.names[first_of(columns, rows)] if len(rows) else None


def ranked(columns: Columns, scores: Ints) -> list[str]:
    """Return all nodes that fit, the best first."""
    rows = (scores[0] > NOWHERE).nonzero()[0]
    keys = columns.ranks[rows], *(-part for part in scores[::-1, rows])
    return [columns.names[row] for row in rows[np.lexsort(keys)].tolist()]


def _highest(scores: Ints, rows: Ints | None = None) -> Ints:
    """Return the rows with the highest score among `rows`; among all rows if it is None."""
    for part in scores:
        values = part if rows is None else part[rows]
        highest = values.max(initial=NOWHERE)
        equal: Ints = (values == highest).nonzero()[0] if highest > NOWHERE else _NO_ROWS
        rows = equal if rows is None else rows[equal]
    return _NO_ROWS if rows is None else rows
