"""Explain in words and numbers why a node does not fit, for a person who asks about one pod.

Take the node's free capacity (`NodeCapacity`), the request, and the reason that `fit` returned. Return one line with the
nearest miss, and the remedy if it follows from this node alone. The text is built here and not in `fit`, which answers for
thousands of nodes.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final, assert_never

from central.ledger.model import CardCapacity, NodeCapacity
from central.request.model import DeviceRequest, PartitionPolicy, Policy, RdmaPolicy, Scope, Sharing
from central.search.choose import MISSING_OF, Bond, bonds_of, find_bound
from central.search.demand import DEFAULT_LIMITS, Demand, Limits, Wanted, policy_of, read_demand
from central.search.filters import group_cards, is_open
from central.search.joint import MOST_SETS
from central.search.mig import explain_instances, instances_as_cards
from central.search.nearby import count_of, explain_partition, explain_pfs, explain_scope, explain_switches
from central.search.placement import Missing
from central.search.shortage import requested_cards, short_of_cards, with_several_shares
from lading.amounts import first_few, format_mib
from lading.devices.identity import pci_order

_LISTED: Final = 8  # maximum number of amounts in one line
_FREE: Final = "free"
_HELD: Final = "held"
# Reasons that would not apply on an empty node.
_NOW: Final = {
    Missing.TOO_FEW_FREE_VFS_OF_SWITCH,
    Missing.TOO_FEW_FREE_VFS_OF_PF,
    Missing.NO_FREE_PARTITION,
    Missing.NOT_FREE_WITHIN_SCOPE,
}


def explain(
    capacity: NodeCapacity, request: DeviceRequest, missing: Missing, *, policy: Policy, limits: Limits = DEFAULT_LIMITS
) -> str:
    """Explain the reason `missing` for this node. `capacity`, `policy` and `limits` must be those of the call of `fit`."""
    demand = read_demand(request, policy_of(request, policy), limits)
    match missing:
        case Missing.NO_REPORT:
            return f"there is no NodeDevices object {capacity.name}: lading-hooks does not report there"
        case Missing.UNREACHABLE:
            return "its Node object is missing or not Ready; what is held there stays held until the node answers"
        case Missing.REBOOTED:
            return "its report is from before the last boot: lading-hooks has not reported there since"
        case Missing.NOT_RECONCILED:
            return "lading-hooks there has not compared its grants with the container runtime since it started"
        case Missing.NO_ISOLATION:
            requested = f"isolation {demand.isolation} asked" if demand.isolation else "no isolation asked"
            several = ", and a container asks for shares of several cards, which mps does not give" * with_several_shares(
                demand
            )
            return f"{requested}; the node offers {' and '.join(capacity.offered)}{several}"
        case Missing.NO_MODEL:
            models = sorted({card.gpu.model for card in capacity.cards})
            return f"{' or '.join(demand.models)} asked; the node has {', '.join(models) or 'no GPU'}"
        case Missing.TOO_FEW_GPUS | Missing.TOO_FEW_FREE_GPUS | Missing.NO_CARD_LARGE_ENOUGH | Missing.NO_CARD_WITH_ROOM:
            return _explain_cards(capacity, demand, missing)
        case Missing.TOO_FEW_MIG | Missing.TOO_FEW_FREE_MIG:
            return explain_instances(capacity, demand)
        case Missing.UNHEALTHY:
            return _explain_unhealthy(capacity, demand)
        case Missing.SHARES_DO_NOT_FIT | Missing.NODE_TOO_SMALL:
            return f"{_all_needs(demand)}; each of these fits alone; {_states(capacity, demand)}"
        case Missing.SEARCH_ENDED:
            return (
                f"{_all_needs(demand)}; stopped after {limits.search_steps} tries; fewer different containers need fewer tries"
            )
        case Missing.SETS_ENDED:
            return (
                f"{_all_needs(demand)}; none fits among the first {MOST_SETS} sets of GPUs in one place for one of the "
                "containers; a container that asks for fewer GPUs has fewer sets"
            )
        case Missing.NOT_REACHED:
            return "central evaluates it in the background; then kube-scheduler asks again"
        case Missing.TOO_FEW_VFS | Missing.TOO_FEW_FREE_VFS:
            return _explain_vfs(capacity, demand.vfs_peak)
        case Missing.TOO_FEW_VFS_OF_PF | Missing.TOO_FEW_FREE_VFS_OF_PF:
            return explain_pfs(capacity, demand, now=missing in _NOW)
        case (
            Missing.TOO_FEW_VFS_OF_SWITCH
            | Missing.TOO_FEW_FREE_VFS_OF_SWITCH
            | Missing.NO_PARTITION
            | Missing.NO_FREE_PARTITION
            | Missing.NOT_WITHIN_SCOPE
            | Missing.NOT_FREE_WITHIN_SCOPE
        ):
            return _explain_bonds(instances_as_cards(capacity, demand), demand, missing, policy_of(request, policy), limits)
        case Missing.KEPT_OFF:
            return _explain_kept_off(capacity, demand, request.sharing)
        case Missing.OTHER_ISOLATION:
            return _explain_other_isolation(capacity, demand)
        case Missing.GROUP_FULL:
            return _explain_group(capacity, request.sharing)
        case Missing.GROUP_ELSEWHERE:
            return "pods with its share-affinity have shares of a GPU of another node"
        case _:
            assert_never(missing)


# Devices that must be in one place


def _explain_bonds(capacity: NodeCapacity, demand: Demand, missing: Missing, policy: Policy, limits: Limits) -> str:
    """Explain all bonds that fail, if there are more than the one that `missing` names. Finding them takes a search, which is
    done only if the demand has several bonds."""
    bound = find_bound(capacity, demand, policy, steps=limits.search_steps) if len(bonds_of(demand)) > 1 else None
    bonds = bound.bonds if bound else [next(bond for bond, named in MISSING_OF.items() if missing in named)]
    of_one = bound.demand if bound else demand
    return "; and ".join(_explain_bond(capacity, of_one, bond, now=missing in _NOW) for bond in bonds)


def _explain_bond(capacity: NodeCapacity, demand: Demand, bond: Bond, *, now: bool) -> str:
    match bond:
        case PartitionPolicy():
            return explain_partition(capacity, demand, now=now)
        case RdmaPolicy():
            return explain_switches(capacity, demand, now=now)
        case Scope():
            return explain_scope(capacity, demand, now=now)
        case _:
            assert_never(bond)


# Cards


def _explain_cards(capacity: NodeCapacity, demand: Demand, missing: Missing) -> str:
    cards = requested_cards(capacity, demand)
    need = next((need for need in demand.needs if short_of_cards(cards, need) is missing), demand.needs[0])
    if missing in {Missing.TOO_FEW_GPUS, Missing.TOO_FEW_FREE_GPUS}:
        free = sum(card.free for card in cards)
        short = need.count - free
        more = count_of(short, "more free GPU")
        would_help = f"; needs {more}" if missing is Missing.TOO_FEW_FREE_GPUS else ""
        return f"{_one_need(need)} asked; {_states(capacity, demand)}{would_help}"
    if missing is Missing.NO_CARD_LARGE_ENOUGH:
        largest = max(cards, key=lambda card: card.gpu.usable_mib)
        return f"{_one_need(need)} asked; the largest GPU has {format_mib(largest.gpu.usable_mib)}: {_name(largest)}"
    if need.count > 1:
        enough = sum(card.has_free(need.mib_of(card.gpu.usable_mib), need.core_percent or 0) for card in cards)
        return (
            f"{_one_need(need)} asked; of {count_of(len(cards), 'GPU')} {enough} have so much free{_unusable(capacity, demand)}"
        )
    best = min((card for card in cards if card.usable), key=lambda card: _shortage(card, need))
    amounts = format_mib(best.free_mib) if need.core_percent is None else f"{format_mib(best.free_mib)} and {best.free_core}%"
    return f"{_one_need(need, best)} asked; the best single GPU has {amounts} free: {_name(best)}{_unusable(capacity, demand)}"


def _explain_unhealthy(capacity: NodeCapacity, demand: Demand) -> str:
    cards = requested_cards(capacity, demand)
    need = next((need for need in demand.needs if short_of_cards(cards, need) is Missing.UNHEALTHY), None)
    if need is not None and not demand.mig_profile:
        return f"{_one_need(need)} asked; {_states(capacity, demand)}"
    if sum(vf.usable for vf in capacity.vfs) < demand.vfs_peak:
        return _explain_vfs(capacity, demand.vfs_peak)
    if demand.mig_profile:
        return explain_instances(capacity, demand)
    return f"{_all_needs(demand)}; {_states(capacity, demand)}"


def _shortage(card: CardCapacity, need: Wanted) -> tuple[float, tuple[int, str]]:
    """Return the amount that a card lacks for the need, in parts of a card, followed by the card's address for ties."""
    size = max(1, card.gpu.usable_mib)
    mib = max(0, need.mib_of(card.gpu.usable_mib) - card.free_mib)
    core = max(0, (need.core_percent or 0) - card.free_core)
    return mib / size + core / 100, pci_order(card.gpu.bdf)


