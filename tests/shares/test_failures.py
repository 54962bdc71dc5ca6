"""The server or a program is killed, stopped or late: the others go on, and no share is exceeded."""

import socket
import time
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, Signals
from statistics import mean
from typing import Final

import pytest

from lading.vocabulary import GpuUuid
from shares.page import DeviceShare, SharedPage
from shares.wire import SIZE, Frame, Kind, pack
from tests.fakes.share_rig import BOUND_S, POD
from tests.shares.site import MIB, SOCKET, Process, Site, eventually
from tests.shares.test_turns import MS, Load, begin, longest_gaps, measure

SYSTEM_NOT_READY: Final = 802
OUT_OF_MEMORY: Final = 2
NOT_INITIALIZED: Final = 3
LOST_S: Final = 1.5  # time after which a server that does not run is lost
OTHER_POD: Final = "99999999-2222-3333-4444-555555555555"
HALVES: Final = {"a": 0.5, "b": 0.5}


def parts(processes: dict[str, Process], seconds: float) -> dict[str, float]:
    """Return the part of the time for which each keeps the card busy, by its own count."""
    longest_gaps(list(processes.values()))
    time.sleep(seconds)  # the period that is measured
    said = {name: process.call("so_far") for name, process in processes.items()}
    return {name: one["busy_s"] / one["wall_s"] for name, one in said.items()}


# The server


def test_programs_go_on_at_their_requests_while_the_server_is_away(site: Site) -> None:
    processes = begin(site, {"a": Load(50, each=1), "b": Load(30, each=1)})
    site.server.kill()
    time.sleep(0.5)  # work that was running ends: while the server is away, nothing shows that it has
    seconds = [parts(processes, 1) for _ in range(3)]
    for name, request in (("a", 0.5), ("b", 0.3)):
        assert max(away[name] for away in seconds) < request + 0.05
        assert mean(away[name] for away in seconds) > 0.4 * request  # a busy machine gives it less
    site.server.start()
    began = time.monotonic()
    eventually(lambda: all(use.processes for use in site.uses()))
    assert measure(site) == pytest.approx({"a": 0.625, "b": 0.375}, abs=0.08)
    assert sum(site.held().values()) < 1.5 * (time.monotonic() - began)  # nothing of the time before is charged now


def test_a_server_that_hangs_holds_nothing_up(site: Site) -> None:
    processes = begin(site, {"a": Load(50, each=1), "b": Load(50, each=1)})
    longest_gaps(list(processes.values()))
    site.signal_server(SIGSTOP)
    time.sleep(3)  # longer than the longest gap that is allowed
    assert max(longest_gaps(list(processes.values()))) < 2.5  # a second without a beat, and then the fixed share
    away = parts(processes, 1)
    assert all(part > 0.1 for part in away.values())
    site.signal_server(SIGCONT)
    eventually(lambda: all(use.processes == 1 for use in site.uses()))
    assert measure(site) == pytest.approx(HALVES, abs=0.08)


def test_freeing_memory_does_not_wait_for_a_server_that_hangs(site: Site) -> None:
    """Each call that frees tells the server, whose socket holds some hundred frames."""
    process, number = site.container("a").start(), 600
    assert process.do(*[["alloc", "plain", 2 * MIB]] * number) == [0] * number
    site.signal_server(SIGSTOP)
    began = time.monotonic()
    assert process.call("free_all") == 0
    assert time.monotonic() - began < 5
    assert process.do(["alloc", "plain", 600 * MIB], ["alloc", "plain", 1449 * MIB]) == [0, OUT_OF_MEMORY]


def test_processes_of_a_container_share_its_request_while_the_server_is_away(site: Site) -> None:
    container = site.container("a", request=30)
    processes = {str(number): container.start() for number in range(4)}
    for process in processes.values():
        process.call("begin", 5 * MS, 1)
    eventually(lambda: site.use("a").processes == len(processes))
    site.server.kill()
    time.sleep(1)
    assert sum(mean(seconds) for seconds in zip(*(parts(processes, 1).values() for _ in range(3)), strict=True)) < 0.4


def test_a_server_that_ends_before_it_counted_a_process_gives_it_no_memory_twice(site: Site) -> None:
    """The page of a new server shows nothing as used until processes that are back have told what they hold."""
    container = site.container("a", mib=1000)
    process = container.start()
    assert process.call("alloc", "plain", 600 * MIB) == 0
    site.server.kill()
    welcome_one(container.folder / SOCKET, site.card.uuids[0], limit_mib=1000)
    assert process.do(["alloc", "plain", 401 * MIB], ["alloc", "plain", 400 * MIB]) == [OUT_OF_MEMORY, 0]


def welcome_one(path: Path, card: GpuUuid, *, limit_mib: int) -> None:
    """Welcome one process at this socket, as a server does that ends before it has read more."""
    path.unlink(missing_ok=True)
    shown = DeviceShare(card, request_ppm=500_000, limit_ppm=1_000_000, limit_bytes=limit_mib * MIB)
    with socket.socket(socket.AF_UNIX) as listening, SharedPage([shown]) as page:
        listening.bind(str(path))
        listening.listen()
        listening.settimeout(BOUND_S)
        accepted, _ = listening.accept()
        with accepted:
            accepted.recv(SIZE, socket.MSG_WAITALL)
            page.show_processes(1)
            socket.send_fds(accepted, [pack(Frame(Kind.WELCOME, a=time.monotonic_ns(), b=1))], [page.fd])
            accepted.recv(SIZE, socket.MSG_WAITALL)  # a count of the process's memory, which this server ignores
        path.unlink()


