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
        self.used = 0
        self.takes_use = 1  # 0: no process works outside a turn
        self.waiters = 0  # so many other containers want the card during each turn
        self._ending = threading.Event()

    def _begin(self) -> None:
        shown = DeviceShare(CARD, request_ppm=500_000, limit_ppm=1_000_000, limit_bytes=LIMIT_MIB * MIB)
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
        if frame.kind is Kind.WANT:
            self.page.show_turn(0, NO_END, self.waiters, neighbours=True, pause=0)
            accepted.send(pack(Frame(Kind.TOKEN, a=NO_END, c=NO_END)))
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
