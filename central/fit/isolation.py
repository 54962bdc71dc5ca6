"""Find the cards of a node on which a pod's shares may be, by what keeps shares to their amounts: all shares of a card have the
same isolation, because one does not know what the other lets run.

It takes a room, a demand, and a fit that knows nothing of isolations. It returns a Placement on cards that no pod holds or that
are shared with the isolation that the pod's shares have on this node; or what is missing, which is a matter of isolation only
where the pod would fit without regard to it. That the node offers the isolation at all is found before (shortage.py).

A card with another isolation has nothing free for shares, as far as the fit can see (sharing.py does the same for labels).
Whole cards are not concerned.
"""

from collections.abc import Callable
from typing import Final

from central.fit.demand import Demand
from central.fit.model import Missing, NoFit, Placement
from central.fit.sharing import with_shares_on
from central.ledger.model import NodeRoom

_OTHER_ISOLATION: Final = NoFit(missing=Missing.OTHER_ISOLATION)


def fit_by_isolation(room: NodeRoom, demand: Demand, fit: Callable[[NodeRoom], Placement | NoFit]) -> Placement | NoFit:
    """Return what `fit` finds on these cards."""
    if not demand.isolation and not room.isolations and not any(card.isolations for card in room.cards):
        return fit(room)  # nearly all clusters
    isolation = room.isolation_of(demand.isolation)
    opened = {card.gpu.uuid for card in room.cards if card.joins(isolation)}
    if len(opened) == len(room.cards) or all(wanted.whole for wanted in demand.cards):
        return fit(room)
    found = fit(with_shares_on(room, opened))
    if isinstance(found, Placement) or found.missing.undecided:
        return found
    without_isolation = fit(room)
    return _OTHER_ISOLATION if isinstance(without_isolation, Placement) else without_isolation
