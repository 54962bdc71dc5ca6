"""The server as clients see it: real sockets, a made /proc, and grants in a folder."""

import contextlib
import errno
import mmap
import os
import resource
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lading.log import Event
from lading.sockets import Peer
from lading.vocabulary import PodUid
from shares import card as card_module
from shares import peer
from shares import server as server_module
from shares.card import MAX_ESTIMATE_NS
from shares.memory import MAX_BYTES
from shares.page import SharedPage
from shares.policy.model import MS
from shares.server import MAX_POSTPONED, MAX_PROCESSES
from shares.wire import MAX_NS, Frame, Kind, WireRefusal, pack
from tests.fakes.share_rig import CARD, MIB, OTHER_CARD, POD, Client, ShareRig, ShareServer, eventually, share, shared

OTHER_POD = "99999999-2222-3333-4444-555555555555"
SELECT_DESCRIPTORS = 1024  # FD_SETSIZE of select(2)


def served(rig: ShareRig, server: ShareServer) -> Path:
    """Grant a share while the server runs. Return its socket once the server listens there."""
    path = rig.grant(share())
    eventually(server.usage)
    return path


def write_anew(descriptor: int) -> None:
    """Write into a file by a descriptor that is opened for it."""
    reopened = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
    try:
        os.write(reopened, b"x")
    finally:
        os.close(reopened)


def refusals(server: ShareServer) -> list[dict[str, str]]:
    return [fields for event, fields in server.records.seen if event is Event.SHARE_REFUSED]


# Processes that may connect


def test_a_process_of_the_pod_is_welcomed_with_the_page_of_its_shares(rig: ShareRig) -> None:
    path = rig.grant(share("train", shared(mib=2048, request=30, limit=60), shared(OTHER_CARD, mib=512, request=0)))
    rig.serve()
    client = rig.dial(path)
    welcome = client.greet()
    assert (welcome.kind, welcome.b) == (Kind.WELCOME, 2)
    assert client.shown(0)[:] == (0, 0, 300_000, 600_000, 2048 * MIB, 0, 0, 0)
    assert client.shown(1)[:] == (0, 0, 0, 1_000_000, 512 * MIB, 0, 0, 0)


def test_a_process_of_another_pod_is_refused_and_logged_with_both_pods(rig: ShareRig) -> None:
    path = rig.grant(share())
    server = rig.serve()
    rig.say_pod(OTHER_POD)
    client = rig.dial(path)
    assert client.receive() == Frame(Kind.REFUSED, a=WireRefusal.OTHER_POD)
    assert client.is_closed()
    (fields,) = refusals(server)
    assert fields["pod_uid"] == POD
    assert server.shares.refused == 1
    rig.say_pod(POD)
    rig.join(path)


@pytest.mark.parametrize("pod", ["", None])
def test_a_process_of_no_pod_or_one_that_cannot_be_read_is_refused(rig: ShareRig, pod: str | None) -> None:
    path = rig.grant(share())
    rig.serve()
    if pod is None:
        (rig.host_root / "proc" / str(os.getpid()) / "cgroup").unlink()
    else:
        rig.say_pod(pod)
    assert rig.dial(path).receive() == Frame(Kind.REFUSED, a=WireRefusal.OTHER_POD)


@pytest.mark.parametrize(("number", "is_ended"), [(errno.EINVAL, True), (errno.ESRCH, True), (errno.ENOPROTOOPT, False)])
def test_a_process_that_ended_and_was_waited_for_is_refused(
    rig: ShareRig, monkeypatch: pytest.MonkeyPatch, number: int, is_ended: bool
) -> None:
    """Linux has no pidfd for such a peer: EINVAL from 6.5 on, and ESRCH in later versions (pidfd_prepare). Its ID may be
    another process's. Before 6.5 there is no such option."""

    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    a, b = socket.socketpair()
    with a, b:
        monkeypatch.setattr(peer, "open_peer", refuse)
        stranger = peer.find_stranger(a, PodUid(POD), rig.host_root)
    assert stranger == (f"process {os.getpid()}, which ended" if is_ended else "")


def test_one_process_too_many_is_refused_until_another_ends(rig: ShareRig) -> None:
    path = rig.grant(share())
    server = rig.serve()
    clients = [rig.join(path) for _ in range(MAX_PROCESSES)]
    assert rig.dial(path).receive() == Frame(Kind.REFUSED, a=WireRefusal.TOO_MANY)
    assert len(server.usage()[0].process_ids) == MAX_PROCESSES
    clients[0].close()
    eventually(lambda: len(server.usage()[0].process_ids) < MAX_PROCESSES)
    rig.join(path)


