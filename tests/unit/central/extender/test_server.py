"""Test the verbs over real HTTP: the requests of kube-scheduler, the answers, and the refusal of other callers."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
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
    def __init__(self, session: aiohttp.ClientSession, url: str, verbs: Verbs) -> None:
        self.session = session
        self.url = url
        self.verbs = verbs
        self.leads = True
        self.answered: list[tuple[str, int]] = []
        self.records = Records()

    async def post(self, verb: str, body: object) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(f"{self.url}/{verb}", data=data) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if answer.content_type == "application/json" else text


@asynccontextmanager
async def serving(page: str = "") -> AsyncIterator[Http]:
    verbs = Verbs()
    for name in ("n1", "n2"):
        verbs.world.node(name, 1)
    one: Http

    def answered(verb: str, status: int, seconds: float) -> None:
        one.answered.append((verb, status))

    records = Records()
    server = ExtenderServer(lambda: verbs if one.leads else None, answered=answered, log=records.log, page=page)
    host, port = await server.start(Address("127.0.0.1", 0), None)
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
            one = Http(session, f"http://{host}:{port}", verbs)
            one.records = records
            yield one
    finally:
        await server.close()


def play(story: Callable[[Http], Coroutine[Any, Any, None]], *, page: str = "") -> None:
    async def whole() -> None:
        async with serving(page) as one:
            await story(one)

    asyncio.run(whole())


def golden(verb: str) -> bytes:
    return (GOLDEN / f"{verb}.json").read_bytes()


# Requests of a real kube-scheduler


def test_filter_as_kube_scheduler_sends_it() -> None:
    async def story(one: Http) -> None:
        names = json.loads(golden("filter"))["NodeNames"]
        for name in names:
            one.verbs.world.node(name, 1)
        status, answer = await one.post("filter", golden("filter"))
        assert (status, sorted(answer["NodeNames"])) == (200, sorted(names))
        assert not answer.keys() & {"FailedNodes", "FailedAndUnresolvableNodes", "Error"}

    play(story)


def test_prioritize_as_kube_scheduler_sends_it() -> None:
    async def story(one: Http) -> None:
        await one.post("filter", golden("prioritize"))
        status, answer = await one.post("prioritize", golden("prioritize"))
        assert status == 200
        (best,) = [node["Host"] for node in answer if node["Score"] > 0]  # one named, no one else above zero
        assert best in {"n1", "n2"}

    play(story)


def test_bind_as_kube_scheduler_sends_it() -> None:
    async def story(one: Http) -> None:
        sent = json.loads(golden("bind"))
        assert await one.post("bind", golden("bind")) == (200, {})
        assert one.verbs.bound == (sent["PodUID"], sent["Node"])
        assert await one.post("bind", {**sent, "Node": "n9"}) == (200, {"Error": "its devices are gone"})

    play(story)


def test_preempt_as_kube_scheduler_sends_it() -> None:
    async def story(one: Http) -> None:
        sent = json.loads(golden("preempt"))
        status, answer = await one.post("preempt", golden("preempt"))
        assert status == 200
        assert answer == {"NodeNameToMetaVictims": sent["NodeNameToMetaVictims"]}

    play(story)


def test_a_pod_of_the_capture_is_read_whole() -> None:
    sent = msgspec.json.decode(golden("preempt"))
    read = msgspec.convert(sent["Pod"], Pod)
    assert (read.spec.priority, read.metadata.uid) == (1000, sent["Pod"]["metadata"]["uid"])


@pytest.mark.parametrize("victims", [None, {}, {"n1": {"Pods": None}}, {"n1": {"Pods": []}}])
def test_preempt_with_gos_empty_values(victims: object) -> None:
    async def story(one: Http) -> None:
        body = {"Pod": pod("a", version=1), "NodeNameToMetaVictims": victims}
        assert await one.post("preempt", body) == (200, {"NodeNameToMetaVictims": {}})

    play(story)


# The verbs


def test_refused_and_then_fits() -> None:
    async def story(one: Http) -> None:
        one.verbs.world.bind("a", "n1")
        body = {"Pod": pod("b", version=50), "NodeNames": ["n1"]}
        status, answer = await one.post("filter", body)
        assert (status, answer.get("NodeNames", [])) == (200, [])
        assert set(answer["FailedNodes"]) == {"n1"}
        one.verbs.world.deleted("a")
        assert await one.post("filter", body) == (200, {"NodeNames": ["n1"]})
        assert await one.post("filter", body) == (200, {"NodeNames": ["n1"]})

    play(story)


def test_a_pod_that_asks_for_nothing() -> None:
    async def story(one: Http) -> None:
        body = {"Pod": pod("a", {"cpu": "1"}, version=1), "NodeNames": ["n1", "n2", "n3"]}
        assert await one.post("filter", body) == (200, {"NodeNames": ["n1", "n2", "n3"]})
        status, answer = await one.post("prioritize", body)
        assert (status, [node for node in answer if node["Score"]]) == (200, [])

    play(story)


def test_what_is_wrong_with_an_ask_is_shown() -> None:
    async def story(one: Http) -> None:
        body = {"Pod": pod("a", {"lading.dev/gpu-core": "300"}, version=1), "NodeNames": ["n1", "n2"]}
        status, answer = await one.post("filter", body)
        assert status == 200
        assert set(answer["FailedAndUnresolvableNodes"]) == {"n1", "n2"}
        assert all("lading.dev/gpu-core" in reason for reason in answer["FailedAndUnresolvableNodes"].values())

    play(story)


def test_no_names_are_a_wrong_configuration() -> None:
    async def story(one: Http) -> None:
        status, answer = await one.post("filter", {"Pod": pod("a", version=1), "Nodes": {"items": []}})
        assert status == 200
        assert "nodeCacheCapable" in answer["Error"]
        assert await one.post("prioritize", {"Pod": pod("a", version=1), "NodeNames": []}) == (200, [])

    play(story)


@pytest.mark.parametrize("path", ["", "v1/cluster", "v1/configuration", "v1/why/default/a"])
@pytest.mark.parametrize(("page", "named"), [("127.0.0.1:8081", "127.0.0.1:8081 (page_listen)"), ("", "page_listen is empty")])
def test_what_people_read_is_not_here_and_the_answer_says_where(path: str, page: str, named: str) -> None:
    async def story(one: Http) -> None:
        async with one.session.get(f"{one.url}/{path}") as answer:
            assert answer.status == 421
            assert named in (await answer.json())["message"]

    play(story, page=page)


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
def test_a_bad_body_is_reported_the_key(verb: str, body: object, key: str) -> None:
    async def story(one: Http) -> None:
        status, text = await one.post(verb, body)
        assert status == 400
        assert key in text
        assert text.rstrip("\n").isprintable()
        assert one.records.count(Event.REQUEST_MALFORMED) == 1
        assert one.answered == [(verb, 400)]
        assert (await one.post("filter", {"Pod": pod("a", version=1), "NodeNames": []}))[0] == 200

    play(story)


def test_an_error_of_lading_is_not_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(one: Http) -> None:
        def broken(pod: Pod, names: list[str]) -> Decision:
            raise ValueError("a bug")

        monkeypatch.setattr(one.verbs.scheduler, "decide", broken)
        assert (await one.post("filter", {"Pod": pod("a"), "NodeNames": []}))[0] == 500
        assert one.answered == [("filter", 500)]

    play(story)


def test_a_body_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BODY", 1000)

    async def story(one: Http) -> None:
        assert (await one.post("filter", b" " * 2000))[0] == 413
        assert one.answered == [("filter", 413)]

    play(story)


def test_other_paths_and_methods() -> None:
    async def story(one: Http) -> None:
        assert (await one.post("bindx", {}))[0] == 404
        async with one.session.get(f"{one.url}/bind") as answer:
            assert answer.status == 405

    play(story)


# Connections


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, bytes]:
    """Send one request over a connection, and return the status and the answer's head."""
    body = json.dumps({"Pod": pod("a", {"cpu": "1"}), "NodeNames": []}).encode()
    writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    await reader.readexactly(length)
    return int(head.split()[1]), head.lower()


