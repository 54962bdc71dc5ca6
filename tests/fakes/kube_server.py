"""Run simnode's API server for tests: record every request, and let the next requests fail by a script."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from aiohttp import web

from simnode.api_server import ApiServer, failure, read_call, write_kubeconfig
from simnode.api_store import Call, Changes, Object, Objects, RefusedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Describe a fault of one request, before or after the request is carried out: an error (`status`), or no answer because
    the connection breaks or hangs."""

    status: int = 0
    reason: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    hang: bool = False
    done: bool = False  # the request is carried out first
    late_s: float = 0.0  # it is carried out so much later, whether or not its sender still waits


class FakeKubeServer(ApiServer):
    """Serve objects, and record every request in `requests`, watches too. `fail` and `send` change the next answers."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []
        self.token = ""  # where set, calls must bring it
        self.grace = False
        self.slowness: Callable[[Request], tuple[float, float]] = lambda _: (0.0, 0.0)  # seconds there, and back
        self.late: list[int] = []  # statuses of the requests that were carried out late
        self._under_way: set[asyncio.Task[None]] = set()
        self._faults: deque[tuple[Callable[[Request], bool], Fault]] = deque()
        self._lines: deque[bytes | None] = deque()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._under_way:
            task.cancel()
        await super().__aexit__(kind, error, trace)

    # ---- what a test does to it

    @property
    def objects(self) -> Objects:
        """Return the objects by path. No watch reports a change that is made here."""
        return self.store.objects

    @property
    def evictable(self) -> bool:
        return self.store.evictable

    @evictable.setter
    def evictable(self, evictable: bool) -> None:
        self.store.evictable = evictable

    @property
    def grace(self) -> bool:
        """Return whether an evicted pod that is bound stays, marked as deleted, until a test removes it."""
        return self.store.graceful

    @grace.setter
    def grace(self, grace: bool) -> None:
        self.store.graceful = grace

    def write_kubeconfig(self, path: Path, *, token: str = "") -> Path:
        return write_kubeconfig(path, self.url, token=token)

    async def put(self, path: str, obj: Object) -> Object:
        """Create or replace an object as another client would; its uid stays unless the object has a uid."""
        return self.store.put(path, obj)

    async def remove(self, path: str) -> None:
        self.store.remove(path)

    async def bookmark(self, version: int) -> None:
        await self.send(msgspec.json.encode({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}}))

    async def send(self, line: bytes | None) -> None:
        """Send this line to the present watches or the next watch; None ends the watch."""
        self._lines.append(line)
        self._notify()

    def compact(self) -> None:
        """Discard all versions and lists so far."""
        self.store.compact()

    def fail(self, fault: Fault, *, when: Callable[[Request], bool] = lambda _: True, times: int = 1) -> None:
        self._faults.extend([(when, fault)] * times)

    def heal(self) -> None:
        """Drop the faults that no request has met yet."""
        self._faults.clear()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until the condition holds. It is checked after each request, change of an object and end of a watch."""
        while not holds():
            await self._something_new()

    def calls(self, method: str, *, watch: bool = False) -> list[Request]:
        return [r for r in self.requests if r.method == method and ("watch" in r.query) == watch]

    # ---- requests

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        call = await read_call(request)
        observed = Request(method=call.method, path=call.path, query=call.query, headers=dict(request.headers), body=call.body)
        self.requests.append(observed)
        self._notify()
        fault = self._next_fault(observed)
        there_s, back_s = self.slowness(observed)
        if fault is not None and fault.late_s:
            late = asyncio.get_running_loop().create_task(self._answer_late(call, fault.late_s))
            self._under_way.add(late)
            late.add_done_callback(self._under_way.discard)
        if fault is not None and not fault.done:
            return await self._fail(request, fault)
        if there_s:
            await asyncio.sleep(there_s)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return failure(401, "Unauthorized")
        answer = await self._answer(request, call)
        if back_s and "watch" not in call.query:
            await asyncio.sleep(back_s)
        return answer if fault is None else await self._fail(request, fault)

    async def _answer_late(self, call: Call, after_s: float) -> None:
        await asyncio.sleep(after_s)
        try:
            self.store.answer(call)
        except RefusedError as e:
            self.late.append(e.status)
        else:
            self.late.append(200)

    def _next_fault(self, observed: Request) -> Fault | None:
        for entry in self._faults:
            if entry[0](observed):
                self._faults.remove(entry)
                return entry[1]
        return None

    async def _fail(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.body is not None:
            return web.Response(body=fault.body, status=fault.status or 200, headers=fault.headers)
        if fault.status:
            return failure(fault.status, fault.reason, fault.headers)
        if fault.hang:
            await asyncio.Event().wait()  # until the client goes away or the server ends
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def _send_changes(self, answer: web.StreamResponse, changes: Changes) -> None:
        while True:
            if lines := changes.take():
                await answer.write(lines)
            while self._lines:
                line = self._lines.popleft()
                if line is None:
                    return
                await answer.write(line + b"\n")
            if not changes.more and not self._lines:
                await self._something_new()