def test_every_user_of_the_container_may_connect(rig: ShareRig) -> None:
    path = rig.grant(share())
    rig.serve()
    assert stat.S_IMODE(path.stat().st_mode) == 0o666


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Have this process use the first 1,024 descriptors, which are all that select(2) can take."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2 * SELECT_DESCRIPTORS), limits[1]))
    with contextlib.ExitStack() as ends:
        descriptor = os.open(os.devnull, os.O_RDONLY)
        ends.callback(os.close, descriptor)
        while descriptor < SELECT_DESCRIPTORS:
            descriptor = os.dup(descriptor)
            ends.callback(os.close, descriptor)
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_process_may_connect_to_a_server_with_thousands_of_descriptors(rig: ShareRig, many_descriptors: None) -> None:
    path = rig.grant(share())
    rig.serve()
    client = rig.join(path)
    assert client.socket.fileno() > SELECT_DESCRIPTORS
    assert client.ask(MIB)


# Frames


@pytest.mark.parametrize("cut", range(1, 32))
def test_a_frame_may_come_in_two_parts(rig: ShareRig, server: ShareServer, cut: int) -> None:
    client = rig.dial(served(rig, server))
    hello = pack(Frame(Kind.HELLO, a=1))
    client.socket.sendall(hello[:cut])
    server.usage()  # the loop went round
    client.socket.sendall(hello[cut:])
    assert client.receive().kind is Kind.WELCOME


def test_a_connection_that_ends_within_a_frame_harms_no_other(rig: ShareRig, server: ShareServer) -> None:
    path = served(rig, server)
    other = rig.join(path)
    for cut in range(1, 32):
        with rig.join(path) as client:
            client.socket.sendall(pack(Frame(Kind.ADD, a=MIB))[:cut])
    eventually(lambda: len(server.usage()[0].process_ids) == 1)
    assert other.ask(MIB)
    assert server.usage()[0].used_bytes == MIB


_RAW = {
    "a version of tomorrow": b"\x02" + pack(Frame(Kind.ADD))[1:],
    "an unknown type": b"\x01\x63" + bytes(30),
    "a type that only the server sends": pack(Frame(Kind.TOKEN)),
    "2^63 bytes": pack(Frame(Kind.ADD))[:8] + (2**63).to_bytes(8, "little") + bytes(16),
    "less than nothing": pack(Frame(Kind.SUB, a=-1)),
    "a device beyond the grant": pack(Frame(Kind.ADD, device=1)),
    "a second HELLO": pack(Frame(Kind.HELLO)),
    "2^62 bytes that are held": pack(Frame(Kind.ADD, a=2**62, b=1)) * 2,
    "more bytes in all than a machine has": pack(Frame(Kind.ADD, a=MAX_BYTES, b=1)) * 2,
    "2^62 bytes freed": pack(Frame(Kind.SUB, a=2**62)),
    "an estimate of a century": pack(Frame(Kind.WANT, a=MAX_NS + 1)),
    "a century after the turn": pack(Frame(Kind.WANT, c=MAX_NS + 1)),
    "a release a century after the turn": pack(Frame(Kind.RELEASE, c=MAX_NS + 1)),
    "memory that is held for the second time": pack(Frame(Kind.ADD, b=2)),
}


@pytest.mark.parametrize("raw", _RAW.values(), ids=_RAW)
def test_a_frame_that_cannot_be_read_closes_its_connection_alone(rig: ShareRig, server: ShareServer, raw: bytes) -> None:
    path = served(rig, server)
    other, client = rig.join(path), rig.join(path)
    client.socket.sendall(raw)
    assert client.is_closed()
    assert server.shares.refused == 1
    assert [fields["container"] for fields in refusals(server)] == ["train"]
    assert other.ask(MIB)
    assert server.usage()[0].used_bytes == MIB


@pytest.mark.parametrize("frame", [Frame(Kind.HELLO, a=2**31, c=1), Frame(Kind.HELLO, a=1, c=2)])
def test_a_greeting_with_a_number_beyond_its_bound_closes_the_connection(
    rig: ShareRig, server: ShareServer, frame: Frame
) -> None:
    client = rig.dial(served(rig, server))
    client.socket.sendall(pack(frame))
    assert client.is_closed()
    assert len(refusals(server)) == 1


