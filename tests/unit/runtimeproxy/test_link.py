"""One kubelet connection joined to one runtime connection, over real sockets. h2 speaks for both ends."""

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from h2.events import SettingsAcknowledged
from h2.settings import SettingCodes

from lading.http2 import frames
from lading.http2.messages import prefixed
from lading.log import Event, Log
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy import link as link_module
from runtimeproxy.call.call_context import CallContext
from runtimeproxy.call.calls import HeldCall, Method
from runtimeproxy.call.outcome import Forward, Outcome, Refuse
from runtimeproxy.chain.chain import Chain
from runtimeproxy.gate import LARGE, Gate, Later
from runtimeproxy.link import Link
from runtimeproxy.metrics import Metrics
from runtimeproxy.relay.budget import HoldBudget
from tests.fakes.records import Records
from tests.fakes.wire import FREE, HELD, Peer, Seen, request_fields
from tests.unit.runtimeproxy.test_gate import Runtime as NoSandboxes

of_any_size = pytest.mark.parametrize("large", [1, LARGE], indirect=True, ids=["large", "small"])

CONTEXT = CallContext(sandbox=hook.PodSandbox())
STOP = b"/runtime.v1.RuntimeService/StopPodSandbox"
SETTINGS = frames.frame(frames.SETTINGS, 0, 0)


@pytest.fixture(autouse=True)
def large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """From how many bytes on a message is large, which is read in a thread."""
    monkeypatch.setattr(link_module, "LARGE", getattr(request, "param", LARGE))


class Scripted(Gate):
    """Holds creations and stops, and ends each as the test says."""

    def __init__(self, log: Log) -> None:
        super().__init__(Chain(log), NoSandboxes(), log, guarded_prefixes=["lading.dev/"])
        self.outcome: Outcome | Exception | None = None  # None: the decision never ends
        self.asked = asyncio.Event()
        self.given_up = asyncio.Event()
        self.seen: list[tuple[int, bytes]] = []
        self.calls: list[bytes] = []

    @property
    def held_paths(self) -> frozenset[bytes]:
        return frozenset({HELD, STOP})

    def handle(self, call: HeldCall) -> Later:
        return partial(self._answer, call)

    async def _answer(self, call: HeldCall) -> Outcome:
        self.asked.set()
        self.calls.append(call.message)
        try:
            if self.outcome is None:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.given_up.set()
            raise
        if isinstance(self.outcome, Exception):
            raise self.outcome
        assert self.outcome is not None
        return self.outcome

    def observed(self, method: Method, context: CallContext, status: int, reply: bytes) -> None:
        self.seen.append((status, reply))


