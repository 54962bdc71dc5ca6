"""Share out a card by each container's use within a sliding window of 10 s: the algorithm of Gemini.

The container furthest below its request goes first; if all have their requests, the container with the least use. A container
that used its limit within the window waits until old use leaves the window. This policy exists to reproduce and compare the
paper's behaviour. A container that returns after an absence may make the others wait for half the window.

Source: Chen et al.: Gemini: Enabling Multi-Tenant GPU Sharing Based on Kernel Burst Estimation (IEEE TCC 2021); its scheduler.

Tests: tests/unit/shares/test_turns.py
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from shares.policy.model import MILLION, MS, NO_END, NotBefore, Share

WINDOW_NS: Final = 10_000 * MS
QUOTA_NS: Final = 250 * MS  # length of a turn before a burst was measured
LEAST_QUOTA_NS: Final = 100 * MS


@dataclass(slots=True, kw_only=True)
class _Account:
    share: Share
    joined_ns: int
    quota_ns: int = QUOTA_NS
    estimate_ns: int = 0
    turns: deque[tuple[int, int]] = field(default_factory=deque)  # begin and end of each turn in ns, oldest first

    def used_ns(self, now_ns: int) -> int:
        """Return the container's use of the card within the window."""
        since = now_ns - WINDOW_NS
        while self.turns and self.turns[0][1] <= since:
            self.turns.popleft()
        return sum(ended - max(began, since) for began, ended in self.turns)

    def measured_ns(self, now_ns: int) -> int:
        """Return the part of the window since the container joined."""
        return min(WINDOW_NS, now_ns - self.joined_ns)


class Window:
    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    def join(self, name: str, share: Share, now_ns: int) -> None:
        self._accounts[name] = _Account(share=share, joined_ns=now_ns)

    def leave(self, name: str) -> None:
        self._accounts.pop(name, None)

    def begin(self, name: str, estimate_ns: int, now_ns: int) -> None:
        self._accounts[name].estimate_ns = estimate_ns

    def end(self, name: str, now_ns: int) -> None:
        """Do nothing: absence counts only in that old use leaves the window."""

    def charge(self, name: str, began_ns: int, ended_ns: int) -> None:
        turns = self._accounts[name].turns
        if turns and turns[-1][1] == began_ns:
            began_ns = turns.pop()[0]
        turns.append((began_ns, ended_ns))

    def use(self, name: str, used_ns: int, now_ns: int) -> int:
        account = self._accounts[name]
        counted_ns = account.turns[-1][1] if account.turns else account.joined_ns
        if counted_ns < now_ns:
            self.charge(name, max(counted_ns, now_ns - used_ns), now_ns)
        return 0

    def choose(self, waiting: Collection[str], now_ns: int) -> str | NotBefore:
        ranks = {name: rank for name in waiting if (rank := self._rank(name, now_ns)) is not None}
        if not ranks:
            return NotBefore(min(self._below_limit(name, now_ns) for name in waiting))
        name = min(ranks, key=lambda name: (ranks[name], name))
        self._measure_quota(self._accounts[name])
        return name

    def ends_ns(self, holder: str, began_ns: int, waiting: Collection[str], now_ns: int) -> int:
        account = self._accounts[holder]
        if account.share.limit_ppm >= MILLION and not waiting:
            return NO_END
        if now_ns < began_ns + account.quota_ns:
            return began_ns + account.quota_ns
        ranks = {name: rank for name in (holder, *waiting) if (rank := self._rank(name, now_ns)) is not None}
        goes_on = holder in ranks and min(ranks, key=lambda name: (ranks[name], name)) == holder
        return now_ns + account.quota_ns * goes_on

    def may_pause(self, name: str, now_ns: int) -> bool:
        return False

    def paused(self, name: str, length_ns: int) -> None:
        """Do nothing: no holder is paused."""

    def forgive(self, now_ns: int) -> None:
        """Do nothing: old use leaves the window by itself."""

    def _rank(self, name: str, now_ns: int) -> tuple[int, float] | None:
        """Return a container's sort key: the least is chosen first. None if the container used its limit."""
        account = self._accounts[name]
        used, measured = account.used_ns(now_ns), account.measured_ns(now_ns)
        if not used:
            return 0, 0.0
        if account.share.limit_ppm * measured // MILLION <= used and account.share.limit_ppm < MILLION:
            return None
        missing = account.share.request_ppm * measured // MILLION - used
        return (1, -missing / (missing + used)) if missing > 0 else (2, float(used))

    def _below_limit(self, name: str, now_ns: int) -> int:
        """Return the time when the container may be below its limit again: a new container's window grows, and the oldest use
        leaves a full window."""
        account = self._accounts[name]
        grown_ns = account.joined_ns + account.used_ns(now_ns) * MILLION // account.share.limit_ppm
        left_ns = account.turns[0][0] + WINDOW_NS
        return max(now_ns, min(grown_ns, left_ns) if now_ns < account.joined_ns + WINDOW_NS else left_ns) + MS

    def _measure_quota(self, account: _Account) -> None:
        """Make the next turn as long as the mean of the expected burst and the last turn, so that bursts fit into turns."""
        if account.estimate_ns:
            most = max(account.share.limit_ppm * WINDOW_NS // MILLION, LEAST_QUOTA_NS)
            account.quota_ns = min(max((account.estimate_ns + account.quota_ns) // 2, LEAST_QUOTA_NS), most)
