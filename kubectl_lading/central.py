"""Ask lading-central for its own state: since when it refuses a pod, where it evicts pods for it, which pods it is binding.

Take a client of the API server, and the flags. Return central's answer, or `Unread`: every command also works without central.
Reach the leading pod through the API server's proxy, with the rights of the user (Role lading-reader has only GET). With
`--central URL`, use that URL instead. Time limits are short, so that a slow central does not delay the answer of a command.
Raise ConfigError for a URL at which another program certainly answers: a metrics port, an API server.

The Service is not used: the API server proxies only to addresses that an Endpoints object maps to pods, and the leader writes
an EndpointSlice. Source: Kubernetes, "Access services running on clusters" (pods/SCHEME:NAME:PORT/proxy), "Services without
selectors".
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from central.request.dialects.options import NO_OPTIONS, DialectOptions
from central.request.parse import OWN_ONLY, Dialects
from kubectl_lading.flags import Flags
from kubectl_lading.objects import FullPod, Lease, Unread
from lading.errors import ConfigError, LadingError
from lading.kube.client import KubeClient, describe_failure
from lading.kube.errors import ForbiddenError, KubeError, NotFoundError, RefusedError, UnclearError, parse_failure
from lading.kube.resource import LEASES, PODS
from lading.vocabulary import CENTRAL, NO_SUCH_PAGE

TIMEOUT_S: Final = 2.0  # seconds for each request; a central with a certificate needs two requests
PORT: Final = "page"  # name of the port in central's pod
DEFAULT_PORT: Final = 8081
_STANDBY: Final = b"not the leader\n"  # body of a 503 answer, written by central.http
_SCHEMES: Final = ("http", "https")  # http by default; https after the hardening in docs/deploy.md

CONFIGURATION: Final = "/v1/configuration"

T = TypeVar("T")


class _Configuration(msgspec.Struct):
    """Hold the part of central's effective configuration that is read without its scheduler."""

    dialects: DialectOptions = NO_OPTIONS


class _Leader(NamedTuple):
    pod: str
    port: int


def why_path(namespace: str, name: str) -> str:
    """Return the path at which central explains why the pod waits; 404 if central has no waiting pod of this name."""
    return f"/v1/why/{quote(namespace, safe='')}/{quote(name, safe='')}"


class Central:
    def __init__(self, client: KubeClient, flags: Flags, *, timeout_s: float = TIMEOUT_S) -> None:
        """Raise ConfigError if --central is not a URL."""
        self._client = client
        self._namespace = flags.lading_namespace
        self.url = _checked(flags.central).rstrip("/") if flags.central else ""  # empty: use the API server's proxy
        self._timeout_s = timeout_s
        self._leader: _Leader | None = None  # cached leader; None before the first request

    async def ask(self, path: str, kind: type[T]) -> T | Unread | None:
        """Return central's answer as this type; None if central answers 404."""
        return await self._get(path, msgspec.json.Decoder(kind).decode)

    async def answer(self, path: str) -> bytes | Unread | None:
        """Return the body of central's answer unchanged; None if central answers 404."""
        return await self._get(path, bytes)

    async def dialects(self) -> Dialects:
        """Return how pods may request devices: in Lading's own form only if central does not report its configuration."""
        reported = await self.ask(CONFIGURATION, _Configuration)
        return Dialects(reported.dialects) if isinstance(reported, _Configuration) else OWN_ONLY

    async def _get(self, path: str, decode: Callable[[bytes], T]) -> T | Unread | None:
        try:
            return decode(await (self._by_url(path) if self.url else self._by_proxy(path)))
        except NotFoundError as e:
            if not e.reason:  # central's own 404 has no Kubernetes Status, an API server's has one
                return None
            reason = f"there is no pod in namespace {self._namespace} that holds the lease {CENTRAL}"
            return Unread(why=f"{reason} (--lading-namespace, --central: where else it is)")
        except ForbiddenError:
            where = f"leases and pods/proxy in namespace {self._namespace}"
            return Unread(why=f"you may not ask it through the API server ({where}): Role lading-reader gives that right")
        except KubeError as e:
            return Unread(why=e.message.partition(f"{path}: ")[2] or e.message)
        except msgspec.DecodeError as e:
            return Unread(why=f"its answer cannot be read: {e}")

    async def _by_proxy(self, path: str) -> bytes:
        """Return central's answer through the API server's proxy. If HTTP fails, try HTTPS: central may have a certificate."""
        leader = self._leader = self._leader or await self._find_leader()
        failed: UnclearError | None = None
        for scheme in _SCHEMES:
            pod = PODS.path(self._namespace, f"{scheme}:{leader.pod}:{leader.port}", "proxy")
            try:
                return await self._client.get(pod + path, timeout_s=self._timeout_s)
            except UnclearError as e:
                failed = failed or e
        raise failed or UnclearError(f"cannot get {path}")

    async def _find_leader(self) -> _Leader:
        lease = await self._client.get(LEASES.path(self._namespace, CENTRAL), timeout_s=self._timeout_s)
        holder = msgspec.json.decode(lease, type=Lease).holder
        if not holder:
            raise NotFoundError(f"no pod holds the lease {CENTRAL}", status=404, reason="NotFound")
        pod = await self._client.get(PODS.path(self._namespace, holder), timeout_s=self._timeout_s)
        ports = (port for container in msgspec.json.decode(pod, type=FullPod).spec.containers for port in container.ports)
        return _Leader(holder, next((port.container_port for port in ports if port.name == PORT), DEFAULT_PORT))

    async def _by_url(self, path: str) -> bytes:
        call = f"get {self.url}{path}"
        limit = aiohttp.ClientTimeout(total=self._timeout_s)
        try:
            async with aiohttp.ClientSession(timeout=limit) as session, session.get(self.url + path) as answer:
                body = await answer.read()
                if answer.status != 200:
                    raise self._failure(call, answer.status, body)
                return body
        except (TimeoutError, aiohttp.ClientError, OSError) as e:
            reason = "it takes too long" if isinstance(e, TimeoutError) else describe_failure(e)
            raise UnclearError(f"cannot {call}: {reason}") from e

    def _failure(self, call: str, status: int, body: bytes) -> LadingError:
        if status == 503 and body == _STANDBY:
            return UnclearError(f"cannot {call}: this replica does not lead: name the one that does, or leave --central out")
        if status == 404 and body == NO_SUCH_PAGE:
            hint = (
                f"the port of `page_listen` in central.toml is meant, {DEFAULT_PORT} as it is installed: "
                f"--central {_with_port(self.url, DEFAULT_PORT)}"
            )
            return ConfigError(f"cannot use --central {self.url}: a metrics port answers there", hint=hint)
        failure = parse_failure(call, status, body)
        if isinstance(failure, RefusedError) and failure.reason:  # only an API server sends a Kubernetes Status
            hint = "--central is the URL of lading-central; without it central is asked through the API server"
            return ConfigError(f"cannot use --central {self.url}: an API server answers there", hint=hint)
        return failure


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        known = parts.scheme in _SCHEMES and bool(parts.hostname) and (parts.port or DEFAULT_PORT) > 0
    except ValueError:  # the port is not a number
        known = False
    if not known:
        raise ConfigError(f"cannot use --central {url}: it is not a URL", hint="http://HOST:8081, as of a port-forward")
    return url


def _with_port(url: str, port: int) -> str:
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{port}"
