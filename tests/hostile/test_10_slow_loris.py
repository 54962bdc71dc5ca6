"""Test case 10: connections that send no byte, or few bytes; floods of PING, RST_STREAM and SETTINGS; a hook that hangs.

An existing client's calls continue, the number of descriptors is limited, and the proxy stops reading from a client that does
not read. There are 200 half-open connections and short floods, or 1,000 and long floods in `make test-long`.

Naive versions that fail: no `max_connections`; a time limit for the preface that ends with its first byte; unlimited answers to
a client that does not read; header blocks decoded at any size (Lading did these three); a hook that is asked on the event loop.
"""

import contextlib
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from lading.http2 import frames
from lading.http2.frames import ErrorCode
from lading.http2.headers import HeaderLane
from lading.log import Event
from protos.hook.v1 import hook_pb2 as hook
from simnode.containerd import PrivateContainerd
from simnode.cri import Cri
from simnode.daemons import Daemon
from tests.depth import repeats
from tests.fakes.wire import request_fields
from tests.faults.rig import logged, proxy_in, register, running
from tests.hostile.measure import MIB, descriptors, longest_work, memory_growth
from tests.hostile.runtime import InMemoryRuntime
from tests.node.site import eventually

CAP = 64
HALF_OPEN: Final = repeats(200, long=1_000)
FLOOD_BYTES: Final = repeats(5, long=50) * MIB
CALLS = 200
WORK_S: Final = 0.25  # CPU of the proxy during one call of an old client; about a millisecond without an attack
OWN_DESCRIPTORS = 40
GROWTH = 48 * MIB

PREFACE = frames.PREFACE + frames.frame(frames.SETTINGS, 0, 0)
PING = frames.frame(frames.PING, 0, 0, b"12345678")
SETTINGS = frames.frame(frames.SETTINGS, 0, 0, b"\x00\x04\x00\x00\xff\xff")


class Attacked:
    def __init__(self, proxy: Daemon, runtime: PrivateContainerd) -> None:
        self.proxy = proxy
        self.runtime = runtime
        self.existing = self.client()
        self.existing.version()

    def client(self) -> Cri:
        return self.runtime.client(via=self.proxy.socket)

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.proxy.socket))
        return connection


@pytest.fixture(scope="module")
def attacked(containerd: PrivateContainerd) -> Iterator[Attacked]:
    """Start a proxy in front of the real runtime, which has its own limits for floods, and an existing client."""
    with tempfile.TemporaryDirectory(prefix="lading-") as folder:
        proxy = proxy_in(Path(folder), containerd.socket, max_connections=CAP)
        with running(proxy):
            attacked = Attacked(proxy, containerd)
            yield attacked
            attacked.existing.close()


@pytest.mark.node
@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(frames.PREFACE[:1], id="a byte"),
        pytest.param(frames.PREFACE[:-1], id="a preface but for one byte"),
        pytest.param(PREFACE, id="a preface"),
        pytest.param(PREFACE + frames.frame(frames.HEADERS, 0, 1, b"\x83"), id="half a header block"),
    ],
)
def test_half_open_connections(attacked: Attacked, said: bytes) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(HALF_OPEN):
            connection = stack.enter_context(attacked.connect())
            with contextlib.suppress(OSError):  # cut off already: the cap is reached
                connection.sendall(said)
        assert longest_work(attacked.proxy.pid, attacked.existing.version, CALLS) < WORK_S
        assert descriptors(attacked.proxy.pid) <= 2 * CAP + OWN_DESCRIPTORS
        attacked.existing.run_pod("alive").remove()
    with attacked.client() as new:  # and others again, once they are gone
        eventually(new.version)


# Floods


def headers(stream: int, path: bytes = b"/runtime.v1.RuntimeService/Version") -> bytes:
    return frames.header_block(stream, HeaderLane().render(request_fields(path)), end_stream=False)


def rapid_reset(number: int) -> bytes:
    """Check a rapid reset, CVE-2023-44487."""
    return b"".join(headers(s) + frames.rst_stream(s, ErrorCode.CANCEL) for s in range(2 * number + 1, 2 * number + 201, 2))


