"""Share out a card by start-time fair queueing, with a token bucket for limits.

Each container has a virtual time. Time of the card advances it, divided by the container's request. For example, with a request
of 25 %, a turn of 10 ms adds 40 ms. The container with the least virtual time goes first, until it is QUANTUM_NS of the card
ahead of the next one. So in the long run each gets its request, and unused time is divided in proportion to the requests.

A turn is at least as long as the first kernel that the container is about to launch, so that long kernels of several
containers run one after another. Work outside turns, which runs beside another container's turn, costs a part more: the device
switches between the two.

The *time of service* is the least virtual time of the containers that are served: those that want a turn, or have one, and are
not held back by their limits. A container that was away starts at the time of service. One that paused for a moment, or was
held back, is behind it by CREDIT_NS of the card at most. Otherwise, it would later take the card for as long as it did not use
it. A limit is a bucket of the card's time that fills at the rate of the limit: a container with a nearly empty bucket waits.

Source: Goyal, Vin, Cheng: Start-time Fair Queueing (SIGCOMM 1996).

Tests: tests/unit/shares/test_turns.py
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from shares.policy.model import MILLION, MS, NO_END, PAUSE_NS, NotBefore, Share

QUANTUM_NS: Final = 5 * MS  # card time by which the holder may be ahead of a waiting container
SHORTEST_NS: Final = 3 * MS  # shortest turn; in a shorter one, the device would mostly switch between programs
FRAMES_NS: Final = MS  # from the choice of a container until its first launch, and from the end of its work to its next frame
LONGEST_NS: Final = 1_000 * MS  # longest turn while another container waits
AWAY_NS: Final = 20 * MS  # a container inactive for less is between two bursts, and keeps CREDIT_NS
CREDIT_NS: Final = 50 * MS  # card time that a container may catch up on, which others had while it paused or was held back
DEPTH_NS: Final = 200 * MS  # depth of the bucket for a limit of 100 %; of 50 %: half of this
FILLED_NS: Final = 10 * MS  # a container that its limit held back waits until the bucket holds this, or half of its depth
SWITCH_PERCENT: Final = 115  # cost of work beside another container's turn: the device loses about 9 % to switches
BESIDE_NS: Final = 200 * MS  # depth of the bucket of time that is taken off the holders' turns: a few long kernels
PAUSES_NS: Final = 5 * MS  # depth of the bucket of pauses, which fills at the rate of the request


class _Bucket:
    """Hold time that fills at a rate, in parts per million, up to a depth."""

    def __init__(self, rate_ppm: int, depth_ns: int, now_ns: int) -> None:
        self.rate_ppm = rate_ppm
        self.depth_ns = self.held_ns = depth_ns
        self.filled_ns = now_ns  # time when the bucket was last filled

    def fill(self, now_ns: int) -> int:
        more = (now_ns - self.filled_ns) * self.rate_ppm // MILLION
        self.held_ns, self.filled_ns = min(self.held_ns + more, self.depth_ns), now_ns
        return self.held_ns

    def take(self, ns: int, now_ns: int) -> None:
        """Take out this time. The bucket holds less than nothing if that is more than it held."""
        self.held_ns = self.fill(now_ns) - ns


@dataclass(slots=True, kw_only=True)
class _Account:
    share: Share
    virtual_ns: int
    active: bool = False
    estimate_ns: int = 0  # length of the work that the container is about to launch
    held_back: bool = False  # when the waiting containers were last looked at, the limit held this container back
    left_ns: int = 0  # time when the container was last active
    had_ns: int = 0  # time when the container last had the card
    limit: _Bucket  # card time that the container may use at once
    beside: _Bucket  # card time outside its turns that is taken off the turns of other containers
    pauses: _Bucket  # time for which it may pause other containers

    def virtual(self, card_ns: int) -> int:
        """Return the virtual time of this time of the card."""
        return card_ns * MILLION // self.share.weight_ppm


class Fair:
    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._last_ns = 0  # greatest virtual time of a container that became inactive

    def join(self, name: str, share: Share, now_ns: int) -> None:
        self._accounts[name] = _Account(
            share=share,
            virtual_ns=self._time_of_service(),
            limit=_Bucket(share.limit_ppm, DEPTH_NS * share.limit_ppm // MILLION, now_ns),
            beside=_Bucket(share.request_ppm, BESIDE_NS, now_ns),
            pauses=_Bucket(share.request_ppm, PAUSES_NS, now_ns),
        )

    def leave(self, name: str) -> None:
        self._accounts.pop(name, None)

    def begin(self, name: str, estimate_ns: int, now_ns: int) -> None:
        account = self._accounts[name]
        if not account.active:
            self._catch_up(account, 0 if now_ns - account.left_ns > AWAY_NS else CREDIT_NS)
        account.active, account.estimate_ns = True, estimate_ns

    def end(self, name: str, now_ns: int) -> None:
        account = self._accounts[name]
        account.active, account.held_back, account.left_ns = False, False, now_ns
        self._last_ns = max(self._last_ns, account.virtual_ns)

    def charge(self, name: str, began_ns: int, ended_ns: int) -> None:
        account, held_ns = self._accounts[name], ended_ns - began_ns
        account.virtual_ns += account.virtual(held_ns)
        account.had_ns = ended_ns
        account.limit.take(held_ns, ended_ns)

    def use(self, name: str, used_ns: int, now_ns: int) -> int:
        account = self._accounts[name]
        account.virtual_ns += account.virtual(used_ns * SWITCH_PERCENT // 100)
        account.limit.take(used_ns, now_ns)
        beside_ns = min(used_ns, account.beside.fill(now_ns))
        account.beside.take(beside_ns, now_ns)
        return beside_ns * SWITCH_PERCENT // 100

    def choose(self, waiting: Collection[str], now_ns: int) -> str | NotBefore:
        ready = self._hold_back(waiting, now_ns)
        if not ready:
            return NotBefore(min(self._ready_ns(name, now_ns) for name in waiting))
        return min(ready, key=self._order)

    def ends_ns(self, holder: str, began_ns: int, waiting: Collection[str], now_ns: int) -> int:
        account, ends_ns = self._accounts[holder], NO_END
        ready = self._hold_back(waiting, now_ns)
        if ready:
            behind_ns = min(self._accounts[name].virtual_ns for name in ready) - account.virtual_ns
            quantum_ns = min(max(QUANTUM_NS, 2 * account.estimate_ns), 2 * QUANTUM_NS)  # two kernels, if they are short
            ahead_ns = behind_ns * account.share.weight_ppm // MILLION + quantum_ns
            ends_ns = min(now_ns + ahead_ns, began_ns + LONGEST_NS)
        if account.share.limit_ppm < MILLION:
            ends_ns = min(ends_ns, now_ns + account.limit.fill(now_ns))
        return max(ends_ns, began_ns + account.estimate_ns + FRAMES_NS, began_ns + SHORTEST_NS)

    def may_pause(self, name: str, now_ns: int) -> bool:
        return self._accounts[name].pauses.fill(now_ns) >= PAUSE_NS

    def paused(self, name: str, length_ns: int) -> None:
        self._accounts[name].pauses.held_ns -= length_ns

    def forgive(self, now_ns: int) -> None:
        most = max((account.virtual_ns for account in self._accounts.values()), default=0)
        for account in self._accounts.values():
            account.virtual_ns = most

    def _hold_back(self, waiting: Collection[str], now_ns: int) -> list[str]:
        """Note which waiting containers their limits hold back. Return the other ones."""
        ready = [name for name in waiting if self._ready_ns(name, now_ns) <= now_ns]
        for name in waiting:
            self._accounts[name].held_back |= name not in ready
        for name in ready:
            if (account := self._accounts[name]).held_back:
                self._catch_up(account, CREDIT_NS)
                account.held_back = False
        return ready

    def _catch_up(self, account: _Account, credit_ns: int) -> None:
        """Let the container be behind the time of service by this card time at most."""
        account.virtual_ns = max(account.virtual_ns, self._time_of_service() - account.virtual(credit_ns))

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

    def _ready_ns(self, name: str, now_ns: int) -> int:
        """Return the time when the container's limit lets it run."""
        account = self._accounts[name]
        if account.share.limit_ppm >= MILLION:
            return now_ns
        missing_ns = min(FILLED_NS, account.limit.depth_ns // 2) - account.limit.fill(now_ns)
        return now_ns if missing_ns <= 0 else now_ns + -(-missing_ns * MILLION // account.share.limit_ppm)
