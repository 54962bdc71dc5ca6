"""Call the API server: raw JSON in and out, one bounded pool of connections, and errors that say whether the call was carried
out.

A call takes a path (`lading.kube.resource`) and a body that msgspec can encode. It returns the answer's bytes, so that a caller
decodes only the fields that it reads; `lading.kube.depth` limits how deep they are nested. Writes are not retried and the rate
is not limited, because only the caller knows which calls may be repeated. aiohttp itself sends a GET or DELETE again if a
kept-alive connection turns out to be dead. Updates are PATCHes, which aiohttp does not repeat, so a conflict is never caused by
the client's own first attempt. Bodies and tokens are never logged.

Each call has a time limit, which is sent to the server too (`timeout=`), so that the server does not carry out a call after the
client gave up. A watch has no limit between its lines: TCP probes connections, and ends a connection half a minute after its
other end vanished.

Source: Kubernetes "API concepts" (chunked lists, watches, bookmarks, patches), `kube-apiserver`'s request deadline filter,
k8s.io/api core/v1 Binding, policy/v1 Eviction, metav1.DeleteOptions.
"""

import asyncio
import contextlib
import os
import random
import socket
import ssl
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import msgspec

from lading.errors import ConfigError
from lading.kube.config import ApiAccess, Credentials
from lading.kube.depth import limit_depth
from lading.kube.errors import (
    GoneError,
    KubeError,
    MalformedError,
    TimedOutError,
    UnauthorizedError,
    UnclearError,
    UnreachableError,
    parse_failed_status,
    parse_failure,
)
from lading.kube.lines import Lines
from lading.kube.resource import PAGE_TIMEOUT_S, PODS, TIMEOUT_S

CONNECT_S: Final = 3.0  # includes the wait for a free connection of the pool
MAX_CONNECTIONS: Final = 64  # each is a file here and a goroutine at the server; one bind uses one for some 5 ms
PAGE: Final = 1000  # objects; 3 to 4 MB of pods, some 20 ms of the loop to decode
WATCH_S: Final = 300  # a watch is up to twice as long, so that watches do not all end at once; client-go's numbers
_WATCH_LATE_S: Final = 30  # a server may end a watch this many seconds late
_LIST_RESTARTS: Final = 3
_CLOSE_S: Final = 1.0  # a few turns of the loop, once the sockets are shut down

_JSON: Final = "application/json"
_MERGE: Final = "application/merge-patch+json"
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str
    continue_: str = msgspec.field(name="continue", default="")


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None  # Go's empty list may be null


class WatchEvent(msgspec.Struct, frozen=True):
    """Represent an event of a watch. `type` is ADDED, MODIFIED, DELETED or BOOKMARK; errors are raised."""

    type: str
    object: msgspec.Raw


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage:
    items: list[msgspec.Raw]
    resource_version: str  # the same for all pages of one list
    first: bool  # first page of a list: pages before it must be discarded


_EVENTS: Final = msgspec.json.Decoder(WatchEvent)
_LISTS: Final = msgspec.json.Decoder(_List)


