"""Check turns while containers act and end in any order: one turn at a time, and each waiting container gets a turn."""

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from hypothesis.strategies import booleans, integers, sampled_from

from shares.card import MAX_ESTIMATE_NS, Card, PageUpdate, Token
from shares.policy.fair import LONGEST_NS, Fair
from shares.policy.model import MILLION, MS, PAUSE_NS, Share
from shares.policy.window import WINDOW_NS, Window
from tests.depth import repeats

NAMES, PROCESSES = "abc", range(3)
LIMIT = 0.3  # part of the card that one container may use at most
BOUND_NS = max(int(MAX_ESTIMATE_NS / LIMIT) + LONGEST_NS, 2 * WINDOW_NS)
Process = tuple[str, int]


class Turns(RuleBasedStateMachine):
    policy: type[Fair | Window] = Fair

    def __init__(self) -> None:
        super().__init__()
        self.card: Card[Process] = Card(self.policy())
        self.now = 0
        self.holding: set[Process] = set()
        self.wanting: set[Process] = set()
        self.pages: dict[str, PageUpdate] = {}
        for name, request, limit in zip(NAMES, (500_000, 300_000, 0), (MILLION, int(LIMIT * MILLION), MILLION), strict=True):
            self.card.join(name, Share(request_ppm=request, limit_ppm=limit), 0)

    def carry_out(self, effects: list[Token[Process] | PageUpdate]) -> None:
        for effect in effects:
            if isinstance(effect, Token):
                assert effect.process in self.wanting
                assert effect.process[0] == self.card.holder
                assert effect.until_ns > self.now
                self.wanting.discard(effect.process)
                self.holding.add(effect.process)
            else:
                self.pages[effect.container] = effect
        self.holding = {process for process in self.holding if process[0] == self.card.holder}  # others' turns have ended

    @rule(passes_ms=integers(0, 80))
    def time_passes(self, passes_ms: int) -> None:
        self.now += passes_ms * MS
        self.carry_out(self.card.look(self.now))

    @rule(name=sampled_from(NAMES), number=sampled_from(PROCESSES), estimate_ms=integers(0, 60_000))
    def want(self, name: str, number: int, estimate_ms: int) -> None:
        process = (name, number)
        self.holding.discard(process)
        self.wanting.add(process)
        self.carry_out(self.card.want(name, process, estimate_ms * MS, 0, self.now))

    @rule()
    def every_process_is_silent(self) -> None:
        """Check that another container gets the card in bounded time, whatever the holder declared: after the longest turn, or
        when its limit lets it run."""
        holder, until = self.card.holder, self.now + BOUND_NS
        if not holder or all(name == holder for name, _ in self.wanting):
            return
        while self.card.holder == holder:
            self.now = max(self.now + 1, self.card.wake_ns())
            assert self.now <= until
            self.carry_out(self.card.look(self.now))

    @rule(name=sampled_from("ac"), number=sampled_from(PROCESSES), used_ms=integers(0, 60_000), pause=booleans())
    def use(self, name: str, number: int, used_ms: int, *, pause: bool) -> None:
        self.carry_out(self.card.use(name, (name, number), used_ms * MS, self.now, pause=pause))

    @rule(name=sampled_from(NAMES), number=sampled_from(PROCESSES))
    def release(self, name: str, number: int) -> None:
        process = (name, number)
        self.holding.discard(process)
        self.wanting.discard(process)
        self.carry_out(self.card.release(name, process, 0, self.now))

    @rule()
    def the_server_hangs(self) -> None:
        self.now += 3_000 * MS
        self.carry_out(self.card.stalled(self.now))

    @rule()
    def every_holder_dies(self) -> None:
        for process in sorted(self.holding):
            self.holding.discard(process)
            self.carry_out(self.card.gone(process[0], process, self.now))

    @invariant()
    def only_the_holder_has_a_turn_or_is_paused(self) -> None:
        for name, page in self.pages.items():
            assert name == self.card.holder or (page.until_ns <= self.now and not page.pause)

    @invariant()
    def a_pause_ends(self) -> None:
        assert not any(page.pause for page in self.pages.values()) or self.card.wake_ns() <= self.now + PAUSE_NS

    @invariant()
    def who_waits_is_looked_at_again(self) -> None:
        assert not self.wanting or self.card.holder or self.card.wake_ns() < 2**63 - 1

    def teardown(self) -> None:
        """Let the others end, and look when the card says so: who waits has its turn in bounded time."""
        for process in sorted(self.holding):
            self.carry_out(self.card.gone(process[0], process, self.now))
        self.holding.clear()
        for _ in range(3_000):
            if not self.wanting:
                break
            self.now = max(self.now, min(self.card.wake_ns(), self.now + 60_000 * MS))
            self.carry_out(self.card.look(self.now))
            for process in sorted(self.holding):
                self.holding.discard(process)
                self.carry_out(self.card.release(process[0], process, 0, self.now))
        assert not self.wanting


class TurnsByWindow(Turns):
    policy = Window


_SETTINGS = settings(max_examples=repeats(60, long=600), stateful_step_count=40, deadline=None)
TestTurns = pytest.mark.repeats(Turns.TestCase)
TestTurns.settings = _SETTINGS
TestTurnsByWindow = pytest.mark.repeats(TurnsByWindow.TestCase)
TestTurnsByWindow.settings = _SETTINGS
