"""Test the small API client with a TLS server whose certificates are from `simnode.pki`, as kube-apiserver's are."""

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from simnode.kube_api import KubeApi, KubeError
from simnode.pki import Authority, KeyPair


class Server(TCPServer):  # HTTPServer would ask DNS for its own name
    """Record who requested what; have one node and no pod."""

    def __init__(self, authority: Authority, serving: KeyPair) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.asked: list[tuple[str, str, str, object]] = []
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
        tls.verify_mode = ssl.CERT_REQUIRED
        tls.load_cert_chain(serving.certificate, serving.key)
        self.socket = tls.wrap_socket(self.socket, server_side=True)


class _Answers(BaseHTTPRequestHandler):
    server: Server
    connection: ssl.SSLSocket

    def _answer(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null")
        certificate = x509.load_der_x509_certificate(self.connection.getpeercert(binary_form=True) or b"")
        (user,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        self.server.asked.append((str(user.value), self.command, self.path, body))
        status, answer = 404, dict[str, object](kind="Status", message="pods not found")
        if self.path.startswith("/api/v1/nodes"):
            status, answer = 200, {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815 -- http.server's names

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- http.server's name
        pass


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


@pytest.fixture
def server(authority: Authority) -> Iterator[Server]:
    with Server(authority, authority.sign("server", "server", addresses=["127.0.0.1", "localhost"])) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def api(server: Server, authority: Authority) -> KubeApi:
    client = authority.sign("admin", "admin", group="system:masters")
    return KubeApi(port=server.server_address[1], authority=authority.certificate, client=client)


def test_a_call_carries_the_clients_name_and_the_body(server: Server, api: KubeApi) -> None:
    assert api.node_condition("n1", "Ready")["status"] == "True"
    with pytest.raises(KubeError):
        api.create_pod({"kind": "Pod"})
    assert server.asked == [
        ("admin", "GET", "/api/v1/nodes/n1", None),
        ("admin", "POST", "/api/v1/namespaces/default/pods", {"kind": "Pod"}),
    ]


def test_a_refusal_has_the_servers_status_and_text(api: KubeApi) -> None:
    with pytest.raises(KubeError) as caught:
        api.pod("none")
    assert (caught.value.status, caught.value.text) == (404, "pods not found")


def test_a_condition_that_is_not_there_is_empty(api: KubeApi) -> None:
    assert api.node_condition("n1", "MemoryPressure") == {}


def test_a_server_of_another_authority_is_not_believed(server: Server, authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    client = authority.sign("admin", "admin")
    assert not KubeApi(port=server.server_address[1], authority=other.certificate, client=client).ready()
    assert server.asked == []


def test_no_one_there_is_a_status_of_zero(authority: Authority) -> None:
    api = KubeApi(port=1, authority=authority.certificate, client=authority.sign("admin", "admin"))
    with pytest.raises(KubeError) as caught:
        api.node("n1")
    assert caught.value.status == 0
