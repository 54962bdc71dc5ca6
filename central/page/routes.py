"""Serve `GET /` and its files, and `GET /v1/cluster`: the page, and its data as JSON. Both are read-only.

    GET /v1/cluster                    the whole cluster, with its `revision`
    GET /v1/cluster?after=REVISION     the changes since: at once, or as soon as something changes, within WAIT_S
                                       (`&wait=0`: at once, even if nothing changed)

The answer is 503 if another replica leads (for `GET /` with a page that reloads itself), or if WATCHERS requests wait already.
After a change of leadership, earlier revisions are invalid, and the answer has the whole cluster. A connection from this host
with a foreign Host header is refused (421), against DNS rebinding: `kubectl port-forward` ends on loopback, and an attacker's
web page can resolve its own name to 127.0.0.1. The listener decides which clients may connect at all.
"""

import asyncio
import contextlib
import ipaddress
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from aiohttp import web

from central.http import NOT_LEADING
from central.page.files import HEADERS, INDEX, STANDBY, File, read_files, takes, takes_gzip
from central.page.live import EVERY_S, Live

WAIT_S: Final = 25.0  # seconds; shorter than any proxy's timeout
WATCHERS: Final = 64
PLAIN_AT_ONCE: Final = 4  # maximum clients without gzip that get the whole cluster at one time; that answer is not cached
_PART: Final = 1 << 18  # bytes compressed in one call, on a thread: zlib lets the event loop run meanwhile
_GZIP: Final = 31  # zlib's number for a window of 32 KiB in gzip format
_LEVEL: Final = 4


class PageRoutes:
    def __init__(self, live: Callable[[], Live | None]) -> None:
        """Create the routes. `live` returns the data of the current leadership; None while this replica does not lead."""
        self._live = live
        self._files = read_files()
        self._watchers = 0
        self._made: tuple[tuple[str, str, bool], asyncio.Task[bytes]] | None = None  # the last requested changes
        self._whole: tuple[tuple[str, float], asyncio.Task[bytes]] | None = None  # the last compressed answer with all nodes
        self._plain = asyncio.Semaphore(PLAIN_AT_ONCE)
        self._stopped = asyncio.Event()

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/", self._index, allow_head=False)
        router.add_get("/v1/cluster", self._cluster, allow_head=False)
        for name in self._files:
            if name not in (INDEX, STANDBY):
                router.add_get(f"/{name}", self._file, allow_head=False)

    def stop(self) -> None:
        self._stopped.set()

    async def _index(self, request: web.Request) -> web.StreamResponse:
        if refused := refuse_name(request):
            return refused
        if self._live() is None:
            response = self._files[STANDBY].answer(request, status=503)
            response.force_close()  # the next request finds the leader's endpoint
            return response
        return self._files[INDEX].answer(request)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        file: File = self._files[request.path.rpartition("/")[2]]
        return refuse_name(request) or file.answer(request)

    async def _cluster(self, request: web.Request) -> web.StreamResponse:
        if refused := refuse_name(request):
            return refused
        live, after = self._live(), request.query.get("after")
        if live is None:
            return refusal(503, NOT_LEADING, close=True)
        await live.catch_up()
        if after is None or live.revision != after or request.query.get("wait") == "0":
            return await self._answer(request, live, after)
        with self._watching() as granted:
            if not granted:
                return refusal(503, "too many watchers\n")
            return await self._wait(request, after)

    async def _answer(self, request: web.Request, live: Live, after: str | None) -> web.StreamResponse:
        packs = takes_gzip(request)
        changes = self._changes(live, after, packs=packs) if after is not None else None
        if changes is not None:
            headers = _headers(live.revision, packs=packs)
            return web.Response(body=await asyncio.shield(changes), headers=headers)
        if takes(request, f'"{live.revision}"'):
            return web.Response(status=304, headers=HEADERS | {"ETag": f'"{live.revision}"'})
        if packs:
            headers = _headers(live.revision, packs=True)
            return web.Response(body=await asyncio.shield(self._packed_whole(live)), headers=headers)
        return await self._send_plain(request, live)

    async def _send_plain(self, request: web.Request, live: Live) -> web.StreamResponse:
        async with self._plain:
            whole = live.whole()
            response = web.StreamResponse(headers=_headers(whole.revision, packs=False))
            with contextlib.suppress(ConnectionError):  # the client closed the connection
                await response.prepare(request)
                for part in _in_parts(whole.parts):
                    await response.write(part)
                await response.write_eof()
            return response

    def _packed_whole(self, live: Live) -> "asyncio.Task[bytes]":
        """Return the compressed answer with all nodes, made once for all clients that open the page at that moment."""
        if self._whole is None or self._whole[0] != live.moment:
            self._whole = live.moment, asyncio.get_running_loop().create_task(_joined(live.whole().parts, packs=True))
        return self._whole[1]

    def _changes(self, live: Live, after: str, *, packs: bool) -> "asyncio.Task[bytes] | None":
        """Return one shared task for all requests for the same changes, because watching clients mostly request the same. None:
        unknown revision."""
        same = after, live.revision, packs
        if self._made is None or self._made[0] != same:
            changes = live.since(after)
            if changes is None:
                return None
            self._made = same, asyncio.get_running_loop().create_task(_joined(changes.parts, packs=packs))
        return self._made[1]

    async def _wait(self, request: web.Request, after: str) -> web.StreamResponse:
        until = time.monotonic() + WAIT_S
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), EVERY_S)
            live = self._live()
            if live is None or self._stopped.is_set():
                return refusal(503, NOT_LEADING, close=True)
            await live.catch_up()
            closed = request.transport is None or request.transport.is_closing()
            if live.revision != after or closed or time.monotonic() >= until:
                return await self._answer(request, live, after)

    @contextlib.contextmanager
    def _watching(self) -> Iterator[bool]:
        if self._watchers >= WATCHERS:
            yield False
            return
        self._watchers += 1
        try:
            yield True
        finally:
            self._watchers -= 1


def _headers(revision: str, *, packs: bool) -> dict[str, str]:
    encoding = {"Content-Encoding": "gzip"} if packs else {}
    return HEADERS | {"ETag": f'"{revision}"', "Content-Type": "application/json"} | encoding


def refuse_name(request: web.Request) -> web.Response | None:
    """Return a refusal for a request from this host with a foreign Host header; None if the request may be answered."""
    if not _is_loopback(request.remote or "") or _is_ours(request.host):
        return None
    return refusal(421, "use an IP address or localhost as the host name\n")


def _is_loopback(peer: str) -> bool:
    try:
        return ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return True  # a Unix socket is on this host too


def _is_ours(host: str) -> bool:
    """Return whether the Host header is localhost or an IP address, which cannot be the name of another site."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name.lower().rstrip(".") == "localhost":
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def refusal(status: int, text: str, *, close: bool = False) -> web.Response:
    response = web.Response(status=status, text=text, headers=HEADERS | ({"Retry-After": "5"} if status == 503 else {}))
    if close:
        response.force_close()
    return response


async def _joined(parts: Iterable[bytes], *, packs: bool) -> bytes:
    if not packs:
        return b"".join(parts)
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    packed = [await asyncio.to_thread(packer.compress, part) for part in _in_parts(parts)]
    return b"".join([*packed, packer.flush()])


def _in_parts(parts: Iterable[bytes]) -> Iterator[bytes]:
    together: list[bytes] = []
    size = 0
    for part in parts:
        together.append(part)
        size += len(part)
        if size >= _PART:
            yield b"".join(together)
            together, size = [], 0
    yield b"".join(together)