def test_a_program_waits_for_a_server_that_comes_late(site: Site) -> None:
    container = site.container("a")
    site.server.kill()
    process = container.start(init=False)
    process.tell(["init"], ["alloc", "plain", MIB])
    time.sleep(0.5)  # the program dials in vain meanwhile, which nothing shows
    site.server.start()
    assert process.told() == [0, 0]


def test_without_a_server_there_is_no_cuda_and_a_program_is_told_why(site: Site) -> None:
    container = site.container("a")
    site.server.kill()
    assert container.start(init=False).call("init") == SYSTEM_NOT_READY  # it is patient for 30 s
    assert "no share server answers" in site.errors.read_text()
    assert "s.sock)" in site.errors.read_text()


def test_a_process_of_another_pod_has_no_cuda_and_is_told_why(site: Site) -> None:
    process = site.container("a").start(init=False)
    site.admit(process.pid, pod=OTHER_POD)
    assert process.call("init") == SYSTEM_NOT_READY
    assert "refused this process: it is not in a cgroup of the grant's pod (s.sock)" in site.errors.read_text()
    (refused,) = (line for line in site.server.log.read_text().splitlines() if "event=share.refused" in line)
    assert POD in refused
    assert OTHER_POD in refused


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_memory_stays_within_the_share_while_the_server_is_away(site: Site, end: str) -> None:
    process = site.container("a", mib=1000).start()
    assert process.call("alloc", "plain", 600 * MIB) == 0
    getattr(site.server, end)()
    assert process.do(["alloc", "plain", 401 * MIB], ["alloc", "plain", 300 * MIB]) == [OUT_OF_MEMORY, 0]
    assert process.do(["alloc", "plain", 101 * MIB], ["free", 1], ["alloc", "create", 400 * MIB]) == [OUT_OF_MEMORY, 0, 0]
    assert process.call("alloc", "plain", 1) == OUT_OF_MEMORY
    site.server.start()
    eventually(lambda: site.use("a").memory_used_mib == 1000)
    assert process.do(["alloc", "plain", 1], ["free_all"], ["alloc", "plain", 1000 * MIB]) == [OUT_OF_MEMORY, 0, 0]


@pytest.mark.parametrize("stop", [SIGSTOP, SIGKILL])
def test_a_request_for_memory_that_is_not_left_waits_for_a_server_that_is_soon_back(site: Site, stop: Signals) -> None:
    container = site.container("a", mib=1000)
    process, _ = container.start(), container.start()
    site.signal_server(stop)
    time.sleep(LOST_S)
    process.tell(["alloc", "plain", 400 * MIB], ["alloc", "plain", 600 * MIB])  # 500 MiB are left to each of the two
    time.sleep(LOST_S)
    if stop is SIGKILL:
        site.server.kill()
        site.server.start()
    else:
        site.signal_server(SIGCONT)
    assert process.told() == [0, 0]


def test_memory_is_freed_at_once_while_a_request_waits_for_the_server(site: Site) -> None:
    process = site.container("a", mib=1000).start()
    assert process.call("alloc", "plain", 600 * MIB) == 0
    site.signal_server(SIGSTOP)
    time.sleep(LOST_S)
    began = time.monotonic()
    assert process.do(["alloc", "async", 600 * MIB], ["free", 0]) == [OUT_OF_MEMORY, 0]
    assert time.monotonic() - began < LOST_S
    site.signal_server(SIGCONT)


@pytest.mark.fake_card("how much it has allocated")
def test_what_programs_hold_counts_before_a_server_that_is_back_gives_more(site: Site) -> None:
    container = site.container("a", mib=1000)
    processes = [container.start() for _ in range(8)]
    for process in processes:
        assert process.call("alloc", "plain", 100 * MIB) == 0
    for _ in range(5):
        site.server.kill()
        site.server.start()
        for process in processes:
            process.tell(["alloc", "plain", 150 * MIB])
        for process in processes:
            process.told()
        assert sum(process.call("counts")[1] for process in processes) <= 1000 * MIB
        for process in processes:
            process.tell(["free_all"], ["alloc", "plain", 100 * MIB])
        for process in processes:
            process.told()
        eventually(lambda: site.use("a").processes == len(processes))


# Programs


def test_a_program_that_is_stopped_with_its_turn_loses_it_and_owes_nothing(site: Site) -> None:
    processes = begin(site, {"a": Load(50, each=1), "b": Load(50, each=1)})
    eventually(lambda: site.use("a").has_turn)
    processes["a"].send(SIGSTOP)
    time.sleep(1)  # it loses its turn, and the work that was running ends
    assert measure(site)["b"] > 0.9
    assert processes["b"].call("so_far")["longest_s"] < 2
    processes["a"].send(SIGCONT)
    time.sleep(1)  # both have turns again before they are measured
    assert measure(site) == pytest.approx(HALVES, abs=0.08)


def test_a_child_of_a_process_whose_threads_wait_is_answered(site: Site) -> None:
    a, b = site.container("a").start(), site.container("b").start()
    b.call("begin", 100 * MS, 1)
    a.call("begin", MS, 1)
    eventually(lambda: site.use("b").waiters == 1)
    site.admit(a.call("fork"))
    a.tell(["in_child", ["init"], ["alloc", "plain", MIB], ["launch", MS], ["sync"], ["launch", MS], ["sync"]])
    assert a.told() == [[NOT_INITIALIZED] * 6]  # the driver does not let it use the card
