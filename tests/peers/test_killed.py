"""Test that either end of a connection dies, or sends malformed bytes, during calls: only its own calls end.

Seen to fail against a proxy that closes a client's connection without a word when the runtime's is gone.
"""

import socket
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from lading.http2 import frames
from lading.log import Event
from simnode.child import Child, answers
from simnode.daemons import Daemon
from tests.fakes.crossing import frames_of
from tests.faults.rig import logged, proxy_in, running
from tests.hostile.measure import descriptors
from tests.node.site import eventually
from tests.peers.callers import Call, Caller, ask
from tests.peers.script import Script

UNARY: Final = "/runtime.v1.RuntimeService/ListContainers"
HELD: Final = "/runtime.v1.RuntimeService/CreateContainer"
EVENTS: Final = "/runtime.v1.RuntimeService/GetContainerEvents"
STUCK: Final = Script(replies=1, waits_after=0)
_SERVE: Final = (
    "import sys, threading; from pathlib import Path; from tests.peers.runtimes import Runtime;"
    "runtime = Runtime(Path(sys.argv[1])); threading.Event().wait()"
)
MALFORMED: Final = frames.PREFACE + frames.frame(frames.SETTINGS, 0, 0) + frames.frame(frames.HEADERS, 4, 1, b"\xff" * 9)


class RuntimeProcess(Child):
    """A runtime of its own process, so that it can be killed."""

    def __init__(self, path: Path) -> None:
        super().__init__([sys.executable, "-c", _SERVE, str(path)], log=path.with_suffix(".log"))
        self.path = path

    def start(self) -> None:
        self.path.unlink(missing_ok=True)
        super().start()
        self.wait_until(lambda: answers(self.path), f"an answer at {self.path}")


@pytest.fixture
def runtime(short_folder: Path) -> Iterator[RuntimeProcess]:
    runtime = RuntimeProcess(short_folder / "runtime.sock")
    runtime.start()
    yield runtime
    runtime.kill()


@pytest.fixture
def proxy(short_folder: Path, runtime: RuntimeProcess) -> Iterator[Daemon]:
    with running(proxy_in(short_folder, runtime.path)) as proxy:
        yield proxy


def threads_of(proxy: Daemon) -> int:
    return len(list(Path(f"/proc/{proxy.pid}/task").iterdir()))


def begun(caller: Caller) -> list[Call]:
    """A call that waits for its answer, one that was held, and a stream that is half way."""
    calls = [caller.open(UNARY, b"", STUCK), caller.open(HELD, b"", STUCK)]
    stream = caller.open(EVENTS, b"event", Script(replies=10, waits_after=3))
    assert [stream.read() for _ in range(3)] == [b"event"] * 3
    return [*calls, stream]


def test_a_runtime_that_is_killed(caller: Caller, proxy: Daemon, runtime: RuntimeProcess) -> None:
    """Every call on it ends with its socket's name, and the first call to the next one is served, on the same channel."""
    assert ask(caller, UNARY, b"warm").code == "OK"
    before = descriptors(proxy.pid)
    for _ in range(2):
        calls = begun(caller)
        runtime.kill()
        for call in calls:
            seen = call.end()
            assert seen.code == "UNAVAILABLE"
            assert str(runtime.path) in seen.details
        runtime.start()
        assert ask(caller, UNARY, b"back").replies == (b"back",)
    eventually(lambda: _at_most(descriptors(proxy.pid), before))


def _at_most(found: int, limit: int) -> None:
    assert found <= limit


def test_a_client_that_is_killed_leaves_nothing(caller: Caller, proxy: Daemon, runtime: RuntimeProcess) -> None:
    assert ask(caller, UNARY, b"warm").code == "OK"
    before, threads = descriptors(proxy.pid), threads_of(proxy)
    for _ in range(5):
        child = Child([sys.executable, "-c", _CALL, str(proxy.socket)], log=proxy.socket.with_name("client.log"))
        child.start()
        child.wait_until(partial(_says_begun, child.log), "a call")
        child.kill()
        child.log.unlink()
    eventually(lambda: _at_most(descriptors(proxy.pid), before))
    assert threads_of(proxy) <= threads
    assert ask(caller, UNARY, b"alive").replies == (b"alive",)


def _says_begun(log: Path) -> bool:
    return "begun" in log.read_text()


_CALL: Final = (
    "import sys; from pathlib import Path; from tests.peers.callers import Caller; from tests.peers.script import Script;"
    f"call = Caller(Path(sys.argv[1])).open({EVENTS!r}, b'', Script(replies=2, waits_after=1));"
    "call.read(); print('begun', flush=True); call.read()"
)


def test_malformed_bytes_end_their_own_connection_only(caller: Caller, proxy: Daemon) -> None:
    stream = caller.open(EVENTS, b"event", Script(replies=4, waits_after=2))
    assert stream.read() == b"event"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(proxy.socket))
        connection.sendall(MALFORMED)
        said = b""
        while data := connection.recv(1 << 16):
            said += data
    kinds = [frame[3] for frame in frames_of(said)]
    assert (kinds[0], kinds[-1]) == (frames.SETTINGS, frames.GOAWAY)
    (broken,) = logged(proxy, Event.CONNECTION_BROKEN)
    assert broken["by"] == "client"
    assert stream.read() == b"event"
    stream.cancel()
    assert ask(caller, UNARY, b"alive").replies == (b"alive",)
