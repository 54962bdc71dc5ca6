import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from tests.fakes.raw_server import Call, Fail, RawServer
from tests.fakes.turnstile import Turnstile, Way


@pytest.fixture
def server(short_folder: Path) -> Iterator[RawServer]:
    """Record each request with its time, and answer."""
    with RawServer(short_folder / "s", lambda call: call.method.encode() + call.request) as server:
        yield server


def ask(path: Path, request: bytes = b"?", method: str = "Ask", timeout_s: float = 5) -> bytes:
    options = (("grpc.use_local_subchannel_pool", 1),)  # a shared one waits before it connects again
    with grpc.insecure_channel(f"unix:{path}", options=options) as channel:
        rpc = channel.unary_unary(f"/service/{method}", request_serializer=None, response_deserializer=None)
        answer: bytes = rpc(request, timeout=timeout_s)
    return answer


def status(path: Path) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.RpcError) as caught:
        ask(path)
    return caught.value.code(), caught.value.details()


def fail(_: Call) -> bytes:
    raise Fail(grpc.StatusCode.FAILED_PRECONDITION, "because")


def test_it_answers_fails_stops_and_starts_again(server: RawServer) -> None:
    assert ask(server.path) == b"Ask?"
    server.answer = fail
    assert status(server.path) == (grpc.StatusCode.FAILED_PRECONDITION, "because")
    server.stop()
    assert status(server.path)[0] is grpc.StatusCode.UNAVAILABLE
    server.start()
    server.answer = lambda call: b"%d" % (4 < (call.deadline_s or 0) < 6)
    assert ask(server.path) == b"1"


def test_a_held_call_does_not_hold_others(server: RawServer) -> None:
    free = threading.Event()
    server.answer = lambda call: b"late" if call.request == b"hold" and free.wait(5) else b"early"
    with ThreadPoolExecutor(1) as threads:
        held = threads.submit(ask, server.path, b"hold")
        assert ask(server.path) == b"early"
        assert not held.done()
        free.set()
        assert held.result() == b"late"


@pytest.fixture
def turnstile(server: RawServer, short_folder: Path) -> Iterator[Turnstile]:
    with Turnstile(short_folder / "t", server.path) as turnstile:
        yield turnstile


def test_what_is_not_held_goes_through_as_it_is(turnstile: Turnstile, server: RawServer) -> None:
    turnstile.hold(Way.THERE, "Other")
    assert ask(turnstile.path, b"\xff") == b"Ask\xff"
    server.answer = fail
    assert status(turnstile.path) == (grpc.StatusCode.FAILED_PRECONDITION, "because")
    server.stop()
    assert status(turnstile.path)[0] is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(("way", "heard"), [(Way.THERE, []), (Way.BACK, [b"held"])])
@pytest.mark.parametrize("lost", [True, False])
def test_a_call_is_held_on_the_way_that_was_asked_for(
    turnstile: Turnstile, server: RawServer, way: Way, heard: list[bytes], lost: bool
) -> None:
    requests: list[bytes] = []

    def answer(call: Call) -> bytes:
        requests.append(call.request)
        return b"done"

    server.answer = answer
    held = turnstile.hold(way, "Ask", lambda request: request == b"held")
    with ThreadPoolExecutor(1) as threads:
        assert ask(turnstile.path, b"passes") == b"done"
        asking = threads.submit(ask, turnstile.path, b"held")
        held.wait()
        assert requests == [b"passes", *heard]
        if lost:
            held.lose()
            assert isinstance(asking.exception(), grpc.RpcError)
            assert requests == [b"passes", *heard]
        else:
            held.let_go()
            assert asking.result() == b"done"
            assert requests == [b"passes", b"held"]
    assert ask(turnstile.path, b"held") == b"done"  # once only
