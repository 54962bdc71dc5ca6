"""A process asks the share server for memory when it has to: what it frees stays its own for a moment."""

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from shares.page import DeviceShare, SharedPage
from shares.policy.model import NO_END
from shares.wire import SIZE, Frame, Kind, pack, unpack
from simnode.child import Block
from tests.fakes.share_rig import BOUND_S, CARD
from tests.shares.calls import Call, call
from tests.shares.site import MIB, SOCKET, Container, Process, Site, eventually
from tests.shares.test_turns import MS

ROUNDS = 1000
LIMIT_MIB = 1000


class CountingServer(Block):
    """Serve one process, allow all that it asks for, and count its frames."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.frames: Counter[Kind] = Counter()
        self.turns: list[Kind] = []  # frames about turns, in their order
        self.outside_ns = 0  # time of the device outside turns, as the process reported it
        self.turn_ns = NO_END  # length of a turn
        self.used = 0
        self.takes_use = 1  # 0: no process works outside a turn
        self.waiters = 0  # so many other containers want the card during each turn
        self._ending = threading.Event()

    def _begin(self) -> None:
        shown = DeviceShare(CARD, request_ppm=1_000_000, limit_ppm=1_000_000, limit_bytes=LIMIT_MIB * MIB)
        self.page = self._ends.enter_context(SharedPage([shown]))
        self._path.unlink(missing_ok=True)
        listening = self._ends.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(str(self._path))
        listening.listen()
        self.page.show_processes(1)
        threads = [threading.Thread(target=work) for work in (lambda: self._serve(listening), self._beat)]
        for thread in threads:
            thread.start()
            self._ends.callback(thread.join, BOUND_S)
        self._ends.callback(lambda: listening.shutdown(socket.SHUT_RDWR))
        self._ends.callback(self._ending.set)

    def _beat(self) -> None:
        while not self._ending.wait(0.1):
            self.page.beat(time.monotonic_ns())

    def _serve(self, listening: socket.socket) -> None:
        self.page.beat(time.monotonic_ns())
        with suppress(OSError):
            accepted, _ = listening.accept()
            with accepted:
                self._ends.callback(lambda: accepted.shutdown(socket.SHUT_RDWR))
                while data := accepted.recv(SIZE, socket.MSG_WAITALL):
                    self._answer(accepted, unpack(data, 1))

    def _answer(self, accepted: socket.socket, frame: Frame) -> None:
        if frame.kind is Kind.HELLO:
            welcome = pack(Frame(Kind.WELCOME, a=time.monotonic_ns(), b=1, c=self.takes_use))
            socket.send_fds(accepted, [welcome], [self.page.fd])
            return
        self.frames[frame.kind] += 1
        if frame.kind in {Kind.WANT, Kind.RELEASE}:
            self.turns.append(frame.kind)
        if frame.kind in {Kind.WANT, Kind.RELEASE, Kind.USE}:
            self.outside_ns += frame.c
        if frame.kind is Kind.WANT:
            until_ns = NO_END if self.turn_ns == NO_END else time.monotonic_ns() + self.turn_ns
            self.page.show_turn(0, until_ns, self.waiters, neighbours=True, pause=0)
            accepted.send(pack(Frame(Kind.TOKEN, a=self.turn_ns, c=until_ns)))
        self.used += {Kind.ADD: frame.a, Kind.SUB: -frame.a}.get(frame.kind, 0)
        self.page.show_used(0, self.used)
        if not frame.b and frame.kind in {Kind.ADD, Kind.CONTEXT}:
            accepted.send(pack(Frame(Kind.VERDICT, seq=frame.seq, a=1)))


@pytest.fixture
def container(site: Site) -> Container:
    container = site.container("a")
    site.server.kill()
    return container


@pytest.fixture
def server(container: Container) -> Iterator[CountingServer]:
    with CountingServer(container.folder / SOCKET) as server:
        yield server


@pytest.fixture
def process(container: Container, server: CountingServer) -> Process:
    process = container.start()
    assert process.call("alloc", "plain", 2 * MIB) == 0
    return process


def test_allocating_and_freeing_again_and_again_needs_few_frames(process: Process, server: CountingServer) -> None:
    before = server.frames.copy()
    assert process.call("allocate_and_free", 4 * MIB, ROUNDS) == 0
    assert process.call("allocate_and_free", MIB, ROUNDS) == 0  # these share blocks
    assert (server.frames - before).total() < ROUNDS / 10


def test_what_is_not_used_again_is_given_back(process: Process, server: CountingServer) -> None:
    assert process.do(["alloc", "plain", 100 * MIB], ["free", 1]) == [0, 0]
    eventually(lambda: server.used == 2 * MIB)


def test_the_reserve_is_a_part_of_what_is_free(process: Process) -> None:
    assert process.do(["alloc", "plain", 100 * MIB], ["free", 1], ["info"])[2] == [(LIMIT_MIB - 2) * MIB, LIMIT_MIB * MIB]


@pytest.mark.parametrize("reason", ["another process", "the limit is near"])
def test_what_others_may_need_is_given_back_at_once(process: Process, server: CountingServer, reason: str) -> None:
    if reason == "another process":
        server.page.show_processes(2)
    else:
        assert process.call("alloc", "plain", (LIMIT_MIB - 10) * MIB) == 0
    before = server.frames[Kind.SUB]
    assert process.call("allocate_and_free", 4 * MIB, 100) == 0
    assert process.do(call("cuCtxCreate_v2", "&c", 0, 0)) == [0]  # it is answered after all frames before it
    assert server.frames[Kind.SUB] - before == 100


def test_the_reserve_goes_back_when_another_process_comes(process: Process, server: CountingServer) -> None:
    assert process.call("allocate_and_free", 100 * MIB, 1) == 0
    server.page.show_processes(2)
    eventually(lambda: server.used == 2 * MIB)


def test_a_reserve_is_there_for_a_context(process: Process, server: CountingServer) -> None:
    assert process.do(["alloc", "plain", 100 * MIB], ["free", 1], call("cuCtxCreate_v2", "&c", 0, 0)) == [0, 0, 0]
    assert server.used == 2 * MIB


SLEEP: Final[Call] = ["sleep", 0.02]
SYNCHRONISE: Final = {
    "cuCtxSynchronize": call("cuCtxSynchronize"),
    "cuStreamSynchronize": call("cuStreamSynchronize", None),
    "cuStreamSynchronize_ptsz": call("cuStreamSynchronize_ptsz", 1),  # the legacy stream
    "cuEventSynchronize": call("cuEventSynchronize", "e"),
}


def start_with_turns(container: Container, server: CountingServer, *, waiters: int) -> Process:
    """Start a process that launches in turns only. `waiters`: number of other containers that want the card."""
    server.takes_use, server.waiters = 0, waiters
    process = container.start()
    assert process.do(call("cuEventCreate", "&e", 0)) == [0]
    return process


@pytest.mark.parametrize("synchronise", SYNCHRONISE.values(), ids=SYNCHRONISE)
def test_a_program_that_pauses_after_synchronisations_gives_its_turn_back_in_them(
    container: Container, server: CountingServer, synchronise: Call
) -> None:
    """The second launch follows the first within the time after which an idle turn is given back anyway."""
    process = start_with_turns(container, server, waiters=1)
    work: list[Call] = [["launch", MS], call("cuEventRecord", "e", None), synchronise]
    process.do(*(3 * [*work, SLEEP]))
    before = len(server.turns)
    assert process.do(*work, ["launch", MS], ["sync"]) == [0] * 5
    assert server.turns[before : before + 3] == [Kind.WANT, Kind.RELEASE, Kind.WANT]


def test_a_program_that_goes_on_after_synchronisations_keeps_its_turn(container: Container, server: CountingServer) -> None:
    process = start_with_turns(container, server, waiters=1)
    cycle: list[Call] = [["launch", MS], ["sync"]]
    assert process.do(*(50 * cycle)) == [0] * 100
    assert server.frames[Kind.WANT] < 25  # a process that is stopped by the system for a while may lose some


def test_a_program_that_pauses_keeps_its_turn_while_no_other_wants_the_card(
    container: Container, server: CountingServer
) -> None:
    process = start_with_turns(container, server, waiters=0)
    cycle: list[Call] = [["launch", MS], ["sync"], SLEEP]
    process.do(*(5 * cycle))
    assert server.turns == [Kind.WANT]


def learn_lengths(process: Process, server: CountingServer, microseconds: int) -> None:
    """Launch kernels within a turn, so that the library knows their length, and wait until the turn is over."""
    assert process.do(["launch_many", microseconds, 2], ["sync"]) == [0, 0]
    eventually(lambda: Kind.RELEASE in server.turns)


@pytest.mark.fake_card("for how long it has worked for a process")
@pytest.mark.parametrize(("microseconds", "late_us"), [(200, 0), (MS, 0), (MS, 550)])
def test_kernels_now_and_then_are_charged_what_the_device_did(
    container: Container, server: CountingServer, microseconds: int, late_us: int
) -> None:
    """Check that neither the pauses between launches count, nor a process that waits for a CPU hides a part of its work."""
    server.turn_ns = 50_000_000
    process = container.start(FAKE_CUDA_RETURN_US=str(late_us))
    learn_lengths(process, server, microseconds)
    before_ns = process.call("worked_ns")
    cycle: list[Call] = [["launch", microseconds], ["sync"], SLEEP]
    process.do(*(50 * cycle))
    worked_ns = process.call("worked_ns") - before_ns
    assert server.frames[Kind.WANT] == 1
    eventually(lambda: server.outside_ns > 0.8 * worked_ns)
    assert server.outside_ns < 1.3 * worked_ns


@pytest.mark.fake_card("for how long it has worked for a process")
def test_tiny_kernels_are_charged_what_the_device_did_and_not_the_time_between_launches(
    site: Site, container: Container, server: CountingServer, driver_folder: Path
) -> None:
    """A launch by this program takes several times as long as a kernel. Another context uses the card now and then."""
    server.turn_ns = 50_000_000
    tiny, other = container.start(), site.container("other").start(LD_LIBRARY_PATH=str(driver_folder))
    learn_lengths(tiny, server, 2)
    other.call("begin", MS, 1)
    for _ in range(20):
        wanted, reported_ns, before_ns = server.frames[Kind.WANT], server.outside_ns, tiny.call("worked_ns")
        began = time.monotonic()
        tiny.call("launch_many", 2, 50_000)
        took_ns, worked_ns = (time.monotonic() - began) * 1e9, tiny.call("worked_ns") - before_ns
        if server.frames[Kind.WANT] == wanted:
            break  # it needed no turn, so that all of its work was reported
    assert worked_ns < 0.5 * took_ns
    assert server.frames[Kind.WANT] == wanted
    eventually(lambda: server.outside_ns - reported_ns > 0.9 * worked_ns)
    assert server.outside_ns - reported_ns < 1.2 * worked_ns


@pytest.mark.fake_card("for how long it has worked for a process")
def test_a_kernel_that_another_context_delayed_past_the_turn_is_charged_for_its_rest(
    site: Site, container: Container, server: CountingServer, driver_folder: Path
) -> None:
    """The kernel takes 20 ms and fits into the turn. Beside another context it takes 40 ms, half of it after the turn."""
    server.turn_ns = 25_000_000
    process, other = container.start(), site.container("other").start(LD_LIBRARY_PATH=str(driver_folder))
    learn_lengths(process, server, 20 * MS)
    server.outside_ns = 0
    other.call("launch", 300 * MS)
    assert process.do(["launch", 20 * MS], ["sync"], ["launch", 20 * MS], ["sync"]) == [0] * 4
    assert 5_000_000 < server.outside_ns < 20_000_000
