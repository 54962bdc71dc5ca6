"""Test the verbs over real HTTP: the requests of kube-scheduler, the answers, and the refusal of other callers."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from central import http as connections
from central.decide.decision import Decision
from central.extender import server as module
from central.extender.server import ExtenderServer
from central.http import server_tls
from central.loop.steps import Steps, exhaust
from central.request.pod import Pod
from central.request.reasons import OfBinding, OfPod
from central.state.observed_pods import ObservedPods
from lading.errors import ConfigError, HostError
from lading.health import Address
from lading.log import Event
from lading.vocabulary import PodUid
from simnode.pki import Authority
from tests.coroutines import LoopFactory
from tests.fakes.kube_objects import pod
from tests.fakes.records import Records
from tests.unit.central.world import World

GOLDEN = Path(__file__).parents[3] / "golden" / "central"


class Sent(ObservedPods):
    """Show each pod as it was sent, as if the watch had the same version."""

    def __init__(self) -> None:
        super().__init__(lambda uid: False)
        self.unseen: set[str] = set()  # names of pods that the watch does not show

    async def find(self, sent: Pod) -> Pod | None:
        return None if sent.metadata.name in self.unseen else sent


class Verbs:
    """Answer the verbs with a scheduler in memory."""

    def __init__(self) -> None:
        self.world = World()
        self.scheduler = self.world.scheduler
        self.observed_pods: ObservedPods = Sent()
        self.preparing: Callable[[], object] = lambda: None
        self.bound: tuple[PodUid, str] | None = None

    def hide(self, name: str) -> None:
        assert isinstance(self.observed_pods, Sent)
        self.observed_pods.unseen.add(name)

    async def judge(self, steps: Steps) -> None:
        self.preparing()
        exhaust(steps)

    async def bind(self, uid: PodUid, node: str) -> str:
        self.bound = uid, node
        return "its devices are gone" if node == "n9" else ""


class Http:
    def __init__(self, session: aiohttp.ClientSession, url: str, verbs: Verbs, records: Records) -> None:
        self.session = session
        self.url = url
        self.verbs = verbs
        self.leads = True
        self.answered: list[tuple[str, int]] = []
        self.records = records

    async def post(self, verb: str, body: object) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(f"{self.url}/{verb}", data=data) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if answer.content_type == "application/json" else text

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self.url.removeprefix("http://").split(":")
        return await asyncio.open_connection(host, int(port))


@pytest.fixture
def loop_factory() -> LoopFactory:
    return asyncio.new_event_loop


@pytest.fixture
async def http(request: pytest.FixtureRequest) -> AsyncIterator[Http]:
    """Serve the verbs for two nodes with one card each. The parameter is the address of the page for people."""
    verbs, records = Verbs(), Records()
    for name in ("n1", "n2"):
        verbs.world.node(name, 1)
    http: Http
    server = ExtenderServer(
        lambda: verbs if http.leads else None,
        answered=lambda verb, status, seconds: http.answered.append((verb, status)),
        log=records.log,
        page=getattr(request, "param", ""),
    )
    host, port = await server.start(Address("127.0.0.1", 0), None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
        http = Http(session, f"http://{host}:{port}", verbs, records)
        yield http
    await server.close()


def golden(verb: str) -> bytes:
    return (GOLDEN / f"{verb}.json").read_bytes()


# Requests of a real kube-scheduler


async def test_filter_as_kube_scheduler_sends_it(http: Http) -> None:
    names = json.loads(golden("filter"))["NodeNames"]
    for name in names:
        http.verbs.world.node(name, 1)
    status, answer = await http.post("filter", golden("filter"))
    assert (status, sorted(answer["NodeNames"])) == (200, sorted(names))
    assert not answer.keys() & {"FailedNodes", "FailedAndUnresolvableNodes", "Error"}


async def test_prioritize_as_kube_scheduler_sends_it(http: Http) -> None:
    await http.post("filter", golden("prioritize"))
    status, answer = await http.post("prioritize", golden("prioritize"))
    assert status == 200
    (best,) = [node["Host"] for node in answer if node["Score"] > 0]
    assert best in {"n1", "n2"}


async def test_bind_as_kube_scheduler_sends_it(http: Http) -> None:
    sent = json.loads(golden("bind"))
    assert await http.post("bind", golden("bind")) == (200, {})
    assert http.verbs.bound == (sent["PodUID"], sent["Node"])
    assert await http.post("bind", {**sent, "Node": "n9"}) == (200, {"Error": "its devices are gone"})


async def test_preempt_as_kube_scheduler_sends_it(http: Http) -> None:
    sent = json.loads(golden("preempt"))
    status, answer = await http.post("preempt", golden("preempt"))
    assert status == 200
    assert answer == {"NodeNameToMetaVictims": sent["NodeNameToMetaVictims"]}


def test_the_pod_of_a_recorded_call_is_read_with_priority_and_uid() -> None:
    sent = msgspec.json.decode(golden("preempt"))
    read = msgspec.convert(sent["Pod"], Pod)
    assert (read.spec.priority, read.metadata.uid) == (1000, sent["Pod"]["metadata"]["uid"])


@pytest.mark.parametrize("victims", [None, {}, {"n1": {"Pods": None}}, {"n1": {"Pods": []}}])
async def test_preempt_accepts_the_empty_values_of_go(http: Http, victims: object) -> None:
    body = {"Pod": pod("a", version=1), "NodeNameToMetaVictims": victims}
    assert await http.post("preempt", body) == (200, {"NodeNameToMetaVictims": {}})


# The verbs


async def test_a_refused_pod_fits_once_the_node_is_free(http: Http) -> None:
    http.verbs.world.bind("a", "n1")
    body = {"Pod": pod("b", version=50), "NodeNames": ["n1"]}
    status, answer = await http.post("filter", body)
    assert (status, answer.get("NodeNames", [])) == (200, [])
    assert set(answer["FailedNodes"]) == {"n1"}
    http.verbs.world.deleted("a")
    assert await http.post("filter", body) == (200, {"NodeNames": ["n1"]})
    assert await http.post("filter", body) == (200, {"NodeNames": ["n1"]})


async def test_a_pod_that_requests_no_devices_fits_on_every_node(http: Http) -> None:
    body = {"Pod": pod("a", {"cpu": "1"}, version=1), "NodeNames": ["n1", "n2", "n3"]}
    assert await http.post("filter", body) == (200, {"NodeNames": ["n1", "n2", "n3"]})
    status, answer = await http.post("prioritize", body)
    assert (status, [node for node in answer if node["Score"]]) == (200, [])


async def test_a_malformed_request_is_refused_on_every_node_for_good(http: Http) -> None:
    body = {"Pod": pod("a", {"lading.dev/gpu-core": "300"}, version=1), "NodeNames": ["n1", "n2"]}
    status, answer = await http.post("filter", body)
    assert status == 200
    assert set(answer["FailedAndUnresolvableNodes"]) == {"n1", "n2"}
    assert all("lading.dev/gpu-core" in reason for reason in answer["FailedAndUnresolvableNodes"].values())


async def test_a_filter_call_without_node_names_is_a_wrong_configuration_of_kube_scheduler(http: Http) -> None:
    status, answer = await http.post("filter", {"Pod": pod("a", version=1), "Nodes": {"items": []}})
    assert status == 200
    assert "nodeCacheCapable" in answer["Error"]
    assert await http.post("prioritize", {"Pod": pod("a", version=1), "NodeNames": []}) == (200, [])


@pytest.mark.parametrize("path", ["", "v1/cluster", "v1/configuration", "v1/why/default/a"])
@pytest.mark.parametrize(
    ("http", "named"),
    [("127.0.0.1:8081", "127.0.0.1:8081 (page_listen)"), ("", "page_listen is empty")],
    ids=["with a page", "without a page"],
    indirect=["http"],
)
async def test_a_path_for_people_is_misdirected_and_the_answer_names_the_address_of_the_page(
    http: Http, path: str, named: str
) -> None:
    async with http.session.get(f"{http.url}/{path}") as answer:
        assert answer.status == 421
        assert named in (await answer.json())["message"]


# Malformed requests


@pytest.mark.parametrize(
    ("verb", "body", "key"),
    [
        ("filter", {"NodeNames": ["n1"]}, "Pod"),
        ("filter", {"Pod": pod("a"), "NodeNames": "n1"}, "NodeNames"),
        ("filter", {"Pod": {"metadata": {"name": 7}}, "NodeNames": []}, "metadata.name"),
        ("prioritize", {"Pod": None, "NodeNames": []}, "Pod"),
        ("prioritize", {"Pod": pod("a"), "NodeNames": "n1"}, "NodeNames"),
        ("bind", {"PodName": "a", "PodNamespace": "b", "PodUID": "c"}, "Node"),
        ("preempt", {"Pod": pod("a"), "NodeNameToMetaVictims": {"n1": {"Pods": [{}]}}}, "UID"),
        ("bind", b"", ""),
        ("bind", b"[" * 5000, ""),
        ("bind", b'{"PodName": "\xff"}', ""),
        ("bind", b'{"PodName": "\\ud800", "PodNamespace": "", "PodUID": "", "Node": ""}', ""),
        ("bind", b'{"PodName": 7, "\\u001b[31m": 1}', "PodName"),
    ],
)
async def test_a_malformed_body_is_answered_with_the_key_that_is_wrong(http: Http, verb: str, body: object, key: str) -> None:
    status, text = await http.post(verb, body)
    assert status == 400
    assert key in text
    assert text.rstrip("\n").isprintable()
    assert http.records.count(Event.REQUEST_MALFORMED) == 1
    assert http.answered == [(verb, 400)]
    assert (await http.post("filter", {"Pod": pod("a", version=1), "NodeNames": []}))[0] == 200


async def test_an_exception_in_central_is_an_internal_error(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(pod: Pod, names: list[str]) -> Decision:
        raise ValueError("a bug")

    monkeypatch.setattr(http.verbs.scheduler, "decide", broken)
    assert (await http.post("filter", {"Pod": pod("a"), "NodeNames": []}))[0] == 500
    assert http.answered == [("filter", 500)]


async def test_a_body_beyond_the_largest_size_is_refused(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BODY", 1000)
    assert (await http.post("filter", b" " * 2000))[0] == 413
    assert http.answered == [("filter", 413)]


async def test_unknown_paths_and_methods_are_refused(http: Http) -> None:
    assert (await http.post("bindx", {}))[0] == 404
    async with http.session.get(f"{http.url}/bind") as answer:
        assert answer.status == 405


# Connections


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, bytes]:
    """Send one request over a connection, and return the status and the answer's head."""
    body = json.dumps({"Pod": pod("a", {"cpu": "1"}), "NodeNames": []}).encode()
    writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    await reader.readexactly(length)
    return int(head.split()[1]), head.lower()


