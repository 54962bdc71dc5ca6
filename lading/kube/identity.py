"""Read the identity of a kubeconfig's user: the authorization header and the client certificate.

`load_identity` returns a function that returns the current `Identity`: a token file is read each time, an exec plugin runs when
its last credentials end. Missing credentials raise ConfigError. A bearer token has precedence over a password, and both over a
plugin, as in client-go.

Source: k8s.io/client-go tools/clientcmd (`client_config.go`), transport (`round_trippers.go`), plugin/pkg/client/auth.

Tests: tests/unit/lading/kube/test_kubeconfig.py
"""

import base64
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from lading.errors import ConfigError
from lading.kube.exec_plugin import PluginCredentials, run_plugin
from lading.kube.kubeconfig import AuthProvider, Cluster, Exec, User

EXPIRY_S: Final = 30.0  # a plugin's credentials are renewed this long before their end; more than the time between refreshes


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    authorization: str = field(default="", repr=False)  # the header's value
    certificate: bytes = field(default=b"", repr=False)  # PEM
    key: bytes = field(default=b"", repr=False)


def load_identity(source: str, name: str, user: User, cluster: Cluster, authority: bytes) -> Callable[[], Identity]:
    """Read the user's files, and return a function that returns the current identity. Both block and raise ConfigError.
    `source` and `name` are for messages; `authority` is the cluster's, as PEM."""
    certificate = user.client_certificate_data or (
        read_bytes(Path(user.client_certificate)) if user.client_certificate else b""
    )
    key = user.client_key_data or (read_bytes(Path(user.client_key)) if user.client_key else b"")
    if bool(certificate) != bool(key):
        raise ConfigError(f"cannot use {source}: user {name!r} has a client certificate without its key, or a key alone")

    def with_header(authorization: str) -> Identity:
        return Identity(authorization=authorization, certificate=certificate, key=key)

    if user.token_file:
        return lambda: with_header(f"Bearer {_read_token(Path(user.token_file))}")
    if user.token:
        return lambda: with_header(f"Bearer {user.token.strip()}")
    if user.username or user.password:
        basic = base64.b64encode(f"{user.username}:{user.password}".encode()).decode()
        return lambda: with_header(f"Basic {basic}")
    if (plugin := user.exec) is not None:
        return _PluginIdentity(plugin, cluster, authority)
    if (provider := user.auth_provider) is not None:
        return lambda: with_header(f"Bearer {_find_id_token(source, provider)}")
    if not certificate and cluster.server.startswith("https:"):
        raise ConfigError(f"cannot use {source}: user {name!r} has no credentials, or does not exist")
    return lambda: with_header("")


class _PluginIdentity:
    """Keep the identity that a plugin returned last, until it ends."""

    def __init__(self, plugin: Exec, cluster: Cluster, authority: bytes) -> None:
        self._run: Callable[[], PluginCredentials] = lambda: run_plugin(plugin, cluster, authority)
        self._newest: PluginCredentials | None = None

    def __call__(self) -> Identity:
        newest = self._newest
        if newest is None or (newest.end is not None and newest.end - EXPIRY_S < time.time()):
            self._newest = newest = self._run()
        return Identity(
            authorization=f"Bearer {newest.token}" if newest.token else "", certificate=newest.certificate, key=newest.key
        )


class _IdToken(msgspec.Struct):
    exp: float = float("inf")


def _find_id_token(source: str, provider: AuthProvider) -> str:
    """Return the ID token of the auth provider `oidc`, which kubectl renews in the file. Raises ConfigError."""
    token = provider.config.get("id-token", "") if provider.name == "oidc" else ""
    try:
        payload = token.split(".")[1]
        end = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), type=_IdToken).exp
    except (IndexError, ValueError, RecursionError):
        hint = "use an exec plugin"
        raise ConfigError(f"cannot use {source}: auth provider {provider.name!r} has no ID token", hint=hint) from None
    if end < time.time():
        hint = "kubectl get nodes, with the same context, renews it"
        raise ConfigError(f"cannot use {source}: the ID token of its auth provider has expired", hint=hint)
    return token


def list_impersonation(user: User) -> tuple[tuple[str, str], ...]:
    """Return the headers by which the user acts as another user."""
    headers = [("Impersonate-User", user.as_), ("Impersonate-Uid", user.as_uid)]
    headers += [("Impersonate-Group", group) for group in user.as_groups]
    headers += [
        (f"Impersonate-Extra-{quote(key, safe='')}", value) for key, values in user.as_user_extra.items() for value in values
    ]
    return tuple((name, value) for name, value in headers if value)


def read_bytes(path: Path) -> bytes:
    """Return the content of a file that a kubeconfig names. Raises ConfigError."""
    try:
        return path.read_bytes()
    except (OSError, ValueError) as e:
        raise ConfigError(f"cannot read {path}: {e.strerror if isinstance(e, OSError) else 'not a file name'}") from e


def _read_token(path: Path) -> str:
    token = read_bytes(path).decode("ascii", errors="replace").strip()
    if not token:
        raise ConfigError(f"cannot use {path}: it has no token")
    return token