def _one_need(need: Wanted, card: CardCapacity | None = None) -> str:
    """Describe the need as text. `card` is the card to which a percentage of memory refers."""
    if need.whole:
        return count_of(need.count, "whole GPU")
    parts = []
    if need.memory_mib is not None:
        parts.append(format_mib(need.memory_mib))
    elif card is not None:
        parts.append(format_mib(need.mib_of(card.gpu.usable_mib)))
    elif need.memory_percent != need.core_percent:
        parts.append(f"{need.memory_percent}% of the memory")
    if need.core_percent is not None:
        parts.append(f"{need.core_percent}%")
    return " and ".join(parts) + (f" of each of {need.count} GPUs" if need.count > 1 else "")


def _all_needs(demand: Demand) -> str:
    requested = [_one_need(wanted) for wanted in demand.cards]
    return f"asked by the containers: {first_few(requested, _LISTED, between='; ')}"


def _states(capacity: NodeCapacity, demand: Demand) -> str:
    """Count the cards by state as text: free, held, then unusable ones by their problem: "of 8 GPUs 5 free, 2 held, 1
    cordoned"."""
    cards = _of_model(capacity, demand)
    states = Counter(_state(card) for card in cards)
    text = [(state, states.pop(state)) for state in (_FREE, _HELD) if state in states] + states.most_common()
    return f"of {count_of(len(cards), 'GPU')} {', '.join(f'{count} {state}' for state, count in text)}"