class End:
    """An h2 peer on a socket."""

    def __init__(self, peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.peer, self._reader, self._writer = peer, reader, writer
        self.moved = asyncio.Event()
        self.eof = asyncio.Event()
        self.pumping = asyncio.create_task(self._pump())
        self.flush()

    def flush(self) -> None:
        self._writer.write(self.peer.connection.data_to_send())

    async def _pump(self) -> None:
        with suppress(ConnectionResetError):
            while data := await self._reader.read(1 << 16):
                self.peer.receive(data)
                self.arrived()
                self.flush()
                self.moved.set()
        self.eof.set()
        self.moved.set()

    def arrived(self) -> None:
        """For who answers."""

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            self.moved.clear()
            await self.moved.wait()

    def settled(self) -> bool:
        """Return whether the other end has acknowledged the SETTINGS of this end."""
        return any(isinstance(event, SettingsAcknowledged) for event in self.peer.events)

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
        self.pumping.cancel()
        with suppress(asyncio.CancelledError):
            await self.pumping


class Server(End):
    """The runtime: answers each whole call with its message."""

    silent = False

    def arrived(self) -> None:
        for stream, seen in self.peer.streams.items():
            if seen.ended and not self.silent:
                seen.ended = False
                self.peer.connection.send_headers(stream, [(b":status", b"200"), (b"content-type", b"application/grpc")])
                self.peer.connection.send_data(stream, seen.data)
                self.peer.connection.send_headers(stream, [(b"grpc-status", b"0")], end_stream=True)


class Client(End):
    def call(self, path: bytes, message: bytes = b"request") -> int:
        stream = self.peer.connection.get_next_available_stream_id()
        self.peer.connection.send_headers(stream, request_fields(path))
        self.peer.connection.send_data(stream, prefixed(message), end_stream=True)
        self.flush()
        return stream

    async def answer(self, stream: int) -> Seen:
        await self.until(lambda: stream in self.peer.streams and self.peer.streams[stream].ended)
        return self.peer.streams[stream]


class Rig:
    """Links to one runtime path, and what they said."""

    def __init__(self, path: Path, gate: Scripted, log: Log) -> None:
        self.path, self.gate, self.log = path, gate, log
        self.budget = HoldBudget(64 << 20)
        self.ended: list[Link] = []
        self.runtime_seen: list[bool] = []
        self.links: list[Link] = []
        self.servers: list[Server] = []
        self.met = asyncio.Event()
        self.moved = asyncio.Event()

    @asynccontextmanager
    async def runtime(self, *, silent: bool = False) -> AsyncIterator[None]:
        def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.servers.append(Server(Peer(client=False), reader, writer))
            self.servers[-1].silent = silent
            self.met.set()

        server = await asyncio.start_unix_server(met, self.path)
        try:
            yield
        finally:
            server.close()
            for one in self.servers:
                await one.close()

    @asynccontextmanager
    async def connected(self, *, silent: bool = False) -> AsyncIterator[Client]:
        """Run a runtime, and connect a client to it by a link."""
        async with self.runtime(silent=silent):
            client = await self.client()
            yield client
            await client.close()

    def join(self) -> socket.socket:
        """Start a link, and return the client's end of its connection."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        link = Link(
            number=len(self.links),
            gate=self.gate,
            budget=self.budget,
            runtime_path=str(self.path),
            log=self.log,
            metrics=Metrics(),
            ended=self._end,
            runtime_dialled=self.runtime_seen.append,
        )
        self.links.append(link)
        link.start(ours)
        return theirs

    def _end(self, link: Link) -> None:
        self.ended.append(link)
        self.moved.set()

    async def over(self) -> None:
        """Every link is told to have ended, once: after its client hung up."""
        while len(self.ended) < len(self.links):
            self.moved.clear()
            await self.moved.wait()
        assert sorted(link.number for link in self.ended) == [link.number for link in self.links]

    async def client(self) -> Client:
        reader, writer = await asyncio.open_connection(sock=self.join())
        return Client(Peer(client=True), reader, writer)


@pytest.fixture
async def rig(short_folder: Path, log: Log) -> AsyncIterator[Rig]:
    rig = Rig(short_folder / "runtime.sock", Scripted(log), log)
    try:
        yield rig
    finally:
        for link in rig.links:
            link.close()
        await asyncio.gather(*(link.closed() for link in rig.links), return_exceptions=True)
        await asyncio.sleep(0)  # the transports' last callbacks
        await asyncio.sleep(0)


async def test_a_call_that_no_one_wants_passes(rig: Rig) -> None:
    async with rig.connected() as client:
        seen = await client.answer(client.call(FREE, b"x" * 10_000))
        assert seen.data == prefixed(b"x" * 10_000)
        assert seen.last(b"grpc-status") == b"0"
        assert not rig.gate.asked.is_set()
    assert rig.runtime_seen == [True]


# the runtime speaks first


async def test_bytes_of_the_runtime_before_the_clients_transport_exists_are_sent(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a client that sends nothing, so that no byte of its own flushes the link."""
    loop = asyncio.get_running_loop()
    connect, heard = loop.connect_accepted_socket, asyncio.Event()
    receive = link_module.Half.data_received

    def data_received(half: link_module.Half, data: bytes) -> None:
        receive(half, data)
        heard.set()

    async def connect_late(*args: object, **kwargs: object) -> object:
        await heard.wait()
        return await connect(*args, **kwargs)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(link_module.Half, "data_received", data_received)
    monkeypatch.setattr(loop, "connect_accepted_socket", connect_late)
    async with rig.runtime():
        reader, writer = await asyncio.open_connection(sock=rig.join())
        assert (await reader.readexactly(frames.HEADER_LENGTH))[3] == frames.SETTINGS
        writer.close()


# held calls


@of_any_size
async def test_a_held_call_goes_on_changed_and_its_reply_is_seen(rig: Rig) -> None:
    rig.gate.outcome = Forward(b"changed", observe=CONTEXT)
    async with rig.connected() as client:
        seen = await client.answer(client.call(HELD))
        assert seen.data == prefixed(b"changed")
    assert rig.gate.seen == [(0, b"changed")]


@of_any_size
async def test_a_refused_call_ends_and_the_connection_lives_on(rig: Rig) -> None:
    rig.gate.outcome = Refuse(9, "no")
    async with rig.connected() as client:
        seen = await client.answer(client.call(HELD))
        assert (seen.last(b"grpc-status"), seen.last(b"grpc-message")) == (b"9", b"no")
        assert (await client.answer(client.call(FREE))).last(b"grpc-status") == b"0"


@of_any_size
@pytest.mark.parametrize(("path", "status"), [(HELD, b"13"), (STOP, b"0")])
async def test_a_gate_that_raises_still_ends_the_call(rig: Rig, path: bytes, status: bytes) -> None:
    """A creation is refused; a stop goes on, whatever is wrong with us."""
    rig.gate.outcome = RuntimeError("a bug")
    async with rig.connected() as client:
        assert (await client.answer(client.call(path))).last(b"grpc-status") == status
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the task's own error, which no one awaits


@of_any_size
@pytest.mark.parametrize(("path", "status"), [(HELD, b"13"), (STOP, b"0")])
async def test_a_gate_that_is_cancelled_still_ends_the_call(rig: Rig, path: bytes, status: bytes) -> None:
    async with rig.connected() as client:
        stream = client.call(path)
        await rig.gate.asked.wait()
        (deciding,) = rig.links[0]._deciding.values()
        deciding.cancel()
        assert (await client.answer(stream)).last(b"grpc-status") == status


@of_any_size
async def test_a_client_that_gives_up_ends_the_decision(rig: Rig) -> None:
    async with rig.connected() as client:
        stream = client.call(HELD)
        await rig.gate.asked.wait()
        client.peer.connection.reset_stream(stream)
        client.flush()
        await rig.gate.given_up.wait()
        assert (await client.answer(client.call(FREE))).last(b"grpc-status") == b"0"


@of_any_size
async def test_the_runtime_knows_of_a_call_while_it_is_decided(rig: Rig) -> None:
    async with rig.connected() as client:
        stream = client.call(HELD)
        await rig.gate.asked.wait()
        await rig.servers[0].until(lambda: stream in rig.servers[0].peer.streams)
        assert not rig.servers[0].peer.streams[stream].data


@of_any_size
async def test_the_headers_of_a_held_call_wait_for_what_is_sent_next(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "WITH_DECISION_S", 3600.0)
    async with rig.connected() as client:
        await client.answer(client.call(FREE))
        for end in (client, rig.servers[0]):
            await end.until(end.settled)
        stream = client.call(HELD)
        await rig.gate.asked.wait()
        await asyncio.sleep(0.1)  # nothing must arrive meanwhile, so there is no event to wait for
        assert stream not in rig.servers[0].peer.streams
        await client.answer(client.call(FREE))
        assert stream in rig.servers[0].peer.streams


async def test_they_wait_only_for_a_moment_while_calls_keep_coming(rig: Rig) -> None:
    async with rig.connected() as client:
        first = client.call(HELD)
        await rig.gate.asked.wait()
        server = rig.servers[0]
        while first not in server.peer.streams:
            client.call(HELD)
            await asyncio.sleep(link_module.WITH_DECISION_S / 4)


@of_any_size
async def test_a_decision_that_hangs_ends_with_the_connection(rig: Rig) -> None:
    async with rig.runtime():
        client = await rig.client()
        client.call(HELD)
        await rig.gate.asked.wait()
        await client.close()
        await rig.gate.given_up.wait()
        await rig.over()


@of_any_size
async def test_or_is_answered_when_the_proxy_stops(rig: Rig) -> None:
    async with rig.runtime():
        client = await rig.client()
        stream = client.call(HELD)
        await rig.gate.asked.wait()
        (link,) = rig.links
        link.finish("stopping")
        seen = await client.answer(stream)
        assert (seen.last(b"grpc-status"), seen.last(b"grpc-message")) == (b"14", b"stopping")
        await client.eof.wait()
        await client.close()
        await rig.over()


@of_any_size
async def test_a_message_that_cannot_be_unpacked(rig: Rig) -> None:
    """A creation is refused in gRPC's words, a stop is the runtime's to judge."""
    async with rig.connected() as client:
        for path, status in ((HELD, b"12"), (STOP, b"0")):
            stream = client.peer.connection.get_next_available_stream_id()
            client.peer.connection.send_headers(stream, request_fields(path, [(b"grpc-encoding", b"snappy")]))
            client.peer.connection.send_data(stream, b"\x01\0\0\0\x03abc", end_stream=True)
            client.flush()
            assert (await client.answer(stream)).last(b"grpc-status") == status
        assert not rig.gate.asked.is_set()


async def test_a_compressed_message_is_shown_as_it_is(rig: Rig) -> None:
    rig.gate.outcome = Forward(b"changed")
    async with rig.connected() as client:
        stream = client.peer.connection.get_next_available_stream_id()
        client.peer.connection.send_headers(stream, request_fields(HELD, [(b"grpc-encoding", b"gzip")]))
        content = gzip.compress(b"content")
        client.peer.connection.send_data(stream, b"\x01" + prefixed(content)[1:], end_stream=True)
        client.flush()
        assert (await client.answer(stream)).data == prefixed(b"changed")
    assert rig.gate.calls == [b"content"]


@of_any_size
async def test_megabytes_come_through_a_hold(rig: Rig) -> None:
    """More than the socket, its buffer and one burst of the relay hold, to a runtime with room for it."""
    message = bytes(i * i >> 8 & 0xFF for i in range(3_000_000))
    rig.gate.outcome = Forward(message)
    async with rig.connected(silent=True) as client:
        await rig.met.wait()
        server = rig.servers[0]
        server.peer.auto_credit = False  # so that nothing but its reading wakes the link
        server.peer.connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 4 << 20})
        server.peer.connection.increment_flow_control_window(4 << 20)
        server.flush()
        await server.until(lambda: sum(isinstance(e, SettingsAcknowledged) for e in server.peer.events) == 2)
        stream = client.call(HELD)
        await server.until(lambda: stream in server.peer.streams and server.peer.streams[stream].ended)
        assert server.peer.streams[stream].data == prefixed(message)


