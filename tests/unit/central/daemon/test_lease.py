"""Test that there are never two leaders: candidates in simulated time with different clocks use a store that is slow,
unreachable or loses calls."""

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from central.daemon.lease import Election, KubeLease, LeaseTerms, Record
from lading.errors import ConfigError
from lading.kube.client import KubeClient
from lading.kube.config import open_access
from lading.kube.errors import ConflictError, KubeError, UnclearError
from lading.kube.resource import LEASES
from lading.log import Event
from tests.fakes.kube_server import FakeKubeServer
from tests.fakes.records import Records
from tests.fakes.simulated_time import run_simulated

TERMS = LeaseTerms()
LEASE = LEASES.path("kube-system", "lading-central")
TICK_S = 0.1


def now() -> float:
    return asyncio.get_running_loop().time()


class SlowStore:
    """Store one object with versions. `delays` gives the time of each call to the store, and of its answer back; a request is
    carried out also when its sender has given up."""

    def __init__(self, delays: Iterator[tuple[float, float, bool]]) -> None:
        self.record: Record | None = None
        self.away = False
        self._delays = delays
        self._versions = itertools.count(1)
        self._under_way: set[asyncio.Future[Record | None]] = set()

    async def read(self, *, timeout_s: float) -> Record | None:
        return await self._call(None)

    async def write(self, record: Record, *, timeout_s: float) -> Record:
        written = await self._call(record)
        assert written is not None
        return written

    async def _call(self, record: Record | None) -> Record | None:
        there_s, back_s, lost = next(self._delays)
        arrival = asyncio.ensure_future(self._arrive(record, there_s))
        self._under_way.add(arrival)
        arrival.add_done_callback(self._arrived)
        answer = await asyncio.shield(arrival)
        await asyncio.sleep(back_s)
        if lost or self.away:
            raise UnclearError("the answer was lost")
        return answer

    async def _arrive(self, record: Record | None, after_s: float) -> Record | None:
        await asyncio.sleep(after_s)
        if self.away:
            raise UnclearError("nobody is there")
        if record is None:
            return self.record
        if record.version != (self.record.version if self.record else ""):
            raise ConflictError("another version", status=409)
        self.record = dataclasses.replace(record, version=str(next(self._versions)))
        return self.record

    def _arrived(self, arrival: "asyncio.Future[Record | None]") -> None:
        self._under_way.discard(arrival)
        if not arrival.cancelled():
            arrival.exception()  # the sender may have ended

    async def settle(self) -> None:
        if self._under_way:
            await asyncio.wait(self._under_way)


class Candidate:
    """Represent a candidate with a clock of its own, with another start and a slightly different rate."""

    def __init__(self, store: SlowStore, *, name: str, offset: float = 0.0, rate: float = 1.0, pauses: Iterator[float]) -> None:
        self.calls: list[str] = []
        self.records = Records()
        self._offset, self._rate, self._pauses = offset, rate, pauses
        self.election = Election(
            store,
            name=name,
            terms=TERMS,
            gained=lambda: self.calls.append("gained"),
            lost=lambda: self.calls.append("lost"),
            log=self.records.log,
            clock=self.clock,
            sleep=self.sleep,
        )
        self.running = asyncio.create_task(self.election.run())

    def clock(self) -> float:
        return self._offset + self._rate * now()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._rate + next(self._pauses))

    async def stop(self) -> None:
        self.running.cancel()
        await asyncio.wait([self.running])
        assert self.running.cancelled()


def never() -> Iterator[float]:
    return itertools.repeat(0.0)


def prompt() -> Iterator[tuple[float, float, bool]]:
    return itertools.repeat((0.01, 0.01, False))


@contextlib.asynccontextmanager
async def candidates(store: SlowStore, count: int) -> AsyncIterator[list[Candidate]]:
    them = [Candidate(store, name=f"c{i}", offset=1000.0 * i, pauses=never()) for i in range(count)]
    try:
        yield them
    finally:
        for one in them:
            if not one.running.done():
                await one.stop()
        await store.settle()


def leaders(them: list[Candidate]) -> list[Candidate]:
    return [one for one in them if one.election.is_leader()]


async def watched(them: list[Candidate], seconds: float) -> float:
    """Let time pass, and check at each moment that at most one replica leads. Return for how many seconds one led."""
    led = 0.0
    until = now() + seconds
    while now() < until:
        await asyncio.sleep(TICK_S)
        assert len(leaders(them)) <= 1
        led += TICK_S * len(leaders(them))
    return led


async def test_a_single_candidate_of_three_leads_and_keeps_leading() -> None:
    async with candidates(SlowStore(prompt()), 3) as them:
        await watched(them, TERMS.duration_s + 3 * TERMS.retry_s)
        (leader,) = leaders(them)
        assert await watched(them, 1000) == pytest.approx(1000, abs=1)
        assert leaders(them) == [leader]
        assert [one.calls for one in them if one.calls] == [["gained"]]


