"""Test the endpoint as its clients see it: real connections on the loop that answers."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry, Counter

from lading import health
from lading.errors import ConfigError
from lading.health import Address, Condition, HealthServer, parse_address
from lading.log import Event, Level, Log


@dataclass
class Daemon:
    """Represent the daemon whose health is served."""

    silence: str = ""
    conditions: tuple[Condition, ...] = ()
    registry: CollectorRegistry | None = field(default_factory=CollectorRegistry)
    events: list[tuple[Event, dict[str, str]]] = field(default_factory=list)

    def write(self, level: Level, event: Event, message: str, fields: dict[str, str]) -> None:
        self.events.append((event, fields))

    async def find_silence(self) -> str:
        return self.silence

    def server(self, address: Address | None) -> HealthServer:
        return HealthServer(
            address, registry=self.registry, silence=self.find_silence, conditions=lambda: self.conditions, log=Log(self)
        )

    @property
    def port(self) -> int:
        return next(int(fields["port"]) for event, fields in self.events if event is Event.METRICS_LISTENING)


@asynccontextmanager
async def serving(daemon: Daemon) -> AsyncIterator[int]:
    server = daemon.server(Address("127.0.0.1", 0))
    await server.start()
    yield daemon.port
    await server.close()


async def say(port: int, request: bytes) -> tuple[int, dict[str, str], bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    status, *fields = head.decode().split("\r\n")
    return int(status.split()[1]), dict(f.split(": ", 1) for f in fields), body


async def get(port: int, path: str) -> tuple[int, dict[str, str], bytes]:
    return await say(port, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


async def test_metrics_are_those_of_this_registry() -> None:
    daemon = Daemon()
    daemon.registry = CollectorRegistry()
    Counter("lading_test", "One.", registry=daemon.registry).inc(3)
    async with serving(daemon) as port:
        status, fields, body = await get(port, "/metrics")
        assert (status, int(fields["Content-Length"])) == (200, len(body))
        assert fields["Content-Type"].startswith("text/plain; version=")
        assert [line for line in body.decode().splitlines() if line.startswith("lading_test_total")] == [
            "lading_test_total 3.0"
        ]


@pytest.mark.parametrize(("silence", "status"), [("", 200), ("no answer", 503)])
async def test_healthz(silence: str, status: int) -> None:
    async with serving(Daemon(silence=silence)) as port:
        answered, _, body = await get(port, "/healthz")
        assert (answered, json.loads(body)) == (status, {"alive": status == 200, "why": silence})


@pytest.mark.parametrize(("ok", "status"), [(True, 200), (False, 503)])
async def test_readyz_names_each_condition_and_needs_all(ok: bool, status: int) -> None:
    conditions = (Condition(name="runtime", ok=True), Condition(name="ledger", ok=ok, why="full"))
    async with serving(Daemon(conditions=conditions)) as port:
        answered, _, body = await get(port, "/readyz")
        assert answered == status
        assert json.loads(body) == {
            "ready": ok,
            "conditions": [
                {"name": "runtime", "ok": True, "why": "", "required": True},
                {"name": "ledger", "ok": ok, "why": "full", "required": True},
            ],
        }


async def test_a_condition_that_is_not_required_is_shown_and_leaves_the_daemon_ready() -> None:
    degraded = Condition.unless("late", name="reported", required=False)
    async with serving(Daemon(conditions=(Condition(name="ledger", ok=True), degraded))) as port:
        status, _, body = await get(port, "/readyz")
        assert (status, json.loads(body)["ready"]) == (200, True)
        assert json.loads(body)["conditions"][1] == {"name": "reported", "ok": False, "why": "late", "required": False}


async def test_head_is_the_answer_without_its_body() -> None:
    async with serving(Daemon()) as port:
        status, fields, body = await say(port, b"HEAD /healthz HTTP/1.1\r\n\r\n")
        assert (status, body) == (200, b"")
        assert int(fields["Content-Length"]) > 0


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
        (b"GET /metrics?name=x HTTP/1.0\r\n\r\n", 200),
        (b"PRI * HTTP/2.0\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nA: " + b"x" * health.MAX_HEAD + b"\r\n\r\n", 431),
    ],
)
async def test_an_unusual_request_gets_its_http_status(request_: bytes, status: int) -> None:
    async with serving(Daemon()) as port:
        assert (await say(port, request_))[0] == status


async def test_a_condition_that_breaks_is_an_error_and_ends_nothing() -> None:
    daemon = Daemon()
    daemon.find_silence = broken  # type: ignore[method-assign]
    async with serving(daemon) as port:
        assert (await get(port, "/healthz"))[0] == 500
        assert (await get(port, "/metrics"))[0] == 200
    assert Event.METRICS_FAILED in [event for event, _ in daemon.events]


async def broken() -> str:
    raise RuntimeError


async def test_a_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "REQUEST_TIMEOUT_S", 0.05)
    async with serving(Daemon()) as port:
        assert await within(closed_without_a_word(port))


async def test_a_request_is_answered_beside_any_number_of_silent_connections() -> None:
    async with serving(Daemon()) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * health.MAX_CONNECTIONS)]
        assert (await get(port, "/healthz"))[0] == 200
        for _, writer in silent:
            writer.transport.abort()


async def test_beyond_the_limit_the_oldest_connection_is_closed() -> None:
    async with serving(Daemon()) as port:
        oldest, *others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(health.MAX_CONNECTIONS + 1)]
        assert await within(is_closed(oldest[0]))
        oldest[1].transport.abort()
        for reader, writer in others:
            writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
            writer.transport.abort()


async def test_a_listener_without_a_registry_has_no_metrics() -> None:
    daemon = Daemon(registry=None)
    async with serving(daemon) as port:
        assert [(await get(port, path))[0] for path in ("/metrics", "/healthz", "/readyz")] == [404, 200, 200]


async def closed_without_a_word(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await is_closed(reader)
    finally:
        writer.transport.abort()


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


async def within(answer: Awaitable[bool]) -> bool:
    return await asyncio.wait_for(answer, 5)


@pytest.mark.simulated_time
async def test_a_port_in_use_is_tried_again_until_it_is_free() -> None:
    daemon = Daemon()

    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = daemon.server(Address("127.0.0.1", taken.getsockname()[1]))
        await server.start()
        await asyncio.sleep(3.5 * health.BIND_RETRY_S)
    assert [event for event, _ in daemon.events] == [Event.METRICS_FAILED]  # once, however often it is tried
    await asyncio.sleep(health.BIND_RETRY_S)
    assert (await get(daemon.port, "/healthz"))[0] == 200
    await server.close()
    assert [event for event, _ in daemon.events] == [Event.METRICS_FAILED, Event.METRICS_LISTENING]


async def test_without_an_address_no_listener_starts() -> None:
    daemon = Daemon()
    server = daemon.server(parse_address(""))
    await server.start()
    await server.close()
    assert daemon.events == []


@pytest.mark.parametrize(("text", "address"), [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:9440", ("::1", 9440)), ("", None)])
def test_addresses(text: str, address: tuple[str, int] | None) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", [":9440", "9440", "127.0.0.1", "localhost:9440", "127.0.0.1:65536", "127.0.0.1:-1", "1.2.3.4:", "[::1]"]
)
def test_an_invalid_address_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError) as e:
        parse_address(text)
    assert "metrics" in e.value.message
