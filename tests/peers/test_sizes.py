"""Large and compressed messages, held or not; and a slow reader, who must not cost the proxy what he leaves unread.

Seen to fail against buffers of 64 MiB, and against changed messages that are still said to be compressed.
"""

import socket
import time
from collections.abc import Callable
from typing import Final

import grpc
import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook
from tests.fakes.raw_server import Call
from tests.faults.rig import GUARDED, ScriptedHooks
from tests.hostile.measure import MIB, memory_growth
from tests.peers.callers import ask
from tests.peers.conftest import Pair, Ways
from tests.peers.script import Script, metadata_of

LARGE: Final = 15 * MIB
REPLY: Final = 20 * MIB
SLOW_MAX: Final = 8 * MIB  # maximum memory of the proxy: two buffers of 1 MiB, and the memory that Python's allocator keeps
WINDOW_MAX: Final = (1 << 31) - 1
GZIP: Final = grpc.Compression.Gzip

EVENTS: Final = "/runtime.v1.RuntimeService/GetContainerEvents"
FREE: Final = "ListContainers"
HELD: Final = "CreateContainer"

Says = Callable[[Call], bytes]


def unchanged(_: Call) -> bytes:
    return hook.AdjustResponse(adjustment=hook.Adjustment()).SerializeToString()


def container(sandbox: str, annotations: dict[str, str], size: int) -> cri.CreateContainerRequest:
    """Return a message of about `size` bytes that gzip can make smaller."""
    pod = cri.PodSandboxMetadata(name="p", uid=sandbox, namespace="default")
    return cri.CreateContainerRequest(
        pod_sandbox_id=sandbox,
        config=cri.ContainerConfig(metadata=cri.ContainerMetadata(name="main"), args=["0123456789abcdef" * (size // 16)]),
        sandbox_config=cri.PodSandboxConfig(metadata=pod, annotations=annotations),
    )


def guarded(size: int) -> cri.CreateContainerRequest:
    return container("guarded", GUARDED, size)


def marked(request: cri.CreateContainerRequest) -> cri.CreateContainerRequest:
    """Return the message with the change of `ScriptedHooks.mark`."""
    changed = cri.CreateContainerRequest()
    changed.CopyFrom(request)
    changed.config.envs.add(key=ScriptedHooks.MARK, value=request.sandbox_config.metadata.uid.encode())
    return changed


def test_a_large_reply(ways: Ways) -> None:
    path, script = f"/runtime.v1.RuntimeService/{FREE}", Script(size=REPLY)
    direct = ask(ways.direct, path, b"", script)
    assert direct.code == "OK"
    assert ask(ways.proxied, path, b"", script) == direct


@pytest.mark.parametrize("compression", [None, GZIP], ids=["plain", "gzip"])
@pytest.mark.parametrize("size", [1000, LARGE])
@pytest.mark.parametrize("method", [FREE, HELD])
def test_a_request_that_no_hook_wants(ways: Ways, method: str, size: int, compression: grpc.Compression | None) -> None:
    path, request = f"/runtime.v1.RuntimeService/{method}", container("plain", {}, size).SerializeToString()
    direct = ask(ways.direct, path, request, compression=compression)
    assert direct.code == "OK"
    assert ask(ways.proxied, path, request, compression=compression) == direct


@pytest.mark.parametrize("compression", [None, GZIP], ids=["plain", "gzip"])
@pytest.mark.parametrize(("version", "size"), [("v1", LARGE), ("v1", 1000), ("v1alpha2", 1000)])
def test_a_request_that_a_hook_lets_pass(ways: Ways, version: str, size: int, compression: grpc.Compression | None) -> None:
    ways.pair.hooks.says = unchanged
    path, request = f"/runtime.{version}.RuntimeService/{HELD}", guarded(size).SerializeToString()
    direct = ask(ways.direct, path, request, compression=compression)
    assert direct.code == "OK"
    assert ask(ways.proxied, path, request, compression=compression) == direct


@pytest.mark.parametrize("compression", [None, GZIP], ids=["plain", "gzip"])
@pytest.mark.parametrize(("version", "size"), [("v1", LARGE), ("v1", 1000), ("v1alpha2", 1000)])
def test_a_request_that_a_hook_changes(ways: Ways, version: str, size: int, compression: grpc.Compression | None) -> None:
    """Direct, the caller sends what the hook is to make of it: nothing else may differ."""
    ways.pair.hooks.says = ScriptedHooks.mark
    path, request = f"/runtime.{version}.RuntimeService/{HELD}", guarded(size)
    direct = ask(ways.direct, path, marked(request).SerializeToString(), compression=compression)
    assert direct.code == "OK"
    assert ask(ways.proxied, path, request.SerializeToString(), compression=compression) == direct


@pytest.mark.parametrize("method", [FREE, HELD, "GetContainerEvents"])
def test_compressed_replies(ways: Ways, method: str) -> None:
    ways.pair.hooks.says = ScriptedHooks.mark
    path, script = f"/runtime.v1.RuntimeService/{method}", Script(gzip=True, size=100_000)
    direct = ask(ways.direct, path, guarded(1000).SerializeToString(), script)
    assert direct.code == "OK"
    assert ask(ways.proxied, path, guarded(1000).SerializeToString(), script) == direct


def test_a_slow_reader_costs_bounded_memory(pair: Pair) -> None:
    """He opens his windows wide, so that only the socket's back-pressure is left, and reads nothing until all stands still."""
    sent_before = pair.runtime.sent
    pieces = REPLY // MIB
    with socket.socket(socket.AF_UNIX) as connection, memory_growth(pair.proxy.pid) as growth:
        connection.settimeout(30)
        connection.connect(str(pair.proxy.socket))
        reader = _wide_open()
        reader.send_headers(1, _headers(Script(replies=pieces, size=MIB)))
        reader.send_data(1, b"\0" + bytes(4), end_stream=True)
        connection.sendall(reader.data_to_send())
        _stands_still(pair, sent_before)
        assert pair.runtime.sent - sent_before < pieces
        assert _read_all(connection, reader) == pieces * (MIB + 5)
    assert growth.bytes < SLOW_MAX


def _wide_open() -> h2.connection.H2Connection:
    reader = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
    reader.local_settings = h2.settings.Settings(
        client=True, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_MAX}
    )
    reader.initiate_connection()
    reader.increment_flow_control_window(WINDOW_MAX - reader.inbound_flow_control_window)
    return reader


def _headers(script: Script) -> list[tuple[bytes, bytes]]:
    text = [(key.encode(), value.encode()) for key, value in metadata_of(script) if isinstance(value, str)]
    path = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", EVENTS.encode()), (b":authority", b"localhost")]
    return [*path, (b"content-type", b"application/grpc"), (b"te", b"trailers"), *text]


def _stands_still(pair: Pair, sent_before: int) -> None:
    """The runtime has sent something, and then nothing for a while."""
    looks, last = 0, sent_before
    while looks < 10 or last == sent_before:
        time.sleep(0.03)
        looks = looks + 1 if pair.runtime.sent == last else 0
        last = pair.runtime.sent


def _read_all(connection: socket.socket, reader: h2.connection.H2Connection) -> int:
    size = 0
    while True:
        for event in reader.receive_data(connection.recv(1 << 16)):
            match event:
                case h2.events.DataReceived():
                    size += len(event.data)
                case h2.events.StreamEnded() | h2.events.StreamReset() | h2.events.ConnectionTerminated():
                    return size
                case _:
                    pass
        connection.sendall(reader.data_to_send())
