"""Connect a client and a runtime, both strict HTTP/2 endpoints (h2), by a relay in memory, without sockets.

Either endpoint raises an error for bytes that the RFC forbids, and h2 (unlike grpc-go) enforces the connection's flow-control
window.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import h2.stream
import h2.windows
import hpack
from h2.settings import SettingCodes

from lading.http2 import frames
from lading.http2.frames import ErrorCode
from lading.http2.messages import prefixed
from runtimeproxy.relay.budget import COPIES, HoldBudget
from runtimeproxy.relay.connection import Relay
from runtimeproxy.relay.events import CallHeld, RelayEvent

HELD = b"/runtime.v1.RuntimeService/CreateContainer"
FREE = b"/runtime.v1.RuntimeService/ListContainers"
TRAILER = (b"x-checksum", b"1")

Headers = Iterable[tuple[bytes, bytes]]


def request_fields(path: bytes, extra: Headers = ()) -> list[tuple[bytes, bytes]]:
    """Return the header fields of a gRPC request."""
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"localhost")]
    return [*fields, (b"content-type", b"application/grpc"), (b"te", b"trailers"), *extra]


@dataclass
class Seen:
    """Hold the frames that one side received on one stream."""

    headers: list[list[tuple[bytes, bytes]]] = field(default_factory=list)
    data: bytes = b""
    ended: bool = False
    reset: int | None = None

    def last(self, name: bytes) -> bytes | None:
        return next((v for block in reversed(self.headers) for k, v in block if k == name), None)


class Encoder(hpack.Encoder):
    """Announce the smallest table size since the last block, and the newest, by RFC 7541 4.2. (hpack's own encoder announces
    every size, also a size that is no longer allowed, and none if the newest was announced twice.)"""

    def encode(self, headers: Any, huffman: bool = True) -> bytes:
        if changes := self.table_size_changes:
            self.table_size_changes = list(dict.fromkeys((min(changes), changes[-1])))
            self.header_table.resized = True
        encoded: bytes = super().encode(headers, huffman)
        return encoded


class Window(h2.windows.WindowManager):
    """Count a window as RFC 9113 6.9 says it, where h2's own class differs."""

    def window_consumed(self, size: int) -> None:
        """Accept an empty frame also where there is no room for another; h2's own class refuses it below zero."""
        if size:
            super().window_consumed(size)

    def _maybe_update_window(self) -> int | None:
        """Give back all bytes of closed streams. h2's own class forgets some of them after the owner has widened the window."""
        self.max_window_size = max(self.max_window_size, self.current_window_size + self._bytes_processed)
        return super()._maybe_update_window()


# h2 makes its windows itself, of these two names.
h2.stream.WindowManager = h2.connection.WindowManager = Window  # type: ignore[attr-defined]  # imported names


class Peer:
    """Run one h2 connection, and record its events. `auto_credit`: return flow-control credit at once, as a server with free
    buffers does."""

    def __init__(self, *, client: bool) -> None:
        self.connection = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=client, header_encoding=None, validate_inbound_headers=False)
        )
        self.connection.encoder = Encoder()
        self.auto_credit = True
        self.uncredited: list[tuple[int, int]] = []
        self.streams: dict[int, Seen] = {}
        self.events: list[h2.events.Event] = []
        self.connection.initiate_connection()

    def receive(self, data: bytes) -> None:
        for event in self.connection.receive_data(data):
            self.events.append(event)
            match event:
                case h2.events.RequestReceived() | h2.events.ResponseReceived() | h2.events.TrailersReceived():
                    self._seen(event.stream_id).headers.append(list(event.headers))
                case h2.events.DataReceived():
                    self._seen(event.stream_id).data += event.data
                    self.uncredited.append((event.stream_id, event.flow_controlled_length))
                    if self.auto_credit:
                        self.credit()
                case h2.events.StreamEnded():
                    self._seen(event.stream_id).ended = True
                case h2.events.StreamReset():
                    self._seen(event.stream_id).reset = int(event.error_code)
                case _:
                    pass

    def credit(self) -> None:
        """Return the credit for every received byte at once (h2's own acknowledgement waits for a threshold)."""
        for stream, size in self.uncredited:
            if size:
                self.connection.increment_flow_control_window(size)
                with contextlib.suppress(h2.exceptions.StreamClosedError, KeyError):  # closed, or forgotten since
                    self.connection.increment_flow_control_window(size, stream)
        self.uncredited.clear()

    def _seen(self, stream_id: int | None) -> Seen:
        assert stream_id is not None
        return self.streams.setdefault(stream_id, Seen())


def unsent_credit(peer: Peer) -> int:
    """Return the bytes of closed streams whose credit h2 keeps back until a WINDOW_UPDATE is worth it."""
    unsent: int = peer.connection._inbound_flow_control_window_manager._bytes_processed
    return unsent


