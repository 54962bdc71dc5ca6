"""Get access to the API server with the credentials of a kubeconfig, or of the service account that every pod has.

`open_access` is for daemons: one kubeconfig by its path, or the service account. `open_access_as_kubectl` is for commands: the
kubeconfigs, proxies and exceptions that kubectl would use. Both return `ApiAccess`: `Credentials` for each call, renewed in the
background. A token file is read again, and an exec plugin runs again when its credentials end. After a 401 or an untrusted
certificate everything is read again, which finds tokens, client certificates and authorities that were replaced on disk.
Reading is done in a thread: an exec plugin may take seconds.

ConfigError is raised for unreadable files, no credentials, plain HTTP to another machine, a proxy that is not HTTP, and for
daemons also for `insecure-skip-tls-verify`. Secrets are in no message, `repr` or log, and a key is copied to disk only
while Python's ssl loads it. Daemons use the `proxy-url` of a kubeconfig, but no proxy of the environment.

Source: k8s.io/client-go tools/clientcmd (`client_config.go`, `overrides.go`), rest (`config.go`, `url_utils.go`), transport.
"""

import asyncio
import ipaddress
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from lading.errors import ConfigError
from lading.kube.identity import Identity, list_impersonation, load_identity, read_bytes
from lading.kube.kubeconfig import Cluster, Context, Kubeconfig, User, merge_kubeconfigs, parse_kubeconfig
from lading.kube.proxies import find_proxy
from lading.threads import in_thread

REFRESH_S: Final = 10.0  # kubelet renews a token at 80 % of its life, which is at least ten minutes
DEFAULT_NAMESPACE: Final = "default"
_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Hold the credentials of one call. `tls` is None for plain HTTP."""

    server: str  # URL without a slash at its end
    tls: ssl.SSLContext | None
    authorization: str = field(default="", repr=False)  # the header's value
    impersonation: tuple[tuple[str, str], ...] = ()  # headers; a name may repeat
    server_name: str | None = None  # name in the server's certificate, if it differs from the host's
    proxy: str | None = field(default=None, repr=False)


class ApiAccess:
    """Keep credentials valid. Used on one event loop."""

    def __init__(self, load: Callable[[], Callable[[], Credentials]], *, clock: Callable[[], float] = time.monotonic) -> None:
        """Load at once. `load` reads everything and returns a function that reads only what may have been renewed. Both raise
        ConfigError; later they run in a thread."""
        self._load = load
        self._clock = clock
        self._refresh = load()
        self._current: Credentials | None = self._refresh()
        self._due = clock() + REFRESH_S
        self._renewal: asyncio.Future[Credentials] | None = None

    async def credentials(self) -> Credentials:
        """Return current credentials; wait for new credentials only if the last were refused. Raises ConfigError if there are
        none."""
        if self._current is None:
            return await asyncio.shield(self._start_renewal())  # shielded, because other calls wait for the renewal too
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
            self._refresh = self._load()
        return self._refresh()

    def _renewed(self, renewal: asyncio.Future[Credentials]) -> None:
        self._renewal = None
        self._due = self._clock() + REFRESH_S
        # The last credentials are used after a failed renewal, as long as the server accepts them.
        if not renewal.cancelled() and renewal.exception() is None:
            self._current = renewal.result()


@dataclass(frozen=True, slots=True, kw_only=True)
class KubectlRules:
    """Hold the flags and variables that choose the cluster of a command, besides the files themselves."""

    kubeconfig: str = ""  # the value of --kubeconfig
    context: str = ""  # the value of --context
    as_user: str = ""  # the value of --as
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def find_files(self) -> tuple[Path, ...]:
        """Return the kubeconfigs, most important first: the flag's alone, those of $KUBECONFIG, or the one of the home
        directory."""
        if self.kubeconfig:
            return (Path(self.kubeconfig),)
        if several := self.environment.get("KUBECONFIG", ""):
            return tuple(Path(one) for one in dict.fromkeys(several.split(os.pathsep)) if one)
        return (Path.home() / ".kube" / "config",)


def open_access(kubeconfig: Path | None) -> ApiAccess:
    """Return access by the current context of one kubeconfig, or by this pod's service account. Blocks. Raises ConfigError."""
    if kubeconfig is None:
        return ApiAccess(lambda: _load_service_account({}))
    return ApiAccess(lambda: load_chosen(choose_entries((kubeconfig,), "", explicit=True)))


