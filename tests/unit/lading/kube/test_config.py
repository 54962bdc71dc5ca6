"""Test kubeconfigs as people and tools write them, a pod's service account, and credentials that are renewed."""

import asyncio
import base64
import json
import os
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lading.errors import ConfigError
from lading.kube import config
from lading.kube.config import Credentials, KubectlRules, open_access, open_access_as_kubectl, read_namespace
from simnode.pki import Authority

Write = Callable[..., Path]
_EXPIRED = base64.urlsafe_b64encode(b'{"exp": 1}').decode().rstrip("=")


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


def now(path: Path | None) -> Credentials:
    return asyncio.run(open_access(path).credentials())


def as_kubectl(kubeconfig: Path | str = "", *, context: str = "", **environment: str) -> Credentials:
    rules = KubectlRules(kubeconfig=str(kubeconfig), context=context, environment=environment)
    return asyncio.run(open_access_as_kubectl(rules).credentials())


def test_a_token_and_its_server(kubeconfig: Write) -> None:
    result = now(kubeconfig({"token": "s3cret"}))
    assert (result.server, result.authorization) == ("https://api.example:6443", "Bearer s3cret")
    assert result.tls is not None
    assert result.proxy is None
    assert "s3cret" not in repr(result)


def test_a_command_uses_the_context_of_its_flag(kubeconfig: Write) -> None:
    assert as_kubectl(kubeconfig({"token": "t"}), context="two").server == "https://two"


