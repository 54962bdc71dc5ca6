"""Measure what each container gets of the card, with real processes: shares are compared with one another."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import pytest

from tests.fakes.needs import need
from tests.shares.calls import Call, call
from tests.shares.site import MIB, Container, Process, Site, eventually

MEASURED_S = 3.0
MS = 1000  # microseconds
TURN_S = 0.05
_NICE = -15  # nice value of sched(7): a process gets thirty times the CPU time of one with the default 0


@pytest.fixture(scope="module", autouse=True)
def first_on_the_cpu() -> Iterator[None]:
    """Give the processes of a test the CPU before other processes of the machine, if the kernel permits it.

    A program that waits for a CPU does not request its next turn on the card, so it would get less than its share.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    yield
    os.setpriority(os.PRIO_PROCESS, 0, before)


class Load(NamedTuple):
    request: int
    kernel_us: int = 5 * MS
    each: int = 8  # kernels between two synchronisations; 0: never
    limit: int = 100


def begin(site: Site, loads: Mapping[str, Load]) -> dict[str, Process]:
    """Start a busy process in a container of each, and let all of them have had a turn."""
    processes = {name: site.container(name, request=load.request, limit=load.limit).start() for name, load in loads.items()}
    for name, process in processes.items():
        process.call("begin", loads[name].kernel_us, loads[name].each)
    eventually(lambda: all(held > 0 for held in site.held().values()))
    return processes


def measure(site: Site, seconds: float = MEASURED_S) -> dict[str, float]:
    """Return each container's part of the time for which any had the card."""
    before = site.held()
    time.sleep(seconds)  # the period that is measured
    held = {name: after - before[name] for name, after in site.held().items()}
    return {name: one / sum(held.values()) for name, one in held.items()}


def longest_gaps(processes: Sequence[Process]) -> list[float]:
    return [process.call("so_far")["longest_s"] for process in processes]


@pytest.mark.parametrize(
    "loads",
    [
        {"a": Load(50), "b": Load(30), "c": Load(20)},
        {"a": Load(50, each=0), "b": Load(30, each=0), "c": Load(20, each=0)},
        {"a": Load(50, 1 * MS, 1), "b": Load(30, 20 * MS, 1), "c": Load(20, 100 * MS, 1)},
        {"a": Load(50, each=0), "b": Load(50, each=1)},
    ],
    ids=[
        "kernels of 5 ms",
        "that never synchronise",
        "of 1, 20 and 100 ms",
        "one that never synchronises beside one that does",
    ],
)
def test_requests_are_kept(site: Site, loads: Mapping[str, Load]) -> None:
    begin(site, loads)
    expected = {name: load.request / 100 for name, load in loads.items()}
    assert measure(site) == pytest.approx(expected, abs=0.06 if len({load.kernel_us for load in loads.values()}) == 1 else 0.1)


@pytest.mark.fake_card("for how long it has worked for a process")
@pytest.mark.parametrize(("threads", "longest_us", "longest_gap_us"), [(1, 6 * MS, 12 * MS), (3, 2 * MS, 4 * MS), (3, 200, MS)])
def test_what_the_card_did_for_a_container_is_counted(site: Site, threads: int, longest_us: int, longest_gap_us: int) -> None:
    """Launch kernels at random moments, in turns and outside; the library does not know the lengths of most of them."""
    random, other = site.container("a").start(), site.container("b").start()
    other.call("begin", 5 * MS, 1)
    eventually(lambda: site.held().get("b", 0) > 0)
    assert random.do(["pulse", threads, 300 // threads, longest_us, longest_gap_us], ["sync"]) == [0, 0]
    worked_s = random.call("worked_ns") / 1e9
    assert worked_s > 0
    eventually(lambda: site.held()["a"] >= 0.8 * worked_s)


def test_eight_equal_containers(site: Site) -> None:
    names = [f"c{number}" for number in range(8)]
    begin(site, {name: Load(12) for name in names})
    assert measure(site, 2 * MEASURED_S) == pytest.approx(dict.fromkeys(names, 1 / 8), abs=0.03)


def test_what_one_leaves_the_other_gets(site: Site) -> None:
    begin(site, {"a": Load(60), "b": Load(20)})
    shares = measure(site)
    assert shares == pytest.approx({"a": 0.75, "b": 0.25}, abs=0.06)


def test_a_limit_holds_while_the_card_is_free(site: Site) -> None:
    begin(site, {"a": Load(30, limit=30)})
    before, began = site.held()["a"], time.monotonic()
    time.sleep(MEASURED_S)  # the period that is measured
    held, passed = site.held()["a"] - before, time.monotonic() - began
    assert held / passed <= 0.36
    assert held / passed >= 0.15  # a busy machine gives it less


def test_one_that_comes_late_gets_its_share_and_the_other_does_not_starve(site: Site) -> None:
    a = site.container("a").start()
    a.call("begin", 5 * MS, 1)
    time.sleep(2)  # it has had the card alone for many turns
    a.call("so_far")
    b = site.container("b").start()
    b.call("begin", 5 * MS, 1)
    assert measure(site) == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.25)  # the container is there before its process is
    assert measure(site) == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.06)
    assert max(longest_gaps([a, b])) < 20 * TURN_S