async def test_a_replica_that_lost_the_lease_while_it_judged_nodes_decides_nothing(http: Http) -> None:
    http.verbs.preparing = lambda: setattr(http, "leads", False)
    assert (await http.post("filter", {"Pod": pod("a"), "NodeNames": ["n1"]}))[0] == 503
    assert len(http.verbs.world.pending) == 0


async def test_a_connection_is_kept_open_until_another_replica_leads(http: Http) -> None:
    reader, writer = await http.connect()
    for _ in range(3):
        status, head = await exchange(reader, writer)
        assert (status, b"connection: close" in head) == (200, False)
    http.leads = False
    status, head = await exchange(reader, writer)
    assert (status, b"connection: close" in head) == (503, True)
    assert await reader.read() == b""  # so that the next request finds the leader
    writer.close()
    await writer.wait_closed()


async def test_a_replica_that_does_not_lead_decides_nothing(http: Http) -> None:
    http.leads = False
    for verb in ("filter", "prioritize", "bind", "preempt"):
        assert (await http.post(verb, golden(verb)))[0] == 503
    assert len(http.verbs.world.pending) == 0


async def test_an_address_in_use_is_an_error_that_names_the_port(http: Http) -> None:
    second = ExtenderServer(lambda: http.verbs, answered=lambda *_: None, log=http.records.log)
    host, port = http.url.removeprefix("http://").split(":")
    with pytest.raises(HostError, match=port):
        await second.start(Address(host, int(port)), None)
    await second.close()


# TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "pki")


def test_tls_files_that_cannot_be_read_are_an_error(authority: Authority, tmp_path: Path) -> None:
    pair = authority.sign("central2", "central", addresses=["127.0.0.1"])
    (tmp_path / "none.pem").write_text("x")
    certificate, key, none = str(pair.certificate), str(pair.key), str(tmp_path / "none.pem")
    assert server_tls("", "", "") is None
    for files in ((none, key, ""), (certificate, none, ""), (certificate, key, none), ("/no/such", key, "")):
        with pytest.raises(ConfigError):
            server_tls(*files)


NOT_CONNECTED = 0


@pytest.mark.parametrize(
    ("signed_by", "client", "callers", "status"),
    [
        ("", "scheduler", [], NOT_CONNECTED),
        ("another authority", "scheduler", [], NOT_CONNECTED),
        ("the authority", "scheduler", [], 200),
        ("the authority", "scheduler", ["scheduler"], 200),
        ("the authority", "intruder", ["scheduler"], 403),
    ],
)
async def test_a_verb_needs_a_certificate_of_the_authority_with_an_allowed_name(
    authority: Authority, tmp_path: Path, signed_by: str, client: str, callers: list[str], status: int
) -> None:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if signed_by:
        signer = authority if signed_by == "the authority" else Authority(tmp_path / "other")
        pair = signer.sign(f"{client} of {signed_by}{len(callers)}", client)
        context.load_cert_chain(pair.certificate, pair.key)
    own = authority.sign(f"central for {client} of {signed_by}{len(callers)}", "central", addresses=["127.0.0.1"])
    verbs = Verbs()
    server = ExtenderServer(lambda: verbs, answered=lambda *_: None, log=Records().log, callers=callers)
    tls = server_tls(str(own.certificate), str(own.key), str(authority.certificate))
    host, port = await server.start(Address("127.0.0.1", 0), tls)
    answered = NOT_CONNECTED
    with contextlib.suppress(aiohttp.ClientError):
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"https://{host}:{port}/bind", data=golden("bind"), ssl=context) as answer,
        ):
            answered = answer.status
    await server.close()
    assert answered == status