def test_who_lost_the_lease_while_nodes_were_judged_decides_nothing() -> None:
    async def story(one: Http) -> None:
        one.verbs.preparing = lambda: setattr(one, "leads", False)
        assert (await one.post("filter", {"Pod": pod("a"), "NodeNames": ["n1"]}))[0] == 503
        assert len(one.verbs.world.pending) == 0

    play(story)


def test_a_connection_is_kept_until_another_leads() -> None:
    async def story(one: Http) -> None:
        host, port = one.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for _ in range(3):
            status, head = await exchange(reader, writer)
            assert (status, b"connection: close" in head) == (200, False)
        one.leads = False
        status, head = await exchange(reader, writer)
        assert (status, b"connection: close" in head) == (503, True)
        assert await reader.read() == b""  # so that the next request finds the leader
        writer.close()
        await writer.wait_closed()

    play(story)


def test_who_does_not_lead_decides_nothing() -> None:
    async def story(one: Http) -> None:
        one.leads = False
        for verb in ("filter", "prioritize", "bind", "preempt"):
            assert (await one.post(verb, golden(verb)))[0] == 503
        assert len(one.verbs.world.pending) == 0

    play(story)


def test_an_address_that_is_taken() -> None:
    async def story(one: Http) -> None:
        second = ExtenderServer(lambda: one.verbs, answered=lambda *_: None, log=one.records.log)
        host, port = one.url.removeprefix("http://").split(":")
        with pytest.raises(HostError, match=port):
            await second.start(Address(host, int(port)), None)
        await second.close()

    play(story)


# TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "pki")


@pytest.mark.parametrize("client", ["", "ours", "another"])
def test_callers_need_a_certificate(authority: Authority, tmp_path: Path, client: str) -> None:
    pair = authority.sign("central", "central", addresses=["127.0.0.1"])
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if client:
        signed_by = authority if client == "ours" else Authority(tmp_path / "other")
        mine = signed_by.sign(f"scheduler-{client}", "scheduler")
        context.load_cert_chain(mine.certificate, mine.key)

    async def story() -> int:
        verbs = Verbs()
        server = ExtenderServer(lambda: verbs, answered=lambda *_: None, log=Records().log)
        tls = server_tls(str(pair.certificate), str(pair.key), str(authority.certificate))
        host, port = await server.start(Address("127.0.0.1", 0), tls)
        try:
            async with aiohttp.ClientSession() as session:
                call = session.post(f"https://{host}:{port}/bind", data=golden("bind"), ssl=context)
                async with call as answer:
                    return answer.status
        except aiohttp.ClientError:
            return 0
        finally:
            await server.close()

    assert asyncio.run(story()) == (200 if client == "ours" else 0)


def test_tls_files_that_are_none(authority: Authority, tmp_path: Path) -> None:
    pair = authority.sign("central2", "central", addresses=["127.0.0.1"])
    (tmp_path / "none.pem").write_text("x")
    certificate, key, none = str(pair.certificate), str(pair.key), str(tmp_path / "none.pem")
    assert server_tls("", "", "") is None
    for files in ((none, key, ""), (certificate, none, ""), (certificate, key, none), ("/no/such", key, "")):
        with pytest.raises(ConfigError):
            server_tls(*files)


@pytest.mark.parametrize(("client", "status"), [("scheduler", 200), ("intruder", 403)])
def test_a_verb_needs_a_certificate_with_an_allowed_name(authority: Authority, client: str, status: int) -> None:
    pair = authority.sign(f"central-{client}", "central", addresses=["127.0.0.1"])
    context = ssl.create_default_context(cafile=str(authority.certificate))
    mine = authority.sign(f"as-{client}", client)
    context.load_cert_chain(mine.certificate, mine.key)

    async def story() -> int:
        verbs = Verbs()
        server = ExtenderServer(lambda: verbs, answered=lambda *_: None, log=Records().log, callers=["scheduler"])
        tls = server_tls(str(pair.certificate), str(pair.key), str(authority.certificate))
        host, port = await server.start(Address("127.0.0.1", 0), tls)
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"https://{host}:{port}/bind", data=golden("bind"), ssl=context) as bound,
            ):
                return bound.status
        finally:
            await server.close()

    assert asyncio.run(story()) == status