def _unusable(capacity: NodeCapacity, demand: Demand) -> str:
    states = Counter(_state(card) for card in _of_model(capacity, demand) if not card.usable or card.gpu.mig_enabled)
    return "".join(f"; {count} {state}" for state, count in states.most_common())


def _of_model(capacity: NodeCapacity, demand: Demand) -> Sequence[CardCapacity]:
    return [card for card in capacity.cards if not demand.models or card.gpu.model in demand.models]


def _state(card: CardCapacity) -> str:
    if card.gpu.unhealthy:
        return f"unhealthy ({card.gpu.unhealthy})"
    if card.gpu.used_by:
        return f"used without a grant ({card.gpu.used_by})"
    if card.gpu.dirty:
        return f"dirty ({card.gpu.dirty})"
    if not card.usable:
        return "cordoned"
    if card.gpu.mig_enabled:
        return "in MIG mode"
    return _FREE if card.pods == 0 else _HELD


def _name(card: CardCapacity) -> str:
    return f"{card.gpu.uuid} ({card.gpu.bdf})"


# Sharers


def _explain_kept_off(capacity: NodeCapacity, demand: Demand, sharing: Sharing | None) -> str:
    """Explain which cards the sharing constraints exclude. Name the pod's own labels, but not those of other pods, which may
    belong to other tenants."""
    having = [card for card in requested_cards(capacity, demand) if card.usable and card.free_mib]
    closed = [card for card in having if not is_open(card, sharing)]
    if not closed:
        return f"{_all_needs(demand)}; all of its shares have to be on one GPU, and none has enough free"
    own = " and ".join(f"share-{rule} {label}" for rule, label in _rules(sharing) if label) or "no share-exclusion"
    free = f"{count_of(len(having), 'GPU')} with something free"
    return f"it has {own}; of {free} {len(closed)} have pods that may not share with it"


def _rules(sharing: Sharing | None) -> tuple[tuple[str, str], ...]:
    return (("anti-affinity", sharing.anti_affinity), ("exclusion", sharing.exclusion)) if sharing else ()


def _explain_other_isolation(capacity: NodeCapacity, demand: Demand) -> str:
    isolation = capacity.isolation_of(demand.isolation)
    having = [card for card in requested_cards(capacity, demand) if card.usable and card.free_mib]
    others = [card for card in having if not card.joins(isolation)]
    default = "" if demand.isolation else ", the default of the node"
    free = f"{count_of(len(having), 'GPU')} with something free"
    return f"its isolation is {isolation}{default}; of {free} {len(others)} are shared with another isolation"


def _explain_group(capacity: NodeCapacity, sharing: Sharing | None) -> str:
    on = []
    for card in group_cards(capacity, sharing):
        state = "" if card.usable else f", {_state(card)}"
        closed = "" if is_open(card, sharing) else ", whose pods may not share with it"
        on.append(f"{_name(card)} with {format_mib(card.free_mib)} and {card.free_core}% free{state}{closed}")
    several = "; it takes no more pods until it is on one" if len(on) > 1 else ""
    return f"its affinity group is on {' and '.join(on)}{several}"


# VFs


def _explain_vfs(capacity: NodeCapacity, requested: int) -> str:
    free = sum(vf.free for vf in capacity.vfs)
    usable = sum(vf.usable for vf in capacity.vfs)
    states = [f"{free} free", f"{usable - free} held"]
    if unusable := len(capacity.vfs) - usable:
        states.append(f"{unusable} unhealthy or cordoned")
    return f"{count_of(requested, 'VF')} asked; of {count_of(len(capacity.vfs), 'VF')} {', '.join(states)}"