# Pods as the watch reports them


async def test_a_filter_call_for_a_bound_pod_is_answered_with_its_node(http: Http) -> None:
    for name, limits in (("a", {"lading.dev/gpu": "1"}), ("plain", {"cpu": "1"})):
        http.verbs.hide(name)
        http.verbs.world.show(name, limits, node="n2")
        _, answer = await http.post("filter", {"Pod": pod(name, limits, version=1), "NodeNames": ["n1"]})
        assert OfPod.BOUND_ELSEWHERE.value in answer["Error"]
        assert "n2" in answer["Error"]


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt"])
async def test_a_version_of_thousands_of_digits_is_a_bad_request(http: Http, verb: str) -> None:
    made = pod("a", version=1)
    made["metadata"]["resourceVersion"] = "9" * 5000
    status, answer = await http.post(verb, {"Pod": made, "NodeNames": ["n1"]})
    assert (status, "resourceVersion" in answer) == (400, True)


@pytest.mark.parametrize("where", ["decide", "apply", "prefer"])
async def test_a_validation_error_inside_central_is_no_malformed_request(
    http: Http, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Check that such an error is logged with the pod's name. An error after the answer was sent does not change it."""

    def fail(*_: object) -> None:
        raise msgspec.ValidationError("not of the caller")

    monkeypatch.setattr(http.verbs.scheduler, where, fail)
    body = {"Pod": pod("a", version=1), "NodeNames": ["n1"]}
    status, _ = await http.post("prioritize" if where == "prefer" else "filter", body)
    assert status == (200 if where == "apply" else 500)
    (first, *_) = [fields for event, fields in http.records.seen if event is Event.HANDLING_FAILED]
    assert first["object"] == "default/a"


async def test_a_pod_that_the_watch_does_not_show_gets_and_holds_nothing(http: Http) -> None:
    http.verbs.hide("a")
    body = {"Pod": pod("a", version=1), "NodeNames": ["n1", "n2"]}
    status, answer = await http.post("filter", body)
    assert (status, answer.keys(), OfBinding.POD_UNKNOWN.value in answer["Error"]) == (200, {"Error"}, True)
    assert await http.post("prioritize", body) == (200, [])
    assert len(http.verbs.world.pending) == 0


# Connections that take long


async def test_silent_connections_keep_no_request_out(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_WAITING", 4)
    silent = [await http.connect() for _ in range(12)]
    assert (await http.post("bind", golden("bind")))[0] == 200
    assert await silent[0][0].read() == b""
    for _, writer in silent:
        writer.transport.abort()


async def test_a_connection_without_a_whole_head_is_closed_after_a_time(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.01)
    reader, writer = await http.connect()
    writer.write(b"POST /bind HTTP/1.1\r\n")
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.transport.abort()


async def refused_for(http: Http, head: bytes) -> int:
    """Return the status of the answer to a request whose head alone is sent."""
    reader, writer = await http.connect()
    writer.write(b"POST /bind HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n")
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.transport.abort()
    return int(answer.split()[1])


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Transfer-Encoding: chunked\r\n", 411),
        (b"Content-Length: 67108865\r\n", 413),
        (b"Content-Length: 1001\r\n", 503),  # more than all bodies together may have
        (b"Content-Length: 1000\r\n", 408),  # the body does not come
    ],
)
async def test_a_body_is_refused_by_its_head_or_after_a_time(
    http: Http, head: bytes, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BODIES", 1000)
    monkeypatch.setattr(module, "BODY_S", 0.01)
    assert await refused_for(http, head) == status
    assert http.answered == [("bind", status)]
