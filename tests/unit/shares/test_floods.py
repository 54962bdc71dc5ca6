"""Test that a container whose processes send without pause delays no other container, and what the server does about it."""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lading.log import Event
from shares import intake
from shares import server as server_module
from shares.policy.model import MS
from shares.server import MAX_POSTPONED, MAX_PROCESSES
from shares.wire import Frame, Kind, WireRefusal, pack
from tests.fakes.share_rig import BOUND_S, MIB, OTHER_CARD, Client, ShareRig, ShareServer, eventually, share, shared

FLOODS_S = 2.0
LOST_S = 1.0  # clients use their static shares when a beat is so old
OTHER_POD = "99999999-2222-3333-4444-555555555555"


@contextlib.contextmanager
def flood(clients: Sequence[Client], frame: Frame) -> Iterator[list[threading.Thread]]:
    """Send this frame without pause on each connection, until the server closes it or the block ends."""
    ends = threading.Event()

    def send(client: Client) -> None:
        with contextlib.suppress(OSError):
            while not ends.is_set():
                client.socket.sendall(pack(frame) * 512)

    threads = [threading.Thread(target=send, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        ends.set()
        for client in clients:
            client.close()
        for thread in threads:
            thread.join(BOUND_S)


def serve_two(rig: ShareRig) -> tuple[ShareServer, Path, Client]:
    """Return a server, the socket of a container, and a process of another container on another card."""
    path, quiet = rig.grant(share("hostile")), rig.grant(share("quiet", shared(OTHER_CARD)))
    server = rig.serve()
    return server, path, rig.join(quiet)


def warnings(server: ShareServer) -> list[dict[str, str]]:
    return [fields for event, fields in server.records.seen if event is Event.SHARE_REFUSED]


def is_prompt(server: ShareServer, client: Client, most_s: float) -> bool:
    """Return whether verdicts and beats come in this time, in one of two tries: a busy machine may let this thread wait."""
    return any(longest_wait_s(server, client) < most_s for _ in range(2))


def longest_wait_s(server: ShareServer, client: Client) -> float:
    """Request memory for a while. Return the longest time until a verdict, or between two beats, in CPU time of the server's
    thread: on a busy machine, this thread waits for a core too."""
    longest_s, until = 0.0, time.monotonic() + FLOODS_S
    beat_ns, beaten_s = client.beat_ns(), server.worked_s()
    while time.monotonic() < until:
        began_s = server.worked_s()
        assert client.ask(0)
        ended_s = server.worked_s()
        longest_s = max(longest_s, ended_s - began_s, ended_s - beaten_s)
        if client.beat_ns() != beat_ns:
            beat_ns, beaten_s = client.beat_ns(), ended_s
    return longest_s


@pytest.mark.parametrize("frame", [Frame(Kind.SUB), Frame(Kind.RELEASE), Frame(Kind.WANT)], ids=lambda frame: frame.kind.name)
@pytest.mark.parametrize("connections", [4, MAX_PROCESSES - 1])
def test_a_container_that_sends_without_pause_delays_no_other(rig: ShareRig, connections: int, frame: Frame) -> None:
    server, path, quiet = serve_two(rig)
    with flood([rig.join(path) for _ in range(connections)], frame):
        assert is_prompt(server, quiet, LOST_S)


def test_connections_that_send_without_pause_are_closed_and_their_container_is_logged(
    rig: ShareRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "PATIENCE_NS", 300 * MS)
    monkeypatch.setattr(intake, "FRAME_NS", 5 * MS)  # also a server of a busy machine reads more
    server, path, quiet = serve_two(rig)
    sibling = rig.join(path)
    clients = [rig.join(path) for _ in range(8)]
    with flood(clients, Frame(Kind.SUB)) as threads:
        for thread in threads:
            thread.join(BOUND_S)
            assert not thread.is_alive()
    assert {fields["container"] for fields in warnings(server)} == {"hostile"}
    assert len(warnings(server)) < len(clients)
    assert server.shares.refused == len(clients)
    assert sibling.ask(MIB)
    assert quiet.ask(MIB)


def test_a_process_that_frees_much_at_once_stays_connected(rig: ShareRig) -> None:
    server, path, _ = serve_two(rig)
    client = rig.join(path)
    assert client.ask(20 * MIB)
    for _ in range(20):
        client.socket.sendall(pack(Frame(Kind.SUB, a=MIB // 1024)) * 1024)
    client.settle()
    assert client.shown().used_bytes == 0
    assert warnings(server) == []


def test_a_process_that_waits_for_each_answer_stays_connected(rig: ShareRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "PATIENCE_NS", 0)
    monkeypatch.setattr(intake, "MAX_FRAMES", 10)
    server, path, _ = serve_two(rig)
    client = rig.join(path)
    for _ in range(100):
        client.settle()
    assert server.shares.refused == 0


def test_a_container_that_connects_without_pause_has_to_wait(rig: ShareRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "FRAME_NS", 2 * MS)
    monkeypatch.setattr(intake, "MAX_FRAMES", 100)
    server, path, quiet = serve_two(rig)
    began = time.monotonic()
    for _ in range(10):
        rig.join(path).close()
    assert time.monotonic() - began > 0.5
    assert quiet.ask(MIB)
    assert warnings(server) == []


def test_refusals_of_a_container_are_logged_a_few_times_and_then_counted(
    rig: ShareRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "LINE_NS", 3_000 * MS)
    server, path, _ = serve_two(rig)
    rig.say_pod(OTHER_POD)

    def dial() -> int:
        assert rig.dial(path).receive() == Frame(Kind.REFUSED, a=WireRefusal.OTHER_POD)
        return len(warnings(server))

    for _ in range(30):
        dial()
    logged = len(warnings(server))
    assert logged < 10
    eventually(lambda: dial() > logged)
    assert sum(1 + int(fields.get("unlogged", 0)) for fields in warnings(server)) == server.shares.refused


def test_requests_that_wait_delay_no_other_container(rig: ShareRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "FRAME_NS", 0)
    monkeypatch.setattr(server_module, "SETTLE_NS", 5_000 * MS)
    monkeypatch.setattr(server_module, "STALL_NS", 60_000 * MS)  # no memory is allowed after a stall, to any container
    path, quiet = rig.grant(share("hostile")), rig.grant(share("quiet", shared(OTHER_CARD)))
    rig.serve().end()
    quiet.unlink()  # without a socket of an earlier server, processes do not wait
    server = rig.serve()
    first, *clients = (rig.join(path) for _ in range(40))
    first.socket.sendall(b"".join(pack(Frame(Kind.ADD, seq=number)) for number in range(100)))
    for client in clients:
        client.socket.sendall(pack(Frame(Kind.ADD)) * MAX_POSTPONED)
    assert is_prompt(server, rig.join(quiet), LOST_S / 2)
    assert [first.receive().seq for _ in range(100)] == [*range(100)]