def test_a_frame_before_the_greeting_closes_the_connection(rig: ShareRig, server: ShareServer) -> None:
    client = rig.dial(served(rig, server))
    client.send(Kind.WANT)
    assert client.is_closed()


def test_a_client_that_does_not_read_is_disconnected(rig: ShareRig, server: ShareServer) -> None:
    path = served(rig, server)
    client, other = rig.join(path), rig.join(path)
    asks = pack(Frame(Kind.ADD, a=0)) * 512
    with contextlib.suppress(ConnectionError):
        for _ in range(200):
            client.socket.sendall(asks)
    eventually(lambda: len(server.usage()[0].process_ids) == 1)
    assert other.ask(MIB)


# The page


def test_a_page_without_free_descriptors_takes_none() -> None:
    """The page needs two descriptors, and one is free. The server tries again each 100 ms."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            SharedPage([])
        assert os.dup(0) == free
    finally:
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_the_page_cannot_be_written_by_a_client(rig: ShareRig, server: ShareServer) -> None:
    path = served(rig, server)
    client = rig.join(path)
    with pytest.raises(PermissionError):
        os.ftruncate(client.page_fd, 0)
    with pytest.raises(PermissionError):
        write_anew(client.page_fd)
    with pytest.raises(PermissionError):
        mmap.mmap(client.page_fd, 4096)
    assert client.ask(3 * MIB)
    assert client.shown().used_bytes == 3 * MIB  # the server still writes


def test_the_page_shows_a_beat(rig: ShareRig, server: ShareServer) -> None:
    client = rig.join(served(rig, server))
    first = client.beat_ns()
    assert first
    eventually(lambda: client.beat_ns() > first)


def test_the_page_of_a_server_that_is_gone_stays_readable(rig: ShareRig) -> None:
    path = rig.grant(share())
    first = rig.serve()
    client = rig.join(path)
    assert client.ask(700 * MIB)
    first.end()
    assert client.is_closed()
    assert client.shown().used_bytes == 700 * MIB
    rig.serve()
    again = rig.join(path)
    assert again.ask(700 * MIB, held=True)
    assert again.shown().used_bytes == 700 * MIB
    assert not again.ask(2048 * MIB - 700 * MIB + 1)


# Memory


def test_no_byte_beyond_the_share_is_allowed(rig: ShareRig, server: ShareServer) -> None:
    path = served(rig, server)
    a, b = rig.join(path), rig.join(path)
    assert a.ask(1500 * MIB, seq=7)
    assert not b.ask(548 * MIB + 1)
    assert b.ask(548 * MIB)
    assert not a.ask(1)
    a.send(Kind.SUB, a=100 * MIB)
    a.settle()
    assert b.ask(100 * MIB)
    assert b.shown().used_bytes == server.usage()[0].used_bytes == 2048 * MIB


def test_a_refused_amount_does_not_count(rig: ShareRig, server: ShareServer) -> None:
    client = rig.join(served(rig, server))
    assert not client.ask(2**63 - 1)
    assert client.ask(2048 * MIB)


def test_memory_that_is_held_already_counts_in_any_case(rig: ShareRig, server: ShareServer) -> None:
    client = rig.join(served(rig, server))
    assert client.ask(3000 * MIB, held=True)
    assert not client.ask(1)
    client.send(Kind.SUB, a=1000 * MIB)
    assert client.ask(48 * MIB)


def test_where_the_driver_limits_memory_it_is_counted_and_not_refused(rig: ShareRig) -> None:
    server = rig.serve()
    path = rig.grant(share("a", shared(mib=100, driver_limits=True), shared(OTHER_CARD, mib=100)))
    eventually(server.usage)
    client = rig.join(path)
    assert [client.shown(device).informs for device in range(2)] == [1, 0]
    assert client.ask(150 * MIB)
    assert not client.ask(150 * MIB, device=1)
    assert client.shown().used_bytes == 150 * MIB
    assert client.shown().limit_bytes == 100 * MIB  # is told


def test_where_the_driver_limits_memory_no_more_is_counted_than_a_machine_has(rig: ShareRig) -> None:
    server = rig.serve()
    path = rig.grant(share("a", shared(mib=100, driver_limits=True)))
    eventually(server.usage)
    client = rig.join(path)
    assert client.ask(MAX_BYTES)
    assert not client.ask(1)
    assert not client.ask(2**63 - 1)
    client.send(Kind.SUB, a=MAX_BYTES)
    assert client.ask(MIB)
    assert client.shown().used_bytes == MIB


def test_containers_of_one_pod_keep_to_their_own_shares_within_its_limit(rig: ShareRig) -> None:
    server = rig.serve()
    path = rig.grant(share("a", shared(mib=100, driver_limits=True)))
    rig.grant(share("c", shared(mib=100, driver_limits=True), pod="99999999-2222-3333-4444-555555555555"))
    eventually(lambda: len(server.usage()) == 2)
    client = rig.join(path)
    assert client.shown().informs == 1
    second = rig.grant(share("b", shared(mib=100, driver_limits=True)))
    eventually(lambda: client.shown().informs == 0)
    assert not client.ask(101 * MIB)
    shutil.rmtree(second.parent)
    eventually(lambda: client.shown().informs == 1)


def test_memory_that_one_process_freed_is_allowed_to_another_at_once(rig: ShareRig, server: ShareServer) -> None:
    """The server reads the frames of two processes in another order than they were sent in."""
    path = served(rig, server)
    first, second = rig.join(path), rig.join(path)
    assert second.ask(2048 * MIB)
    server.stall(0.2)
    for _ in range(4):
        second.send(Kind.SUB, a=512 * MIB)
    assert first.ask(2048 * MIB)


def test_a_refusal_waits_for_frames_of_other_processes_for_a_bounded_time(
    rig: ShareRig, server: ShareServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = served(rig, server)
    first, second = rig.join(path), rig.join(path)
    assert second.ask(2048 * MIB)
    monkeypatch.setattr(server_module._Process, "count_waiting", lambda _: 1)
    assert not first.ask(1)


def test_a_process_cannot_give_back_what_another_holds(rig: ShareRig, server: ShareServer) -> None:
    path = served(rig, server)
    a, b = rig.join(path), rig.join(path)
    assert a.ask(2000 * MIB)
    b.send(Kind.SUB, a=2000 * MIB)
    assert not b.ask(49 * MIB)


def test_what_a_process_held_is_free_when_its_connection_ends(rig: ShareRig, server: ShareServer) -> None:
    path = served(rig, server)
    a, b = rig.join(path), rig.join(path)
    assert a.ask(2048 * MIB)
    a.close()
    eventually(lambda: b.shown().used_bytes == 0)
    assert b.ask(2048 * MIB)


def test_each_card_has_an_amount_of_its_own(rig: ShareRig) -> None:
    path = rig.grant(share("train", shared(mib=100), shared(OTHER_CARD, mib=200)))
    server = rig.serve()
    client = rig.join(path)
    assert client.ask(100 * MIB)
    assert not client.ask(1)
    assert client.ask(200 * MIB, device=1)
    assert [(use.uuid, use.used_bytes) for use in server.usage()] == [(CARD, 100 * MIB), (OTHER_CARD, 200 * MIB)]


class Living:
    """Two processes that run, and of which the next clients are."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.both = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
        self._next: list[int] = []
        patch.setattr(server_module, "peer_credentials", lambda _: Peer(pid=self._next.pop(0), uid=0, gid=0))
        patch.setattr(server_module, "find_stranger", lambda *_: "")

    def join(self, rig: ShareRig, path: Path, number: int) -> Client:
        self._next.append(self.both[number].pid)
        return rig.join(path)

    def end(self, number: int) -> None:
        self.both[number].kill()
        self.both[number].wait()


