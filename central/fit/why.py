"""Why a node does not fit, in words and numbers, for the person who asks about one pod.

Enters: the room, the ask, and what `fit` said is missing. Leaves: one line with the nearest miss, and what would help where the
room alone tells it. It is apart from `fit`, which answers for thousands of nodes and builds no text.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final, assert_never

from central.ask.model import Ask, Policy
from central.fit.demand import DEFAULT_LIMITS, CardsWanted, Demand, Limits, policy_of, read_demand
from central.fit.model import Missing
from central.fit.shortage import asked_cards, short_of_cards
from central.ledger.model import CardRoom, NodeRoom

_LISTED: Final = 8  # amounts in one line


def explain(room: NodeRoom, ask: Ask, missing: Missing, *, policy: Policy, limits: Limits = DEFAULT_LIMITS) -> str:
    """`room`, `policy` and `limits` as they were given to `fit`."""
    demand = read_demand(ask, policy_of(ask, policy), limits)
    match missing:
        case Missing.NO_REPORT:
            return f"there is no NodeDevices object {room.name}: lading-hooks does not report there"
        case Missing.UNREACHABLE:
            return "its Node object is missing or not Ready; what is held there stays held until the node answers"
        case Missing.NOT_RECONCILED:
            return "lading-hooks there has not compared its grants with the container runtime since it started"
        case Missing.NO_MODEL:
            models = sorted({card.gpu.model for card in room.cards})
            return f"{demand.model} asked; the node has {', '.join(models) or 'no GPU'}"
        case Missing.TOO_FEW_GPUS | Missing.TOO_FEW_FREE_GPUS | Missing.NO_CARD_LARGE_ENOUGH | Missing.NO_CARD_WITH_ROOM:
            return _explain_cards(room, demand, missing)
        case Missing.UNHEALTHY:
            return _explain_unhealthy(room, demand)
        case Missing.SHARES_DO_NOT_FIT | Missing.NODE_TOO_SMALL:
            return f"{_asked_together(demand)}; each of these fits alone; {_states(room, demand)}"
        case Missing.SEARCH_ENDED:
            return f"{_asked_together(demand)}; stopped after {limits.search_steps} tries; equal shares need fewer"
        case Missing.TOO_FEW_VFS | Missing.TOO_FEW_FREE_VFS:
            return _explain_vfs(room, demand.vfs_peak)
        case _:
            assert_never(missing)


# Cards


def _explain_cards(room: NodeRoom, demand: Demand, missing: Missing) -> str:
    cards = asked_cards(room, demand)
    need = next((need for need in demand.needs if short_of_cards(cards, need) is missing), demand.needs[0])
    if missing in {Missing.TOO_FEW_GPUS, Missing.TOO_FEW_FREE_GPUS}:
        free = sum(card.free for card in cards)
        short = need.count - free
        more = f"{short} more free {'GPU' if short == 1 else 'GPUs'}"
        would_help = f"; needs {more}" if missing is Missing.TOO_FEW_FREE_GPUS else ""
        return f"{_asked(need)} asked; {_states(room, demand)}{would_help}"
    if missing is Missing.NO_CARD_LARGE_ENOUGH:
        largest = max(cards, key=lambda card: card.gpu.usable_mib)
        return f"{_asked(need)} asked; the largest GPU has {largest.gpu.usable_mib} MiB: {_name(largest)}"
    best = min((card for card in cards if card.usable), key=lambda card: _shortage(card, need))
    amounts = f"{best.free_mib} MiB" if need.core_percent is None else f"{best.free_mib} MiB and {best.free_core} %"
    return f"{_asked(need, best)} asked; the best single GPU has {amounts} free: {_name(best)}{_unusable(room, demand)}"


def _explain_unhealthy(room: NodeRoom, demand: Demand) -> str:
    cards = asked_cards(room, demand)
    need = next((need for need in demand.needs if short_of_cards(cards, need) is Missing.UNHEALTHY), None)
    if need is not None:
        return f"{_asked(need)} asked; {_states(room, demand)}"
    if sum(vf.usable for vf in room.vfs) < demand.vfs_peak:
        return _explain_vfs(room, demand.vfs_peak)
    return f"{_asked_together(demand)}; {_states(room, demand)}"


def _shortage(card: CardRoom, need: CardsWanted) -> tuple[float, tuple[int, str]]:
    """How far from enough, in parts of a card."""
    size = max(1, card.gpu.usable_mib)
    mib = max(0, need.mib_of(card.gpu.usable_mib) - card.free_mib)
    core = max(0, (need.core_percent or 0) - card.free_core)
    return mib / size + core / 100, (len(card.gpu.bdf), card.gpu.bdf)


def _asked(need: CardsWanted, card: CardRoom | None = None) -> str:
    """`card`: of which a percentage of memory is meant."""
    if need.whole:
        return f"{need.count} whole {'GPU' if need.count == 1 else 'GPUs'}"
    parts = []
    if need.memory_mib is not None:
        parts.append(f"{need.memory_mib} MiB")
    elif card is not None:
        parts.append(f"{need.mib_of(card.gpu.usable_mib)} MiB")
    if need.core_percent is not None:
        parts.append(f"{need.core_percent} %")
    return " and ".join(parts) + (f" of each of {need.count} GPUs" if need.count > 1 else "")


def _asked_together(demand: Demand) -> str:
    asked = [_asked(wanted) for wanted in demand.cards]
    more = f" and {len(asked) - _LISTED} more" if len(asked) > _LISTED else ""
    return f"asked by the containers: {'; '.join(asked[:_LISTED])}{more}"


def _states(room: NodeRoom, demand: Demand) -> str:
    """ "of 8 GPUs 5 are free, 2 held, 1 cordoned"."""
    cards = _of_model(room, demand)
    states = Counter(_state(card) for card in cards)
    return f"of {len(cards)} GPUs {', '.join(f'{count} {state}' for state, count in states.most_common())}"


def _unusable(room: NodeRoom, demand: Demand) -> str:
    states = Counter(_state(card) for card in _of_model(room, demand) if not card.usable or card.gpu.mig_enabled)
    return "".join(f"; {count} {state}" for state, count in states.most_common())


def _of_model(room: NodeRoom, demand: Demand) -> Sequence[CardRoom]:
    return [card for card in room.cards if not demand.model or card.gpu.model == demand.model]


def _state(card: CardRoom) -> str:
    if card.gpu.unhealthy:
        return f"unhealthy ({card.gpu.unhealthy})"
    if card.gpu.used_by:
        return f"used without a grant ({card.gpu.used_by})"
    if not card.usable:
        return "cordoned"
    if card.gpu.mig_enabled:
        return "in MIG mode"
    return "free" if card.pods == 0 else "held"


def _name(card: CardRoom) -> str:
    return f"{card.gpu.uuid} ({card.gpu.bdf})"


# VFs


def _explain_vfs(room: NodeRoom, asked: int) -> str:
    free = sum(vf.free for vf in room.vfs)
    usable = sum(vf.usable for vf in room.vfs)
    states = [f"{free} free", f"{usable - free} held"]
    if unusable := len(room.vfs) - usable:
        states.append(f"{unusable} unhealthy or cordoned")
    return f"{asked} VFs asked; of {len(room.vfs)} VFs {', '.join(states)}"
