"""How all nodes stand to one ask: who fits and how well, who does not and why; caught up with the ledger when it is asked.

kube-scheduler asks about every node for every pod, and between two pods of one template a handful of nodes has changed. So the
answer is kept for each distinct Ask, and only nodes whose room changed since are looked at again; rooms that are alike
(likeness.py) are judged once.

Enters: an Ask, rooms that changed. Leaves: names by verdict, and the best among some. Nothing is decided here that `fit` does
not decide.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from heapq import heapify, heappop, heappush

from central.ask.model import Ask
from central.fit.likeness import Likeness, likeness
from central.fit.model import Missing
from central.ledger.model import NodeRoom

Score = tuple[int, ...]  # higher is better (score.py)
Judge = Callable[[NodeRoom, Ask], Score | Missing]
PASSED_OVER = 64  # better nodes that kube-scheduler left out (their cpu is used up), until a look at all others costs less
VERDICTS = 4096  # of one ask; some hundred in a cluster of few kinds of nodes
REMEMBERED = 256  # asks; a cluster has some dozen templates at a time, and each remembered one costs about 100 bytes a node


class Standing:
    """For one ask. `fits` has every node with room for it; `reasons` has every node, with the reason to be shown of those that
    do not fit, and nothing for the others."""

    __slots__ = ("_ask", "_heap", "_judge", "_verdicts", "fits", "reasons", "seen")

    def __init__(self, ask: Ask, judge: Judge) -> None:
        self._ask = ask
        self._judge = judge
        self._verdicts: dict[int, Score | Missing] = {}  # by likeness
        self.fits: dict[str, Score] = {}
        self.reasons: dict[str, str] = {}
        self.seen = -1  # the ledger's version that this is caught up with
        self._heap: list[tuple[tuple[int, ...], str]] = []  # best first; an entry counts while `fits` says the same

    def judge(self, room: NodeRoom, alike: int) -> None:
        verdict = self._verdicts.get(alike)
        if verdict is None:
            if len(self._verdicts) >= VERDICTS:
                self._verdicts.clear()
            verdict = self._verdicts[alike] = self._judge(room, self._ask)
        name = room.name
        if isinstance(verdict, Missing):
            self.fits.pop(name, None)
            self.reasons[name] = verdict.shown
        elif self.fits.get(name) != verdict:
            self.fits[name] = verdict
            self.reasons[name] = ""
            heappush(self._heap, (_reversed(verdict), name))

    def forget(self, name: str) -> None:
        self.fits.pop(name, None)
        self.reasons.pop(name, None)

    def best(self, among: Collection[str]) -> str | None:
        """The node with the highest score, and of several the first by name; None if none of these fits."""
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
        """The same by a look at each of them."""
        found, highest = None, None
        for name in among:
            score = self.fits.get(name)
            if score is None or (highest is not None and score < highest):
                continue
            if found is None or score != highest or name < found:
                found, highest = name, score
        return found


class Standings:
    """The last REMEMBERED asks. `rooms(since)` says which nodes changed after that version of the ledger: their rooms now, or
    None for a node that is gone; and the version that this brings one to."""

    def __init__(
        self,
        judge: Judge,
        rooms: Callable[[int], tuple[Iterable[tuple[str, NodeRoom | None]], int]],
        *,
        alike: Callable[[Ask], Likeness] = lambda ask: likeness,
    ) -> None:
        """`alike`: which rooms are one for that ask."""
        self._judge = judge
        self._likeness_for = alike
        self._rooms = rooms
        self._known: OrderedDict[Ask, Standing] = OrderedDict()

    def __contains__(self, ask: Ask) -> bool:
        """It is remembered."""
        return ask in self._known

    def of(self, ask: Ask) -> Standing:
        standing = self._known.get(ask)
        if standing is None:
            standing = self._known[ask] = Standing(ask, self._judge)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(ask)
        alike = self._likeness_for(ask)
        changed, version = self._rooms(standing.seen)
        for name, room in changed:
            if room is None:
                standing.forget(name)
            else:
                standing.judge(room, alike(room))
        standing.seen = version
        return standing


def _reversed(score: Score) -> tuple[int, ...]:
    return tuple(-part for part in score)
