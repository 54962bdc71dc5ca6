"""Make one gRPC call over a socket without a gRPC library: any message bytes, any prefix, any header, in pieces of any size.

The result is grpc-status, grpc-message and the message of the answer, unchanged. No input is refused: h2 checks only the bytes
that the other side sends.
"""

import contextlib
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import h2.exceptions

from lading.http2.messages import GrpcStatus
from tests.fakes.wire import Headers, Peer, request_fields

TIMEOUT_S = 20.0


class Answer(NamedTuple):
    status: int
    text: bytes  # grpc-message, percent-encoded
    message: bytes  # without its prefix


def call(path: Path, method: str, content: bytes, *, flag: int = 0, headers: Headers = ()) -> Answer:
    """Send `content` after a gRPC prefix with this flag (1: compressed), and return the answer."""
    return send(path, method, [flag.to_bytes(1) + len(content).to_bytes(4) + content], headers=headers)


def send(path: Path, method: str, pieces: Iterable[bytes], *, headers: Headers = ()) -> Answer:
    peer = Peer(client=True)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.connect(str(path))
        stream = peer.connection.get_next_available_stream_id()
        peer.connection.send_headers(stream, request_fields(method.encode(), headers))
        for piece in pieces:
            _send(connection, peer, stream, piece)
        with contextlib.suppress(h2.exceptions.ProtocolError):  # answered, and over, before all was sent
            peer.connection.end_stream(stream)
        while not _over(peer, stream):
            _exchange(connection, peer)
    observed = peer.streams[stream]
    return Answer(
        int(observed.last(b"grpc-status") or GrpcStatus.UNKNOWN), observed.last(b"grpc-message") or b"", observed.data[5:]
    )


def _send(connection: socket.socket, peer: Peer, stream: int, data: bytes) -> None:
    while data and not _over(peer, stream):
        room = min(peer.connection.local_flow_control_window(stream), peer.connection.max_outbound_frame_size)
        if room > 0:
            peer.connection.send_data(stream, data[:room])
            data = data[room:]
        else:
            _exchange(connection, peer)
    connection.sendall(peer.connection.data_to_send())


def _exchange(connection: socket.socket, peer: Peer) -> None:
    connection.sendall(peer.connection.data_to_send())
    received = connection.recv(1 << 18)
    if not received:
        raise ConnectionError("the other side closed the connection without an answer")
    peer.receive(received)
    connection.sendall(peer.connection.data_to_send())


def _over(peer: Peer, stream: int) -> bool:
    observed = peer.streams.get(stream)
    return observed is not None and (observed.ended or observed.reset is not None)
