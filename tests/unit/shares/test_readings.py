"""Memory that the driver says processes have counts in their share, and a driver that fails holds nothing up."""

import os
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists, sampled_from, tuples

from lading.errors import HostError
from lading.log import Event
from lading.vocabulary import GpuUuid
from shares.memory import MAX_CONTEXTS, Memory
from shares.readings import Readings
from shares.wire import Kind
from tests.fakes.share_rig import MIB, Client, ShareRig, ShareServer, eventually, share, shared

CONTEXT = 50
STEPS = lists(
    tuples(
        sampled_from(["add", "make", "free", "context", "end context", "begin", "end"]), sampled_from("ab"), integers(1, 60)
    ),
    max_size=60,
)


@dataclass(slots=True)
class Actual:
    """Hold the memory that a process has of the card, and the amount that it was allowed and has not made yet."""

    made: int = 0
    allowed: int = 0
    contexts: int = 0


@given(STEPS)
def test_after_two_readings_what_counts_is_what_the_driver_has(steps: list[tuple[str, str, int]]) -> None:
    """A process makes what it was allowed at any time later, and reports what it freed."""
    memory, actual, is_reading = Memory(300), {name: Actual() for name in "ab"}, False
    for step, name, amount in steps:
        its = actual[name]
        match step:
            case "add":
                its.allowed += amount if memory.add(name, amount, held=False) else 0
            case "make":
                its.made, its.allowed = its.made + its.allowed, 0
            case "free" if its.made >= amount:
                its.made -= amount
                memory.subtract(name, amount)
            case "context" if memory.set_contexts(name, its.contexts + 1, held=False):
                its.contexts += 1
            case "end context" if its.contexts:
                its.contexts -= 1
                memory.set_contexts(name, its.contexts, held=True)
            case "begin":
                memory.begin_reading()
                is_reading = True
            case "end" if is_reading:
                for one, there in actual.items():
                    memory.context_bytes = (
                        memory.end_reading(one, there.made + CONTEXT * there.contexts) or memory.context_bytes
                    )
                is_reading = False
        assert memory.used_bytes >= sum(one.made + one.allowed for one in actual.values())
    for one, there in actual.items():
        there.made, there.allowed = there.made + there.allowed, 0
        memory.awaits_reading(one)
    for _ in range(2):
        memory.begin_reading()
        for one, there in actual.items():
            memory.end_reading(one, there.made + CONTEXT * there.contexts)
    assert memory.used_bytes == sum(one.made + CONTEXT * one.contexts for one in actual.values())


def test_a_context_counts_from_its_request_on_once_the_driver_told_what_it_takes() -> None:
    memory = Memory(100)
    assert memory.set_contexts("a", 1, held=False)
    assert memory.awaits_reading("a")
    memory.begin_reading()
    assert memory.end_reading("a", CONTEXT) == CONTEXT
    memory.context_bytes = CONTEXT
    assert not memory.awaits_reading("a")
    assert memory.set_contexts("b", 1, held=False)
    assert memory.used_bytes == 2 * CONTEXT
    assert not memory.set_contexts("c", 1, held=False)
    memory.set_contexts("a", 0, held=True)
    for _ in range(2):
        memory.begin_reading()
        memory.end_reading("a", 0)
    assert memory.used_bytes == CONTEXT


def test_what_a_process_reports_while_the_driver_is_asked_counts_once() -> None:
    memory = Memory(100)
    memory.begin_reading()
    memory.add("a", 40, held=False)  # the driver may have it or not
    memory.subtract("a", 40)
    memory.end_reading("a", 40)
    assert memory.used_bytes == 0


@dataclass(slots=True)
class Driver:
    """A driver that is asked what this process has."""

    has: int = 0
    fails: bool = False
    answers: threading.Event = field(default_factory=threading.Event)
    asked: int = 0

    def read(self, cards: Collection[GpuUuid]) -> Readings:
        self.asked += 1
        self.answers.wait(20)
        if self.fails:
            raise HostError("cannot read the memory of processes: gone")
        return {uuid: {os.getpid(): self.has} for uuid in cards}


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    driver.answers.set()
    yield driver
    driver.answers.set()


@pytest.fixture
def server(rig: ShareRig, driver: Driver) -> ShareServer:
    return rig.serve(read=driver.read)


@pytest.fixture
def client(rig: ShareRig, server: ShareServer) -> Client:
    path = rig.grant(share("a", shared(mib=100)))
    eventually(path.exists)
    return rig.join(path)


def test_the_first_request_in_a_new_context_waits_for_the_driver(client: Client, driver: Driver) -> None:
    assert client.begin_context()
    driver.has = 60 * MIB
    assert not client.ask(41 * MIB)
    assert client.ask(40 * MIB)
    assert client.shown().used_bytes == 100 * MIB


def test_what_the_driver_has_of_no_request_counts_and_stops_counting(client: Client, driver: Driver) -> None:
    driver.has = 70 * MIB
    eventually(lambda: client.shown().used_bytes == 70 * MIB)
    assert not client.ask(31 * MIB)
    driver.has = 0
    eventually(lambda: client.shown().used_bytes == 0)
    assert client.ask(100 * MIB)


def test_a_driver_that_fails_is_logged_once_and_holds_no_request_up(
    client: Client, driver: Driver, server: ShareServer
) -> None:
    driver.fails = True
    assert client.begin_context()
    assert client.ask(100 * MIB)
    before = driver.asked
    eventually(lambda: driver.asked > before + 1)
    assert server.records.count(Event.SHARE_WATCH_FAILED) == 1


def test_a_driver_that_hangs_is_waited_for_for_a_moment_and_by_its_processes_only(
    rig: ShareRig, client: Client, driver: Driver
) -> None:
    path = rig.grant(share("b", shared(mib=100)))
    eventually(path.exists)
    other = rig.join(path)
    eventually(lambda: driver.asked > 0)
    driver.answers.clear()
    assert client.begin_context()
    client.send(Kind.ADD, seq=7, a=MIB)
    assert other.ask(MIB)
    assert client.receive().seq == 7
    asked = driver.asked
    assert client.ask(MIB)
    assert driver.asked == asked  # it is asked again once it has answered


def test_the_number_of_contexts_has_a_bound(client: Client) -> None:
    client.send(Kind.CONTEXT, a=MAX_CONTEXTS + 1)
    assert client.is_closed()
