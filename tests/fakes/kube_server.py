"""A small API server over HTTP: objects with versions, list and watch, patches, bindings, evictions, and scripted failures.

Honest where it matters here: one counter gives all versions, every change is an event, a watch sends what came after its
version, a list in pages is a snapshot, a write over an old version is a conflict. It knows no schemas, rights or admission.
"""

import asyncio
import itertools
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """For one request: an answer (`status`), or none because the connection breaks or hangs; before or after it was done."""

    status: int = 0
    reason: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    hang: bool = False
    done: bool = False  # the request is carried out first


class _RefusalError(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class FakeKubeServer:
    """`requests` has every request that came, watches too. `fail` and `watch_lines` change what the next ones get."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}  # by path
        self.requests: list[Request] = []
        self.evictable = True
        self.token = ""  # where set, calls must bring it
        self.watching = 0
        self._version = itertools.count(101)
        self._last = 100
        self._uids = itertools.count(1)
        self._log: list[tuple[int, str, str, Object]] = []  # version, collection, type, object
        self._compacted = 0
        self._pages: dict[str, tuple[int, list[Object]]] = {}
        self._owners: dict[str, str] = {}
        self._faults: deque[tuple[Callable[[Request], bool], Fault]] = deque()
        self._lines: deque[bytes | None] = deque()
        self._news = asyncio.Condition()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    # ---- what a test does to it

    def write_kubeconfig(self, path: Path, *, token: str = "") -> Path:
        config = {
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": {"token": token} if token else {}}],
        }
        path.write_text(json.dumps(config))
        return path

    async def put(self, path: str, obj: Object) -> Object:
        """Makes or changes an object as somebody else would; its uid stays unless the object brings one."""
        before = self.objects.get(path)
        type_ = "MODIFIED" if before else "ADDED"
        if before and obj.get("metadata", {}).get("uid", before["metadata"]["uid"]) != before["metadata"]["uid"]:
            await self.remove(path)
            type_ = "ADDED"
        return await self._store(path, obj, type_)

    async def remove(self, path: str) -> None:
        await self._changed(path, self.objects.pop(path), "DELETED")

    async def bookmark(self, version: int) -> None:
        await self.send(json.dumps({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}}).encode())

    async def send(self, line: bytes | None) -> None:
        """A line that whatever watches now or next gets, as it is; None ends the watch."""
        self._lines.append(line)
        await self._tell()

    def compact(self) -> None:
        """Forgets all versions and lists so far."""
        self._compacted = self._last
        self._pages.clear()

    def fail(self, fault: Fault, *, when: Callable[[Request], bool] = lambda _: True, times: int = 1) -> None:
        self._faults.extend([(when, fault)] * times)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Looked at whenever a request comes or a watch ends."""
        async with self._news:
            await self._news.wait_for(holds)

    def calls(self, method: str, *, watch: bool = False) -> list[Request]:
        return [r for r in self.requests if r.method == method and ("watch" in r.query) == watch]

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    # ---- requests

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        call = Request(
            method=request.method,
            path=request.path,
            query=dict(request.query),
            headers=dict(request.headers),
            body=json.loads(raw) if raw else None,
        )
        self.requests.append(call)
        await self._tell()
        fault = self._next_fault(call)
        if fault is not None and not fault.done:
            return await self._fail(request, fault)
        if self.token and call.headers.get("Authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized")
        if "watch" in call.query:
            return await self._watch(request, call)
        try:
            answer = await self._answer(call)
        except _RefusalError as e:
            return _status(e.status, e.reason)
        if fault is not None:
            return await self._fail(request, fault)
        return web.json_response(answer)

    def _next_fault(self, call: Request) -> Fault | None:
        for entry in self._faults:
            if entry[0](call):
                self._faults.remove(entry)
                return entry[1]
        return None

    async def _fail(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.body is not None:
            return web.Response(body=fault.body, status=fault.status or 200, headers=fault.headers)
        if fault.status:
            return _status(fault.status, fault.reason, fault.headers)
        if fault.hang:
            await asyncio.Event().wait()  # until the client goes away or the server ends
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def _answer(self, call: Request) -> Object:
        match call.method, call.path.rsplit("/", 1)[1]:
            case "POST", "binding":
                return await self._bind(call)
            case "POST", "eviction":
                return await self._evict(call)
            case "POST", _:
                path = f"{call.path}/{call.body['metadata']['name']}"
                if path in self.objects:
                    raise _RefusalError(409, "AlreadyExists")
                return await self._store(path, _merged({}, call.body), "ADDED")  # null is absent
            case "PATCH", _:
                return await self._patch(call)
            case "GET", _ if call.path in self.objects:
                return self.objects[call.path]
            case "GET", _ if _is_collection(call.path):
                return self._list(call)
            case "DELETE", _:
                self._precondition(call.path, call.body.get("preconditions", {}))
                obj = self.objects[call.path]
                await self.remove(call.path)
                return obj
        raise _RefusalError(404, "NotFound")

    def _precondition(self, path: str, preconditions: Object) -> None:
        if path not in self.objects:
            raise _RefusalError(404, "NotFound")
        for key in ("uid", "resourceVersion"):
            if preconditions.get(key) and preconditions[key] != self.objects[path]["metadata"][key]:
                raise _RefusalError(409, "Conflict")

    async def _bind(self, call: Request) -> Object:
        path = call.path.removesuffix("/binding")
        self._precondition(path, call.body["metadata"])
        pod = self.objects[path]
        if pod.get("spec", {}).get("nodeName"):
            raise _RefusalError(409, "Conflict")
        change = {
            "metadata": {"annotations": call.body["metadata"].get("annotations", {})},
            "spec": {"nodeName": call.body["target"]["name"]},
        }
        await self._store(path, _merged(pod, change), "MODIFIED")
        return {"kind": "Status", "status": "Success"}

    async def _evict(self, call: Request) -> Object:
        path = call.path.removesuffix("/eviction")
        self._precondition(path, call.body["deleteOptions"].get("preconditions", {}))
        if not self.evictable:
            raise _RefusalError(429, "TooManyRequests")
        await self.remove(path)
        return {"kind": "Status", "status": "Success"}

    async def _patch(self, call: Request) -> Object:
        before = self.objects.get(call.path)
        if "apply-patch" in call.headers["Content-Type"]:
            owner = self._owners.setdefault(call.path, call.query["fieldManager"])
            if owner != call.query["fieldManager"] and call.query.get("force") != "true":
                raise _RefusalError(409, "Conflict")
            self._owners[call.path] = call.query["fieldManager"]
        elif before is None:
            raise _RefusalError(404, "NotFound")
        version = call.body.get("metadata", {}).get("resourceVersion")
        if version and before and version != before["metadata"]["resourceVersion"]:
            raise _RefusalError(409, "Conflict")
        return await self._store(call.path, _merged(before or {}, call.body), "MODIFIED" if before else "ADDED")

    async def _store(self, path: str, obj: Object, type_: str) -> Object:
        name = path.rsplit("/", 1)[1]
        parts = path.split("/")
        namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts else ""
        before = self.objects.get(path, {}).get("metadata", {})
        identity = {"name": name, "uid": before.get("uid") or f"uid-{next(self._uids)}"}
        identity |= {"namespace": namespace} if namespace else {}
        metadata = {**identity, **obj.get("metadata", {})}
        self.objects[path] = {**obj, "metadata": metadata}
        return await self._changed(path, self.objects[path], type_)

    async def _changed(self, path: str, obj: Object, type_: str) -> Object:
        self._last = next(self._version)
        changed = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._last)}}
        if type_ != "DELETED":
            self.objects[path] = changed
        self._log.append((self._last, path, type_, changed))
        await self._tell()
        return changed

    # ---- list and watch

    def _list(self, call: Request) -> Object:
        token = call.query.get("continue", "")
        if token and token not in self._pages:
            raise _RefusalError(410, "Expired")
        version, rest = self._pages.pop(token) if token else (self._last, self._in(call.path))
        limit = int(call.query.get("limit", "0")) or len(rest)
        more = ""
        if rest[limit:]:
            more = f"from-{version}-{len(rest) - limit}"
            self._pages[more] = (version, rest[limit:])
        return {"metadata": {"resourceVersion": str(version), "continue": more}, "items": rest[:limit]}

    def _in(self, collection: str) -> list[Object]:
        return [obj for path, obj in sorted(self.objects.items()) if _is_in(path, collection)]

    async def _watch(self, request: web.Request, call: Request) -> web.StreamResponse:
        position = int(call.query["resourceVersion"])
        if position < self._compacted:
            return _status(410, "Expired")
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        self.watching += 1
        try:
            async with asyncio.timeout(int(call.query["timeoutSeconds"])):
                return await self._send_news(answer, call, position)
        except TimeoutError:
            return answer
        finally:
            self.watching -= 1
            await self._tell()

    async def _send_news(self, answer: web.StreamResponse, call: Request, position: int) -> web.StreamResponse:
        while True:
            for version, path, type_, obj in self._log:
                if version > position and _is_in(path, call.path):
                    await answer.write(json.dumps({"type": type_, "object": obj}).encode() + b"\n")
            position = max(position, self._last)
            while self._lines:
                line = self._lines.popleft()
                if line is None:
                    return answer
                await answer.write(line + b"\n")
            async with self._news:
                while not self._lines and self._last <= position:
                    await self._news.wait()


def _is_collection(path: str) -> bool:
    """Whether it names objects of one kind: /api/v1/pods, /apis/g/v1/leases, …/namespaces/x/pods."""
    parts = path.strip("/").split("/")
    depth = 2 if parts[0] == "api" else 3
    return len(parts) - depth in (1, 3)


def _is_in(path: str, collection: str) -> bool:
    """Whether the object is of the collection, which may span all namespaces."""
    head, _, plural = collection.rpartition("/")
    parent = path.rsplit("/", 1)[0]
    return parent == collection or (parent.startswith(f"{head}/namespaces/") and parent.endswith(f"/{plural}"))


def _merged(target: Any, change: Any) -> Any:
    """RFC 7396."""
    if not isinstance(change, dict):
        return change
    out = dict(target) if isinstance(target, dict) else {}
    for key, value in change.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = _merged(out.get(key), value)
    return out


def _status(code: int, reason: str, headers: dict[str, str] | None = None) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason}
    return web.json_response(body, status=code, headers=headers)
