"""Share out a card by start-time fair queueing, with a token bucket for limits.

Each container has a virtual time. A turn advances it by the turn's length divided by the container's request. For example, with
a request of 25 %, a turn of 50 ms adds 200 ms. The container with the least virtual time goes first. So in the long run each
gets its request, and unused time is divided in proportion to the requests.

The *time of service* is the least virtual time of the containers that are served: those that want the card, or have it, and are
not held back by their limits. A container that was away starts at the time of service. One that paused for a moment, or was
held back, is behind it by CREDIT_NS of the card at most. Otherwise, it would later take the card for as long as it did not use
it. A limit is a bucket of the card's time that fills at the rate of the limit: a container with a nearly empty bucket waits.

Source: Goyal, Vin, Cheng: Start-time Fair Queueing (SIGCOMM 1996).

Tests: tests/unit/shares/test_turns.py
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from shares.policy.model import MILLION, MS, SHORTEST_NS, TURN_NS, Next, NotBefore, Share

AWAY_NS: Final = 20 * MS  # a container inactive for less is between two bursts, and keeps CREDIT_NS
CREDIT_NS: Final = TURN_NS  # card time that a container may catch up on, which others had while it paused or was held back
DEPTH_NS: Final = 100 * MS  # depth of the bucket for a limit of 100 %, as the period of cpu limits; of 50 %: half of this
OVERTAKE_NS: Final = 10 * MS  # card time by which a waiting container must be behind the holder to end its turn early


@dataclass(slots=True, kw_only=True)
class _Account:
    share: Share
    virtual_ns: int
    active: bool = False
    held_back: bool = False  # at the last choice of a turn, the limit held this container back
    left_ns: int = 0  # time when the container was last active
    had_ns: int = 0  # time when the container last had the card
    bucket_ns: int  # card time that the container may use at once, by its limit
    filled_ns: int  # time when the bucket was last filled


class Fair:
    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._last_ns = 0  # greatest virtual time of a container that became inactive

    def join(self, name: str, share: Share, now_ns: int) -> None:
        self._accounts[name] = _Account(
            share=share, virtual_ns=self._time_of_service(), bucket_ns=_depth(share), filled_ns=now_ns
        )

    def leave(self, name: str) -> None:
        self._accounts.pop(name, None)

    def begin(self, name: str, estimate_ns: int, now_ns: int) -> None:
        account = self._accounts[name]
        if not account.active:
            self._catch_up(account, 0 if now_ns - account.left_ns > AWAY_NS else CREDIT_NS)
        account.active = True

    def end(self, name: str, now_ns: int) -> None:
        account = self._accounts[name]
        account.active, account.held_back, account.left_ns = False, False, now_ns
        self._last_ns = max(self._last_ns, account.virtual_ns)

    def charge(self, name: str, began_ns: int, ended_ns: int) -> None:
        account, held = self._accounts[name], ended_ns - began_ns
        account.virtual_ns += held * MILLION // account.share.weight_ppm
        account.had_ns = ended_ns
        _fill(account, ended_ns)
        account.bucket_ns -= held

    def choose(self, waiting: Collection[str], now_ns: int) -> Next | NotBefore:
        ready = self._ready_among(waiting, now_ns)
        if not ready:
            return NotBefore(min(self._ready(name, now_ns) for name in waiting))
        name = min(ready, key=self._order)
        longest = self.longest(name, now_ns)
        return Next(name, TURN_NS if longest is None else min(TURN_NS, longest))

    def longest(self, name: str, now_ns: int) -> int | None:
        account = self._accounts[name]
        if account.share.limit_ppm >= MILLION:
            return None
        _fill(account, now_ns)
        return max(account.bucket_ns, SHORTEST_NS)

    def is_due(self, waiting: Collection[str], holder: str, now_ns: int) -> bool:
        return any(self._is_behind(name, holder) for name in self._ready_among(waiting, now_ns))

    def forgive(self, now_ns: int) -> None:
        most = max((account.virtual_ns for account in self._accounts.values()), default=0)
        for account in self._accounts.values():
            account.virtual_ns = most

    def _ready_among(self, waiting: Collection[str], now_ns: int) -> list[str]:
        """Return the waiting containers that their limits do not hold back."""
        ready = [name for name in waiting if self._ready(name, now_ns) <= now_ns]
        for name in waiting:
            self._accounts[name].held_back |= name not in ready
        for name in ready:
            if (account := self._accounts[name]).held_back:
                self._catch_up(account, CREDIT_NS)
                account.held_back = False
        return ready

    def _catch_up(self, account: _Account, credit_ns: int) -> None:
        """Let the container be behind the time of service by this card time at most."""
        account.virtual_ns = max(account.virtual_ns, self._time_of_service() - credit_ns * MILLION // account.share.weight_ppm)

    def _time_of_service(self) -> int:
        """Return the least virtual time of the containers that are served. If there is none, as between two bursts of the only
        one, return the greatest time of those that were."""
        active = [account for account in self._accounts.values() if account.active]
        served = [account.virtual_ns for account in active if not account.held_back]
        return min(served, default=max(self._last_ns, *(account.virtual_ns for account in active), 0))

    def _order(self, name: str) -> tuple[int, int, str]:
        """Return a container's sort key: the least is chosen first. Of equal virtual times, the container without the card for
        longest goes first, so that a returning container waits for at most one turn."""
        account = self._accounts[name]
        return account.virtual_ns, account.had_ns, name

    def _is_behind(self, name: str, holder: str) -> bool:
        account = self._accounts[name]
        return account.virtual_ns + OVERTAKE_NS * MILLION // account.share.weight_ppm < self._accounts[holder].virtual_ns

    def _ready(self, name: str, now_ns: int) -> int:
        """Return the time when the container's bucket holds enough for the shortest turn."""
        account = self._accounts[name]
        if account.share.limit_ppm >= MILLION:
            return now_ns
        _fill(account, now_ns)
        missing = min(SHORTEST_NS, _depth(account.share)) - account.bucket_ns
        return now_ns if missing <= 0 else now_ns + -(-missing * MILLION // account.share.limit_ppm)


def _depth(share: Share) -> int:
    return DEPTH_NS * share.limit_ppm // MILLION


def _fill(account: _Account, now_ns: int) -> None:
    more = (now_ns - account.filled_ns) * account.share.limit_ppm // MILLION
    account.bucket_ns = min(account.bucket_ns + more, _depth(account.share))
    account.filled_ns = now_ns