def open_access_as_kubectl(rules: KubectlRules) -> ApiAccess:
    """Return access to the cluster that kubectl would use. Blocks. Raises ConfigError."""

    def load() -> Callable[[], Credentials]:
        files = rules.find_files()
        chosen = choose_entries(files, rules.context, explicit=bool(rules.kubeconfig))
        if not chosen.current and _in_pod():
            return _load_service_account(rules.environment, as_user=rules.as_user)
        if rules.as_user:
            chosen = replace(chosen, user=msgspec.structs.replace(chosen.user or User(), as_=rules.as_user))
        return load_chosen(chosen, environment=rules.environment, insecure=True)

    return ApiAccess(load)


def read_namespace(rules: KubectlRules) -> str:
    """Return the namespace that kubectl would use without `-n`. Raises ConfigError."""
    chosen = choose_entries(rules.find_files(), rules.context, explicit=bool(rules.kubeconfig))
    if chosen.context.namespace:
        return chosen.context.namespace
    if not _in_pod():
        return DEFAULT_NAMESPACE
    return rules.environment.get("POD_NAMESPACE") or read_bytes(_ACCOUNT / "namespace").decode().strip() or DEFAULT_NAMESPACE


# ---- which cluster and user


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    source: str  # files of the entries, for messages
    context: Context = field(default_factory=Context)
    cluster: Cluster | None = None  # None: the cluster does not exist
    absent: bool = False  # no file exists
    current: bool = True  # False: no context was named, and none is current
    user: User | None = None  # None: the user does not exist


def choose_entries(files: tuple[Path, ...], context: str, *, explicit: bool) -> Chosen:
    """Return the entries of the context, or of the current one if the name is empty. A file that does not exist is skipped,
    unless the user names it explicitly. Raises ConfigError."""
    source = os.pathsep.join(map(str, files))
    read = [one for path in files if (one := _read_file(path, explicit=explicit)) is not None]
    merged = merge_kubeconfigs(read)
    result = merged.find_context(context)
    if result is None:
        return Chosen(source=source, absent=not read, current=False)
    return Chosen(
        source=source, context=result, cluster=merged.clusters.get(result.cluster), user=merged.users.get(result.user)
    )


def _read_file(path: Path, *, explicit: bool) -> Kubeconfig | None:
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError as e:
        if explicit:
            raise ConfigError(f"cannot read {path}: no such file") from e
        return None
    except OSError as e:
        raise ConfigError(f"cannot read {path}: {e.strerror}") from e
    return parse_kubeconfig(text, str(path.absolute()))


# ---- credentials


def _in_pod() -> bool:
    return bool(
        os.environ.get("KUBERNETES_SERVICE_HOST")
        and os.environ.get("KUBERNETES_SERVICE_PORT")
        and (_ACCOUNT / "token").is_file()
    )


def _load_service_account(environment: Mapping[str, str], *, as_user: str = "") -> Callable[[], Credentials]:
    source = "the pod's service account"
    hint = "outside a pod, name a kubeconfig"
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    if not host or not port:
        raise ConfigError(f"cannot use {source}: KUBERNETES_SERVICE_HOST or KUBERNETES_SERVICE_PORT is not set", hint=hint)
    try:
        read_bytes(_ACCOUNT / "token")
    except ConfigError as e:
        raise ConfigError(e.message, hint=hint) from e
    cluster = Cluster(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        certificate_authority=str(_ACCOUNT / "ca.crt"),
    )
    user = User(token_file=str(_ACCOUNT / "token"), as_=as_user)
    return load_chosen(Chosen(source=source, cluster=cluster, user=user), environment=environment)


