"""Find the cards of a node that a pod's shares may use, by isolation: all shares of a card have the same isolation.

Two isolations cannot share a card, because one does not know what the other allows to run.

Take a node's free capacity (`NodeCapacity`), a demand, and a fit without regard to isolation. Return a Placement on cards that
no pod holds, or that are shared with the isolation of the pod's shares on this node; or return a reason. The reason concerns
isolation only if the pod would fit without regard to it. shortage.py has already checked that the node offers the isolation.

For the inner fit, a card with another isolation has nothing free for shares (sharing.py does the same for labels). Whole cards
are not restricted.
"""

from collections.abc import Callable
from typing import Final

from central.fit.demand import Demand
from central.fit.model import Missing, NoFit, Placement
from central.fit.sharing import with_shares_on
from central.ledger.model import NodeCapacity

_OTHER_ISOLATION: Final = NoFit(missing=Missing.OTHER_ISOLATION)


def fit_by_isolation(
    capacity: NodeCapacity, demand: Demand, fit: Callable[[NodeCapacity], Placement | NoFit]
) -> Placement | NoFit:
    """Return the result of `fit` on the cards that the pod's shares may use."""
    if not demand.isolation and not capacity.isolations and not any(card.isolations for card in capacity.cards):
        return fit(capacity)  # nearly all clusters use no isolation
    isolation = capacity.isolation_of(demand.isolation)
    opened = {card.gpu.uuid for card in capacity.cards if card.joins(isolation)}
    if len(opened) == len(capacity.cards) or all(wanted.whole for wanted in demand.cards):
        return fit(capacity)
    found = fit(with_shares_on(capacity, opened))
    if isinstance(found, Placement) or found.missing.undecided:
        return found
    without_isolation = fit(capacity)
    return _OTHER_ISOLATION if isinstance(without_isolation, Placement) else without_isolation
