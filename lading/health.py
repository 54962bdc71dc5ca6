"""Serve `/metrics`, `/healthz` and `/readyz` of a daemon, over HTTP/1.1 on an address of the node.

`/metrics` returns a registry as text for Prometheus. `/healthz` returns the result of a probe, and `/readyz` the conditions, as
JSON; their status is 503 if something is wrong. Methods other than GET and HEAD are refused, and so are request heads that are
over 8 KiB or take over 5 s. Beyond 16 connections, the longest waiting connection is closed for a new one: clients that send
nothing must not block a probe. An address that cannot be bound is reported and tried again, and does not stop the daemon.

prometheus_client's own server is not used, because it answers from other threads: `/healthz` would succeed while the event loop
hangs. An HTTP framework is not needed: a page of HTTP/1.1 is enough for one request per connection without a body (RFC 9112).
"""

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, NamedTuple, Self

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, disable_created_metrics, generate_latest

from lading.errors import ConfigError
from lading.log import Event, Log, printable
from lading.vocabulary import NO_SUCH_PAGE

MAX_HEAD: Final = 8 << 10
MAX_CONNECTIONS: Final = 16  # a few scrapers, a kubelet probe, a person
REQUEST_TIMEOUT_S: Final = 5.0
BIND_RETRY_S: Final = 10.0

# Each counter would have a second series by default, which Prometheus does not read.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Address(NamedTuple):
    host: str
    port: int  # 0: any free port


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    name: str
    ok: bool
    why: str = ""  # the problem, in words
    required: bool = True  # False: if it fails, the daemon is still ready, but degraded

    @classmethod
    def unless(cls, problem: str, *, name: str, required: bool = True) -> Self:
        """Create a condition that holds if the text `problem` is empty. The text may quote a pod or a file."""
        return cls(name=name, ok=not problem, why=printable(problem), required=required)


class _Readiness(msgspec.Struct):
    ready: bool
    conditions: Sequence[Condition]


class _Health(msgspec.Struct):
    alive: bool
    why: str


def parse_address(text: str) -> Address | None:
    """Parse `127.0.0.1:9440` or `[::1]:9440`; return None for an empty text, which means off. Raises ConfigError for anything
    else."""
    if not text:
        return None
    host, _, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    hint = "write it as 127.0.0.1:9440 or [::1]:9440, or leave it empty to turn it off"
    try:
        ipaddress.ip_address(host)
    except ValueError as e:
        raise ConfigError(f"metrics: {text!r} is not an IP address and port", hint=hint) from e
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) < 1 << 16):
        raise ConfigError(f"metrics: {port!r} is not a port", hint=hint)
    return Address(host, int(port))


@dataclass(slots=True)
class HealthServer:
    """Serve health and metrics on the same event loop whose health is reported."""

    address: Address | None
    registry: CollectorRegistry | None  # None: there is no `/metrics`, the server is for probes only
    silence: Callable[[], Awaitable[str]]
    conditions: Callable[[], Sequence[Condition]]
    log: Log
    _open: dict[asyncio.StreamWriter, None] = field(default_factory=dict)  # open connections, the longest waiting first
    _server: asyncio.Server | None = None
    _binding: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the server. Returns once it listens, or once the first attempt failed."""
        if self.address is not None and not await self._listens(self.address):
            self._binding = asyncio.create_task(self._listen(self.address))

    async def close(self) -> None:
        if self._binding is not None:
            self._binding.cancel()
        if self._server is not None:
            self._server.close()  # open connections end by their time limit, or with the loop

    async def _listen(self, address: Address) -> None:
        while True:
            await asyncio.sleep(BIND_RETRY_S)
            if await self._listens(address, again=True):
                return

    async def _listens(self, address: Address, *, again: bool = False) -> bool:
        try:
            self._server = await asyncio.start_server(self._serve, *address, limit=MAX_HEAD, backlog=MAX_CONNECTIONS)
        except OSError as e:
            if not again:
                self.log.error(
                    Event.METRICS_FAILED,
                    f"cannot listen: {e.strerror}; retrying every {BIND_RETRY_S:g} s",
                    address=address.host,
                    port=address.port,
                )
            return False
        host, port = self._server.sockets[0].getsockname()[:2]
        self.log.info(Event.METRICS_LISTENING, address=host, port=port)
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._close_longest_waiting()
        self._open[writer] = None
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                writer.write(await self._answer_head(reader))
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError):  # the client closed, or was too slow
            pass
        finally:
            writer.transport.abort()
            self._open.pop(writer, None)

    def _close_longest_waiting(self) -> None:
        """Close the oldest connection if there are too many. A complete request is answered soon, so an old connection waits
        for its client."""
        if len(self._open) >= MAX_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()

    async def _answer_head(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        text = head.partition(b"\r\n")[0].split(b" ")
        if len(text) != 3 or not text[2].startswith(b"HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST)
        method, target, _ = text
        if method not in (b"GET", b"HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"})
        try:
            response = await self._answer(target.partition(b"?")[0])
        except Exception as e:  # noqa: BLE001  the source of a metric or a condition may fail; the daemon continues
            self.log.error(Event.METRICS_FAILED, f"cannot answer {target[:80]!r}: {type(e).__name__}")
            return _response(HTTPStatus.INTERNAL_SERVER_ERROR)
        return response if method == b"GET" else response.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"

    async def _answer(self, path: bytes) -> bytes:
        match path:
            case b"/metrics" if self.registry is not None:
                return _response(HTTPStatus.OK, generate_latest(self.registry), CONTENT_TYPE_LATEST)
            case b"/healthz":
                silence = await self.silence()
                return _json(not silence, _Health(alive=not silence, why=silence))
            case b"/readyz":
                conditions = self.conditions()
                ready = all(condition.ok for condition in conditions if condition.required)
                return _json(ready, _Readiness(ready=ready, conditions=conditions))
            case _:
                return _response(HTTPStatus.NOT_FOUND, NO_SUCH_PAGE)


def _json(ok: bool, value: msgspec.Struct) -> bytes:
    status = HTTPStatus.OK if ok else HTTPStatus.SERVICE_UNAVAILABLE
    return _response(status, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n", "application/json")


def _response(
    status: HTTPStatus,
    body: bytes = b"",
    content_type: str = "text/plain; charset=utf-8",
    headers: dict[str, str] | None = None,
) -> bytes:
    fields = {
        "Content-Type": content_type,
        "Content-Length": str(len(body)),
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Connection": "close",
        **(headers or {}),
    }
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return head.encode() + b"\r\n" + body
