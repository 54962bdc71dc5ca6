"""Choose preferred rails on one node if the pod's devices are then no farther apart.

Tests: tests/unit/central/gang/test_rails.py
"""

from collections.abc import Callable, Iterable

from central.fit.model import NoFit, Placement
from central.ledger.rails import Rails


def on_preferred(found: Placement, rails: Iterable[Rails], place: Callable[[Rails], Placement | NoFit | None]) -> Placement:
    """Return the placement on the first set of rails on which the devices are as close as in `found`; `found` if there is none.
    `place` returns the pod's placement with VFs of the given rails only."""
    for some in rails if found.taken.vfs else ():
        other = place(some)
        if isinstance(other, Placement) and other.apart <= found.apart:
            return other
    return found
