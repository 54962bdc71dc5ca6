"""Check that `kubectl lading` uses the same cluster and user as kubectl does, from the same files, by the requests of both.

It needs kubectl and no control plane: the one of LADING_KUBE_ASSETS.
"""

import asyncio
import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lading.errors import LadingError
from lading.kube.client import KubeClient
from lading.kube.config import KubectlRules, open_access_as_kubectl
from simnode.pki import Authority
from tests.fakes.kubectl_config import Case, ask_kubectl, ask_lading, encode

HEADERS = ("Authorization", "Impersonate-User", "Impersonate-Uid", "Impersonate-Group", "Impersonate-Extra-A%2Fb")
V1 = "client.authentication.k8s.io/v1"


@pytest.fixture(scope="module")
def kubectl(assets: Path) -> str:
    return str(assets / "kubectl")


def _entries(
    kind: str, names: str, fields: dict[str, st.SearchStrategy[Any]]
) -> st.SearchStrategy[list[dict[str, Any]] | None]:
    body = st.fixed_dictionaries({}, optional=fields).filter(bool)
    entry = st.builds(lambda name, one: {"name": name, kind: one}, st.sampled_from(names), body)
    return st.none() | st.lists(entry, max_size=2, unique_by=lambda one: str(one["name"]))


FILE = st.fixed_dictionaries(
    {},
    optional={
        "current-context": st.sampled_from(["", "x", "z"]),
        "clusters": _entries(
            "cluster",
            "cd",
            {
                "server": st.sampled_from(["https://one", "https://two"]),
                "certificate-authority": st.sampled_from(["ca.crt", "../a/ca.crt", "none.crt"]),
                "certificate-authority-data": st.sampled_from(["", encode("inline")]),
                "tls-server-name": st.just("name"),
                "proxy-url": st.just("http://proxy"),
                "insecure-skip-tls-verify": st.booleans(),
            },
        ),
        "users": _entries(
            "user",
            "uv",
            {
                "token": st.sampled_from(["one", "two"]),
                "tokenFile": st.just("token"),
                "as": st.just("jane"),
                "username": st.just("me"),
                "client-certificate": st.just("ca.crt"),
                "client-key-data": st.just(encode("key")),
                "exec": st.just({"command": "./login", "apiVersion": V1}),
            },
        ),
        "contexts": _entries(
            "context",
            "xz",
            {"cluster": st.sampled_from("cd"), "user": st.sampled_from("uv"), "namespace": st.sampled_from(["", "team"])},
        ),
    },
)
TEXT = st.sampled_from(["", "# none", "null", "words"]) | FILE.map(json.dumps) | FILE.map(json.dumps) | FILE.map(json.dumps)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(TEXT, min_size=1, max_size=3),
    order=st.permutations(["a/config", "b/config", "c/config"]),
    flag=st.sampled_from(["", "", "a/config"]),
    context=st.sampled_from(["", "x", "z"]),
)
def test_the_entries_of_a_context_are_kubectls(
    kubectl: str, texts: list[str], order: list[str], flag: str, context: str
) -> None:
    files = {f"{folder}/config": text for folder, text in zip("abc", texts, strict=False)}
    files |= {f"{folder}/ca.crt": f"authority of {folder}" for folder in "abc"}
    case = Case(files=files, kubeconfig=tuple(order), flag=flag, context=context)
    assert ask_lading(case) == ask_kubectl(kubectl, case)


@dataclass
class Cluster:
    """Serve HTTPS and record the identity of each request; serve a proxy too, and record the hosts requested."""

    port: int = 0
    proxy_port: int = 0
    identities: list[list[str]] = field(default_factory=list)
    proxied: list[str] = field(default_factory=list)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


@pytest.fixture
def cluster(authority: Authority) -> Iterator[Cluster]:
    noted = Cluster()

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            peer = self.connection.getpeercert() if isinstance(self.connection, ssl.SSLSocket) else None
            noted.identities.append([str(self.headers.get_all(name)) for name in HEADERS] + [str(peer and peer["subject"])])
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    class Proxy(Server):
        def do_CONNECT(self) -> None:
            noted.proxied.append(self.path)
            with socket.create_connection(("127.0.0.1", noted.port)) as server:
                self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                thread = threading.Thread(target=_pump, args=(server, self.connection), daemon=True)
                thread.start()
                _pump(self.connection, server)
                thread.join()

    server, proxy = (ThreadingHTTPServer(("127.0.0.1", 0), handler) for handler in (Server, Proxy))
    pair = authority.sign("server", "server", addresses=["127.0.0.1", "api.test", "inner"])
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair.certificate, pair.key)
    tls.load_verify_locations(authority.certificate)
    tls.verify_mode = ssl.CERT_OPTIONAL
    server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    noted.port, noted.proxy_port = server.server_address[1], proxy.server_address[1]
    with server, proxy:
        for one in (server, proxy):
            threading.Thread(target=one.serve_forever, daemon=True).start()
        yield noted
        server.shutdown()
        proxy.shutdown()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