# Pods as the watch reports them


def test_a_pod_that_is_bound_is_not_called_unknown() -> None:
    async def story(one: Http) -> None:
        for name, limits in (("a", {"lading.dev/gpu": "1"}), ("plain", {"cpu": "1"})):
            one.verbs.hide(name)
            one.verbs.world.show(name, limits, node="n2")
            _, answer = await one.post("filter", {"Pod": pod(name, limits, version=1), "NodeNames": ["n1"]})
            assert OfPod.BOUND_ELSEWHERE.value in answer["Error"]
            assert "n2" in answer["Error"]

    play(story)


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt"])
def test_a_version_of_thousands_of_digits_is_a_bad_request(verb: str) -> None:
    async def story(one: Http) -> None:
        made = pod("a", version=1)
        made["metadata"]["resourceVersion"] = "9" * 5000
        status, answer = await one.post(verb, {"Pod": made, "NodeNames": ["n1"]})
        assert (status, "resourceVersion" in answer) == (400, True)

    play(story)


@pytest.mark.parametrize("where", ["decide", "apply", "prefer"])
def test_an_error_of_lading_is_no_bad_request(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Check that such an error is logged with the pod's name. An error after the answer was sent does not change it."""

    async def story(one: Http) -> None:
        def fail(*_: object) -> None:
            raise msgspec.ValidationError("not of the caller")

        monkeypatch.setattr(one.verbs.scheduler, where, fail)
        body = {"Pod": pod("a", version=1), "NodeNames": ["n1"]}
        status, _ = await one.post("prioritize" if where == "prefer" else "filter", body)
        assert status == (200 if where == "apply" else 500)
        (first, *_) = [fields for event, fields in one.records.seen if event is Event.HANDLING_FAILED]
        assert first["object"] == "default/a"

    play(story)


def test_a_pod_that_the_watch_does_not_show_gets_and_holds_nothing() -> None:
    async def story(one: Http) -> None:
        one.verbs.hide("a")
        body = {"Pod": pod("a", version=1), "NodeNames": ["n1", "n2"]}
        status, answer = await one.post("filter", body)
        assert (status, answer.keys(), OfBinding.POD_UNKNOWN.value in answer["Error"]) == (200, {"Error"}, True)
        assert await one.post("prioritize", body) == (200, [])
        assert len(one.verbs.world.pending) == 0

    play(story)


# Connections that take long


async def connect(one: Http) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = one.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


def test_silent_connections_keep_out_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_WAITING", 4)

    async def story(one: Http) -> None:
        silent = [await connect(one) for _ in range(12)]
        assert (await one.post("bind", golden("bind")))[0] == 200
        assert await silent[0][0].read() == b""
        for _, writer in silent:
            writer.transport.abort()

    play(story)


def test_a_head_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.01)

    async def story(one: Http) -> None:
        reader, writer = await connect(one)
        writer.write(b"POST /bind HTTP/1.1\r\n")
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.transport.abort()

    play(story)


async def refused_for(one: Http, head: bytes) -> int:
    """Return the status of the answer to a request whose head alone is sent."""
    reader, writer = await connect(one)
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
        (b"Content-Length: 1001\r\n", 503),  # beyond what all may have together
        (b"Content-Length: 1000\r\n", 408),  # it does not come
    ],
)
def test_a_body_is_refused_by_its_head_or_not_waited_for(head: bytes, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BODIES", 1000)
    monkeypatch.setattr(module, "BODY_S", 0.01)

    async def story(one: Http) -> None:
        assert await refused_for(one, head) == status
        assert one.answered == [("bind", status)]

    play(story)
