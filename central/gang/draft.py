"""Place members of a gang one after the other, each beside those that are placed already.

It takes members with the nodes where each may be, and the cluster as it is. A member takes the first of its nodes with room.
Those with the fewest nodes come first. If one finds no room, others make way for it: a member that could be elsewhere is
moved there, and so on (augmenting paths, Kuhn 1955), within a bound.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from central.fit.model import Placement
from central.fit.rails import on_preferred
from central.gang.model import Planned
from central.ledger.overlay import Overlay, Put
from central.ledger.parts import containers_placed
from central.ledger.rails import Rails
from central.ledger.usage import Hold
from central.request.model import Shape
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


def put_of(want: Want, planned: Planned) -> Put:
    """Return the member as one that is there."""
    hold = Hold(planned.placement.taken, containers_placed(planned.placement.containers))
    return Put(node=planned.node, hold=hold, cpu_memory=want.shape.cpu_memory)


class Draft:
    """Hold where the members would be, as far as that is decided."""

    def __init__(self, state: Overlay, place: Place, *, most_nodes: float = math.inf, prefer: Sequence[Rails] = ()) -> None:
        """Create it. `prefer`: the rails that a member gets on its node, the first of them that do."""
        self._by_node = dict(state.put)
        self._state = replace(state, put=self._by_node)  # so that a step costs the same for any number of members
        self._place = place
        self._most_nodes = most_nodes
        self._prefer = prefer
        self._wants: dict[PodUid, Want] = {}
        self._put: dict[PodUid, Put] = {}
        self.where: dict[PodUid, Planned] = {}
        self._on: defaultdict[str, list[PodUid]] = defaultdict(list)  # of a node where none is: no entry
        self._next: dict[tuple[Shape, int], int] = {}  # by kind of member: the first of its nodes that may have room
        self._moves = MOVES

    @property
    def nodes(self) -> Collection[str]:
        return self._on.keys()

    def put_all(self, wants: Sequence[Want]) -> Steps:
        """Place all of these, on no more nodes than allowed."""
        for want in sorted(wants, key=lambda want: len(want.nodes)):
            if not (yield from self.put_first(want)) and not (yield from self._make_way(want, {want.uid})):
                return False
            if len(self._on) > self._most_nodes:
                return False
        return True

    def put_beside(self, wants: Sequence[Want], prefer: Sequence[Rails]) -> Generator[None, None, None]:
        """Place further members as far as there is room, on any rails, those to prefer first."""
        if self._state.rails is not None:
            self._state = replace(self._state, rails=None)
            self._next.clear()
        self._prefer = prefer
        for want in wants:
            yield from self.put_first(want)

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
            for uid in [uid for uid in self._on.get(name, ()) if uid not in moving]:
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
        found = self._place(want.shape, name, self._state)
        if found is None:
            return False
        found = on_preferred(found, self._prefer, lambda rails: self._place(want.shape, name, self._state.on_rails(rails)))
        self._store(want, Planned(node=name, placement=found))
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
