"""Share out a card by what each container used of it within a sliding window: the algorithm of Gemini.

Who is furthest below its request goes first; where all have theirs, the one with the least use. One who used its limit within
the window has to wait until that leaves the window. Kept so that the behaviour of the paper can be had and compared: a
container that comes back after it was away may make the others wait for half the window.

Source: Chen et al.: Gemini: Enabling Multi-Tenant GPU Sharing Based on Kernel Burst Estimation (IEEE TCC 2021); its scheduler.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from shares.policy.model import MILLION, MS, Next, NotBefore, Share

WINDOW_NS: Final = 10_000 * MS
QUOTA_NS: Final = 250 * MS  # while no burst was measured
LEAST_QUOTA_NS: Final = 100 * MS


@dataclass(slots=True, kw_only=True)
class _Account:
    share: Share
    joined_ns: int
    quota_ns: int = QUOTA_NS
    estimate_ns: int = 0
    turns: deque[tuple[int, int]] = field(default_factory=deque)  # began and ended, oldest first

    def used_ns(self, now_ns: int) -> int:
        """Return its use within the window."""
        since = now_ns - WINDOW_NS
        while self.turns and self.turns[0][1] <= since:
            self.turns.popleft()
        return sum(ended - max(began, since) for began, ended in self.turns)

    def measured_ns(self, now_ns: int) -> int:
        """Return the part of the window in which it was there."""
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
        """Absence makes no difference: use leaves the window."""

    def charge(self, name: str, began_ns: int, ended_ns: int) -> None:
        turns = self._accounts[name].turns
        if turns and turns[-1][1] == began_ns:
            began_ns = turns.pop()[0]
        turns.append((began_ns, ended_ns))

    def choose(self, waiting: Collection[str], now_ns: int) -> Next | NotBefore:
        ranks = {name: rank for name in waiting if (rank := self._rank(name, now_ns)) is not None}
        if not ranks:
            return NotBefore(min(self._below_limit(name, now_ns) for name in waiting))
        name = min(ranks, key=lambda name: (ranks[name], name))
        return Next(name, self._next_quota(self._accounts[name]))

    def longest(self, name: str, now_ns: int) -> int | None:
        return self._accounts[name].quota_ns

    def is_due(self, waiting: Collection[str], holder: str, now_ns: int) -> bool:
        return False

    def forgive(self, now_ns: int) -> None:
        """Forget nothing: use leaves the window."""

    def _rank(self, name: str, now_ns: int) -> tuple[int, float] | None:
        """Return the order in which it is chosen, the least first; None if it used its limit."""
        account = self._accounts[name]
        used, measured = account.used_ns(now_ns), account.measured_ns(now_ns)
        if not used:
            return 0, 0.0
        if account.share.limit_ppm * measured // MILLION <= used and account.share.limit_ppm < MILLION:
            return None
        missing = account.share.request_ppm * measured // MILLION - used
        return (1, -missing / (missing + used)) if missing > 0 else (2, float(used))

    def _below_limit(self, name: str, now_ns: int) -> int:
        """Return when it may be below its limit again: the window grows until it is whole, then its oldest use leaves it."""
        account = self._accounts[name]
        grown_ns = account.joined_ns + account.used_ns(now_ns) * MILLION // account.share.limit_ppm
        left_ns = account.turns[0][0] + WINDOW_NS
        return max(now_ns, min(grown_ns, left_ns) if now_ns < account.joined_ns + WINDOW_NS else left_ns) + MS

    def _next_quota(self, account: _Account) -> int:
        """Return half the burst that is expected and half the quota before, so that bursts fit into turns."""
        if account.estimate_ns:
            most = max(account.share.limit_ppm * WINDOW_NS // MILLION, LEAST_QUOTA_NS)
            account.quota_ns = min(max((account.estimate_ns + account.quota_ns) // 2, LEAST_QUOTA_NS), most)
        return account.quota_ns
