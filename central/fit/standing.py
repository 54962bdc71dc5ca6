"""Cache the verdicts of one ask: which nodes fit and how well, which do not and why; updated from the ledger on demand.

kube-scheduler asks about every node for every pod, and between two pods of one template a handful of nodes has changed. So the
answer is kept for each distinct Ask, and only nodes whose room changed since are looked at again; rooms that are alike
(likeness.py) are judged once.

Input: an Ask, rooms that changed. Output: names by verdict, and the best among some. Nothing is decided here that `fit` does
not decide.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import heapify, heappop, heappush

from central.ask.model import Ask
from central.fit.likeness import Likeness, likeness
from central.fit.model import Missing
from central.ledger.model import NodeRoom

Score = tuple[int, ...]  # higher is better (score.py)
Judge = Callable[[NodeRoom, Ask, bool], Score | Missing]  # the last: briefly, NOT_REACHED where that does not decide
PASSED_OVER = 64  # better nodes that kube-scheduler left out (their cpu is used up), until a look at all others costs less
VERDICTS = 4096  # of one ask; some hundred in a cluster of few kinds of nodes
REMEMBERED = 256  # asks; a cluster has some dozen templates at a time, and each remembered one costs about 100 bytes a node


class Standing:
    """The cached verdicts for one ask. `fits` has every node with room for it; `reasons` has every node, with the reason to
    show for those that do not fit, and an empty text for the others."""

    __slots__ = ("_alike", "_ask", "_hard", "_heap", "_judge", "_open", "_verdicts", "fits", "reasons", "seen")

    def __init__(self, ask: Ask, judge: Judge, alike: Likeness) -> None:
        self._ask = ask
        self._judge = judge
        self._alike = alike
        self._open: dict[str, NodeRoom] = {}  # not judged as they are now
        self._hard: dict[str, NodeRoom] = {}  # the same, where a brief look did not decide
        self._verdicts: dict[int, Score | Missing] = {}  # by likeness
        self.fits: dict[str, Score] = {}
        self.reasons: dict[str, str] = {}
        self.seen = -1  # the ledger's version that this is caught up with
        self._heap: list[tuple[tuple[int, ...], str]] = []  # best first; an entry counts while `fits` says the same

    @property
    def complete(self) -> bool:
        """Return whether every node was judged in its state of the last catch-up."""
        return not self._open and not self._hard

    def changed(self, name: str, room: NodeRoom | None) -> None:
        """Forget the verdict about a node. `room` None: it is gone."""
        self._hard.pop(name, None)
        self.fits.pop(name, None)
        if room is None:
            self._open.pop(name, None)
            self.reasons.pop(name, None)
        else:
            self._open[name] = room
            self.reasons[name] = Missing.NOT_REACHED.shown

    def judging(self) -> Iterator[None]:
        """Judge what is open, one node in each step. All get a brief look first, so that a hard node hides no easy one."""
        while self._open or self._hard:
            name, room = next(iter((self._open or self._hard).items()))
            self._judge_one(name, room, brief=bool(self._open))
            yield

    def settle(self, name: str) -> None:
        """Judge this node now, if it is open."""
        room = self._open.get(name) or self._hard.get(name)
        if room is not None:
            self._judge_one(name, room, brief=False)

    def _judge_one(self, name: str, room: NodeRoom, *, brief: bool) -> None:
        alike = self._alike(room)
        verdict = self._verdicts.get(alike)
        if verdict is None or (verdict is Missing.NOT_REACHED and not brief):
            if len(self._verdicts) >= VERDICTS:
                self._verdicts.clear()
            verdict = self._verdicts[alike] = self._judge(room, self._ask, brief)
        self._open.pop(name, None)
        if verdict is Missing.NOT_REACHED:
            self._hard[name] = room
            return
        self._hard.pop(name, None)
        if isinstance(verdict, Missing):
            self.reasons[name] = verdict.shown
        else:
            self.fits[name] = verdict
            self.reasons[name] = ""
            heappush(self._heap, (_reversed(verdict), name))

    def best(self, among: Collection[str]) -> str | None:
        """Return the node with the highest score, the first by name if several have it; None if none of these fits."""
        candidates: Collection[str] = among  # mostly all, so that the first that is looked for is there
        passed_over: list[tuple[tuple[int, ...], str]] = []
        found = None
        while self._heap and found is None:
            if len(passed_over) > PASSED_OVER:
                found = self._best_of(among)
                break
            entry = self._heap[0]
            order, name = entry
            score = self.fits.get(name)
            if score is None or _reversed(score) != order:
                heappop(self._heap)
            elif name in candidates:
                found = name
            else:
                candidates = candidates if isinstance(candidates, frozenset) else frozenset(among)
                passed_over.append(heappop(self._heap))
        for entry in passed_over:
            heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self.fits) + 16:
            self._heap = [(_reversed(score), name) for name, score in self.fits.items()]
            heapify(self._heap)
        return found

    def _best_of(self, among: Collection[str]) -> str | None:
        """Return the same by reading the score of each node."""
        found, highest = None, None
        for name in among:
            score = self.fits.get(name)
            if score is None or (highest is not None and score < highest):
                continue
            if found is None or score != highest or name < found:
                found, highest = name, score
        return found


class Standings:
    """The verdicts of the last REMEMBERED asks. `rooms(since)` returns the nodes that changed after that version of the ledger,
    with their current rooms, or None for a node that is gone; and the new version."""

    def __init__(
        self,
        judge: Judge,
        rooms: Callable[[int], tuple[Iterable[tuple[str, NodeRoom | None]], int]],
        *,
        alike: Callable[[Ask], Likeness] = lambda ask: likeness,
    ) -> None:
        """Create it. `alike` returns which rooms are equivalent for that ask."""
        self._judge = judge
        self._likeness_for = alike
        self._rooms = rooms
        self._known: OrderedDict[Ask, Standing] = OrderedDict()

    def __contains__(self, ask: Ask) -> bool:
        """Return whether the ask is remembered."""
        return ask in self._known

    def of(self, ask: Ask) -> Standing:
        """Return the verdicts, caught up with the changes; `judging` continues from there."""
        standing = self._known.get(ask)
        if standing is None:
            standing = self._known[ask] = Standing(ask, self._judge, self._likeness_for(ask))
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(ask)
        changed, version = self._rooms(standing.seen)
        for name, room in changed:
            standing.changed(name, room)
        standing.seen = version
        return standing


def _reversed(score: Score) -> tuple[int, ...]:
    return tuple(-part for part in score)
