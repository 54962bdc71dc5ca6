"""Find a node, with devices, for every member of a gang at once: pure.

It takes the members to place, with the nodes where each may be, the best first, and the cluster as it is (an Overlay). It
returns where each of them would be, or None: then the gang starts nowhere, and nothing is claimed. What one member takes, the
next one does not have: devices, cpu and memory count.

Members with the fewest nodes come first. If one finds no room, others make way for it: a member that could be elsewhere is
moved there, and so on (augmenting paths, Kuhn 1955), within a bound. A gang may have to be within one *domain*, the nodes with
one value of a label: the smallest that holds it is taken, so that large ones stay whole. If it only prefers one and none holds
it, it gets the fewest domains, and an equal part of it in each as far as they have room.

The search is done in steps, so that others have their turn in between.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from central.ask.model import Shape
from central.fit.model import Placement
from central.gang.model import Planned
from central.ledger.overlay import Overlay, Put
from central.ledger.parts import containers_placed
from central.ledger.usage import Hold
from lading.vocabulary import PodUid

MOVES: Final = 256  # tries to move members out of the way, in one search

Where = Mapping[PodUid, Planned]
Place = Callable[[Shape, str, Overlay], Placement | None]
Steps = Generator[None, None, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """One member to place. Members of one template share their `nodes`."""

    uid: PodUid
    shape: Shape
    nodes: Sequence[str]  # where it may be, the best first


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Which nodes are near each other. `required`, `preferred`: the domain of each node; a node without one is in none."""

    required: Mapping[str, str] | None = None
    preferred: Mapping[str, str] | None = None


ANYWHERE: Final = Topology()


def find_plan(
    wants: Sequence[Want], surplus: Sequence[Want], state: Overlay, place: Place, topology: Topology = ANYWHERE
) -> Generator[None, None, Where | None]:
    """Search, one fit in each step. `surplus` are members that start too where there is room beside the others."""
    domains = {"": None} if topology.required is None else _domains(wants, state, topology.required, needed=least_cards(wants))
    for allowed in domains.values():
        draft = yield from _within(_limited(wants, allowed), state, place, topology.preferred)
        if draft is not None:
            for want in _limited(surplus, allowed):
                yield from draft.put_first(want)
            return draft.where
    return None


def _within(
    wants: Sequence[Want], state: Overlay, place: Place, preferred: Mapping[str, str] | None
) -> Generator[None, None, "_Draft | None"]:
    """Place all of these, in one domain of those preferred, in few of them, or anywhere."""
    if preferred is not None:
        room: dict[str, int] = {}
        for domain, allowed in _domains(wants, state, preferred, needed=0).items():
            draft = _Draft(state, place)
            limited = _limited(wants, allowed)
            if (yield from draft.put_all(limited)):
                return draft
            room[domain] = yield from count_placeable(limited, state, place)
        spread = _balanced(wants, room, preferred)
        draft = _Draft(state, place)
        if spread and (yield from draft.put_all(spread)):
            return draft
    draft = _Draft(state, place)
    return draft if (yield from draft.put_all(wants)) else None


def count_placeable(wants: Sequence[Want], state: Overlay, place: Place) -> Generator[None, None, int]:
    """Return how many of these find room, one after the other."""
    draft = _Draft(state, place)
    for want in wants:
        if not (yield from draft.put_first(want)):
            break
    return len(draft.where)


def least_cards(wants: Sequence[Want]) -> int:
    """Return how many whole cards these take at least."""
    asks = [want.shape.ask for want in wants if not want.shape.ask.mig_profile]
    return sum(max((one.gpus for one in ask.containers if not one.share), default=0) for ask in asks)


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


def put_of(want: Want, planned: Planned) -> Put:
    """Return the member as one that is there."""
    hold = Hold(planned.placement.taken, containers_placed(planned.placement.containers))
    return Put(node=planned.node, hold=hold, requests=want.shape.requests)


class _Draft:
    """Hold where the members would be, as far as that is decided."""

    def __init__(self, state: Overlay, place: Place) -> None:
        self._by_node = dict(state.put)
        self._state = replace(state, put=self._by_node)  # so that a step costs the same for any number of members
        self._place = place
        self._wants: dict[PodUid, Want] = {}
        self._put: dict[PodUid, Put] = {}
        self.where: dict[PodUid, Planned] = {}
        self._on: defaultdict[str, list[PodUid]] = defaultdict(list)
        self._next: dict[tuple[Shape, int], int] = {}  # by kind of member: the first of its nodes that may have room
        self._moves = MOVES

    def put_all(self, wants: Sequence[Want]) -> Steps:
        for want in sorted(wants, key=lambda want: len(want.nodes)):
            if not (yield from self.put_first(want)) and not (yield from self._make_way(want, {want.uid})):
                return False
        return True

    def put_first(self, want: Want) -> Steps:
        """Place a member on the first node with room. A node without room for its like is not tried again."""
        kind = want.shape, id(want.nodes)
        for number in range(self._next.get(kind, 0), len(want.nodes)):
            yield
            self._next[kind] = number
            if self._take(want, want.nodes[number]):
                return True
        self._next[kind] = len(want.nodes)
        return False

    def _make_way(self, want: Want, moving: set[PodUid]) -> Steps:
        """Place a member where another one is, which goes elsewhere."""
        for name in want.nodes:
            for uid in [uid for uid in self._on[name] if uid not in moving]:
                other = self._wants[uid]
                if (other.shape, id(other.nodes)) == (want.shape, id(want.nodes)):
                    continue  # it would be no better off
                self._moves -= 1
                if self._moves < 0:
                    return False
                yield
                before = self._drop(uid)
                if self._take(want, name):
                    moving.add(uid)
                    if any(self._take(other, node) for node in other.nodes) or (yield from self._make_way(other, moving)):
                        self._next.clear()
                        return True
                    self._drop(want.uid)
                self._store(other, before)
        return False

    def _take(self, want: Want, name: str) -> bool:
        placement = self._place(want.shape, name, self._state)
        if placement is None:
            return False
        self._store(want, Planned(node=name, placement=placement))
        return True

    def _store(self, want: Want, planned: Planned) -> None:
        put = put_of(want, planned)
        self._by_node[planned.node] = (*self._by_node.get(planned.node, ()), put)
        self._wants[want.uid], self._put[want.uid], self.where[want.uid] = want, put, planned
        self._on[planned.node].append(want.uid)

    def _drop(self, uid: PodUid) -> Planned:
        planned = self.where.pop(uid)
        put = self._put.pop(uid)
        self._by_node[planned.node] = tuple(one for one in self._by_node[planned.node] if one is not put)
        self._on[planned.node].remove(uid)
        return planned