# either side ends


async def test_a_runtime_that_goes_leaves_an_answer_and_an_end(rig: Rig) -> None:
    async with rig.runtime(silent=True):
        client = await rig.client()
        stream = client.call(FREE)
        await rig.met.wait()
        await rig.servers[0].until(lambda: stream in rig.servers[0].peer.streams)
        await rig.servers[0].close()
        seen = await client.answer(stream)
        assert seen.last(b"grpc-status") == b"14"
        assert str(rig.path).encode() in (seen.last(b"grpc-message") or b"")
        await client.eof.wait()
        await client.close()
        await rig.over()


async def test_a_client_that_goes_takes_its_runtime_connection_along(rig: Rig) -> None:
    async with rig.runtime():
        client = await rig.client()
        await client.answer(client.call(FREE))
        await client.close()
        await rig.servers[0].eof.wait()
        await rig.over()


async def test_a_runtime_that_hangs_up_at_once(rig: Rig) -> None:
    async def met(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_unix_server(met, rig.path)
    for _ in range(20):
        client = await rig.client()
        await client.eof.wait()
        await client.close()
    server.close()
    await rig.over()


async def test_malformed_bytes_end_both_sides_and_are_logged(rig: Rig, records: Records) -> None:
    async with rig.runtime():
        reader, writer = await asyncio.open_connection(sock=rig.join())
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        while await reader.read(1 << 16):
            pass
        writer.close()
    await rig.over()
    (fields,) = records.fields(Event.CONNECTION_BROKEN)
    assert (fields["by"], fields["code"]) == ("client", "PROTOCOL_ERROR")


# no runtime


async def test_without_a_runtime_each_call_is_unavailable_and_names_the_socket(rig: Rig) -> None:
    client = await rig.client()
    seen = await client.answer(client.call(FREE))
    assert seen.last(b"grpc-status") == b"14"
    assert str(rig.path).encode() in (seen.last(b"grpc-message") or b"")
    await client.eof.wait()
    await client.close()
    assert rig.runtime_seen == [False]


async def test_a_client_that_waits_is_sent_away_when_the_runtime_is_back(rig: Rig) -> None:
    client = await rig.client()
    await client.until(lambda: bool(client.peer.events))
    (link,) = rig.links
    assert link.done
    link.send_away()
    await client.eof.wait()
    assert any(type(event).__name__ == "ConnectionTerminated" for event in client.peer.events)
    await client.close()


async def test_a_runtime_whose_backlog_is_full_is_not_there(rig: Rig) -> None:
    """connect() says EAGAIN then, which asyncio takes for a connection that comes."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(rig.path))
        listener.listen(0)
        waiting.connect(str(rig.path))
        client = await rig.client()
        seen = await client.answer(client.call(FREE))
        assert seen.last(b"grpc-status") == b"14"
        assert str(rig.path).encode() in (seen.last(b"grpc-message") or b"")
        await client.close()
    assert rig.runtime_seen == [False]


# clients in the middle of something


async def test_who_is_still_writing_gets_to_read_its_answer(rig: Rig) -> None:
    """With unread bytes in a closed socket the kernel would fail the client's next write, and gRPC gives up reading then."""
    peer, theirs = Peer(client=True), rig.join()
    reader, writer = await asyncio.open_connection(sock=theirs)
    peer.connection.send_headers(1, request_fields(FREE))
    writer.write(peer.connection.data_to_send())
    peer.receive(await reader.read(1 << 16))
    peer.receive(await reader.read())  # to the end
    for _ in range(3):
        writer.write(frames.frame(frames.DATA, 0, 1, b"x" * 10_000))
        await writer.drain()
    assert peer.streams[1].last(b"grpc-status") == b"14"
    writer.close()
    await rig.over()


async def test_who_does_not_hang_up_is_cut_off(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "LINGER_S", 0.01)
    theirs = rig.join()
    theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
    await rig.over()
    theirs.close()


@pytest.mark.parametrize("frame", [frames.frame(frames.PING, 0, 0, b"12345678"), SETTINGS], ids=["PING", "SETTINGS"])
async def test_a_client_that_does_not_read_is_not_read(rig: Rig, frame: bytes) -> None:
    """Check a flood without a runtime: the link's answers would pile up."""
    theirs = rig.join()
    theirs.sendall(frames.PREFACE + SETTINGS)
    theirs.setblocking(False)
    flood = memoryview(frame * 1000)
    sent = idle = 0
    while idle < 100 and sent < 20 << 20:  # turns of the loop in which nothing is taken
        try:
            sent += theirs.send(flood[sent % len(flood) :])
            idle = 0
        except BlockingIOError:
            idle += 1
            await asyncio.sleep(0)
    assert link_module.HIGH_WATER < sent < 5 << 20
    theirs.close()


@pytest.mark.parametrize("said", [b"", frames.PREFACE[:1], frames.PREFACE[:23], frames.PREFACE + SETTINGS[:8]], ids=len)
@pytest.mark.parametrize("runtime_there", [True, False])
async def test_half_a_preface_buys_no_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, records: Records, said: bytes, runtime_there: bool
) -> None:
    monkeypatch.setattr(link_module, "PREFACE_TIMEOUT_S", 0.01)
    async with rig.runtime() if runtime_there else nothing():
        theirs = rig.join()
        theirs.sendall(said)
        reader, writer = await asyncio.open_connection(sock=theirs)
        await reader.read()
        writer.close()
        await rig.over()
    assert Event.CONNECTION_CLOSED in records.events()