async def test_a_candidate_that_creates_the_lease_waits_it_out() -> None:
    """Check a lease that was created, used and deleted between two readings: absence has no version, so each lease is waited
    out again."""
    store = SlowStore(prompt())
    async with candidates(store, 2) as them:
        await watched(them, 5)
        assert store.record is not None
        assert (store.record.holder, store.record.released) == ("", False)
        await watched(them, TERMS.duration_s - 6)
        store.record = None
        assert await watched(them, TERMS.duration_s - 1) == 0
        assert await watched(them, 5) > 0


async def test_an_absent_lease_is_waited_out() -> None:
    """Check an absent lease, which may have been deleted under a leader that did not notice."""
    store = SlowStore(prompt())
    async with candidates(store, 1) as them:
        assert await watched(them, TERMS.duration_s - 1) == 0
        assert await watched(them, 5) > 0
        store.record = None
        them.append(Candidate(store, name="later", pauses=never()))
        assert await watched(them, TERMS.duration_s + 5) > 0
        await them[-1].stop()


@pytest.mark.parametrize(
    "record", [Record(holder="", duration_s=15, version="x"), Record(holder="else", duration_s=40, version="x")]
)
async def test_a_foreign_lease_is_waited_out_for_the_longer_duration(record: Record) -> None:
    store = SlowStore(prompt())
    store.record = record
    async with candidates(store, 1) as them:
        assert await watched(them, record.duration_s - 1) == 0
        assert await watched(them, 5) > 0
        assert store.record is not None
        assert store.record.transitions == 1


async def test_a_leader_that_was_killed_is_followed_after_the_duration() -> None:
    async with candidates(SlowStore(prompt()), 2) as them:
        await watched(them, 20)
        (leader,) = leaders(them)
        await leader.stop()
        (other,) = [one for one in them if one is not leader]
        await watched(them, TERMS.duration_s - TERMS.retry_s - 1)
        assert not other.election.is_leader()
        # It sees the last renewal a pause late, and that it got old a pause late; a pause is up to a fifth longer.
        await watched(them, 3 * TERMS.retry_s + 2)
        assert other.election.is_leader()


async def test_a_release_lets_another_candidate_lead_at_once() -> None:
    async with candidates(SlowStore(prompt()), 2) as them:
        await watched(them, 20)
        (leader,) = leaders(them)
        await leader.stop()
        await leader.election.release()
        assert leaders(them) == []
        before = max(one.election.transitions for one in them)
        await watched(them, 2 * TERMS.retry_s)
        (following,) = leaders(them)
        assert following.election.transitions == before + 1
        assert leader.calls == ["gained"]
        assert leader.records.count(Event.LEASE_RELEASED) == 1


async def test_a_standby_candidate_releases_nothing() -> None:
    store = SlowStore(prompt())
    async with candidates(store, 2) as them:
        await watched(them, 20)
        (standby,) = [one for one in them if not one.election.is_leader()]
        await standby.stop()
        await standby.election.release()
        assert store.record is not None
        assert not store.record.released
        assert await watched(them, 60) == pytest.approx(60, abs=1)


async def test_without_the_api_server_a_leader_ends_at_its_deadline() -> None:
    store = SlowStore(prompt())
    async with candidates(store, 1) as them:
        await watched(them, 20)
        assert them[0].calls == ["gained"]
        store.away = True
        led = await watched(them, 30)
        assert TERMS.renew_deadline_s - 1.2 * TERMS.retry_s - 0.5 <= led <= TERMS.renew_deadline_s
        assert them[0].calls == ["gained", "lost"]
        assert them[0].records.count(Event.LEASE_FAILED) == 1
        store.away = False
        await watched(them, 5)
        assert them[0].calls == ["gained", "lost", "gained"]


async def test_a_renewal_counts_from_the_time_before_it_was_sent() -> None:
    store = SlowStore(itertools.repeat((0.01, 3.5, False)))
    store.record = Record(holder="", duration_s=1, version="released")
    async with candidates(store, 1) as them:
        while not them[0].election.is_leader():  # noqa: ASYNC110  the clock decides
            await asyncio.sleep(0.01)
        store.away = True
        assert await watched(them, 20) == pytest.approx(TERMS.renew_deadline_s - 3.5, abs=2 * TICK_S)


async def test_the_loss_is_reported_at_the_deadline_while_a_renewal_hangs() -> None:
    slow = itertools.chain(itertools.repeat((0.01, 0.01, False), 12), itertools.repeat((100.0, 0.0, False)))
    async with candidates(SlowStore(slow), 1) as them:
        until = 0.0
        while them[0].calls != ["gained", "lost"]:
            await asyncio.sleep(0.01)
            if them[0].election.is_leader():
                until = now()
        assert now() - until < 0.05