def costly_blocks(number: int) -> bytes:
    """Return a block of other bytes each time: one byte of HPACK is a field of 42, and decoded blocks may be cached."""
    block = b"\x82" * 390_000 + bytes((0x82 + number // 100 % 5,))
    return frames.header_block(number + 1, block, end_stream=False)


FLOODS: dict[str, Callable[[int], bytes]] = {
    "PING": lambda _: PING * 100,
    "SETTINGS": lambda _: SETTINGS * 100,
    "RST_STREAM": lambda _: frames.rst_stream(1, ErrorCode.CANCEL) * 100,
    "rapid reset": rapid_reset,
    "header blocks": costly_blocks,
    "empty DATA": lambda _: frames.frame(frames.DATA, 0, 1) * 100,
    "PRIORITY": lambda _: frames.frame(frames.PRIORITY, 0, 1, b"\0\0\0\0\1") * 100,
    "unknown frames": lambda _: frames.frame(0xBE, 0, 1, b"x" * 64) * 100,
    "WINDOW_UPDATE": lambda _: frames.window_update(0, 1) * 100,
}


def flood(connection: socket.socket, make: Callable[[int], bytes]) -> int:
    """Send bytes without reading any. Return the number of sent bytes when the other side stopped reading, ended the
    connection, or had all of them."""
    sent = number = 0
    connection.settimeout(0.5)
    with contextlib.suppress(OSError):  # a timeout too
        connection.sendall(PREFACE)
        while sent < FLOOD_BYTES:
            data = make(number)
            connection.sendall(data)
            sent += len(data)
            number += 100
    return sent


@pytest.mark.node
@pytest.mark.parametrize("name", FLOODS)
def test_a_flood(attacked: Attacked, name: str) -> None:
    with attacked.connect() as connection, memory_growth(attacked.proxy.pid) as growth:
        thread = threading.Thread(target=flood, args=(connection, FLOODS[name]))
        thread.start()
        work_s = longest_work(attacked.proxy.pid, attacked.existing.version, CALLS)
        thread.join()
    assert work_s < WORK_S
    assert growth.bytes < GROWTH
    attacked.existing.version()


@pytest.mark.node
@pytest.mark.parametrize("held", [False, True])
def test_a_flood_of_credit(attacked: Attacked, held: bool) -> None:
    """Check a client that does not read: each byte of a held or refused call's message could cause a WINDOW_UPDATE."""
    path = b"/runtime.v1.RuntimeService/" + (b"RunPodSandbox" if held else b"RestorePod")
    length = 16 * MIB if held else 17 * MIB  # a message that never comes to its end; one that is refused for its length
    one_byte = frames.frame(frames.DATA, 0, 1, b"x") * 1000

    def make(number: int) -> bytes:
        start = headers(1, path) + frames.frame(frames.DATA, 0, 1, b"\0" + length.to_bytes(4)) if number == 0 else b""
        return start + one_byte

    with attacked.connect() as connection, memory_growth(attacked.proxy.pid) as growth:
        assert flood(connection, make) < FLOOD_BYTES
    assert growth.bytes < 16 * MIB


# A hook that hangs


@pytest.mark.node
def test_a_hung_hook(attacked: Attacked, short_folder: Path) -> None:
    def registered() -> None:
        assert logged(attacked.proxy, Event.HOOK_REGISTERED)

    with InMemoryRuntime(short_folder / "hook.sock") as hung:
        hung.scripted["Adjust"] = hook.AdjustResponse(adjustment=hook.Adjustment()).SerializeToString()
        hung.free.clear()
        register(attacked.proxy.config.parent, hung.path, deadlines={"PreCreateContainer": 60})
        eventually(registered)
        guarded = {"lading.dev/gpus": "0"}

        def create() -> None:
            with attacked.client() as kubelet, kubelet.pod("guarded", annotations=guarded) as pod:
                pod.create_container()

        waiting = [threading.Thread(target=create) for _ in range(10)]
        for thread in waiting:
            thread.start()
        eventually(lambda: _asked(hung, len(waiting)))
        assert longest_work(attacked.proxy.pid, attacked.existing.version, CALLS) < WORK_S
        with attacked.existing.pod("plain") as pod:
            pod.create_container().remove()
        hung.free.set()
        for thread in waiting:
            thread.join()


def _asked(hung: InMemoryRuntime, times: int) -> None:
    assert len(hung.requests("Adjust")) == times
