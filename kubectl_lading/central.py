"""Asks lading-central for what only it knows: since when it refuses a pod, where it makes room, what it is binding.

Enters: a client of the API server, the flags. Leaves: central's answer; or `Silent`, for nothing here needs central. The pod
that leads is reached through the API server's proxy, with the rights of whoever runs this (Role lading-reader has no more than
GET); or central by `--central URL`. Short times: the answer of the API server does not wait for central's.

Not through the Service: the API server proxies only to addresses that an Endpoints object maps to pods, and the leader writes
an EndpointSlice. Source: Kubernetes, "Access services running on clusters" (pods/SCHEME:NAME:PORT/proxy), "Services without
selectors".
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from central.reckoning import Reckoning
from central.why import Why
from kubectl_lading.flags import Flags
from lading.errors import ConfigError
from lading.kube.client import KubeClient
from lading.kube.errors import ForbiddenError, KubeError, NotFoundError, UnclearError, parse_failure
from lading.kube.resource import LEASES, PODS

TIMEOUT_S: Final = 2.0  # twice, where it has a certificate
LEASE: Final = "lading-central"
PORT: Final = "extender"  # of the pod, by name
DEFAULT_PORT: Final = 8080
_SCHEMES: Final = ("http", "https")  # as it is installed, and as docs/deploy.md hardens it

T = TypeVar("T")


class _LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None


class _Lease(msgspec.Struct, frozen=True):
    spec: _LeaseSpec = _LeaseSpec()


class _Port(msgspec.Struct, frozen=True, rename="camel"):
    container_port: int
    name: str = ""


class _Container(msgspec.Struct, frozen=True):
    ports: tuple[_Port, ...] = ()


class _PodSpec(msgspec.Struct, frozen=True):
    containers: tuple[_Container, ...]


class _Pod(msgspec.Struct, frozen=True):
    spec: _PodSpec


class _Leader(NamedTuple):
    pod: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """It did not answer, or not what can be read."""

    why: str


class Central:
    def __init__(self, client: KubeClient, flags: Flags, *, timeout_s: float = TIMEOUT_S) -> None:
        """ConfigError for a --central that is no URL."""
        self._client = client
        self._namespace = flags.lading_namespace
        self._url = _checked(flags.central).rstrip("/") if flags.central else ""
        self._timeout_s = timeout_s
        self._leader: _Leader | None = None  # once it is known

    async def why(self, namespace: str, name: str) -> Why | Silent | None:
        """None: central knows no such pod that waits for devices."""
        return await self._get(f"/v1/why/{quote(namespace, safe='')}/{quote(name, safe='')}", _decode_why)

    async def answer(self, path: str) -> bytes | Silent | None:
        """As it comes; None: central knows no such thing."""
        return await self._get(path, bytes)

    async def reckoning(self) -> Reckoning | Silent | None:
        """None: this central is older, and does not say."""
        return await self._get("/v1/reckoning", _decode_reckoning)

    async def _get(self, path: str, decode: Callable[[bytes], T]) -> T | Silent | None:
        try:
            return decode(await (self._by_url(path) if self._url else self._by_proxy(path)))
        except NotFoundError as e:
            if not e.reason:  # central's own word: it has no Status
                return None
            return Silent(why=f"there is no pod in namespace {self._namespace} that holds the lease {LEASE}")
        except ForbiddenError:
            where = f"leases and pods/proxy in namespace {self._namespace}"
            return Silent(why=f"you may not ask it through the API server ({where}): Role lading-reader gives that right")
        except KubeError as e:
            return Silent(why=e.message.partition(f"{path}: ")[2] or e.message)
        except msgspec.DecodeError as e:
            return Silent(why=f"its answer can not be read: {e}")

    async def _by_proxy(self, path: str) -> bytes:
        """What can not be reached over HTTP may have been given a certificate."""
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
        lease = await self._client.get(LEASES.path(self._namespace, LEASE), timeout_s=self._timeout_s)
        identity = msgspec.json.decode(lease, type=_Lease).spec.holder_identity or ""
        holder = identity.partition("_")[0]  # the pod; each of its processes is another candidate (central.api.lease)
        if not holder:
            raise NotFoundError(f"nobody holds the lease {LEASE}", status=404, reason="NotFound")
        pod = await self._client.get(PODS.path(self._namespace, holder), timeout_s=self._timeout_s)
        ports = (port for container in msgspec.json.decode(pod, type=_Pod).spec.containers for port in container.ports)
        return _Leader(holder, next((port.container_port for port in ports if port.name == PORT), DEFAULT_PORT))

    async def _by_url(self, path: str) -> bytes:
        call = f"get {self._url}{path}"
        limit = aiohttp.ClientTimeout(total=self._timeout_s)
        try:
            async with aiohttp.ClientSession(timeout=limit) as session, session.get(self._url + path) as answer:
                body = await answer.read()
                if answer.status != 200:
                    raise parse_failure(call, answer.status, body)
                return body
        except (TimeoutError, aiohttp.ClientError, OSError) as e:
            raise UnclearError(f"cannot {call}: {str(e) or 'it takes too long'}") from e


def _decode_why(body: bytes) -> Why:
    return msgspec.json.decode(body, type=Why)


def _decode_reckoning(body: bytes) -> Reckoning:
    return msgspec.json.decode(body, type=Reckoning)


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise ConfigError(f"cannot use --central {url}: it is no URL", hint="http://HOST:8080, as of a port-forward")
    return url