def test_processes_of_one_container_share_its_turns(site: Site) -> None:
    both, other = site.container("a"), site.container("b")
    processes = [both.start(), both.start(), other.start()]
    for process in processes:
        process.call("begin", 5 * MS, 1)
    eventually(lambda: all(held > 0 for held in site.held().values()))
    assert measure(site) == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.06)
    first, second, _ = [process.call("end")["busy_s"] for process in processes]
    assert min(first, second) > 0.25 * max(first, second)


def test_launches_that_are_captured_take_no_turn_and_break_no_capture(site: Site) -> None:
    process = site.container("a").start()
    assert process.call("begin_capture") == 0
    assert process.do(*[["launch", 20 * MS, True]] * 10) == [0] * 10
    time.sleep(0.2)  # a thread of the library that looked at the device would have done so by now
    assert not site.use("a").has_turn
    assert site.held() == {"a": 0}
    assert process.call("launch", 5 * MS) == 0  # beside the capture, on another stream
    assert process.do(["end_capture"], ["launch_graph"], ["sync"]) == [0, 0, 0]
    if site.card.is_fake:
        assert process.call("counts")[0] == 2
    assert site.held()["a"] >= 0.2


def test_a_kernel_that_outlasts_its_turn_is_charged_in_full(site: Site) -> None:
    a, b = site.container("a").start(), site.container("b").start()
    b.call("begin", 5 * MS, 1)
    eventually(lambda: site.held()["b"] > 0)
    kernel_s = 1.5
    assert a.do(["launch", int(kernel_s * 1e6)], ["sync"]) == [0, 0]
    eventually(lambda: site.held()["a"] >= kernel_s - TURN_S)


def test_memory_and_turns_of_one_process_do_not_wait_for_each_other(site: Site) -> None:
    process = site.container("a", mib=100).start()
    other = site.container("b").start()
    for one in (process, other):
        one.call("begin", 5 * MS, 0)
    for _ in range(20):
        assert process.do(["alloc", "plain", 100 * MIB], ["free", 0]) == [0, 0]
    eventually(lambda: all(held > 0 for held in site.held().values()))


@pytest.mark.fake_card("a counter of several processes")
def test_two_jobs_of_two_ranks_on_the_same_two_cards_do_not_wait_for_each_others_turns(site: Site) -> None:
    """Check that a circle ends with a turn: each rank waits on its card for the job's other rank, which may wait for a turn."""
    need(len(site.card.uuids) > 1, "two cards")
    steps, step_us = 20, 5 * MS
    jobs = {name: site.container(name, other_mib=100) for name in "ab"}
    ranks = {name: [start_on(site, job, card) for card in (0, 1)] for name, job in jobs.items()}
    began = time.monotonic()
    for name, processes in ranks.items():
        batch = [one for step in range(steps) for one in (["launch", step_us], ["meet", "meet", ord(name), 2 * (step + 1)])]
        for process in processes:
            process.tell(*batch, ["sync"])
    assert [result for processes in ranks.values() for process in processes for result in process.told() if result] == []
    at_best_s = 2 * steps * step_us / 1e6
    assert (
        time.monotonic() - began < 10 * at_best_s
    )  # on a busy machine; with turns that do not end by the clock 35 times as long


def start_on(site: Site, container: Container, card: int) -> Process:
    """Start a process that works on this card of the container."""
    process = site.start(container.folder, site.card.show(2))
    context: list[Call] = [["init"], call("cuDevicePrimaryCtxRetain", "&c", card), call("cuCtxSetCurrent", "c")]
    assert process.do(*context, ["load", "kernel"], ["load", "meet", "meet"]) == [0, 0, 0, None, None]
    return process
