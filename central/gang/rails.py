"""Place the members of a gang with their VFs on the same rails: try several drafts of a plan, and keep the best draft.

Rail r of every node is on one leaf switch: traffic between equal rails is one hop, traffic between different rails crosses a
spine. The measure is the number of different rail sets of members, without sets that are part of another set; 1 is ideal. A
better draft may use other nodes, but neither more nodes nor a card farther from its VF.

The first draft ignores rails. Each rail set of its members is then tried for all members, and so are the rails that are free on
most of its nodes. The last draft lets each member have its own set: the first that suits it, of the sets that are free on most
nodes. A gang without VFs, or on nodes that report no rails, gets the first draft. All attempts are bounded.
"""

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from central.gang.draft import Draft, Place, Steps, Want
from central.gang.gang import Gang
from central.ledger.ledger import Ledger
from central.ledger.overlay import Overlay, Rails, free_rails, rails_of, widest

MOST_SETS: Final = 8  # maximum rail sets that are tried for all members
MOST_STEPS: Final = 1024  # maximum steps of all drafts after the first success
MOST_RUNNING: Final = 64  # maximum running members whose rails are checked


def running_rails(gang: Gang, ledger: Ledger) -> list[Rails]:
    """Return the rail sets of the running members, the most frequent set first."""
    bound = islice((uid for uid, member in gang.members.items() if member.node), MOST_RUNNING)
    records = [record for uid in bound if (record := ledger.pod(uid)) is not None]
    held = [(record.node, record.holds.vfs) for record in records if record.holds is not None and record.holds.vfs]
    return widest(Counter(rails_of(ledger.capacity(node), vfs) for node, vfs in held))


class _Merit(NamedTuple):
    sets: int  # number of different rail sets
    nodes: int
    distances: int  # distance between the devices of a member, summed over all members

    def beats(self, other: "_Merit") -> bool:
        return self.sets < other.sets and self.nodes <= other.nodes and self.distances <= other.distances


class Best:
    def __init__(self, state: Overlay, place: Place, running: Sequence[Rails] | None) -> None:
        """Create the search, without a draft. `running`: the rail sets of running members; None: rails make no difference."""
        self.draft: Draft | None = None
        self.prefer: Sequence[Rails] = ()  # rail sets of the draft's members
        self._state = state
        self._place = place
        self._running = running
        self._merit = _Merit(0, 0, 0)
        self._steps = MOST_STEPS

    @property
    def settled(self) -> bool:
        """Return whether there is a draft, and no other draft has to be tried."""
        return self.draft is not None and (self._merit.sets <= max(1, len(self._running or ())) or self._steps <= 0)

    def trying(self, wants: Sequence[Want]) -> Generator[None, None, None]:
        """Place these members in several drafts, and keep the best draft, if there is any."""
        first = Draft(self._state, self._place)
        steps = first.put_all(wants)
        if not (yield from (steps if self.draft is None else self._bounded(steps))):
            return
        self._offer(first)
        if self.settled:
            return
        for other in self._others(first):
            if (yield from self._bounded(other.put_all(wants))):
                self._offer(other)
            if self.settled:
                return

    def _bounded(self, steps: Steps) -> Steps:
        """Run the steps until the budget of steps is used up. Return False in that case."""
        while self._steps > 0:
            try:
                next(steps)
            except StopIteration as end:
                return bool(end.value)
            self._steps -= 1
            yield
        return False

    def _others(self, first: Draft) -> Iterator[Draft]:
        """Yield drafts to try, in which no member is placed yet."""
        free = Counter(free_rails(self._state.capacity(name)) for name in first.nodes)
        running = self._running or ()
        sets = sorted(self._sets(first), key=lambda one: (one not in running, -_nodes_with(free, one)))[:MOST_SETS]
        of_most = _on_most(free, max(map(len, sets), default=0))
        most = self._merit.nodes
        for rails in dict.fromkeys(filter(None, [*sets, of_most])):
            yield Draft(self._state.on_rails(rails), self._place, most_nodes=most)
        yield Draft(self._state, self._place, most_nodes=most, prefer=sets)

    def _offer(self, draft: Draft) -> None:
        sets = self._sets(draft)
        distances = sum(planned.placement.distances.level for planned in draft.where.values())
        merit = _Merit(len(sets), len(draft.nodes), distances)
        if self.draft is None or merit.beats(self._merit):
            self.draft, self._merit, self.prefer = draft, merit, sets

    def _sets(self, draft: Draft) -> list[Rails]:
        """Return the different rail sets of the draft's members and of running members; sets of running members come first."""
        if self._running is None:
            return []
        books = self._state.books
        placed = [(planned.node, planned.placement.taken.vfs) for planned in draft.where.values()]
        sets = Counter(rails_of(books.capacity_as_if(node, ()), vfs) for node, vfs in placed if vfs)
        sets.update(dict.fromkeys(self._running, len(placed)))
        return widest(sets)


def _nodes_with(free: Mapping[Rails, int], rails: Rails) -> int:
    """Return the number of nodes where these rails are free. `free`: the number of nodes by set of free rails."""
    return sum(nodes for some, nodes in free.items() if rails <= some)


def _on_most(free: Mapping[Rails, int], count: int) -> Rails:
    """Return `count` rails: the rails that are free on most nodes."""
    nodes = Counter[int]()
    for some, number in free.items():
        nodes.update(dict.fromkeys(some, number))
    return frozenset(sorted(nodes, key=lambda rail: (-nodes[rail], rail))[:count])