async def test_a_process_that_was_suspended_is_no_leader_when_it_continues() -> None:
    async with candidates(SlowStore(prompt()), 1) as them:
        await watched(them, 20)
        assert them[0].election.is_leader()
        them[0]._offset += TERMS.renew_deadline_s  # nothing of it ran meanwhile
        assert not them[0].election.is_leader()


async def test_a_leader_that_sees_another_holder_stops_at_once() -> None:
    store = SlowStore(prompt())
    async with candidates(store, 1) as them:
        await watched(them, 20)
        store.record = Record(holder="else", duration_s=15, version="by-hand")
        await watched(them, 3 * TERMS.retry_s)
        assert them[0].calls == ["gained", "lost"]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_there_are_never_two_leaders_whatever_call_is_late(seed: int) -> None:
    """Check many random schedules: late and lost requests and answers, candidates that pause, end, release and restart, clocks
    of different rates, a deleted lease. When one begins to lead, the calls of earlier leaders have ended."""
    random = Random(seed)  # noqa: S311

    def delay() -> float:
        return random.choice([0.0, 0.01, 0.01, 0.01, 0.01, 0.3, 1.0, 2.5, 3.9, 4.1, 6.0, 9.9, 14.0, 16.0, 30.0])

    def delays() -> Iterator[tuple[float, float, bool]]:
        while True:
            yield delay(), delay(), random.random() < 0.1

    def pauses() -> Iterator[float]:
        while True:
            yield delay() if random.random() < 0.2 else 0.0

    async def story() -> None:
        store = SlowStore(delays())
        last_led: dict[Candidate, float] = {}  # time of the last leadership of each candidate that did not release the lease

        def start() -> Candidate:
            rate = random.choice([0.99, 1.0, 1.01])
            return Candidate(store, name="c", offset=random.uniform(0, 1e6), rate=rate, pauses=pauses())

        alive = [start() for _ in range(3)]
        while now() < 300:
            await asyncio.sleep(TICK_S)
            for leader in leaders(alive):
                assert all(now() - led > TERMS.request_timeout_s for other, led in last_led.items() if other is not leader)
                last_led[leader] = now()
            chance = random.random()
            if chance < 0.002:
                store.record = None
            elif chance < 0.008:
                ending = alive.pop(random.randrange(len(alive)))
                await ending.stop()
                if chance < 0.005:
                    last_led.pop(ending, None)  # it sends nothing any more
                    await ending.election.release()
                alive.append(start())
        for one in alive:
            await one.stop()
        await store.settle()

    run_simulated(story())


@pytest.mark.parametrize(
    "terms",
    [
        {"duration_s": 15, "renew_deadline_s": 10.0, "request_timeout_s": 5.0},
        {"duration_s": 10, "renew_deadline_s": 10.0},
        {"request_timeout_s": 0.0},
        {"retry_s": 10.0},
        {"retry_s": 0.0},
    ],
)
def test_terms_that_would_not_be_safe_are_refused(terms: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        LeaseTerms(**terms)  # type: ignore[arg-type]


async def test_the_lease_object_is_read_and_written_by_version(tmp_path: Path) -> None:
    async with FakeKubeServer() as server:
        access = open_access(server.write_kubeconfig(tmp_path / "kubeconfig"))
        async with KubeClient(access, user_agent="lading-test") as client:
            lease = KubeLease(client, namespace="kube-system", name="lading-central")
            assert await lease.read(timeout_s=1) is None
            first = await lease.write(Record(holder="a", duration_s=15, acquired="2026-01-01T00:00:00.000000Z"), timeout_s=1)
            assert await lease.read(timeout_s=1) == first
            with pytest.raises(ConflictError):
                await lease.write(Record(holder="b", duration_s=15), timeout_s=1)
            second = await lease.write(dataclasses.replace(first, holder="b", transitions=1), timeout_s=1)
            assert second.version != first.version
            with pytest.raises(ConflictError):
                await lease.write(first, timeout_s=1)
            spec = server.objects[LEASE]["spec"]
            assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("b", 1)
            released = await lease.write(dataclasses.replace(second, holder="", duration_s=1), timeout_s=1)
            assert released.released
            await server.put(LEASE, {"spec": {"holderIdentity": 7}})
            with pytest.raises(KubeError):
                await lease.read(timeout_s=1)


async def test_two_candidates_before_the_fake_server(tmp_path: Path) -> None:
    async with FakeKubeServer() as server:
        access = open_access(server.write_kubeconfig(tmp_path / "kubeconfig"))
        async with KubeClient(access, user_agent="lading-test") as client:
            store = KubeLease(client, namespace="kube-system", name="lading-central")
            them = [Candidate(store, name=f"c{i}", pauses=never()) for i in range(2)]  # type: ignore[arg-type]
            await watched(them, 60)
            assert sum(len(one.calls) for one in them) == 1
            (leader,) = leaders(them)
            await leader.stop()
            await leader.election.release()
            await watched(them, 10)
            assert len(leaders(them)) == 1
            for one in them:
                if one is not leader:
                    await one.stop()
