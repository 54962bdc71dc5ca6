"""Score a node on which a request fits, for comparison between nodes.

Take one node's free capacity (`NodeCapacity`) and a request, nothing else, so that the score may be cached until that node
changes. Return a Score: the node with the higher score is better, and among equal nodes the first by name is chosen.

Under any policy, the node comes first where GPUs and VFs of one container are closest (topology.Distances). Among equally close
nodes, the policy decides:

    binpack  the fullest: how full its cards would be with this pod, then its VFs
    spread   the emptiest: the fewest containers a card, then how empty its cards would be, then its VFs

The pod itself counts, as in kube-scheduler's MostAllocated. Otherwise, given an empty node with one card and a half empty one
with eight, a pod of one card would take a card of the larger. Unusable cards do not count.
"""

from collections.abc import Sequence
from typing import Final

from central.ledger.model import CardCapacity, NodeCapacity
from central.request.model import DeviceRequest, Policy
from central.search.demand import DEFAULT_LIMITS, Demand, Limits, policy_of, read_demand
from central.search.mig import instances_as_cards
from central.search.placement import Placement
from central.search.shortage import requested_cards

Score = tuple[int, ...]  # all scores of one policy have the same length
_SCALE: Final = 1_000_000  # integers compare alike on every machine


def score(capacity: NodeCapacity, request: DeviceRequest, *, policy: Policy, limits: Limits = DEFAULT_LIMITS) -> Score:
    """Return the score of a node, the higher the better. `policy` is the cluster's, for a request without its own. Scores of
    one request can be compared with one another, but not with those of another request."""
    policy = policy_of(request, policy)
    demand = read_demand(request, policy, limits)
    capacity = instances_as_cards(capacity, demand)
    cards = [card for card in requested_cards(capacity, demand) if card.usable] if demand.cards else []
    vfs = _vf_fullness(capacity, demand)
    match policy:
        case Policy.BINPACK | Policy.FRAGMENTATION:  # fragmentation is scored in scores.py, for all nodes at once
            return _card_fullness(cards, demand), vfs
        case Policy.SPREAD:
            containers = sum(card.containers for card in cards)
            return -(containers * _SCALE // max(1, len(cards))), -_card_fullness(cards, demand), -vfs


def score_placed(
    capacity: NodeCapacity, request: DeviceRequest, placement: Placement, *, policy: Policy, limits: Limits = DEFAULT_LIMITS
) -> Score:
    """Return the score of a node, preceded by the distance between the devices of this placement; closer is better."""
    return -placement.distances.level, *score(capacity, request, policy=policy, limits=limits)


def _card_fullness(cards: Sequence[CardCapacity], demand: Demand) -> int:
    """Return how full the cards would be with this pod, in parts of `_SCALE`: the higher of memory and compute."""
    size_mib = sum(card.gpu.usable_mib for card in cards)
    if size_mib <= 0:
        return 0
    mib = core = 0
    for phase in range(demand.phases):
        requested_mib = requested_core = 0
        for wanted in demand.cards:
            if wanted.mask >> phase & 1:
                card_mib = size_mib // len(cards)  # the average card, because the score does not choose cards
                requested_mib += wanted.count * (card_mib if wanted.whole else wanted.mib_of(card_mib))
                requested_core += wanted.count * (100 if wanted.whole else wanted.core_percent or 0)
        mib, core = max(mib, requested_mib), max(core, requested_core)
    held_mib = size_mib - sum(card.free_mib for card in cards)
    held_core = 100 * len(cards) - sum(card.free_core for card in cards)
    return max((held_mib + mib) * _SCALE // size_mib, (held_core + core) * _SCALE // (100 * len(cards)))


def _vf_fullness(capacity: NodeCapacity, demand: Demand) -> int:
    if not demand.vfs_peak:
        return 0
    usable = sum(vf.usable for vf in capacity.vfs)
    free = sum(vf.free for vf in capacity.vfs)
    return (usable - free + demand.vfs_peak) * _SCALE // max(1, usable)
