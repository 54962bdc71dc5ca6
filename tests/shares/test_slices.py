"""A card that no library guards: the driver gives each process the card for a slice, in turn.

All lengths are times of the card between two events that were queued behind other work, so that they do not depend on when a
program gets a CPU. The expected values are those of a card (H200, driver 580.159).
"""

import struct
from pathlib import Path
from signal import SIGKILL
from typing import Final

import pytest

from tests.fakes.needs import need
from tests.shares.calls import Call, call
from tests.shares.site import Process, Site

MS: Final = 1000  # microseconds
NOT_READY: Final = 600
TOGETHER: Final = 0.907  # part of the card's time that two busy processes use
LOST_MS: Final = 0.2  # two switches between contexts, for one that is interrupted
LEAD_MS, TAIL_MS, MEASURED_MS = 500, 800, 200
STEPS, STEP_MS = 20, 5


@pytest.fixture
def process(site: Site, driver_folder: Path) -> Process:
    return start(site, driver_folder, "a")


def start(site: Site, driver_folder: Path, name: str, *cards: int) -> Process:
    """Start a process that has the driver itself. `cards`: indices of those that it uses, if not the first."""
    need(max(cards, default=0) < len(site.card.uuids), "two cards")
    visible = ",".join(site.card.uuids[card] for card in cards or (0,))
    process = site.container(name).start(
        LD_LIBRARY_PATH=str(driver_folder), NVIDIA_VISIBLE_DEVICES=visible, CUDA_VISIBLE_DEVICES=visible
    )
    assert process.do(*(call("cuEventCreate", event, 0) for event in ("&begin", "&end"))) == [0, 0]
    return process


def queue(process: Process, milliseconds: int, *, kernel_us: int = 0) -> None:
    """Queue work of so many milliseconds between two events, with work before and after it."""
    kernel_us = kernel_us or milliseconds * MS
    calls: list[Call] = [
        ["launch", LEAD_MS * MS],
        call("cuEventRecord", "begin", None),
        ["launch_many", kernel_us, milliseconds * MS // kernel_us],
        call("cuEventRecord", "end", None),
        ["launch", TAIL_MS * MS],
    ]
    assert process.do(*calls) == [0] * len(calls)
    assert process.do(call("cuEventQuery", "begin")) == [NOT_READY], "the program was too slow to be measured"


def measure_ms(process: Process) -> float:
    """Return the time between the two events."""
    measured: list[Call] = [
        call("cuEventSynchronize", "end"),
        call("cuEventElapsedTime", "&ms", "begin", "end"),
        ["value", "ms"],
    ]
    *results, ms = process.do(*measured)
    assert results == [0, 0]
    (length,) = struct.unpack("<f", struct.pack("<I", ms & 0xFFFFFFFF))
    return float(length)


@pytest.mark.parametrize("kernel_us", [MS // 5, MEASURED_MS * MS], ids=["short kernels", "a long kernel"])
def test_two_busy_processes_get_half_each_and_lose_a_tenth(
    site: Site, driver_folder: Path, process: Process, kernel_us: int
) -> None:
    other = start(site, driver_folder, "b")
    queue(process, MEASURED_MS, kernel_us=kernel_us)
    queue(other, MEASURED_MS)
    for each in (process, other):
        assert MEASURED_MS / measure_ms(each) == pytest.approx(TOGETHER / 2, rel=0.03)


def test_a_process_alone_gets_the_card(process: Process) -> None:
    queue(process, MEASURED_MS, kernel_us=5 * MS)
    assert measure_ms(process) == pytest.approx(MEASURED_MS, rel=0.01)


def test_a_process_that_rarely_wants_the_card_costs_the_other_little(site: Site, driver_folder: Path, process: Process) -> None:
    """Check that a short kernel waits for the end of the other process's slice, and not for the end of its kernel."""
    other, answer_ms, pause_s, answers = start(site, driver_folder, "b"), 0.2, 0.02, 0
    queue(process, MEASURED_MS)
    assert process.do(call("cuEventSynchronize", "begin")) == [0]
    while process.do(call("cuEventQuery", "end")) == [NOT_READY]:
        assert other.do(["launch", int(answer_ms * MS)], ["sync"], ["sleep", pause_s]) == [0, 0, None]
        answers += 1
    assert answers
    taken_ms = measure_ms(process) - MEASURED_MS
    assert taken_ms == pytest.approx(answers * (answer_ms + LOST_MS), rel=0.1, abs=0.5)


def test_work_of_a_killed_process_ends_with_it(site: Site, driver_folder: Path, process: Process) -> None:
    other, length_ms = start(site, driver_folder, "b"), 1000
    assert other.call("launch", 60_000 * MS) == 0
    queue(process, length_ms)
    other.send(SIGKILL)
    assert measure_ms(process) < 1.9 * length_ms


@pytest.mark.fake_card("for how long it has worked for a process")
def test_a_context_counts_time_of_others_between_its_events_and_not_as_its_own(
    site: Site, driver_folder: Path, process: Process
) -> None:
    other = start(site, driver_folder, "b")
    queue(process, MEASURED_MS)
    queue(other, MEASURED_MS)
    assert process.call("sync") == 0
    assert measure_ms(process) > 1.9 * MEASURED_MS
    assert process.call("worked_ns") == (LEAD_MS + MEASURED_MS + TAIL_MS) * MS * 1000


def launch_steps(process: Process, name: int, kernel: str = "meet") -> None:
    """Launch steps of a job of two ranks: work, and then a kernel that ends when the other rank's has begun."""
    assert process.call("load", kernel, "meet") is None
    for step in range(STEPS):
        assert process.do(["launch", STEP_MS * MS], ["meet", kernel, name, 2 * (step + 1)]) == [0, 0]


@pytest.mark.fake_card("a counter of several processes")
def test_kernels_on_two_cards_that_wait_for_each_other_share_both_with_another_job(site: Site, driver_folder: Path) -> None:
    ranks = {(job, card): start(site, driver_folder, f"{job}{card}", card) for job in "ab" for card in (0, 1)}
    for process in ranks.values():
        assert process.do(["launch", LEAD_MS * MS], call("cuEventRecord", "begin", None)) == [0, 0]
    for (job, _), process in ranks.items():
        launch_steps(process, ord(job))
    for process in ranks.values():
        assert process.do(call("cuEventRecord", "end", None)) == [0]
    assert max(map(measure_ms, ranks.values())) < 3 * STEPS * STEP_MS * 2


def test_a_kernel_waits_for_one_on_another_card(site: Site, driver_folder: Path) -> None:
    process = start(site, driver_folder, "a", 0, 1)
    other_card: list[Call] = [call("cuDevicePrimaryCtxRetain", "&c", 1), call("cuCtxSetCurrent", "c")]
    assert process.do(["load", "first", "meet"], call("cuMemHostAlloc", "&counter", 4096, 3)) == [None, 0]
    assert process.do(["meet", "first", "counter", 2], ["sleep", 0.2], call("cuStreamQuery", None)) == [0, None, NOT_READY]
    assert process.do(*other_card, ["load", "second", "meet"], ["meet", "second", "counter", 2], ["sync"]) == [0, 0, None, 0, 0]
    assert process.do(["enter"], ["sync"]) == [None, 0]
