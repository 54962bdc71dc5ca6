"""Run the program that prints the credentials of a kubeconfig's user.

The entry `exec` names the program. Its result is a token or a client certificate, with the time of their end. ConfigError has
the kubeconfig's own hint if the program is not installed. The program's stderr is passed on, and the program may ask on the
terminal. No message quotes the program's stdout, which may be a secret.

Source: KEP 541, k8s.io/client-go plugin/pkg/client/auth/exec, client.authentication.k8s.io/v1.

Tests: tests/unit/lading/kube/test_kubeconfig.py
"""

import datetime
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from lading.errors import ConfigError
from lading.kube.kubeconfig import Cluster, Exec

_EXTENSION: Final = "client.authentication.k8s.io/exec"


class _Status(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime.datetime | None = None


class _Answer(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _Status | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginCredentials:
    token: str = field(repr=False)
    certificate: bytes = field(repr=False)  # PEM, or empty
    key: bytes = field(repr=False)
    end: float | None  # seconds since the epoch; None: valid until refused


def run_plugin(plugin: Exec, cluster: Cluster, authority: bytes) -> PluginCredentials:
    """Run the program once; `authority` is the cluster's, as PEM. Blocks as long as the program does. Raises ConfigError."""
    name = f"exec plugin {plugin.command!r}"
    interactive = plugin.interactive_mode != "Never" and sys.stdin is not None and sys.stdin.isatty()
    if plugin.interactive_mode == "Always" and not interactive:
        raise ConfigError(f"cannot run {name}: its interactiveMode is Always, and standard input is no terminal")
    spec: dict[str, Any] = {"interactive": interactive}
    if plugin.provide_cluster_info:
        spec["cluster"] = _describe(cluster, authority)
    question = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    own = {"KUBERNETES_EXEC_INFO": msgspec.json.encode(question).decode()}
    try:
        done = subprocess.run(  # noqa: S603  the kubeconfig's own program, without a shell
            [plugin.command, *plugin.args],
            env={**os.environ, **{one.name: one.value for one in plugin.env}, **own},
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=False,
        )
    except (OSError, ValueError) as e:
        cause = e.strerror if isinstance(e, OSError) else "its command, arguments or variables cannot be passed to a program"
        hint = plugin.install_hint or "install it, or correct users[].user.exec.command in the kubeconfig"
        raise ConfigError(f"cannot run {name}: {cause}", hint=hint) from e
    if done.returncode:
        raise ConfigError(f"cannot use {name}: it ended with exit status {done.returncode}")
    return _parse(name, plugin, done.stdout)


def _parse(name: str, plugin: Exec, text: bytes) -> PluginCredentials:
    try:
        answer = msgspec.json.decode(text, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ConfigError(f"cannot use {name}: it printed no ExecCredential") from None
    if answer.kind != "ExecCredential" or answer.api_version != plugin.api_version:
        raise ConfigError(
            f"cannot use {name}: it printed a {answer.kind!r} of {answer.api_version!r}, "
            f"not the ExecCredential of {plugin.api_version!r} that the kubeconfig asks for"
        )
    status = answer.status or _Status()
    if not status.token and not (status.client_certificate_data and status.client_key_data):
        raise ConfigError(f"cannot use {name}: it printed neither a token nor a client certificate with its key")
    return PluginCredentials(
        token=status.token or "",
        certificate=(status.client_certificate_data or "").encode(),
        key=(status.client_key_data or "").encode(),
        end=None if status.expiration_timestamp is None else status.expiration_timestamp.timestamp(),
    )


def _describe(cluster: Cluster, authority: bytes) -> dict[str, object]:
    """Return the cluster as the plugin reads it, without keys that have no value."""
    fields = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": authority,  # msgspec writes bytes as base64
        "proxy-url": cluster.proxy_url,
        "disable-compression": cluster.disable_compression,
        "config": next((one.extension for one in cluster.extensions if one.name == _EXTENSION), None),
    }
    return {key: value for key, value in fields.items() if value}