def load_chosen(
    chosen: Chosen, *, environment: Mapping[str, str] | None = None, insecure: bool = False
) -> Callable[[], Credentials]:
    """Read the files of the entries, and return a function that returns current credentials. `environment` may name a proxy if
    the cluster has none. `insecure` accepts a cluster whose certificate is not verified."""
    cluster, user = _checked_cluster(chosen, insecure=insecure), chosen.user or User()
    proxy = _checked_proxy(chosen.source, cluster.proxy_url or find_proxy(cluster.server, environment or {}))
    authority = cluster.certificate_authority_data
    if not authority and cluster.certificate_authority:
        authority = read_bytes(Path(cluster.certificate_authority))
    identify = load_identity(chosen.source, chosen.context.user, user, cluster, authority)
    contexts: dict[tuple[bytes, bytes], ssl.SSLContext] = {}  # newest TLS context, by certificate and key

    def refresh() -> Credentials:
        identity = identify()
        pair = (identity.certificate, identity.key)
        if cluster.server.startswith("https:") and pair not in contexts:
            context = _create_tls(chosen.source, cluster, authority, identity)
            contexts.clear()
            contexts[pair] = context
        return Credentials(
            server=cluster.server,
            tls=contexts.get(pair),
            authorization=identity.authorization,
            impersonation=list_impersonation(user),
            server_name=cluster.tls_server_name or None,
            proxy=proxy,
        )

    return refresh


def _checked_cluster(chosen: Chosen, *, insecure: bool) -> Cluster:
    """Return the cluster with its server as a URL without a slash at its end. Raises ConfigError."""
    cluster, source = chosen.cluster, chosen.source
    if chosen.absent:
        raise ConfigError(f"cannot read {source}: no such file", hint="name one with --kubeconfig or $KUBECONFIG")
    if cluster is None and not chosen.context.cluster:
        raise ConfigError(
            f"cannot use {source}: it has no current context with a cluster", hint="kubectl config use-context NAME"
        )
    if cluster is None:
        raise ConfigError(f"cannot use {source}: cluster {chosen.context.cluster!r} of its context does not exist")
    text = cluster.server
    try:
        server = urlsplit(text)
        if not server.scheme or not server.hostname:  # HOST:PORT
            text = f"https://{text}"
            server = urlsplit(text)
        usable = server.scheme in ("http", "https") and server.hostname and server.port != 0 and " " not in text
    except ValueError:
        usable = False
    if not usable or not server.hostname:
        raise ConfigError(f"cannot use {source}: it names no server that is a URL or HOST:PORT")
    if server.scheme == "http" and not _is_loopback(server.hostname):
        raise ConfigError(f"cannot use {source}: plain HTTP would expose the credentials to the network", hint="use https")
    if cluster.insecure_skip_tls_verify and not insecure and server.scheme == "https":
        hint = "name the server's certificate-authority instead"
        raise ConfigError(
            f"cannot use {source}: insecure-skip-tls-verify would send the credentials to any server that answers", hint=hint
        )
    if cluster.insecure_skip_tls_verify and (cluster.certificate_authority or cluster.certificate_authority_data):
        raise ConfigError(f"cannot use {source}: its cluster has both insecure-skip-tls-verify and a certificate-authority")
    return msgspec.structs.replace(cluster, server=text.rstrip("/"))


def _checked_proxy(source: str, proxy: str | None) -> str | None:
    if proxy and urlsplit(proxy).scheme not in ("http", "https"):  # the proxy is not quoted: it may have a password
        raise ConfigError(f"cannot use {source}: its proxy is not HTTP", hint="write http://HOST:PORT")
    return proxy


def _create_tls(source: str, cluster: Cluster, authority: bytes, identity: Identity) -> ssl.SSLContext:
    try:
        tls = ssl.create_default_context(cadata=authority.decode("ascii", errors="replace") or None)
        tls.verify_flags &= ~ssl.VERIFY_X509_STRICT  # kubectl accepts authorities without key identifiers; Python 3.13 does not
        if cluster.insecure_skip_tls_verify:
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        if identity.certificate:
            with tempfile.TemporaryDirectory(prefix="lading-") as folder:
                certificate, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
                certificate.write_bytes(identity.certificate)
                key.write_bytes(identity.key)
                tls.load_cert_chain(certificate, key, password="")  # a key with a password is refused, not asked for
    except (ssl.SSLError, OSError, ValueError) as e:
        raise ConfigError(f"cannot use {source}: a certificate or a key is not PEM, or they do not match") from e
    return tls


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
