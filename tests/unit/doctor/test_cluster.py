"""Test device plugins as sockets in a folder, names, and a reporter's rights by the answers of an API server."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from doctor.api import ask, parse_configz, read_api, read_configz, rights_of
from doctor.cluster import PLUGINS, ApiReading, NameReading, PluginsReading, decide_api, decide_name, decide_plugins
from doctor.read_node import read_plugins
from lading.checks.model import Verdict
from lading.errors import ConfigError, HostError
from lading.kube.errors import ForbiddenError, NotFoundError
from simnode.api_server import write_kubeconfig
from tests.unit.doctor.verdicts import only, states


@pytest.fixture
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Create kubelet's own socket, the socket of a running plugin, and an old socket without a listener."""
    root = tmp_path_factory.mktemp("r")  # short: a socket's path has 107 characters at most
    folder = root / PLUGINS
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        for name in ("kubelet.sock", "nvidia-gpu.sock", "rdma.sock"):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(folder / name))
            if name != "rdma.sock":
                listener.listen()
        (folder / "kubelet_internal_checkpoint").touch()
        yield root


def test_a_kubeconfig_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no kubeconfig") as e:
        asyncio.run(read_api("n1", report=True, taints=False, kubeconfig=str(tmp_path / "none")))
    assert "kubeconfig =" in e.value.hint


def test_plugins_that_serve(root: Path, tmp_path: Path) -> None:
    assert read_plugins(root, coexist=False).sockets == ("nvidia-gpu.sock",)
    assert read_plugins(tmp_path / "none", coexist=False).sockets == ()


@pytest.mark.parametrize(
    ("sockets", "coexist", "state"),
    [
        ((), False, Verdict.OK),
        (("smarter-fuse.sock",), False, Verdict.OK),
        (("nvidia-gpu.sock",), False, Verdict.FAILED),
        (("rdma-shared-dp-ad12.sock",), False, Verdict.FAILED),
        (("openshift.io_sriovnics.sock",), False, Verdict.FAILED),
        (("nvidia-gpu.sock",), True, Verdict.OK),
    ],
)
def test_other_plugins(sockets: tuple[str, ...], coexist: bool, state: Verdict) -> None:
    verdict = only(decide_plugins(PluginsReading(sockets=sockets, coexist=coexist)))
    assert (verdict.verdict, "coexist = true" in verdict.mend) == (state, state is Verdict.FAILED)


@pytest.mark.parametrize(("configured", "state"), [("n1", Verdict.OK), ("n2", Verdict.WARNING), ("", Verdict.SKIPPED)])
def test_the_nodes_name(configured: str, state: Verdict) -> None:
    assert only(decide_name(NameReading(configured=configured, kubelets="n1"))).verdict is state


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (ApiReading(node_name="n1", node=True, served=True), [Verdict.OK]),
        (ApiReading(node_name="n1", asked=False), [Verdict.SKIPPED]),
        (ApiReading(node_name="n1", node=False, served=True), [Verdict.FAILED]),
        (ApiReading(node_name="n1", node=True, served=False), [Verdict.FAILED]),
        (ApiReading(node_name="n1", node=True, served=True, denied=("patch x",)), [Verdict.FAILED]),
    ],
)
def test_the_api_server(reading: ApiReading, expected: list[Verdict]) -> None:
    assert states(decide_api(reading)) == expected


class Server:
    """Represent an API server by its objects and the rights that it grants."""

    def __init__(self, *, there: set[str], allowed: set[str]) -> None:
        self.there = there
        self.allowed = allowed
        self.reviewed: list[dict[str, Any]] = []

    async def get(self, path: str) -> bytes:
        if path in self.there:
            return b"{}"
        if path.startswith("/secret"):
            raise ForbiddenError("no", status=403)
        raise NotFoundError("no", status=404)

    async def create(self, path: str, body: object) -> bytes:
        assert path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        assert isinstance(body, dict)
        asked = body["spec"]["resourceAttributes"]
        self.reviewed.append(asked)
        return json.dumps({"status": {"allowed": asked["verb"] in self.allowed}}).encode()

    async def apply(self, path: str, body: object, *, manager: str, force: bool) -> bytes:
        raise AssertionError("a doctor changes nothing")


def test_rights_are_asked_one_by_one() -> None:
    server = Server(there={"/api/v1/nodes/n1"}, allowed={"get", "create"})
    reading = asyncio.run(ask(server, "n1", rights_of(taints=False)))
    assert (reading.node, reading.served, reading.denied) == (True, False, ("patch nodedevices/status.devices.lading.dev",))
    assert [(asked["verb"], asked.get("name")) for asked in server.reviewed] == [
        ("get", "n1"),
        ("create", None),
        ("patch", "n1"),
    ]


def test_a_node_with_a_taint_asks_for_the_right_to_it() -> None:
    server = Server(there={"/api/v1/nodes/n1"}, allowed={"get", "create"})
    assert "patch nodes" in asyncio.run(ask(server, "n1", rights_of(taints=True))).denied
    assert "patch nodes" not in asyncio.run(ask(server, "n1", rights_of(taints=False))).denied


def test_who_does_not_report_is_not_asked() -> None:
    assert not asyncio.run(read_api("n1", report=False, taints=False, kubeconfig="/none")).asked


def test_an_api_server_that_is_away(tmp_path: Path) -> None:
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:1")
    with pytest.raises(HostError) as refused:
        asyncio.run(read_api("n1", report=True, taints=False, kubeconfig=str(kubeconfig)))
    assert str(kubeconfig) in refused.value.hint


def test_kubelets_own_configuration() -> None:
    """Check a configuration with keys of KubeletConfiguration v1beta1: only non-empty texts are kept."""
    body = {"kubeletconfig": {"containerRuntimeEndpoint": "unix:///x", "cgroupDriver": "systemd", "maxPods": 110, "nodeIP": ""}}
    assert parse_configz(json.dumps(body).encode()) == {"containerRuntimeEndpoint": "unix:///x", "cgroupDriver": "systemd"}
    assert parse_configz(b"[]") == parse_configz(b"<html>") == {}


def test_kubelet_is_asked_through_the_api_server(tmp_path: Path) -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path.partition("?")[0])
            body = b'{"kubeletconfig": {"cgroupDriver": "systemd"}}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *text: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", f"http://127.0.0.1:{server.server_port}")
        result = asyncio.run(read_configz("n1", kubeconfig=str(kubeconfig), answer_s=30.0))
        server.shutdown()
        thread.join()
    assert (result, asked) == ({"cgroupDriver": "systemd"}, ["/api/v1/nodes/n1/proxy/configz"])


def test_a_kubelet_that_does_not_answer_has_no_configuration(tmp_path: Path) -> None:
    kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:1")
    for path in (kubeconfig, tmp_path / "none"):
        assert asyncio.run(read_configz("n1", kubeconfig=str(path), answer_s=5.0)) == {}
