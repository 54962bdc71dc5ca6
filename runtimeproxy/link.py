"""Join one client connection to one runtime connection: pass bytes through a `Relay`, and its held calls to the `Gate`.

When either connection ends, the other is closed. Memory is bounded by back-pressure: while one side's outgoing buffer is full,
the other side is not read. A client that does not read is not read either, because the relay also sends it its own answers.
"""

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from lading.http2.messages import GrpcStatus
from lading.log import Event, Log
from lading.reasons import Reason
from lading.sockets import accepts, dial
from runtimeproxy.call.call_context import CallContext
from runtimeproxy.call.calls import METHODS, HeldCall, Method
from runtimeproxy.call.outcome import Forward, Outcome, Refuse
from runtimeproxy.gate import LARGE, Gate, Later
from runtimeproxy.metrics import Metrics
from runtimeproxy.relay.budget import HoldBudget
from runtimeproxy.relay.connection import MAX_MESSAGE, Relay
from runtimeproxy.relay.events import CallCancelled, CallEnded, CallHeld
from runtimeproxy.relay.local import LocalAnswer
from runtimeproxy.relay.message import UnreadableMessageError, unpack, unpack_parts

# The other side is not read while more than this many bytes wait for a slow reader.
HIGH_WATER: Final = 1 << 20
# HEADERS of a held call wait this many seconds to be sent together with its message, because each write wakes its reader.
WITH_DECISION_S: Final = 0.005
# A client must send its whole HTTP/2 preface within this many seconds; kubelet sends it at once.
PREFACE_TIMEOUT_S: Final = 10.0
# A peer that does not read the last bytes and close within this many seconds is disconnected.
LINGER_S: Final = 5.0


class Half(asyncio.Protocol):
    """Represent one socket of a link: the client's or the runtime's."""

    def __init__(self, received: Callable[[bytes], None], throttle: Callable[[], None], lost: Callable[[], None]) -> None:
        self.transport: asyncio.Transport | None = None
        self.full = False  # True while the peer does not read
        self._received = received
        self._throttle = throttle
        self._lost = lost
        self._ending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        self._received(data)

    def pause_writing(self) -> None:
        self.full = True
        self._throttle()

    def resume_writing(self) -> None:
        self.full = False
        self._throttle()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ending:
            self._ending.cancel()
        self._lost()

    def write(self, data: bytes) -> None:
        if self.transport and not self._ending and not self.transport.is_closing():
            self.transport.write(data)

    def read(self, wanted: bool) -> None:
        transport = self.transport
        if transport and not transport.is_closing() and transport.is_reading() is not wanted:
            transport.resume_reading() if wanted else transport.pause_reading()

    def close(self, *, wait_for_peer: bool) -> None:
        """Close the socket after sending the buffered bytes. With `wait_for_peer`, close only the sending side and read until
        the peer closes too, LINGER_S at most. Otherwise a peer that still writes would lose data that it has not read."""
        if not self.transport or self._ending or self.transport.is_closing():
            return
        self._ending = asyncio.get_running_loop().call_later(LINGER_S, self.transport.abort)
        if wait_for_peer:
            self.read(True)
            self.transport.write_eof()
        else:
            self.transport.close()


def _read(event: CallHeld, method: Method) -> HeldCall:
    """Return the held call with its message unpacked. Raises UnreadableMessageError."""
    message = unpack_parts(event.parts, event.encoding, MAX_MESSAGE)
    return HeldCall(method=method, message=message, deadline=event.deadline, traceparent=event.traceparent)


def _unreadable(method: Method, error: UnreadableMessageError) -> Outcome:
    if method.teardown:
        return Forward()
    return Refuse(error.status, str(error), Reason.REQUEST_UNREADABLE)


def _given_up(method: Method) -> Outcome:
    """Return the outcome of a call whose decision was given up: teardown is forwarded, any other call is refused."""
    if method.teardown:
        return Forward()
    return Refuse(GrpcStatus.INTERNAL, "lading: internal: the call was given up", Reason.INTERNAL)


