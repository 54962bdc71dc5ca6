"""Find a node, with devices, for every member of a gang at once: pure.

It takes the members to place, with the nodes where each may be, the best first, and the cluster as it is (an Overlay). It
returns where each of them would be, or None: then the gang starts nowhere, and nothing is claimed. What one member takes, the
next one does not have: devices, cpu and memory count.

A gang may have to be within one *domain*, the nodes with one value of a label: the smallest that holds it is taken, so that
large ones stay whole. If it only prefers one and none holds it, it gets the fewest domains, and an equal part of it in each as
far as they have room. After that it gets its VFs on few different rails (rails.py).

The search is done in steps, so that others have their turn in between.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from central.gang.draft import Draft, Place, Want, Where
from central.gang.rails import Best
from central.ledger.overlay import Overlay
from central.ledger.rails import Rails


@dataclass(frozen=True, slots=True, kw_only=True)
class GangTopology:
    """Which nodes are near each other. `required`, `preferred`: the domain of each node; a node without one is in none."""

    required: Mapping[str, str] | None = None
    preferred: Mapping[str, str] | None = None


ANYWHERE: Final = GangTopology()


def find_plan(
    wants: Sequence[Want],
    surplus: Sequence[Want],
    state: Overlay,
    place: Place,
    topology: GangTopology = ANYWHERE,
    *,
    rails: Sequence[Rails] | None = None,
) -> Generator[None, None, Where | None]:
    """Search, one fit in each step. `surplus` are members that start too where there is room beside the others. `rails`: those
    of members that run; None: it makes no difference on which rails members are."""
    domains = {"": None} if topology.required is None else _domains(wants, state, topology.required, needed=least_cards(wants))
    best, within = Best(state, place, rails), None
    for allowed in domains.values():
        before = best.draft
        yield from _within(_limited(wants, allowed), best, state, place, topology.preferred)
        if best.draft is not before:
            within = allowed
        if best.settled:
            break
    if best.draft is None:
        return None
    yield from best.draft.put_beside(_limited(surplus, within), best.prefer)
    return best.draft.where


def _within(
    wants: Sequence[Want], best: Best, state: Overlay, place: Place, preferred: Mapping[str, str] | None
) -> Generator[None, None, None]:
    """Place all of these, in one domain of those preferred, in few of them, or anywhere."""
    if preferred is not None:
        room: dict[str, int] = {}
        for domain, allowed in _domains(wants, state, preferred, needed=0).items():
            limited = _limited(wants, allowed)
            yield from best.trying(limited)
            if best.settled:
                return
            if best.draft is None:
                room[domain] = yield from count_placeable(limited, state, place)
        spread = _balanced(wants, room, preferred) if best.draft is None else ()
        if spread:
            yield from best.trying(spread)
        if best.draft is not None:
            return
    yield from best.trying(wants)


def count_placeable(wants: Sequence[Want], state: Overlay, place: Place) -> Generator[None, None, int]:
    """Return how many of these find room, one after the other."""
    draft = Draft(state, place)
    for want in wants:
        if not (yield from draft.put_first(want)):
            break
    return len(draft.where)


def least_cards(wants: Sequence[Want]) -> int:
    """Return how many whole cards these take at least."""
    asks = [want.shape.request for want in wants if not want.shape.request.mig_profile]
    return sum(max((one.gpus for one in request.containers if not one.share), default=0) for request in asks)


def _domains(
    wants: Sequence[Want], state: Overlay, domain_of: Mapping[str, str], *, needed: int
) -> Mapping[str, Collection[str] | None]:
    """Return the nodes of each domain with so many free cards, the one with the least free memory of cards first."""
    nodes: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for name in {name: None for want in wants for name in want.nodes}:
        if domain := domain_of.get(name):
            nodes[domain][name] = None
    sized = []
    for domain, names in nodes.items():
        cards = [card for name in names for card in state.room(name).cards if card.usable]
        if sum(card.free for card in cards) >= needed:
            sized.append((sum(card.free_mib for card in cards), domain))
    return {domain: nodes[domain] for _, domain in sorted(sized)}


def _limited(wants: Sequence[Want], allowed: Collection[str] | None) -> Sequence[Want]:
    if allowed is None:
        return wants
    known: dict[int, Sequence[str]] = {}
    for want in wants:
        known.setdefault(id(want.nodes), [name for name in want.nodes if name in allowed])
    return [Want(uid=want.uid, shape=want.shape, nodes=known[id(want.nodes)]) for want in wants]


def _balanced(wants: Sequence[Want], room: Mapping[str, int], domain_of: Mapping[str, str]) -> Sequence[Want]:
    """Give each member a domain: the fewest that hold all of them, and an equal part in each, as far as it has room. Members
    that follow each other stay together. Nothing if the domains together are too small."""
    chosen: list[str] = []
    for domain in sorted(room, key=lambda domain: (-room[domain], domain)):
        if sum(room[one] for one in chosen) < len(wants) and room[domain]:
            chosen.append(domain)
    parts: Counter[str] = Counter()
    for _ in wants:
        open_ones = [domain for domain in chosen if parts[domain] < room[domain]]
        if not open_ones:
            return []
        parts[min(open_ones, key=lambda domain: (parts[domain], chosen.index(domain)))] += 1
    spread: list[Want] = []
    rest = iter(wants)
    for domain in chosen:
        allowed = {name for name, its in domain_of.items() if its == domain}
        spread += _limited([next(rest) for _ in range(parts[domain])], allowed)
    return spread
