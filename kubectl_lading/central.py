"""Ask lading-central for what only it knows: since when it refuses a pod, where it makes room, what it is binding.

It takes a client of the API server, and the flags. It returns central's answer; or `Unread`, because nothing here needs
central. The pod that leads is reached through the API server's proxy, with the rights of the user (Role lading-reader has no
more than GET); or central by `--central URL`. Short times: the answer of the API server does not wait for central's. It
refuses, as ConfigError, a URL at which something else answers for certain: a metrics port, an API server.

Not through the Service: the API server proxies only to addresses that an Endpoints object maps to pods, and the leader writes
an EndpointSlice. Source: Kubernetes, "Access services running on clusters" (pods/SCHEME:NAME:PORT/proxy), "Services without
selectors".
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from central.scheduling.configuration import EffectiveConfiguration
from central.scheduling.why_pod import Why
from kubectl_lading.flags import Flags
from kubectl_lading.objects import Lease, SystemPod, Unread
from lading.errors import ConfigError, LadingError
from lading.health import NO_SUCH_PAGE
from lading.kube.client import KubeClient
from lading.kube.errors import ForbiddenError, KubeError, NotFoundError, RefusedError, UnclearError, parse_failure
from lading.kube.resource import LEASES, PODS
from lading.vocabulary import CENTRAL

TIMEOUT_S: Final = 2.0  # twice, where it has a certificate
PORT: Final = "page"  # by name of the pod
DEFAULT_PORT: Final = 8081
_STANDBY: Final = b"not the leader\n"  # as central.http.server writes it
_SCHEMES: Final = ("http", "https")  # as installed, and as docs/deploy.md hardens it

T = TypeVar("T")


class _Leader(NamedTuple):
    pod: str
    port: int


def named_central(client: KubeClient, flags: Flags) -> "Central | None":
    """Return the central of --central; None without that flag."""
    return Central(client, flags) if flags.central else None


class Central:
    def __init__(self, client: KubeClient, flags: Flags, *, timeout_s: float = TIMEOUT_S) -> None:
        """Raise ConfigError if --central is not a URL."""
        self._client = client
        self._namespace = flags.lading_namespace
        self.url = _checked(flags.central).rstrip("/") if flags.central else ""  # empty: through the API server
        self._timeout_s = timeout_s
        self._leader: _Leader | None = None  # once it is known

    async def why(self, namespace: str, name: str) -> Why | Unread | None:
        """Return why the pod waits; None: central knows no such pod that waits for devices."""
        return await self._get(f"/v1/why/{quote(namespace, safe='')}/{quote(name, safe='')}", msgspec.json.Decoder(Why).decode)

    async def answer(self, path: str) -> bytes | Unread | None:
        """Return the answer unchanged; None: central knows no such thing."""
        return await self._get(path, bytes)

    async def configuration(self) -> EffectiveConfiguration | Unread | None:
        """Return the effective configuration; None: this central is older and does not report it."""
        return await self._get("/v1/configuration", msgspec.json.Decoder(EffectiveConfiguration).decode)

    async def _get(self, path: str, decode: Callable[[bytes], T]) -> T | Unread | None:
        try:
            return decode(await (self._by_url(path) if self.url else self._by_proxy(path)))
        except NotFoundError as e:
            if not e.reason:  # an error of central itself: it has no Status
                return None
            why = f"there is no pod in namespace {self._namespace} that holds the lease {CENTRAL}"
            return Unread(why=f"{why} (--lading-namespace, --central: where else it is)")
        except ForbiddenError:
            where = f"leases and pods/proxy in namespace {self._namespace}"
            return Unread(why=f"you may not ask it through the API server ({where}): Role lading-reader gives that right")
        except KubeError as e:
            return Unread(why=e.message.partition(f"{path}: ")[2] or e.message)
        except msgspec.DecodeError as e:
            return Unread(why=f"its answer cannot be read: {e}")

    async def _by_proxy(self, path: str) -> bytes:
        """Ask through the API server's proxy. Try HTTPS where HTTP fails: central may have a certificate."""
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
        ports = (port for container in msgspec.json.decode(pod, type=SystemPod).spec.containers for port in container.ports)
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
            raise UnclearError(f"cannot {call}: {str(e) or 'it takes too long'}") from e

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
        if isinstance(failure, RefusedError) and failure.reason:  # central's own errors have no Status
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