class Link:
    def __init__(
        self,
        *,
        number: int,
        gate: Gate,
        budget: HoldBudget,
        runtime_path: str,
        log: Log,
        metrics: Metrics,
        ended: Callable[["Link"], None],
        runtime_dialled: Callable[[bool], None],
    ) -> None:
        self.number = number
        self.local: LocalAnswer | None = None
        self._loop = asyncio.get_running_loop()
        self._gate = gate
        self._runtime_path = runtime_path
        self._log = log
        self._metrics = metrics
        self._ended = ended
        self._runtime_dialled = runtime_dialled
        self._client = Half(self._from_client, self._throttle, self._client_lost)
        self._runtime = Half(self._from_runtime, self._throttle, self._runtime_lost)
        flush_soon = partial(self._loop.call_soon, self._flush)
        self.relay = Relay(held_paths=gate.held_paths, budget=budget, clock=self._loop.time, changed=flush_soon)
        self._held_since: dict[int, tuple[Method, float]] = {}
        self._deciding: dict[int, asyncio.Task[None]] = {}
        self._observing: dict[int, tuple[Method, CallContext]] = {}
        self._starting: asyncio.Task[None] | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._resting = False  # a flush of the relay's remaining bytes is scheduled
        self._waiting: asyncio.TimerHandle | None = None  # the flush of HEADERS that wait for a decision
        self._over = False

    # ---- beginning

    def start(self, connection: socket.socket) -> None:
        self._starting = self._loop.create_task(self._start(connection))
        self._starting.add_done_callback(lambda _: None if self._client.transport else connection.close())

    async def _start(self, connection: socket.socket) -> None:
        try:
            await dial(lambda: self._runtime, self._runtime_path)
        except OSError as e:
            self._runtime_dialled(False)
            self.local = LocalAnswer(f"lading: the container runtime at {self._runtime_path} cannot be reached: {e.strerror}")
        else:
            self._runtime_dialled(True)
        await self._loop.connect_accepted_socket(lambda: self._client, connection)
        self._silence = self._loop.call_later(PREFACE_TIMEOUT_S, self._client_silent)
        self._log.debug(Event.CONNECTION_OPENED, connection=self.number, local=self.local is not None)
        if self.local:
            self._answer(self.local.take())
        self._flush()

    def _client_silent(self) -> None:
        if (self.local or self.relay).begun:
            return
        self._log.warning(Event.CONNECTION_CLOSED, "no HTTP/2 preface", connection=self.number)
        self.close()

    # ---- bytes

    def _from_client(self, data: bytes) -> None:
        if self._over:
            return
        self._metrics.from_client += len(data)
        if self.local is None:
            self.relay.receive_from_client(data)
            self._flush()
        elif accepts(self._runtime_path):
            self.send_away()  # `data` is not read: a call in it gets no answer, so the client repeats the call
        else:
            self._answer(self.local.receive(data))

    def _answer(self, data: bytes) -> None:
        """Send bytes of the local answer, and close the connection after its last bytes."""
        self._client.write(data)
        if self.local and self.local.done:
            self.close()

    def _from_runtime(self, data: bytes) -> None:
        if self._over:
            return
        self._metrics.from_runtime += len(data)
        self.relay.receive_from_runtime(data)
        self._flush()

    def _throttle(self) -> None:
        if not self._over:
            self._flush_remaining()
            self._runtime.read(not self._client.full)
            self._client.read(not self._client.full and not self._runtime.full)

    def _flush_remaining(self) -> None:
        """Schedule the relay's remaining bytes for a runtime that reads, so that other connections have a turn before."""
        if self.relay.more_to_runtime and not (self._runtime.full or self._resting):
            self._resting = True
            self._loop.call_soon(self._flush_more)

    def _flush_more(self) -> None:
        self._resting = False
        self._flush()

    def _flush_waiting(self) -> None:
        self._waiting = None
        self._flush()

    def _flush(self) -> None:
        """Process the relay's events until none is left, and send its bytes to both sides."""
        if self._client.transport is None or self.local:
            return  # the runtime may send before the client's transport exists; `_start` flushes again
        undecided, ended = False, []
        while self.relay.events:  # processed before the write, so that the bytes that events add are sent with it
            for event in self.relay.take_events():
                match event:
                    case CallHeld():
                        undecided = self._held(event) or undecided
                    case CallEnded():
                        ended.append(event)
                    case CallCancelled():
                        self._cancelled(event)
        if not undecided or self.relay.broken:
            self._write()
        elif self._waiting is None:
            self._waiting = self._loop.call_later(WITH_DECISION_S, self._flush_waiting)
        for event in ended:  # processed after the caller was answered, and before its next call is read
            self._observed(event)

    def _write(self) -> None:
        relay = self.relay
        if self._waiting:
            self._waiting.cancel()
            self._waiting = None
        if data := relay.to_runtime():
            self._runtime.write(data)
        if data := relay.to_client():
            self._client.write(data)
        self._flush_remaining()
        if relay.broken:
            broken = relay.broken
            if broken.code:
                self._log.error(
                    Event.CONNECTION_BROKEN, broken.message, connection=self.number, by=broken.by, code=broken.code.name
                )
            self.close()

    # ---- held calls

    def _held(self, event: CallHeld) -> bool:
        """End a held call now, or start a task that decides it. Return whether the call waits for a decision."""
        method = METHODS[event.path]
        self._held_since[event.stream] = (method, self._loop.time())
        if event.size < LARGE and not event.compressed:
            try:
                ending = self._gate.handle(_read(event, method))
            except UnreadableMessageError as e:
                ending = _unreadable(method, e)
        else:
            ending = partial(self._read_and_handle, event, method)
        if isinstance(ending, Forward | Refuse):
            self._end(event.stream, ending)
            return False
        task = self._loop.create_task(self._decide(event.stream, method, ending))
        self._deciding[event.stream] = task
        task.add_done_callback(lambda _: self._deciding.pop(event.stream, None))
        return True

    async def _decide(self, stream: int, method: Method, later: Later) -> None:
        outcome = _given_up(method)
        try:
            outcome = await later()
        finally:  # the call ends even if the task is cancelled: no caller waits forever
            self._end(stream, outcome)
            self._flush()

    async def _read_and_handle(self, event: CallHeld, method: Method) -> Outcome:
        """Decide a call whose message takes long even to copy or decompress."""
        try:
            call = await asyncio.to_thread(_read, event, method)
        except UnreadableMessageError as e:
            return _unreadable(method, e)
        ending = self._gate.handle(call)
        return ending if isinstance(ending, Forward | Refuse) else await ending()

    def _end(self, stream: int, outcome: Outcome) -> None:
        """End a held call. Do nothing if the call is over already: `_cancelled` was or will be called for it."""
        match outcome:
            case Forward(message, observe):
                done = self.relay.forward(stream, message, observe=observe is not None)
            case Refuse(status, text):
                done = self.relay.refuse(stream, status, text)
        if done and stream in self._held_since:
            method, since = self._held_since.pop(stream)
            self._loop.call_soon(self._metrics.call_ended, method, outcome, self._loop.time() - since)
            if isinstance(outcome, Forward) and outcome.observe:
                self._observing[stream] = (method, outcome.observe)

    def _observed(self, event: CallEnded) -> None:
        method, context = self._observing.pop(event.stream)
        reply = b""
        if event.status == GrpcStatus.OK:
            try:
                reply = unpack(event.reply, b"", MAX_MESSAGE)
            except UnreadableMessageError as e:  # a compressed reply, which containerd does not send
                self._log.error(Event.CALL_FORWARDED, f"cannot observe: {e}", method=method.name)
                return
        self._gate.observed(method, context, event.status, reply)

    def _cancelled(self, event: CallCancelled) -> None:
        self._observing.pop(event.stream, None)
        self._count_cancelled(event.stream)
        if task := self._deciding.get(event.stream):
            task.cancel()

    def _count_cancelled(self, stream: int) -> None:
        if stream in self._held_since:
            method, since = self._held_since.pop(stream)
            self._metrics.call_cancelled(method, self._loop.time() - since)

    # ---- the end

    @property
    def done(self) -> bool:
        """Return whether, after `announce_end`, no call is open and no more calls will come."""
        return self.local is not None or self.relay.ended

    def announce_end(self) -> None:
        if not self.local:
            self.relay.announce_end()
            self._flush()

    def send_away(self) -> None:
        """Close a locally answered connection, so that the client dials again and reaches the runtime, which is back."""
        if self.local and not self.local.done:
            self._answer(self.local.end())

    def finish(self, message: str) -> None:
        """End every open call with UNAVAILABLE and this text, then close the connection."""
        self.relay.end(message)
        self._flush()
        self.close()

    def _client_lost(self) -> None:
        self.close()
        self._ended(self)

    def _runtime_lost(self) -> None:
        if not self._over and not self.local:
            self.relay.end(f"lading: the container runtime at {self._runtime_path} closed the connection")
            self._flush()  # `_flush` closes the link as soon as the client's transport exists

    def close(self) -> None:
        """Close both sockets after sending the buffered bytes. `ended` is called once the client's is closed. Idempotent."""
        if self._over:
            return
        self._over = True
        for timer in filter(None, (self._silence, self._waiting)):
            timer.cancel()
        for task in list(self._deciding.values()):
            task.cancel()
        for stream in list(self._held_since):
            self._count_cancelled(stream)
        self.relay.end("lading: the connection was closed")
        self.relay.take_events()
        self._client.close(wait_for_peer=True)
        self._runtime.close(wait_for_peer=False)
        self._log.debug(Event.CONNECTION_CLOSED, connection=self.number)
        if self._client.transport is None:
            if self._starting:
                self._starting.cancel()
            self._ended(self)

    async def closed(self) -> None:
        """Wait until all tasks of the link have ended, after `close` was called."""
        begun = [self._starting] if self._starting else []
        await asyncio.gather(*begun, *self._deciding.values(), return_exceptions=True)