@pytest.mark.parametrize("runtime_there", [True, False])
async def test_a_whole_preface_lets_a_client_be_silent(rig: Rig, runtime_there: bool) -> None:
    async with rig.runtime() if runtime_there else nothing():
        client = await rig.client()
        await client.until(client.settled)
        rig.links[0]._client_silent()
        status = b"0" if runtime_there else b"14"
        assert (await client.answer(client.call(FREE))).last(b"grpc-status") == status
        await client.close()


async def test_a_link_that_ends_while_it_dials_leaves_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    dialling, never = asyncio.Event(), asyncio.Event()

    async def dial(*_: object) -> None:
        dialling.set()
        await never.wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_unix_connection", dial)
    for wait in (True, False):  # in the middle of it; before it has begun
        dialling.clear()
        theirs = rig.join()
        if wait:
            await dialling.wait()
        rig.links[-1].finish("stopping")
        reader, writer = await asyncio.open_connection(sock=theirs)
        assert await reader.read() == b""
        writer.close()
    await rig.over()


async def test_an_answer_without_its_message_is_not_observed_and_harms_nothing(rig: Rig) -> None:
    rig.gate.outcome = Forward(None, observe=CONTEXT)
    async with rig.connected(silent=True) as client:
        stream = client.call(HELD)
        await rig.met.wait()
        (server,) = rig.servers
        await server.until(lambda: stream in server.peer.streams and server.peer.streams[stream].ended)
        server.peer.connection.send_headers(stream, [(b":status", b"200"), (b"grpc-status", b"0")], end_stream=True)
        server.flush()
        assert (await client.answer(stream)).last(b"grpc-status") == b"0"
        server.silent = server.peer.streams[stream].ended = False
        assert (await client.answer(client.call(FREE))).last(b"grpc-status") == b"0"
    assert rig.gate.seen == []


@asynccontextmanager
async def nothing() -> AsyncIterator[None]:
    yield
