"""Load the API server's address and our credentials: from a kubeconfig, or from the files that every pod has.

It takes a kubeconfig's path and context, or nothing (in-cluster). It returns `Credentials` for each call, renewed in the
background: a service account's token is read again, an exec plugin is run again when its token is about to expire (both by the
`kubernetes` library's refresh hook). After a 401 or an untrusted certificate everything is read again, which finds tokens,
client certificates and authorities that were replaced on disk. Reading is done in a thread: an exec plugin may take seconds.

It refuses, as ConfigError: files that cannot be read, no credentials, `insecure-skip-tls-verify`, plain HTTP to another
machine. Secrets are in no message, `repr` or log, and a key that the kubeconfig carries inline is on disk only while Python's
ssl loads it. Proxies of the environment are not used, a kubeconfig's `proxy-url` is.
"""

import asyncio
import contextlib
import ipaddress
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml
from kubernetes.client import Configuration
from kubernetes.config import ConfigException, incluster_config, load_kube_config
from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger

from lading.errors import ConfigError
from lading.threads import in_thread

# The library itself reads a token file again after a minute, and kubelet renews the token at 80 % of its life.
REFRESH_S: Final = 10.0

_BROKEN: Final = (ConfigException, OSError, ValueError, LookupError, TypeError, AttributeError)  # the library checks little


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Credentials of one call. `tls` is None for plain HTTP."""

    server: str  # URL without a slash at its end
    tls: ssl.SSLContext | None
    authorization: str = field(default="", repr=False)  # the header's value
    server_name: str | None = None  # the name in the server's certificate, where it is not the host's
    proxy: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class _Loaded:
    configuration: Any
    tls: ssl.SSLContext | None

    def credentials(self) -> Credentials:
        """Return credentials with the current token: this runs the library's hook. Blocks."""
        token = self.configuration.get_api_key_with_prefix("BearerToken") or ""
        return Credentials(
            server=self.configuration.host.rstrip("/"),
            tls=self.tls,
            authorization=token.strip(),
            server_name=self.configuration.tls_server_name,
            proxy=self.configuration.proxy or None,
        )


class Access:
    """Credentials that stay valid. Used on one event loop."""

    def __init__(self, load: Callable[[], _Loaded], *, clock: Callable[[], float] = time.monotonic) -> None:
        """Load at once. `load` and the hook raise ConfigError; later they run in a thread."""
        self._load = load
        self._clock = clock
        self._loaded = load()
        self._current: Credentials | None = _refresh(self._loaded)
        self._due = clock() + REFRESH_S
        self._renewal: asyncio.Future[Credentials] | None = None

    async def credentials(self) -> Credentials:
        """Return current credentials; wait only where the last ones were refused. Raises ConfigError where no new ones are
        found."""
        if self._current is None:
            return await asyncio.shield(self._start_renewal())  # others wait for it too
        if self._clock() >= self._due:
            self._start_renewal()
        return self._current

    def refused(self, credentials: Credentials) -> None:
        """Note that the server refused the credentials, or that its certificate is not trusted: the next call reads everything
        again."""
        if self._current is credentials:
            self._current = None

    def _start_renewal(self) -> asyncio.Future[Credentials]:
        if self._renewal is None:
            anew = self._current is None
            self._renewal = asyncio.create_task(in_thread(lambda: self._renew(anew)))
            self._renewal.add_done_callback(self._renewed)
        return self._renewal

    def _renew(self, anew: bool) -> Credentials:
        if anew:
            self._loaded = self._load()
        return _refresh(self._loaded)

    def _renewed(self, renewal: asyncio.Future[Credentials]) -> None:
        self._renewal = None
        self._due = self._clock() + REFRESH_S
        # After a failure the last ones are used as long as the server accepts them.
        if not renewal.cancelled() and renewal.exception() is None:
            self._current = renewal.result()


def open_access(kubeconfig: Path | None, *, context: str = "") -> Access:
    """Load the kubeconfig (its current context where none is named), or the service account of this pod. Blocks. Raises
    ConfigError."""
    if kubeconfig is None:
        return Access(_load_in_cluster)
    return Access(lambda: _load_kubeconfig(kubeconfig, context))


def read_namespace(kubeconfig: Path, context: str = "") -> str:
    """Return the namespace of the context (the current one where none is named), or an empty text. Raises ConfigError."""
    with _reading(kubeconfig):
        merged = KubeConfigMerger(str(kubeconfig)).config  # type: ignore[no-untyped-call]
        if merged is None:
            raise ConfigException("no configuration found")
        loader = KubeConfigLoader(merged, active_context=context or None)  # type: ignore[no-untyped-call]
        return str(loader.current_context["context"].get("namespace") or "")


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        if not any(Path(one).exists() for one in str(path).split(os.pathsep)):  # $KUBECONFIG may name several
            raise ConfigError(f"cannot read {path}: no such file")
        yield
    except yaml.MarkedYAMLError as e:  # its own text would quote the line
        line = f" in line {e.problem_mark.line + 1}" if e.problem_mark else ""
        raise ConfigError(f"cannot read {path}: not YAML{line}: {e.problem}") from None
    except _BROKEN as e:
        raise ConfigError(f"cannot use {path}: {_why(e)}") from e


def _load_kubeconfig(path: Path, context: str) -> _Loaded:
    configuration = Configuration(proxy="")  # not from the environment
    configuration.host = ""
    with tempfile.TemporaryDirectory(prefix="lading-") as folder, _reading(path):
        load_kube_config(  # type: ignore[no-untyped-call]
            config_file=str(path),
            context=context or None,
            client_configuration=configuration,
            persist_config=False,
            temp_file_path=folder,
        )
        return _checked(configuration, str(path))


def _load_in_cluster() -> _Loaded:
    configuration = Configuration(proxy="")
    try:
        loader = incluster_config.InClusterConfigLoader(  # type: ignore[no-untyped-call]
            token_filename=incluster_config.SERVICE_TOKEN_FILENAME,
            cert_filename=incluster_config.SERVICE_CERT_FILENAME,
        )
        loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
        return _checked(configuration, "the pod's service account")
    except _BROKEN as e:
        hint = "outside a pod, name a kubeconfig"
        raise ConfigError(f"cannot use the pod's service account: {_why(e)}", hint=hint) from e


def _refresh(loaded: _Loaded) -> Credentials:
    try:
        return loaded.credentials()
    except _BROKEN as e:
        raise ConfigError(f"cannot renew the credentials: {_why(e)}") from e


def _checked(configuration: Any, source: str) -> _Loaded:
    server = urlsplit(configuration.host)
    if server.scheme not in ("http", "https") or not server.hostname:
        raise ConfigError(f"cannot use {source}: it names no server")
    if server.scheme == "http":
        if not _is_loopback(server.hostname):
            raise ConfigError(f"cannot use {source}: plain HTTP would expose the credentials to the network", hint="use https")
        return _Loaded(configuration, None)
    if not configuration.verify_ssl:
        hint = "name the server's certificate-authority instead"
        raise ConfigError(
            f"cannot use {source}: insecure-skip-tls-verify would send the credentials to any server that answers", hint=hint
        )
    if not configuration.api_key and not configuration.cert_file:
        raise ConfigError(f"cannot use {source}: its user has no credentials, or its exec plugin returned none")
    tls = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        tls.load_cert_chain(configuration.cert_file, configuration.key_file)
    return _Loaded(configuration, tls)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _why(error: BaseException) -> str:
    """Describe the error: ConfigException and OSError with their own text, others with their type."""
    return str(error) if isinstance(error, (ConfigException, OSError)) else f"{type(error).__name__}: {error}"[:200]
