"""Prefer rails on one node, where that takes the devices of a pod no farther apart."""

from collections.abc import Callable, Iterable

from central.fit.model import NoFit, Placement
from central.ledger.rails import Rails


def on_preferred(found: Placement, rails: Iterable[Rails], place: Callable[[Rails], Placement | NoFit | None]) -> Placement:
    """Return the placement on the first of these sets of rails on which the devices are as close as in `found`; `found` if
    there is none. `place` returns where the pod would be with VFs of these rails only."""
    for some in rails if found.taken.vfs else ():
        other = place(some)
        if isinstance(other, Placement) and other.apart <= found.apart:
            return other
    return found