@pytest.fixture
def living(monkeypatch: pytest.MonkeyPatch) -> Iterator[Living]:
    living = Living(monkeypatch)
    yield living
    for number in range(2):
        living.end(number)


def used(server: ShareServer) -> list[int]:
    return [one.used_bytes // MIB for one in server.usage()]


def test_what_a_process_holds_counts_while_it_has_no_connection(rig: ShareRig, living: Living) -> None:
    server = rig.serve(lives=True)
    path = rig.grant(share("a", shared(mib=100), shared(OTHER_CARD, mib=100)))
    eventually(server.usage)
    lost, other = (living.join(rig, path, number) for number in range(2))
    assert lost.ask(60 * MIB)
    assert lost.ask(10 * MIB, device=1)
    lost.close()
    eventually(lambda: len(server.usage()[0].process_ids) == 1)
    assert used(server) == [60, 10]
    other.send(Kind.ADD, seq=7, a=50 * MIB)  # is answered when the one that is lost has said what it holds
    back = living.join(rig, path, 0)
    assert back.ask(30 * MIB, held=True)
    assert used(server)[1] == 10
    assert back.ask(0, held=True, device=1)
    verdict = other.receive()
    assert (verdict.kind, verdict.seq, verdict.a) == (Kind.VERDICT, 7, 1)
    assert used(server) == [80, 0]


def lose_process(rig: ShareRig, living: Living) -> tuple[ShareServer, Path]:
    """Have a process hold 60 MiB and lose its connection. Return the server, and the path of the container's socket."""
    server = rig.serve(lives=True)
    path = rig.grant(share("a", shared(mib=100)))
    eventually(server.usage)
    lost = living.join(rig, path, 0)
    assert lost.ask(60 * MIB)
    lost.close()
    eventually(lambda: not server.usage()[0].process_ids)
    return server, path


def test_what_a_process_held_is_free_when_it_has_ended(rig: ShareRig, living: Living) -> None:
    server, _ = lose_process(rig, living)
    assert used(server) == [60]
    living.end(0)
    eventually(lambda: used(server) == [0])


def test_a_process_that_is_back_and_says_nothing_of_its_memory_has_none(rig: ShareRig, living: Living) -> None:
    server, path = lose_process(rig, living)
    living.join(rig, path, 0).want()
    eventually(lambda: used(server) == [0])


def test_a_process_that_stays_away_is_waited_for_for_a_bounded_time(
    rig: ShareRig, living: Living, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "LOST_NS", 100 * MS)
    server = rig.serve(lives=True)
    path = rig.grant(share("a", shared(mib=100)))
    eventually(server.usage)
    lost, other = (living.join(rig, path, number) for number in range(2))
    assert lost.ask(60 * MIB)
    lost.close()
    eventually(lambda: len(server.usage()[0].process_ids) == 1)
    assert not other.ask(50 * MIB)
    assert other.ask(40 * MIB)


def test_processes_that_are_waited_for_are_bounded(rig: ShareRig, living: Living) -> None:
    server = rig.serve(lives=True)
    path = rig.grant(share("a"))
    eventually(server.usage)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(2 * MAX_PROCESSES):
        living.join(rig, path, 0).close()
        eventually(lambda: not server.usage()[0].process_ids)
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors + MAX_PROCESSES


def test_what_is_asked_during_a_stall_waits_for_processes_that_may_come_back(rig: ShareRig, server: ShareServer) -> None:
    path = rig.grant(share("a"))
    eventually(server.usage)
    client = rig.join(path)
    assert client.ask(MIB)
    server.stall(0.8)
    began_ns = time.monotonic_ns()
    client.send(Kind.ADD, seq=8, a=MIB)  # is read before the next beat
    assert client.receive().a == 1
    assert time.monotonic_ns() - began_ns > server_module.SETTLE_NS


def test_a_server_that_is_back_first_hears_what_is_held(rig: ShareRig) -> None:
    path = rig.grant(share("train", shared(mib=1000)))
    rig.serve().end()
    server = rig.serve()
    early = rig.join(path)
    early.send(Kind.ADD, seq=1, a=500 * MIB)
    late = rig.join(path)
    assert late.ask(600 * MIB, held=True)
    assert early.receive()[:4] == (Kind.VERDICT, 0, 1, 0)
    assert server.usage()[0].used_bytes == 600 * MIB


def test_requests_that_wait_for_that_are_bounded(rig: ShareRig) -> None:
    path = rig.grant(share())
    rig.serve().end()
    server = rig.serve()
    client = rig.join(path)
    client.socket.sendall(pack(Frame(Kind.ADD, a=1)) * (MAX_POSTPONED + 1))
    assert client.is_closed()
    assert server.shares.refused == 1


# Turns


def test_two_containers_take_turns(rig: ShareRig) -> None:
    first, second = rig.grant(share("a")), rig.grant(share("b"))
    server = rig.serve()
    a, b = rig.join(first), rig.join(second)
    a.want()
    assert a.receive().kind is Kind.TOKEN
    assert {use.grant.container: use.has_turn for use in server.usage()} == {"a": True, "b": False}
    b.want()
    token = b.receive()  # the turn of a ends by the clock; alone it had no end
    assert token.kind is Kind.TOKEN
    assert b.shown().until_ns == token.c
    assert 0 < a.shown().until_ns < time.monotonic_ns()
    a.want()
    assert a.receive().kind is Kind.TOKEN


def test_a_guest_is_shown_to_others_and_pauses_them(rig: ShareRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_module, "PAUSE_NS", 60_000 * MS)
    first, second = rig.grant(share("a")), rig.grant(share("b"))
    server = rig.serve()
    a, b = rig.join(first), rig.join(second)
    a.want()
    assert a.receive().kind is Kind.TOKEN
    assert not a.has_neighbours()
    b.send(Kind.USE, a=1)
    eventually(lambda: a.shown().pause)
    assert a.has_neighbours()
    b.send(Kind.USE, c=7 * MS)
    eventually(lambda: not a.shown().pause)
    assert {use.grant.container: use.held_ns for use in server.usage()}["b"] == 7 * MS


def test_the_turn_of_a_process_that_ends_goes_to_the_next(rig: ShareRig) -> None:
    first, second = rig.grant(share("a")), rig.grant(share("b"))
    rig.serve()
    a, b = rig.join(first), rig.join(second)
    a.want()
    assert a.receive().kind is Kind.TOKEN
    b.want()
    a.close()
    assert b.receive().kind is Kind.TOKEN


def test_a_process_that_declares_a_long_burst_and_sends_nothing_loses_its_turn(rig: ShareRig) -> None:
    first, second = rig.grant(share("a")), rig.grant(share("b"))
    rig.serve()
    a, b = rig.join(first), rig.join(second)
    a.send(Kind.WANT, a=60_000 * MS)
    assert a.receive().kind is Kind.TOKEN
    began_ns = time.monotonic_ns()
    b.want()
    assert b.receive().kind is Kind.TOKEN
    assert time.monotonic_ns() - began_ns < 2 * MAX_ESTIMATE_NS


# Grants


def test_grants_come_and_go_while_it_runs(rig: ShareRig, server: ShareServer) -> None:
    assert server.usage() == []
    path = rig.grant(share("late"))
    eventually(server.usage)
    client = rig.join(path)
    (path.parent / "grant.json").unlink()
    assert client.is_closed()
    eventually(lambda: server.usage() == [])
    with pytest.raises(ConnectionRefusedError):
        rig.dial(path)


def test_a_grant_that_changes_is_served_anew(rig: ShareRig, server: ShareServer) -> None:
    path = served(rig, server)
    client = rig.join(path)
    rig.grant(share("train", shared(mib=100)))
    assert client.is_closed()
    eventually(lambda: [use.limit_bytes for use in server.usage()] == [100 * MIB])
    assert not rig.join(path).ask(101 * MIB)


def test_a_grant_that_cannot_be_used_harms_no_other(rig: ShareRig) -> None:
    good = rig.grant(share("good"))
    bad = rig.grant(share("bad"))
    (bad.parent / "grant.json").write_text('{"v":2}')
    server = rig.serve()
    rig.join(good)
    assert not bad.exists()
    assert len(refusals(server)) == 1


def test_a_container_that_cannot_be_served_is_tried_again_and_logged_once(rig: ShareRig) -> None:
    path = rig.grant(share())
    path.mkdir()  # where the socket has to be
    server = rig.serve()
    rig.grant(share("other"))  # is served at a later look
    eventually(server.usage)
    path.rmdir()
    eventually(lambda: len(server.usage()) == 2)
    assert len(refusals(server)) == 1
    rig.join(path)


def test_a_folder_that_cannot_be_read_is_a_problem_until_it_can(rig: ShareRig, server: ShareServer) -> None:
    rig.folder.rmdir()
    rig.folder.write_text("")
    eventually(lambda: "cannot read" in server.shares.problem)
    rig.folder.unlink()
    rig.folder.mkdir()
    eventually(lambda: not server.shares.problem)


def test_the_socket_of_a_server_before_is_replaced(rig: ShareRig) -> None:
    path = rig.grant(share())
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    rig.serve()
    rig.join(path)


def test_a_process_that_only_asks_is_shown_the_page_and_gets_nothing(rig: ShareRig) -> None:
    path = rig.grant(share())
    server = rig.serve()
    worker = rig.join(path)
    asker = rig.dial(path)
    asker.send(Kind.HELLO, a=1, c=0)
    assert asker.receive().kind is Kind.WELCOME
    assert server.usage()[0].process_ids == (os.getpid(),)
    asker.send(Kind.ADD, a=MIB)
    assert asker.is_closed()
    assert worker.ask(MIB)
