"""Decide whether a pod fits on a node, and with which devices: from a `NodeCapacity` and a request to a Placement or NoFit.

The search is exact: it finds a placement if there is one under these rules, unless it reaches a limit, which is reported
(SEARCH_ENDED, SETS_ENDED).

- A whole card is one that no pod holds. A card is never given if it is unhealthy, dirty, cordoned, used without a grant, of
  another model than requested, or in MIG mode. If a MIG profile is requested, its instances are the cards (mig.py).
- The shares on a card never add up to more than is free of its memory and compute; a share by compute alone takes the same
  percentage of the card's usable memory.
- Shares of two pods are on one card only if the labels of both allow it, and with one isolation (filters.py).
- In no phase of the pod (demand.py) do two containers have the same VF, or does one have a whole card that another uses too.
  Devices are used again in other phases, and more are taken only if they do not suffice.

The answer is deterministic: equal free capacity and equal requests give equal answers. In a `NodeCapacity`, a card that is held
whole has 0 MiB and 0 % free.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from central.assignment.phases import take
from central.ledger.model import CardCapacity, NodeCapacity
from central.request.model import DeviceRequest, Policy
from central.search.choose import choose, choose_briefly
from central.search.demand import DEFAULT_LIMITS, Demand, Limits, policy_of, read_demand
from central.search.filters import CardFilter, find_filters, with_shares_on
from central.search.mig import as_instances, instances_as_cards
from central.search.placement import Missing, NoFit, PlacedDevices, Placement
from central.search.shortage import find_shortage
from lading.vocabulary import GpuUuid

_NO_FIT: Final = {missing: NoFit(missing=missing) for missing in Missing}


def fit(
    capacity: NodeCapacity, request: DeviceRequest, *, policy: Policy, limits: Limits = DEFAULT_LIMITS, brief: bool = False
) -> Placement | NoFit:
    """Return the placement, or the reason for none. `policy` is the cluster's, for a request without its own. `brief` limits
    the work to counting and a search without backtracking; NOT_REACHED means that this did not decide."""
    policy = policy_of(request, policy)
    demand = read_demand(request, policy, limits)
    search = _NodeSearch(capacity=capacity, request=request, demand=demand, policy=policy, limits=limits, brief=brief)
    filters = find_filters(capacity, demand, request.sharing)
    result = search.run(filters)
    for last in reversed(range(len(filters))):
        if isinstance(result, Placement) or result.missing.undecided:
            return result
        result = search.run(filters[:last])
        if isinstance(result, Placement):
            return _NO_FIT[filters[last].missing]
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeSearch:
    capacity: NodeCapacity
    request: DeviceRequest
    demand: Demand
    policy: Policy
    limits: Limits
    brief: bool

    def run(self, filters: Sequence[CardFilter]) -> Placement | NoFit:
        """Return the placement of shares on cards that all of these filters leave, or the reason for none.

        All shares of the pod may have to be on one card: a pod whose affinity group has no card yet starts the group there. If
        the shares would be on several cards, each card is tried as the only one, in the order of the policy."""
        if not filters and not self.request.same_card:
            return self._on(self.capacity)
        cards = frozenset[GpuUuid](card.gpu.uuid for card in self.capacity.cards).intersection(*(one.cards for one in filters))
        result = self._on(with_shares_on(self.capacity, cards))
        sharing = self.request.sharing
        on_one = self.request.same_card or (sharing is not None and sharing.affinity)
        if not on_one or isinstance(result, NoFit):
            return result
        return result if sum(not part.whole for part in result.taken.gpus.values()) <= 1 else self._on_one(cards)

    def _on_one(self, cards: frozenset[GpuUuid]) -> Placement | NoFit:
        ended = _NO_FIT[Missing.KEPT_OFF]
        for card in sorted(self.capacity.cards, key=self._order):
            if card.gpu.uuid in cards and card.free_mib:
                result = self._on(with_shares_on(self.capacity, frozenset([card.gpu.uuid])))
                if isinstance(result, Placement):
                    return result
                ended = result if result.missing.undecided else ended
        return ended

    def _order(self, card: CardCapacity) -> tuple[int, ...]:
        """Return the sort key of the card. Ties go to the lowest address, because a `NodeCapacity` has its cards in that
        order."""
        spread = self.policy is Policy.SPREAD
        return (card.containers, -card.free_mib) if spread else (card.free_mib, card.free_core)

    def _on(self, capacity: NodeCapacity) -> Placement | NoFit:
        """Fit the pod by devices alone, regardless of the pods that share the cards."""
        cards, demand = instances_as_cards(capacity, self.demand), self.demand
        shortage = find_shortage(cards, demand) or self._choose(cards)
        if demand.mig_profile:
            shortage = as_instances(capacity, demand, shortage)
        if isinstance(shortage, Missing):
            return _NO_FIT[shortage]
        taken = take(demand.roles, shortage.containers, self.request.sharing)
        return Placement(containers=shortage.containers, taken=taken, distances=shortage.distances)

    def _choose(self, capacity: NodeCapacity) -> PlacedDevices | Missing:
        if self.brief:
            return choose_briefly(capacity, self.demand, policy=self.policy)
        return choose(capacity, self.demand, policy=self.policy, steps=self.limits.search_steps)