class KubeClient:
    """Call the API server, inside an `async with` block, on one event loop. Code that must not wait for others' calls needs
    its own client."""

    def __init__(
        self,
        access: ApiAccess,
        *,
        user_agent: str,
        timeout_s: float = TIMEOUT_S,
        page_timeout_s: float = PAGE_TIMEOUT_S,
        around: Callable[[str], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        """Create a client. `around` is entered for the duration of each call, with the call's text, for example to show which
        call is waited for."""
        self._access = access
        self._user_agent = user_agent
        self._timeout_s = timeout_s
        self._page_timeout_s = page_timeout_s
        self._around = around
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS, socket_factory=self._open_socket),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": self._user_agent, "Accept": _JSON, "Accept-Encoding": "identity"},
            raise_for_status=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()
        await self._close_sockets()

    def _open_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        opened = _probed_socket(address)
        self._sockets.add(opened)
        return opened

    async def _close_sockets(self) -> None:
        """Wait for TLS connections that aiohttp closed in the middle of an answer, because aiohttp does not wait: they would
        outlive the loop."""
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                while any(one.fileno() != -1 for one in self._sockets):  # noqa: ASYNC110  their transports have no callback
                    await asyncio.sleep(0)

    # ---- reading

    async def get(self, path: str, *, query: Mapping[str, str] | None = None, timeout_s: float | None = None) -> bytes:
        """Return one object, or the content of its subresource, such as a log. The read is consistent: from the store, not
        from a server's cache."""
        return await self._call("GET", path, query=query, timeout_s=timeout_s)

    async def list_pages(self, path: str, *, limit: int = PAGE) -> AsyncGenerator[ListPage, None]:
        """Yield the pages of a consistent, current list. If the server forgot a continuation (410), the list begins again with
        a `first` page."""
        for _ in range(_LIST_RESTARTS):
            token = ""
            try:
                while True:
                    query = _query(limit=str(limit), **{"continue": token})
                    with self._around(f"get {path}"):
                        _, body = await self._send("GET", path, query, None, _JSON, self._page_timeout_s)
                    page = await _parse_list(body, path)
                    items = [msgspec.Raw(await limit_depth(bytes(item))) for item in page.items or ()]
                    yield ListPage(items=items, resource_version=page.metadata.resource_version, first=not token)
                    token = page.metadata.continue_
                    if not token:
                        return
            except GoneError:
                if not token:
                    raise
        raise UnclearError(f"cannot list {path}: the list expires faster than it can be read")

    async def watch(self, path: str, *, resource_version: str, watch_s: int | None = None) -> AsyncGenerator[WatchEvent, None]:
        """Yield the events after the resource version, until the server ends the watch after some minutes. The caller then
        continues from the newest observed version; after GoneError it lists again. It must close the generator
        (`contextlib.aclosing`)."""
        watch_s = watch_s or int(WATCH_S * (1 + random.random()))  # noqa: S311  spreads load, hides nothing
        query = _query(watch="1", allowWatchBookmarks="true", timeoutSeconds=str(watch_s), resourceVersion=resource_version)
        call = f"watch {path}"
        credentials = await self._credentials(call)
        limit = aiohttp.ClientTimeout(total=watch_s + _WATCH_LATE_S, connect=CONNECT_S)
        with self._translated(call, credentials, limit):
            async with self._session.get(**self._request(credentials, path, query), timeout=limit) as answer:
                if answer.status != 200:
                    raise await self._failure(call, answer, credentials)
                lines = Lines()
                async for data in answer.content.iter_any():
                    for line in lines.feed(data):
                        yield _parse_event(await limit_depth(line), call)

    # ---- writing

    async def create(self, path: str, body: object, *, timeout_s: float | None = None) -> bytes:
        """Create an object. Raises ConflictError if it exists already."""
        return await self._call("POST", path, body=body, timeout_s=timeout_s)

    async def merge(self, path: str, change: object, *, timeout_s: float | None = None) -> bytes:
        """Apply a JSON merge patch (RFC 7396). Raises ConflictError if the patch has a `metadata.resourceVersion` that
        differs from the object's."""
        return await self._call("PATCH", path, body=change, content_type=_MERGE, timeout_s=timeout_s)

    async def merge_lists(self, path: str, change: object, *, timeout_s: float | None = None) -> bytes:
        """Apply a strategic merge patch: a list is merged by its key, such as conditions by their type, not replaced. Works for
        built-in kinds only. Raises ConflictError if `metadata.uid` differs from the object's."""
        return await self._call("PATCH", path, body=change, content_type=_STRATEGIC, timeout_s=timeout_s)

    async def apply(
        self, path: str, body: object, *, manager: str, force: bool = False, timeout_s: float | None = None
    ) -> bytes:
        """Apply server-side: the manager then owns the fields of the body; a missing object is created. Raises ConflictError if
        another manager owns a field, unless `force`."""
        query = _query(fieldManager=manager, force="true" if force else "")
        return await self._call("PATCH", path, body=body, query=query, content_type=_APPLY, timeout_s=timeout_s)

    async def delete(self, path: str, *, uid: str = "", grace_s: int | None = None) -> bytes:
        """Delete an object. With a uid, raises ConflictError if another object has the name. NotFoundError may mean success,
        because aiohttp may send the call twice."""
        return await self._call("DELETE", path, body=_delete_options(uid, grace_s))

    async def bind(
        self,
        *,
        namespace: str,
        name: str,
        uid: str,
        resource_version: str,
        node: str,
        annotations: Mapping[str, str],
        timeout_s: float | None = None,
    ) -> bytes:
        """Bind a pod. The annotations are merged into the pod in the update that sets its node. Raises ConflictError if the
        pod is bound or being deleted, if another pod has the name, or if the pod changed since `resource_version`, so that a
        change keeps a lost Binding from succeeding."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "namespace": namespace,
                "name": name,
                "uid": uid,
                "resourceVersion": resource_version,
                "annotations": annotations,
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        return await self._call("POST", PODS.path(namespace, name, "binding"), body=body, timeout_s=timeout_s)

    async def evict(self, *, namespace: str, name: str, uid: str, grace_s: int | None = None, dry_run: bool = False) -> bytes:
        """Evict a pod, or with `dry_run` check whether it could be evicted now. Raises TooManyRequestsError if a disruption
        budget does not allow it now, UnclearError if several budgets cover the pod."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": namespace, "name": name},
            "deleteOptions": _delete_options(uid, grace_s),
        }
        path = PODS.path(namespace, name, "eviction")
        # Admission reads `dryRun` in the query, and the API server copies it into the eviction's own options.
        query = {"dryRun": "All"} if dry_run else None
        answer = await self._call("POST", path, query=query, body=body)
        if failure := parse_failed_status(f"post {path}", answer):
            raise failure  # the API server answers 201 with a Status of 500 for a pod with several budgets
        return answer

    # ---- one request

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = _JSON,
        timeout_s: float | None = None,
    ) -> bytes:
        with self._around(f"{method.lower()} {path}"):
            kind, text = await self._send(method, path, query or {}, body, content_type, timeout_s or self._timeout_s)
        return await limit_depth(text) if kind == _JSON else text

    async def _send(
        self, method: str, path: str, query: Mapping[str, str], body: object, content_type: str, timeout_s: float
    ) -> tuple[str, bytes]:
        """Return the answer's content type and its body."""
        call = f"{method.lower()} {path}"
        began = asyncio.get_running_loop().time()
        credentials = await self._credentials(call, timeout_s)
        left_s = max(0.001, timeout_s - (asyncio.get_running_loop().time() - began))
        request = self._request(credentials, path, {**query, "timeout": f"{left_s:.3f}s"})
        if body is not None:
            request["data"] = msgspec.json.encode(body)
            request["headers"].append(("Content-Type", content_type))
        limit = aiohttp.ClientTimeout(total=left_s, connect=min(CONNECT_S, left_s))
        with self._translated(call, credentials, limit, resent=method == "DELETE"):
            async with self._session.request(method, **request, timeout=limit) as answer:
                if not 200 <= answer.status < 300:
                    raise await self._failure(call, answer, credentials)
                return answer.content_type, await answer.read()

    async def _credentials(self, call: str, timeout_s: float = TIMEOUT_S) -> Credentials:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._access.credentials()
        except (ConfigError, TimeoutError) as e:
            raise UnreachableError(f"cannot {call}: no credentials: {e or 'timed out'}") from e

    def _request(self, credentials: Credentials, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        return {
            "url": credentials.server + path,
            "params": query,
            "headers": [*_authorize(credentials.authorization), *credentials.impersonation],  # a name may repeat
            "ssl": credentials.tls or True,
            "server_hostname": credentials.server_name,
            "proxy": credentials.proxy,
            "allow_redirects": False,
        }

    async def _failure(self, call: str, answer: aiohttp.ClientResponse, credentials: Credentials) -> KubeError:
        body = await limit_depth(await answer.read())
        failure = parse_failure(call, answer.status, body, retry_after=answer.headers.get("Retry-After", ""))
        if isinstance(failure, UnauthorizedError):
            self._access.refused(credentials)
        return failure

    @contextlib.contextmanager
    def _translated(
        self, call: str, credentials: Credentials, limit: aiohttp.ClientTimeout, *, resent: bool = False
    ) -> Iterator[None]:
        """Translate aiohttp's exceptions. If the request may have been sent, also by aiohttp's first attempt of two, the error
        is unclear."""
        try:
            yield
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError) as e:
            if isinstance(e, aiohttp.ClientSSLError):
                self._access.refused(credentials)  # the authority may have been replaced
            raise (UnclearError if resent else UnreachableError)(f"cannot {call}: {describe_failure(e)}") from e
        except TimeoutError as e:
            given = f" within {round(limit.total, 1):g} s" if limit.total else ""
            raise TimedOutError(f"cannot {call}: {credentials.server} did not answer{given}") from e
        except (aiohttp.ClientError, OSError) as e:
            raise UnclearError(f"cannot {call}: {describe_failure(e)}") from e


