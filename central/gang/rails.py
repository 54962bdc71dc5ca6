"""Place the members of a gang so that their VFs are on the same rails: of several drafts of a plan, keep the best one.

Rail r of every node is on one leaf switch: traffic between equal rails is one hop, between others it crosses a spine. What
counts is the number of different sets of rails that members have, without those that are within another: 1 is ideal. That is
worth other nodes, but neither more nodes nor a card farther from its VF: a draft is only better than another one if it is no
worse in these.

It begins with the draft that does not look at rails. Each set that a member has in it is then tried for all of them; so are the
rails that are free on most of its nodes. If no set does for all, members keep their nodes, and each gets there the first set
that it can have, of those that are free on most nodes. A gang without VFs, or on nodes that do not know their rails, gets the
first draft. All tries together are bounded.
"""

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from central.gang.draft import Draft, Place, Steps, Want
from central.gang.model import Gang
from central.ledger.ledger import Ledger
from central.ledger.overlay import Overlay
from central.ledger.rails import Rails, free_rails, rails_of, widest

MOST_SETS: Final = 8  # that are tried for all members
MOST_STEPS: Final = 1024  # of all drafts but the first one that succeeds
MOST_RUNNING: Final = 64  # members whose rails are looked at


def running_rails(gang: Gang, ledger: Ledger) -> list[Rails]:
    """Return the rails of the members that run, the most frequent first."""
    bound = islice((uid for uid, member in gang.members.items() if member.node), MOST_RUNNING)
    records = [record for uid in bound if (record := ledger.pod(uid)) is not None]
    held = [(record.node, record.holds.vfs) for record in records if record.holds is not None and record.holds.vfs]
    return widest(Counter(rails_of(ledger.room(node), vfs) for node, vfs in held))


class _Merit(NamedTuple):
    sets: int  # of rails
    nodes: int
    apart: int  # how far apart the devices of each member are, added up

    def beats(self, other: "_Merit") -> bool:
        return self.sets < other.sets and self.nodes <= other.nodes and self.apart <= other.apart


class Best:
    """The best draft so far."""

    def __init__(self, state: Overlay, place: Place, running: Sequence[Rails] | None) -> None:
        """Create it. `running`: the rails of members that run; None: rails make no difference."""
        self.draft: Draft | None = None
        self.prefer: Sequence[Rails] = ()  # the rails of its members
        self._state = state
        self._place = place
        self._running = running
        self._merit = _Merit(0, 0, 0)
        self._steps = MOST_STEPS

    @property
    def settled(self) -> bool:
        """Return whether there is a draft, and no other one is to be tried."""
        return self.draft is not None and (self._merit.sets <= max(1, len(self._running or ())) or self._steps <= 0)

    def trying(self, wants: Sequence[Want]) -> Generator[None, None, None]:
        """Place these members in several ways, and keep the best one, if there is any."""
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
        """Go on as long as steps are left. Return False if that ends it."""
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
        free = Counter(free_rails(self._state.room(name)) for name in first.nodes)
        running = self._running or ()
        sets = sorted(self._sets(first), key=lambda one: (one not in running, -_nodes_with(free, one)))[:MOST_SETS]
        of_most = _on_most(free, max(map(len, sets), default=0))
        most = self._merit.nodes
        for rails in dict.fromkeys(filter(None, [*sets, of_most])):
            yield Draft(self._state.on_rails(rails), self._place, most_nodes=most)
        yield Draft(self._state, self._place, most_nodes=most, prefer=sets)

    def _offer(self, draft: Draft) -> None:
        sets = self._sets(draft)
        apart = sum(planned.placement.apart.level for planned in draft.where.values())
        merit = _Merit(len(sets), len(draft.nodes), apart)
        if self.draft is None or merit.beats(self._merit):
            self.draft, self._merit, self.prefer = draft, merit, sets

    def _sets(self, draft: Draft) -> list[Rails]:
        """Return the different rails of its members, and of those that run; these first."""
        if self._running is None:
            return []
        books = self._state.books
        placed = [(planned.node, planned.placement.taken.vfs) for planned in draft.where.values()]
        sets = Counter(rails_of(books.room_as_if(node, ()), vfs) for node, vfs in placed if vfs)
        sets.update(dict.fromkeys(self._running, len(placed)))
        return widest(sets)


def _nodes_with(free: Mapping[Rails, int], rails: Rails) -> int:
    """Return on how many nodes these rails are free. `free`: how many nodes have which free rails."""
    return sum(nodes for some, nodes in free.items() if rails <= some)


def _on_most(free: Mapping[Rails, int], count: int) -> Rails:
    """Return so many rails: those that are free on most nodes."""
    nodes = Counter[int]()
    for some, number in free.items():
        nodes.update(dict.fromkeys(some, number))
    return frozenset(sorted(nodes, key=lambda rail: (-nodes[rail], rail))[:count])
