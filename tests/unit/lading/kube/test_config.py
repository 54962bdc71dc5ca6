"""Kubeconfigs as people and tools write them, a pod's service account, and credentials that are renewed."""

import asyncio
import base64
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubernetes.config import incluster_config

from lading.errors import ConfigError
from lading.kube import config
from lading.kube.config import Credentials, open_access, read_namespace
from simnode.pki import Authority

Write = Callable[..., Path]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


@pytest.fixture
def kubeconfig(tmp_path: Path, authority: Authority) -> Write:
    def write(user: dict[str, Any], **cluster: Any) -> Path:
        server = {"server": "https://api.example:6443", "certificate-authority": str(authority.certificate), **cluster}
        contexts = [{"name": name, "context": {"cluster": name, "user": "me"}} for name in ("one", "two")]
        document = {
            "current-context": "one",
            "contexts": contexts,
            "clusters": [{"name": "one", "cluster": server}, {"name": "two", "cluster": {**server, "server": "https://two"}}],
            "users": [{"name": "me", "user": user}],
        }
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(document))
        return path

    return write


def now(path: Path | None, *, context: str = "") -> Credentials:
    access = open_access(path, context=context)
    return asyncio.run(access.credentials())


def test_a_token_and_its_server(kubeconfig: Write) -> None:
    found = now(kubeconfig({"token": "s3cret"}))
    assert (found.server, found.authorization) == ("https://api.example:6443", "Bearer s3cret")
    assert found.tls is not None
    assert found.proxy is None
    assert "s3cret" not in repr(found)


def test_the_context_that_was_named(kubeconfig: Write) -> None:
    assert now(kubeconfig({"token": "t"}), context="two").server == "https://two"


def test_the_environments_proxy_is_not_used_a_kubeconfigs_is(kubeconfig: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    assert now(kubeconfig({"token": "t"})).proxy is None
    own = {"proxy-url": "http://mine:3128", "tls-server-name": "kubernetes"}
    found = now(kubeconfig({"token": "t"}, **own))
    assert (found.proxy, found.server_name) == ("http://mine:3128", "kubernetes")


def test_a_client_certificate_inline_leaves_no_file(
    kubeconfig: Write, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    pair = authority.sign("me", "me")
    inline = {
        "client-certificate-data": base64.b64encode(pair.certificate.read_bytes()).decode(),
        "client-key-data": base64.b64encode(pair.key.read_bytes()).decode(),
    }
    path = kubeconfig(inline)
    for _ in range(2):  # the library remembers the files that it made
        found = now(path)
        assert found.tls is not None
        assert found.authorization == ""
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("user", "cluster"),
    [
        ({}, {}),  # no credentials
        ({"token": "t"}, {"insecure-skip-tls-verify": True}),
        ({"token": "t"}, {"server": "http://10.0.0.1:8080"}),
        ({"token": "t"}, {"server": "not a url"}),
        ({"token": "t"}, {"certificate-authority": "/nonexistent/ca.crt"}),
        ({"client-certificate": "/nonexistent/tls.crt", "client-key": "/nonexistent/tls.key"}, {}),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/nonexistent/plugin"}}, {}),
    ],
)
def test_what_can_not_be_used_is_refused(kubeconfig: Write, user: dict[str, Any], cluster: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        open_access(kubeconfig(user, **cluster))


@pytest.mark.parametrize("text", ["", "[]", "current-context: x", "users: [{name: me, user: {token: s3cret]", "a: *b"])
def test_a_broken_kubeconfig_is_refused_without_its_text(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        open_access(path)
    assert "s3cret" not in str(refused.value)


def test_no_kubeconfig_and_no_pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError):
        open_access(None)


@pytest.mark.parametrize("read", [open_access, read_namespace])
def test_a_kubeconfig_that_does_not_exist_is_reported_as_such(tmp_path: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(ConfigError, match="absent: no such file"):
        read(tmp_path / "absent")


def test_one_of_several_kubeconfigs_may_be_absent(kubeconfig: Write, tmp_path: Path) -> None:
    assert now(Path(f"{tmp_path}/absent:{kubeconfig({'token': 't'})}")).authorization == "Bearer t"


def test_an_exec_plugins_token(kubeconfig: Write, tmp_path: Path) -> None:
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "from-plugin"},
    }
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!{sys.executable}\nprint({json.dumps(credential)!r})\n")
    plugin.chmod(0o755)
    path = kubeconfig({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}})
    assert now(path).authorization == "Bearer from-plugin"


@dataclass(frozen=True)
class TokenFile:
    path: Path

    def write(self, token: str) -> None:
        self.path.write_text(token)

    def remove(self) -> None:
        self.path.unlink()


@pytest.fixture
def service_account(tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> TokenFile:
    token = tmp_path / "token"
    token.write_text("first\n")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority.certificate))
    monkeypatch.setitem(os.environ, "KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setitem(os.environ, "KUBERNETES_SERVICE_PORT", "443")
    return TokenFile(token)


def test_in_a_pod(service_account: TokenFile) -> None:
    found = now(None)
    assert found.server == "https://[fd00::1]:443"
    assert found.authorization == "bearer first"


def test_refused_credentials_are_read_anew(service_account: TokenFile) -> None:
    async def go() -> list[str]:
        access = open_access(None)
        first = await access.credentials()
        service_account.write("second")
        same = await access.credentials()  # within the library's minute
        access.refused(first)
        both = await asyncio.gather(access.credentials(), access.credentials())
        access.refused(first)  # an answer to an old call: the new ones stay
        return [c.authorization for c in (first, same, *both, await access.credentials())]

    assert asyncio.run(go()) == ["bearer first"] * 2 + ["bearer second"] * 3


def test_credentials_that_can_not_be_renewed_stay_until_they_are_refused(service_account: TokenFile) -> None:
    async def go() -> None:
        access = open_access(None)
        first = await access.credentials()
        service_account.remove()
        assert await access.credentials() is first
        access.refused(first)
        with pytest.raises(ConfigError):
            await access.credentials()
        service_account.write("back")
        assert (await access.credentials()).authorization == "bearer back"

    asyncio.run(go())


def test_renewal_waits_for_nobody(kubeconfig: Write) -> None:
    """The hook runs in a thread, and the call that came at its time has the last credentials."""
    seconds = 0.0

    async def go() -> list[str]:
        nonlocal seconds
        path = kubeconfig({"token": "t"})
        loaded = config._load_kubeconfig(path, "")
        access = config.Access(lambda: loaded, clock=lambda: seconds)
        loaded.configuration.refresh_api_key_hook = lambda c: c.api_key.update(BearerToken="Bearer renewed")
        seen = [(await access.credentials()).authorization]
        seconds = config.REFRESH_S
        seen.append((await access.credentials()).authorization)
        while access._renewal is not None:
            await asyncio.wait([access._renewal])
            await asyncio.sleep(0)
        return [*seen, (await access.credentials()).authorization]

    assert asyncio.run(go()) == ["Bearer t", "Bearer t", "Bearer renewed"]
