"""Place members of a gang one after the other, each beside the members placed before.

Take members with their allowed nodes, and the state of the cluster. Members with the fewest nodes come first. A member gets the
first of its nodes that it fits on. If there is none, members placed before are moved to other nodes (augmenting paths, Kuhn
1955), within a bound.

Tests: tests/unit/central/gang/test_rails.py
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from central.gang.life import Planned
from central.ledger.overlay import Overlay, Put, Rails
from central.ledger.parts import containers_placed
from central.ledger.usage import Hold
from central.request.model import Shape
from central.search.placement import Placement, on_preferred
from lading.vocabulary import PodUid

MOVES: Final = 256  # maximum attempts to move members in one search

Where = Mapping[PodUid, Planned]
Place = Callable[[Shape, str, Overlay], Placement | None]
Steps = Generator[None, None, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """Represent a member to place. Members of one template share their `nodes`."""

    uid: PodUid
    shape: Shape
    nodes: Sequence[str]  # allowed nodes, the best first


def put_of(want: Want, planned: Planned) -> Put:
    """Return the planned member as a pod on its node."""
    hold = Hold(planned.placement.taken, containers_placed(planned.placement.containers))
    return Put(node=planned.node, hold=hold, cpu_memory=want.shape.cpu_memory)


class Draft:
    """Hold the nodes and devices of the members placed so far."""

    def __init__(self, state: Overlay, place: Place, *, most_nodes: float = math.inf, prefer: Sequence[Rails] = ()) -> None:
        """Create an empty draft. `prefer`: rail sets in order; a member gets the first set that suits it on its node."""
        self._by_node = dict(state.put)
        self._state = replace(state, put=self._by_node)  # a dict, so that a step costs the same for any number of members
        self._place = place
        self._most_nodes = most_nodes
        self._prefer = prefer
        self._wants: dict[PodUid, Want] = {}
        self._put: dict[PodUid, Put] = {}
        self.where: dict[PodUid, Planned] = {}
        self._on: defaultdict[str, list[PodUid]] = defaultdict(list)  # members by node; a node without members has no entry
        self._next: dict[tuple[Shape, int], int] = {}  # index of the first node that may have free capacity, by kind of member
        self._moves = MOVES

    @property
    def nodes(self) -> Collection[str]:
        return self._on.keys()

    def put_all(self, wants: Sequence[Want]) -> Steps:
        """Place all of these members, on at most `most_nodes` nodes."""
        for want in sorted(wants, key=lambda want: len(want.nodes)):
            if not (yield from self.put_first(want)) and not (yield from self._make_way(want, {want.uid})):
                return False
            if len(self._on) > self._most_nodes:
                return False
        return True

    def put_beside(self, wants: Sequence[Want], prefer: Sequence[Rails]) -> Generator[None, None, None]:
        """Place further members as far as free capacity is left, on any rails. `prefer`: the rail sets to try first."""
        if self._state.rails is not None:
            self._state = replace(self._state, rails=None)
            self._next.clear()
        self._prefer = prefer
        for want in wants:
            yield from self.put_first(want)

    def put_first(self, want: Want) -> Steps:
        """Place a member on the first node that it fits on. Nodes that were full for an equal member are skipped."""
        kind = want.shape, id(want.nodes)
        for number in range(self._next.get(kind, 0), len(want.nodes)):
            yield
            self._next[kind] = number
            if self._take(want, want.nodes[number]):
                return True
        self._next[kind] = len(want.nodes)
        return False

    def _make_way(self, want: Want, moving: set[PodUid]) -> Steps:
        """Place a member on the node of another member, which moves to another node."""
        for name in want.nodes:
            for uid in [uid for uid in self._on.get(name, ()) if uid not in moving]:
                other = self._wants[uid]
                if (other.shape, id(other.nodes)) == (want.shape, id(want.nodes)):
                    continue  # an equal member has no other nodes to move to
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
        result = self._place(want.shape, name, self._state)
        if result is None:
            return False
        result = on_preferred(result, self._prefer, lambda rails: self._place(want.shape, name, self._state.on_rails(rails)))
        self._store(want, Planned(node=name, placement=result))
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
        if not self._on[planned.node]:
            del self._on[planned.node]
        return planned