def test_a_command_uses_the_environments_proxy_and_a_daemon_only_a_kubeconfigs(
    kubeconfig: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = "http://proxy.example:3128"
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    path = kubeconfig({"token": "t"})
    assert now(path).proxy is None
    assert as_kubectl(path, HTTPS_PROXY=proxy).proxy == proxy
    path = kubeconfig({"token": "t"}, **{"proxy-url": "http://mine:3128", "tls-server-name": "kubernetes"})
    for result in (now(path), as_kubectl(path, HTTPS_PROXY=proxy)):
        assert (result.proxy, result.server_name) == ("http://mine:3128", "kubernetes")


def test_a_command_does_not_verify_a_server_if_the_kubeconfig_says_so(kubeconfig: Write) -> None:
    result = as_kubectl(kubeconfig({"token": "t"}, **{"insecure-skip-tls-verify": True, "certificate-authority": None}))
    assert result.tls is not None
    assert (result.tls.verify_mode, result.tls.check_hostname) == (ssl.CERT_NONE, False)


def test_an_authority_without_key_identifiers_is_accepted_as_by_kubectl(kubeconfig: Write) -> None:
    result = as_kubectl(kubeconfig({"token": "t"}))
    assert result.tls is not None
    assert not result.tls.verify_flags & ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on


def test_a_user_acts_as_another_one(kubeconfig: Write) -> None:
    acts = {"as": "jane", "as-uid": "7", "as-groups": ["a", "b"], "as-user-extra": {"x/y": ["1"]}}
    assert now(kubeconfig({"token": "t", **acts})).impersonation == (
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-x%2Fy", "1"),
    )


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
        result = now(path)
        assert result.tls is not None
        assert result.authorization == ""
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
        ({"token": "t"}, {"proxy-url": "socks5://127.0.0.1:1080"}),
        ({"token": "t"}, {"certificate-authority": None, "certificate-authority-data": "bm9uZQ=="}),
        ({"token": "t"}, {"certificate-authority": None, "certificate-authority-data": "no base64"}),
        ({"tokenFile": "/nonexistent/token"}, {}),
        ({"auth-provider": {"name": "gcp"}}, {}),
        ({"auth-provider": {"name": "oidc", "config": {"id-token": f"e30.{_EXPIRED}.x"}}}, {}),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/nonexistent/plugin"}}, {}),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "interactiveMode": "Always"}}, {}),
    ],
)
def test_an_unusable_kubeconfig_is_refused(kubeconfig: Write, user: dict[str, Any], cluster: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        open_access(kubeconfig(user, **cluster))


@pytest.mark.parametrize("text", ["", "[]", "current-context: x", "users: [{name: me, user: {token: s3cret]", "a: *b"])
def test_a_broken_kubeconfig_is_refused_without_its_text(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        open_access(path)
    assert "s3cret" not in str(refused.value)


def test_outside_a_pod_a_kubeconfig_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError):
        open_access(None)


def test_a_kubeconfig_that_does_not_exist_is_reported_as_such(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    for read in (now, as_kubectl, lambda path: read_namespace(KubectlRules(kubeconfig=str(path)))):
        with pytest.raises(ConfigError, match="absent: no such file"):
            read(absent)
    with pytest.raises(ConfigError, match="absent: no such file"):
        as_kubectl(KUBECONFIG=str(absent))


def test_files_of_the_environment_may_be_absent_or_empty(kubeconfig: Write, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    path = kubeconfig({"token": "t"})
    assert as_kubectl(KUBECONFIG=f"{tmp_path}/absent::{tmp_path}/empty:{path}").authorization == "Bearer t"


def test_the_flag_names_one_file(kubeconfig: Write, tmp_path: Path) -> None:
    path = kubeconfig({"token": "t"})
    with pytest.raises(ConfigError):
        as_kubectl(f"{path}:{path}")


V1 = "client.authentication.k8s.io/v1"


@pytest.fixture
def plugin(tmp_path: Path, kubeconfig: Write) -> Callable[..., Path]:
    """Write a kubeconfig with a plugin that prints `printed`, and appends a line to the file `runs`."""

    def write(printed: object, *, status: int = 0, **entry: object) -> Path:
        text = printed if isinstance(printed, str) else json.dumps(printed)
        program = tmp_path / "plugin"
        code = f"import os, sys\nopen({str(tmp_path / 'runs')!r}, 'a').write(os.environ['KUBERNETES_EXEC_INFO'] + '\\n')\n"
        program.write_text(f"#!{sys.executable}\n{code}print({text!r})\nsys.exit({status})\n")
        program.chmod(0o755)
        return kubeconfig({"exec": {"apiVersion": V1, "command": "./plugin", "interactiveMode": "Never", **entry}})

    return write


def credential(**status: object) -> dict[str, object]:
    return {"apiVersion": V1, "kind": "ExecCredential", "status": status}


def test_an_exec_plugins_token(plugin: Callable[..., Path], tmp_path: Path, authority: Authority) -> None:
    """Check a command with a slash, which is relative to the kubeconfig's folder and not to the working directory."""
    path = plugin(credential(token="from-plugin"), provideClusterInfo=True)  # noqa: S106
    assert now(path).authorization == "Bearer from-plugin"
    question = json.loads((tmp_path / "runs").read_text())
    assert question["spec"] == {
        "interactive": False,
        "cluster": {
            "server": "https://api.example:6443",
            "certificate-authority-data": base64.b64encode(authority.certificate.read_bytes()).decode(),
        },
    }


def test_an_exec_plugins_certificate(plugin: Callable[..., Path], authority: Authority) -> None:
    pair = authority.sign("me", "me")
    status = {"clientCertificateData": pair.certificate.read_text(), "clientKeyData": pair.key.read_text()}
    result = now(plugin(credential(**status)))
    assert result.authorization == ""
    assert result.tls is not None


@pytest.mark.parametrize(("end", "runs"), [("2020-01-01T00:00:00Z", 2), ("2999-01-01T00:00:00Z", 1), (None, 1)])
def test_a_plugin_runs_again_when_its_credentials_end(
    plugin: Callable[..., Path], tmp_path: Path, end: str | None, runs: int
) -> None:
    path = plugin(credential(token="t", expirationTimestamp=end))  # noqa: S106
    refresh = config.load_chosen(config.choose_entries((path,), "", explicit=True))
    refresh()
    refresh()
    assert len((tmp_path / "runs").read_text().splitlines()) == runs


@pytest.mark.parametrize(
    ("printed", "status"),
    [
        ("words s3cret", 0),
        ("[" * 100_000, 0),
        (credential(), 0),
        (credential(clientCertificateData="s3cret"), 0),
        ({"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential", "status": {"token": "s3cret"}}, 0),
        ({"apiVersion": V1, "kind": "Secret", "status": {"token": "s3cret"}}, 0),
        (credential(token="s3cret"), 3),  # noqa: S106
    ],
)
def test_a_plugin_without_credentials_is_refused_without_its_output(
    plugin: Callable[..., Path], printed: object, status: int
) -> None:
    with pytest.raises(ConfigError) as refused:
        now(plugin(printed, status=status))
    assert "s3cret" not in str(refused.value)
    assert "./plugin" in str(refused.value) or "/plugin" in str(refused.value)


def test_a_plugin_that_is_not_installed_comes_with_the_kubeconfigs_hint(kubeconfig: Write) -> None:
    entry = {"apiVersion": V1, "command": "kube-login", "installHint": "brew install kube-login", "interactiveMode": "Never"}
    with pytest.raises(ConfigError, match="kube-login") as refused:
        now(kubeconfig({"exec": entry}))
    assert refused.value.hint == "brew install kube-login"
    assert "Errno" not in refused.value.message


@dataclass(frozen=True)
class TokenFile:
    path: Path

    def write(self, token: str) -> None:
        self.path.write_text(token)

    def remove(self) -> None:
        self.path.unlink()


@pytest.fixture
def service_account(tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> TokenFile:
    account = tmp_path / "account"
    account.mkdir()
    token = account / "token"
    token.write_text("first\n")
    (account / "ca.crt").write_bytes(authority.certificate.read_bytes())
    (account / "namespace").write_text("mine")
    monkeypatch.setattr(config, "_ACCOUNT", account)
    monkeypatch.setitem(os.environ, "KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setitem(os.environ, "KUBERNETES_SERVICE_PORT", "443")
    return TokenFile(token)


def test_in_a_pod(service_account: TokenFile) -> None:
    result = now(None)
    assert result.server == "https://[fd00::1]:443"
    assert result.authorization == "Bearer first"


def test_a_command_in_a_pod_without_a_context_uses_its_service_account(
    service_account: TokenFile, kubeconfig: Write, tmp_path: Path
) -> None:
    assert as_kubectl(KUBECONFIG=str(tmp_path / "absent"), HTTPS_PROXY="proxy:1").proxy == "http://proxy:1"
    (tmp_path / "empty").touch()
    assert as_kubectl(tmp_path / "empty").server == "https://[fd00::1]:443"
    assert as_kubectl(kubeconfig({"token": "t"})).server == "https://api.example:6443"
    broken = kubeconfig({"token": "t"})
    broken.write_text(broken.read_text().replace('"cluster": "one"', '"cluster": "none"'))
    with pytest.raises(ConfigError, match="'none'"):
        as_kubectl(broken)


def test_the_namespace_in_a_pod(service_account: TokenFile, kubeconfig: Write, tmp_path: Path) -> None:
    """Check a kubeconfig whose context has no namespace: clientcmd then uses the pod's namespace too."""
    path = kubeconfig({"token": "t"})
    assert read_namespace(KubectlRules(kubeconfig=str(path), environment={})) == "mine"
    assert read_namespace(KubectlRules(kubeconfig=str(path), environment={"POD_NAMESPACE": "env"})) == "env"


async def test_refused_credentials_are_read_anew(service_account: TokenFile) -> None:
    access = open_access(None)
    first = await access.credentials()
    service_account.write("second")
    same = await access.credentials()  # until the next refresh
    access.refused(first)
    both = await asyncio.gather(access.credentials(), access.credentials())
    access.refused(first)  # an answer to an old call: the new ones stay
    observed = [credentials.authorization for credentials in (first, same, *both, await access.credentials())]
    assert observed == ["Bearer first"] * 2 + ["Bearer second"] * 3


async def test_credentials_that_cannot_be_renewed_stay_until_they_are_refused(service_account: TokenFile) -> None:
    access = open_access(None)
    first = await access.credentials()
    service_account.remove()
    assert await access.credentials() is first
    access.refused(first)
    with pytest.raises(ConfigError):
        await access.credentials()
    service_account.write("back")
    assert (await access.credentials()).authorization == "Bearer back"


async def test_calls_during_a_renewal_use_the_last_credentials(kubeconfig: Write, tmp_path: Path) -> None:
    """Check that a call during a renewal uses the last credentials, because the renewal runs in a thread."""
    seconds = 0.0

    (path := tmp_path / "token").write_text("t")
    refresh = config.load_chosen(config.choose_entries((kubeconfig({"tokenFile": "token"}),), "", explicit=True))
    access = config.ApiAccess(lambda: refresh, clock=lambda: seconds)
    path.write_text("renewed")
    observed = [(await access.credentials()).authorization]
    seconds = config.REFRESH_S
    observed.append((await access.credentials()).authorization)
    while access._renewal is not None:
        await asyncio.wait([access._renewal])
        await asyncio.sleep(0)
    observed.append((await access.credentials()).authorization)
    assert observed == ["Bearer t", "Bearer t", "Bearer renewed"]