PLUGIN = f"""#!{sys.executable}
print('{{"apiVersion": "{V1}", "kind": "ExecCredential", "status": {{"token": "of-plugin"}}}}')
"""
EXEC = {"exec": {"command": "bin/login", "apiVersion": V1, "interactiveMode": "Never"}}
PAIR = {"client-certificate": "me.crt", "client-key": "me.key"}


@pytest.mark.parametrize(
    ("user", "entry", "environment"),
    [
        ({"token": "t"}, {}, {}),
        ({"token": "t", "tokenFile": "token"}, {}, {}),
        ({"tokenFile": "token"}, {}, {}),
        ({"username": "me", "password": "secret"}, {}, {}),
        (EXEC, {}, {}),
        ({**EXEC, "token": "t"}, {}, {}),
        ({**EXEC, "username": "me", "password": "p"}, {}, {}),
        (PAIR, {}, {}),
        ({**PAIR, "token": "t"}, {}, {}),
        ({"token": "t", "as": "jane", "as-groups": ["a", "b"], "as-uid": "7", "as-user-extra": {"a/b": ["1"]}}, {}, {}),
        ({"token": "t"}, {"insecure-skip-tls-verify": True, "certificate-authority": ""}, {}),
        ({"token": "t"}, {"certificate-authority": ""}, {}),  # not trusted
        ({"token": "t"}, {"tls-server-name": "inner"}, {}),
        ({"token": "t"}, {"tls-server-name": "another"}, {}),  # not the certificate's
        ({"token": "t"}, {"server": "https://api.test"}, {"HTTPS_PROXY": "http://PROXY"}),
        ({"token": "t"}, {"server": "https://api.test"}, {"https_proxy": "PROXY"}),
        ({"token": "t"}, {"server": "https://api.test"}, {"HTTP_PROXY": "http://PROXY"}),
        ({"token": "t"}, {"server": "https://api.test"}, {"HTTPS_PROXY": "http://PROXY", "NO_PROXY": "test"}),
        ({"token": "t"}, {"server": "https://api.test", "proxy-url": "http://PROXY"}, {"NO_PROXY": "*"}),
        ({"token": "t"}, {}, {"HTTPS_PROXY": "http://PROXY"}),
    ],
)
def test_the_request_is_kubectls(
    kubectl: str,
    cluster: Cluster,
    authority: Authority,
    tmp_path: Path,
    user: dict[str, Any],
    entry: dict[str, Any],
    environment: dict[str, str],
) -> None:
    pair = authority.sign("me", "me", group="people")
    folder = tmp_path / "kube"
    (folder / "bin").mkdir(parents=True)
    for name, path in (("me.crt", pair.certificate), ("me.key", pair.key), ("ca.crt", authority.certificate)):
        (folder / name).write_bytes(path.read_bytes())
    (folder / "token").write_text("of-file\n")
    (folder / "bin" / "login").write_text(PLUGIN)
    (folder / "bin" / "login").chmod(0o755)
    proxy = f"127.0.0.1:{cluster.proxy_port}"
    of_cluster = {"server": "https://127.0.0.1", "certificate-authority": "ca.crt", **entry}
    of_cluster["server"] += f":{cluster.port}"
    if "proxy-url" in of_cluster:
        of_cluster["proxy-url"] = of_cluster["proxy-url"].replace("PROXY", proxy)
    document = {
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": of_cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }
    (folder / "config").write_text(json.dumps(document))
    environment = {"KUBECONFIG": str(folder / "config")} | {
        name: value.replace("PROXY", proxy) for name, value in environment.items()
    }
    ran = subprocess.run(
        [kubectl, "get", "--raw", "/version"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **environment},
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=60,
    )
    theirs = (ran.returncode == 0, *cluster.identities, cluster.proxied[:1])
    cluster.identities.clear()
    cluster.proxied.clear()
    ours = (asyncio.run(_get(KubectlRules(environment=environment))), *cluster.identities, cluster.proxied[:1])
    assert ours == theirs, ran.stderr


async def _get(rules: KubectlRules) -> bool:
    try:
        async with KubeClient(open_access_as_kubectl(rules), user_agent="test", timeout_s=30) as client:
            await client.get("/version")
    except LadingError:
        return False
    return True
