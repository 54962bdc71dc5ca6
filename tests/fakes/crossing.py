"""Delay the bytes of a `Wire`: four pipes, each moved by any number of bytes, so that frames can cross in all orders.

    client ─out▶ relay ─to_runtime▶ runtime        client ◀to_client─ relay ◀out─ runtime

The relay must send whole frames. h2 accepts no frame after a GOAWAY, so GOAWAY frames are recorded and not passed to h2.
"""

from enum import Enum

from lading.http2 import frames
from lading.http2.frames import FrameReader
from tests.fakes.wire import Wire


class Pipe(Enum):
    FROM_CLIENT = 0
    TO_RUNTIME = 1
    FROM_RUNTIME = 2
    TO_CLIENT = 3


class Crossing(Wire):
    def __init__(self, *, budget: int, max_message: int) -> None:
        super().__init__(budget=budget, max_message=max_message, started=False)
        self.pipes = {pipe: bytearray() for pipe in Pipe}
        self.goaways: list[int] = []  # the last stream that each GOAWAY to the client named
        self._preface = len(frames.PREFACE)
        self._half = b""  # part of a DATA frame on its way to the client

    def move(self, pipe: Pipe, size: int) -> None:
        """Deliver the next bytes of one pipe."""
        self._collect()
        data = bytes(self.pipes[pipe][:size])
        if not data:
            return
        del self.pipes[pipe][:size]
        match pipe:
            case Pipe.FROM_CLIENT:
                self.relay.receive_from_client(data)
            case Pipe.TO_RUNTIME:
                self.runtime.receive(data)
            case Pipe.FROM_RUNTIME:
                self.relay.receive_from_runtime(data)
            case Pipe.TO_CLIENT:
                self.client.receive(data)
        self._collect()

    def flow(self) -> None:
        self._collect()
        while any(self.pipes.values()):
            for pipe in Pipe:
                self.move(pipe, len(self.pipes[pipe]))

    def _collect(self) -> None:
        self.pipes[Pipe.FROM_CLIENT] += self.client.connection.data_to_send()
        self.pipes[Pipe.FROM_RUNTIME] += self.runtime.connection.data_to_send()
        to_runtime = self.relay.to_runtime()
        self.pipes[Pipe.TO_RUNTIME] += to_runtime
        preface, self._preface = to_runtime[: self._preface], max(0, self._preface - len(to_runtime))
        assert frames.PREFACE.find(preface) >= 0
        whole = frames_of(to_runtime[len(preface) :])
        assert not whole or len(whole[-1]) == frames.HEADER_LENGTH + int.from_bytes(whole[-1][:3])
        # DATA may come in pieces, nothing else does; a GOAWAY would have the client's h2 close, and is looked at here.
        for frame in frames_of(self._half + self.relay.to_client()):
            self._half = b""
            if len(frame) < frames.HEADER_LENGTH + int.from_bytes(frame[:3]):
                assert frame[3] == frames.DATA
                self._half = frame
            elif frame[3] == frames.GOAWAY:
                self.goaways.append(frames.unsigned(frame, frames.HEADER_LENGTH))
            else:
                self.pipes[Pipe.TO_CLIENT] += frame
        self.events += self.relay.take_events()


def frames_of(data: bytes) -> list[bytes]:
    """Return the frames of the bytes; the last frame may be incomplete."""
    reader = FrameReader(lambda stream: True)
    reader.max_frame_size = frames.LARGEST_MAX_FRAME_SIZE
    result = [data[start:end] for _, _, _, start, end in reader.frames(data)]
    assert not reader.buffered
    return result