def describe_failure(error: Exception) -> str:
    """Return what went wrong, in words. The texts of aiohttp and ssl name Python's objects, such as the TLS context."""
    match error:
        case aiohttp.ClientConnectorError():
            return f"no connection to {error.host}:{error.port}: {describe_failure(error.os_error)}"
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted: {error.verify_message}"
        case ssl.SSLError() if error.reason:
            return f"TLS: {error.reason.replace('_', ' ').lower()}"
        case aiohttp.ServerDisconnectedError():
            return "the connection was closed before an answer came"
        case aiohttp.ClientPayloadError():
            return "the connection was closed in the middle of the answer"
        case aiohttp.ClientHttpProxyError():
            return f"the proxy refused the connection: {error.status} {error.message}"
        case OSError() if error.errno and not isinstance(error, socket.gaierror):
            return os.strerror(error.errno)
    return str(error) or type(error).__name__


async def _parse_list(body: bytes, path: str) -> _List:
    """Decode a page of a list, but not its objects. The caller checks the depth of each object, which is cheap because few have
    many brackets."""
    try:
        try:
            return _LISTS.decode(body)
        except RecursionError:
            return _LISTS.decode(await limit_depth(body))
    except msgspec.DecodeError as e:
        raise MalformedError(f"cannot list {path}: {e}") from e


def _parse_event(line: bytes, call: str) -> WatchEvent:
    try:
        event = _EVENTS.decode(line)
    except msgspec.DecodeError as e:
        raise MalformedError(f"cannot {call}: {e}") from e
    if event.type == "ERROR":
        raise parse_failure(call, 0, event.object)
    return event


def _delete_options(uid: str, grace_s: int | None) -> dict[str, Any]:
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
    if uid:
        options["preconditions"] = {"uid": uid}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    return options


def _authorize(value: str) -> list[tuple[str, str]]:
    return [("Authorization", value)] if value else []


def _query(**options: str) -> dict[str, str]:
    return {key: value for key, value in options.items() if value}


def _probed_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Create a socket whose connection is probed when idle, and closed when sent data is not acknowledged (tcp(7))."""
    family, kind, protocol, *_ = address
    probed = socket.socket(family, kind, protocol)
    probed.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
        probed.setsockopt(socket.IPPROTO_TCP, option, value)
    probed.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)  # ms
    return probed