class Wire:
    def __init__(
        self,
        *,
        held: Iterable[bytes] = (HELD,),
        budget: int = 64 << 20,
        max_message: int = 16 << 20,
        cut: Callable[[bytes], Iterable[bytes]] = lambda data: [data],
        client: Peer | None = None,
        runtime: Peer | None = None,
        started: bool = True,
    ) -> None:
        self.client = client or Peer(client=True)
        self.runtime = runtime or Peer(client=False)
        self.cut = cut
        self.time = 0.0
        self.budget = HoldBudget(budget)
        self.relay = Relay(held_paths=frozenset(held), budget=self.budget, clock=lambda: self.time, max_message=max_message)
        self.events: list[RelayEvent] = []
        if started:
            self.flow()

    def flow(self) -> None:
        """Move bytes between the endpoints and the relay until none has any bytes to send."""
        moved = True
        while moved:
            moved = False
            for peer, receive in (
                (self.client, self.relay.receive_from_client),
                (self.runtime, self.relay.receive_from_runtime),
            ):
                if data := peer.connection.data_to_send():
                    moved = True
                    for piece in self.cut(data):
                        receive(piece)
                        self._deliver()
            moved |= self._deliver()

    def _deliver(self) -> bool:
        to_runtime, to_client = self.relay.to_runtime(), self.relay.to_client()
        if to_runtime:
            self.runtime.receive(to_runtime)
        if to_client:
            self.client.receive(to_client)
        self.events += self.relay.take_events()
        return bool(to_runtime or to_client)

    def request(self, path: bytes = FREE, *, headers: Headers = (), end_stream: bool = False) -> int:
        stream = self.client.connection.get_next_available_stream_id()
        self.client.connection.send_headers(stream, request_fields(path, headers), end_stream=end_stream)
        return stream

    def send(self, stream: int, data: bytes, *, end_stream: bool = True) -> None:
        """Send all of the data, as fast as the windows allow."""
        while len(data) > (room := self._sendable(self.client, stream)):
            assert room > 0, f"the client's window is shut with {len(data)} bytes to go"
            self.client.connection.send_data(stream, data[:room])
            data = data[room:]
            self.flow()
        self.client.connection.send_data(stream, data, end_stream=end_stream)
        self.flow()

    def call(self, path: bytes = FREE, message: bytes = b"request", *, headers: Headers = ()) -> int:
        stream = self.request(path, headers=headers)
        self.send(stream, prefixed(message))
        return stream

    def answer(self, stream: int, message: bytes = b"reply", *, status: bytes = b"0") -> None:
        self.begin_answer(stream)
        data = prefixed(message)
        while data:
            size = min(len(data), self._sendable(self.runtime, stream))
            assert size > 0, "the runtime's window is shut"
            self.runtime.connection.send_data(stream, data[:size])
            data = data[size:]
            self.flow()
        self.end_answer(stream, status=status)

    def begin_answer(self, stream: int) -> None:
        self.runtime.connection.send_headers(stream, [(b":status", b"200"), (b"content-type", b"application/grpc")])
        self.flow()

    def end_answer(self, stream: int, *, status: bytes = b"0") -> None:
        self.runtime.connection.send_headers(stream, [(b"grpc-status", status), (b"grpc-message", b"")], end_stream=True)
        self.flow()

    def send_trailers(self, stream: int) -> None:
        """End a request with trailers, which no gRPC client sends."""
        self.client.connection.send_headers(stream, [TRAILER], end_stream=True)
        self.flow()

    def reset(self, stream: int) -> None:
        """Cancel a call as its client."""
        self.client.connection.reset_stream(stream, ErrorCode.CANCEL)
        self.flow()

    def announce(self, peer: Peer, settings: dict[SettingCodes | int, int]) -> None:
        peer.connection.update_settings(settings)
        self.flow()

    def credit_all(self) -> None:
        """Let the runtime give credit for all that it has received, and for later bytes at once."""
        self.runtime.auto_credit = True
        self.runtime.credit()
        self.flow()

    def held(self) -> CallHeld:
        """Return the newest held call."""
        return next(e for e in reversed(self.events) if isinstance(e, CallHeld))

    def forward(self, stream: int, message: bytes | None = None, *, observe: bool = False) -> bool:
        done = self.relay.forward(stream, message, observe=observe)
        self.flow()
        return done

    def refuse(self, stream: int, status: int = 9, message: str = "no") -> bool:
        done = self.relay.refuse(stream, status, message)
        self.flow()
        return done

    def assert_idle(self, *, window: int = frames.DEFAULT_WINDOW) -> None:
        """Fail unless all calls are over on each side, all credit is given back, and the relay keeps nothing of any call.

        `window`: what the runtime lets the client send on the connection."""
        relay = self.relay
        assert relay.broken is None
        assert (relay.open_calls, relay._streams, relay._refused.calls, relay._flow._queued) == (0, {}, set(), {})
        assert (self.client.connection.open_outbound_streams, self.runtime.connection.open_inbound_streams) == (0, 0)
        to_runtime, to_client = window - unsent_credit(self.runtime), frames.DEFAULT_WINDOW - unsent_credit(self.client)
        assert self.connection_windows() == (to_runtime, to_client)
        assert (relay._flow._client_credit, relay._flow._connection.free) == (to_runtime, to_runtime)
        assert (self.budget._free, self.budget._early) == (self.budget._limit, self.budget._limit // COPIES)

    @staticmethod
    def _sendable(peer: Peer, stream: int) -> int:
        window = peer.connection.local_flow_control_window(stream)
        return min(window, peer.connection.max_outbound_frame_size)

    def connection_windows(self) -> tuple[int, int]:
        """Return what the client may still send, what the runtime may still send, on the connection."""
        return (
            self.client.connection.outbound_flow_control_window,
            self.runtime.connection.outbound_flow_control_window,
        )
