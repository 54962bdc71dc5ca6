"""Find a node, with devices, for every member of a gang at once: pure.

Take the members to place, the allowed nodes of each member (the best first), and the state of the cluster (an Overlay). Return
the place of each member, or None if the gang does not fit; nothing is claimed. The devices, cpu and memory of placed members
are used up for the next member.

A gang may require one *domain*: the nodes with one value of a label. The smallest domain that fits the gang is taken, so that
large domains stay free. A gang that only prefers a domain and fits in none is spread evenly over the fewest domains, as far as
free capacity allows. After that, VFs on few different rails are preferred (rails.py).

The search runs in steps, so that other tasks can run in between.

Tests: tests/unit/central/gang/test_topology.py
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from central.gang.draft import Draft, Place, Want, Where
from central.gang.rails import Best
from central.ledger.overlay import Overlay, Rails


@dataclass(frozen=True, slots=True, kw_only=True)
class GangTopology:
    """Hold the domains of a gang's nodes. `required`, `preferred`: the domain of each node; a node without an entry has no
    domain."""

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
    """Search a plan, one fit in each step. `surplus`: members beyond the minimum, which start too if they fit beside the
    others. `rails`: the rail sets of running members; None: rails make no difference."""
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
    """Place all of these members in one preferred domain, else in few of them, else anywhere."""
    if preferred is not None:
        capacity: dict[str, int] = {}
        for domain, allowed in _domains(wants, state, preferred, needed=0).items():
            limited = _limited(wants, allowed)
            yield from best.trying(limited)
            if best.settled:
                return
            if best.draft is None:
                capacity[domain] = yield from count_placeable(limited, state, place)
        spread = _balanced(wants, capacity, preferred) if best.draft is None else ()
        if spread:
            yield from best.trying(spread)
        if best.draft is not None:
            return
    yield from best.trying(wants)


def count_placeable(wants: Sequence[Want], state: Overlay, place: Place) -> Generator[None, None, int]:
    """Return how many of these members fit, placed one after the other."""
    draft = Draft(state, place)
    for want in wants:
        if not (yield from draft.put_first(want)):
            break
    return len(draft.where)


def least_cards(wants: Sequence[Want]) -> int:
    """Return the minimum number of whole cards that these members take."""
    requests = [want.shape.request for want in wants if not want.shape.request.mig_profile]
    return sum(max((one.gpus for one in request.containers if not one.share), default=0) for request in requests)


def _domains(
    wants: Sequence[Want], state: Overlay, domain_of: Mapping[str, str], *, needed: int
) -> Mapping[str, Collection[str] | None]:
    """Return the nodes of each domain with at least `needed` free cards. The domain with the least free GPU memory comes
    first."""
    nodes: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for name in {name: None for want in wants for name in want.nodes}:
        if domain := domain_of.get(name):
            nodes[domain][name] = None
    sized = []
    for domain, names in nodes.items():
        cards = [card for name in names for card in state.capacity(name).cards if card.usable]
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


def _balanced(wants: Sequence[Want], capacity: Mapping[str, int], domain_of: Mapping[str, str]) -> Sequence[Want]:
    """Limit each member to a domain. The fewest domains that hold all members get equal parts, as far as their free capacity
    allows. Consecutive members stay together. Return nothing if the domains together are too small."""
    chosen: list[str] = []
    for domain in sorted(capacity, key=lambda domain: (-capacity[domain], domain)):
        if sum(capacity[one] for one in chosen) < len(wants) and capacity[domain]:
            chosen.append(domain)
    parts: Counter[str] = Counter()
    for _ in wants:
        open_ones = [domain for domain in chosen if parts[domain] < capacity[domain]]
        if not open_ones:
            return []
        parts[min(open_ones, key=lambda domain: (parts[domain], chosen.index(domain)))] += 1
    spread: list[Want] = []
    rest = iter(wants)
    for domain in chosen:
        allowed = {name for name, its in domain_of.items() if its == domain}
        spread += _limited([next(rest) for _ in range(parts[domain])], allowed)
    return spread
