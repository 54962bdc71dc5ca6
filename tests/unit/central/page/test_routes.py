"""Test the page over real HTTP: the answers, the headers for the browser, refused callers, and waiting for changes."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import aiohttp
import msgspec
import pytest

from central.decide.configuration import EffectiveConfiguration, effective_configuration
from central.page import routes
from central.page.files import STATIC
from central.page.live import EVERY_S, Live
from central.page.routes import PageRoutes
from central.page.server import PageServer
from central.request.model import Policy
from lading.health import Address
from simnode.patience import await_until
from tests.coroutines import LoopFactory
from tests.unit.central.page.shown import Shown, names


class Answers:
    def __init__(self, shown: Shown) -> None:
        self._shown = shown

    async def why(self, namespace: str, name: str) -> bytes | None:
        return b'{"name":"a"}' if (namespace, name) == ("default", "a") else None

    def quota_view(self) -> bytes:
        return b'{"quotas":[]}'

    def configuration(self) -> bytes:
        return msgspec.json.encode(effective_configuration(self._shown.world.scheduler))


class Http:
    def __init__(self, session: aiohttp.ClientSession, url: str, shown: Shown, page: PageRoutes) -> None:
        self.session = session
        self.url = url
        self.shown = shown
        self.page = page
        self.live: Live | None = shown.live
        self.answered: list[tuple[str, int]] = []

    async def get(self, path: str, **headers: str) -> tuple[int, aiohttp.ClientResponse, bytes]:
        sent = {key.replace("_", "-"): value for key, value in headers.items()}
        async with self.session.get(f"{self.url}{path}", headers=sent) as answer:
            return answer.status, answer, await answer.read()

    async def until_waiting(self, watchers: int = 1) -> None:
        await await_until(lambda: self.page._watchers == watchers, f"{watchers} waiting watchers")

    async def cluster(self, after: str | None = None) -> dict[str, Any]:
        self.shown.world.now += 10
        status, _, body = await self.get("/v1/cluster" + ("" if after is None else f"?after={after}"))
        assert status == 200
        decoded: dict[str, Any] = json.loads(body)
        return decoded


@pytest.fixture
def loop_factory() -> LoopFactory:
    return asyncio.new_event_loop


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    """Serve the page for two nodes with one card each."""
    shown = Shown()
    for name in ("n1", "n2"):
        shown.world.node(name, 1)
    http: Http
    page = PageRoutes(lambda: http.live)
    answers = Answers(shown)
    server = PageServer(
        lambda: answers if http.live is not None else None,
        answered=lambda name, status, seconds: http.answered.append((name, status)),
        page=page,
    )
    host, port = await server.start(Address("127.0.0.1", 0), None)
    async with aiohttp.ClientSession(auto_decompress=False, skip_auto_headers=["Accept-Encoding"]) as session:
        http = Http(session, f"http://{host}:{port}", shown, page)
        yield http
    await server.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "EVERY_S", 0.01)


# answers to a browser


async def test_every_file_of_the_page_is_served_with_its_type(http: Http) -> None:
    for path in STATIC.iterdir():
        if path.name in ("index.html", "standby.html"):
            continue
        status, answer, body = await http.get(f"/{path.name}")
        assert (status, body) == (200, path.read_bytes())
        kind = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}[path.suffix]
        assert answer.content_type == kind
    status, answer, body = await http.get("/")
    assert (status, answer.content_type, body) == (200, "text/html", (STATIC / "index.html").read_bytes())


async def test_every_answer_allows_a_browser_files_of_the_page_alone(http: Http) -> None:
    for path in ("/", "/main.js", "/v1/cluster"):
        _, answer, _ = await http.get(path)
        policy = dict(part.strip().partition(" ")[::2] for part in answer.headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["frame-ancestors"] == "'none'"
        assert not [word for text in policy.values() for word in text.split() if word not in ("'none'", "'self'", "'script'")]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize("path", ["/", "/style.css", "/v1/cluster"])
async def test_an_answer_that_the_browser_has_is_not_sent_again(http: Http, path: str) -> None:
    _, answer, _ = await http.get(path)
    status, again, body = await http.get(path, If_None_Match=f'"other", {answer.headers["ETag"]}')
    assert (status, body, again.headers["ETag"]) == (304, b"", answer.headers["ETag"])


@pytest.mark.parametrize(
    ("said", "packed"), [("gzip, br", True), ("br;q=1, GZIP;q=0.5", True), ("gzip;q=0", False), ("identity", False)]
)
async def test_an_answer_is_compressed_if_the_browser_accepts_gzip(http: Http, said: str, packed: bool) -> None:
    for path, start in (("/", b"<!doctype html>"), ("/v1/cluster", b"{")):
        _, answer, body = await http.get(path, Accept_Encoding=said)
        assert (answer.headers.get("Content-Encoding") == "gzip") is packed
        assert (gzip.decompress(body) if packed else body).startswith(start)


async def test_a_large_answer_is_compressed_in_parts(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_PART", 64)
    _, _, plain = await http.get("/v1/cluster", Accept_Encoding="identity")
    _, _, packed = await http.get("/v1/cluster", Accept_Encoding="gzip")
    assert json.loads(gzip.decompress(packed)) == json.loads(plain)


async def test_simultaneous_requests_share_one_compressed_answer(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = []
    real = routes._joined

    async def joined(parts: Iterable[bytes], *, packs: bool) -> bytes:
        packed.append(packs)
        return await real(parts, packs=packs)

    monkeypatch.setattr(routes, "_joined", joined)
    answers = await asyncio.gather(*(http.get("/v1/cluster", Accept_Encoding="gzip") for _ in range(5)))
    assert len({body for _, _, body in answers}) == 1
    assert packed == [True]
    http.shown.world.bind("a", "n1")
    http.shown.world.now += EVERY_S
    _, _, body = await http.get("/v1/cluster", Accept_Encoding="gzip")
    (node,) = [node for node in json.loads(gzip.decompress(body))["nodes"] if node["name"] == "n1"]
    assert node["gpus"][0]["state"] == "held"


async def test_the_time_for_which_a_pod_is_refused_is_new_in_each_answer(http: Http) -> None:
    http.shown.world.bind("holds", "n1")
    http.shown.world.bind("too", "n2")
    http.shown.world.show("a")
    http.shown.world.filter("a")
    refused = []
    for _ in range(2):
        http.shown.world.now += 10
        _, _, body = await http.get("/v1/cluster", Accept_Encoding="gzip")
        refused.append(json.loads(gzip.decompress(body))["pending"][0]["refused_s"])
    assert refused == [10.0, 20.0]


async def test_the_reason_why_a_pod_waits_has_a_path_for_each_pod(http: Http) -> None:
    for name, status in (("a", 200), ("b", 404)):
        assert (await http.get(f"/v1/why/default/{name}"))[0] == status
    assert http.answered == [("why", 200), ("why", 404)]


async def test_the_effective_configuration_has_a_path(http: Http) -> None:
    status, _, body = await http.get("/v1/configuration")
    assert (status, msgspec.json.decode(body, type=EffectiveConfiguration).policy) == (200, Policy.BINPACK)


@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind", "preempt"])
async def test_the_verbs_of_the_extender_have_no_path(http: Http, verb: str) -> None:
    async with http.session.post(f"{http.url}/{verb}", json={}) as answer:
        assert answer.status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "HEAD"])
async def test_methods_other_than_get_are_refused(http: Http, method: str) -> None:
    for path in ("/", "/main.js", "/v1/cluster", "/v1/why/default/a", "/v1/configuration"):
        async with http.session.request(method, f"{http.url}{path}") as answer:
            assert answer.status == 405


@pytest.mark.parametrize("path", ["/../live.py", "/static/main.js", "/..%2flive.py", "/index.html", "/standby.html"])
async def test_no_other_file_is_served(http: Http, path: str) -> None:
    status, _, _ = await http.get(path)
    assert status == 404


# refused requests


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("localhost", 200), ("LOCALHOST:8080", 200), ("127.0.0.1:8080", 200), ("[::1]:8080", 200), ("10.1.2.3", 200)),
        *(("evil.example", 421), ("evil.example:8080", 421), ("localhost.evil.example", 421)),
        *(("127.0.0.1.evil.example:80", 421), ("[evil]:1", 421)),
    ],
)
async def test_a_request_by_a_foreign_host_name_is_misdirected(http: Http, host: str, status: int) -> None:
    for path in ("/", "/main.js", "/v1/cluster", "/v1/why/default/a"):
        assert (await http.get(path, Host=host))[0] == status


async def test_the_host_name_is_checked_for_connections_from_this_machine_only(
    http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that only connections from this machine are tested by name: the API server's proxy comes from elsewhere and
    forwards its own name."""
    monkeypatch.setattr(routes, "_is_loopback", lambda peer: False)
    assert (await http.get("/v1/cluster", Host="api.example.com:6443"))[0] == 200


@pytest.mark.parametrize(
    ("peer", "is_here"), [("127.0.0.1", True), ("::1", True), ("", True), ("10.0.0.1", False), ("fd00::1", False)]
)
def test_loopback_addresses_are_this_machine(peer: str, is_here: bool) -> None:
    assert routes._is_loopback(peer) is is_here


async def test_a_standby_replica_serves_its_own_page_and_no_data(http: Http) -> None:
    http.live = None
    status, answer, body = await http.get("/")
    assert (status, answer.content_type, answer.headers["Connection"]) == (503, "text/html", "close")
    assert body == (STATIC / "standby.html").read_bytes()
    for path in ("/v1/cluster", "/v1/why/default/a", "/v1/configuration"):
        status, answer, _ = await http.get(path)
        assert (status, answer.headers["Connection"]) == (503, "close")
    assert (await http.get("/style.css"))[0] == 200


# waiting for changes


async def test_a_request_after_the_newest_revision_waits_for_the_next(http: Http) -> None:
    whole = await http.cluster()
    waits = asyncio.create_task(http.cluster(whole["revision"]))
    await http.until_waiting()
    http.shown.world.bind("a", "n2")
    http.shown.world.now += 10
    news = await waits
    assert (names(news), news["after"]) == ({"n2"}, whole["revision"])
    assert names(await http.cluster(whole["revision"])) == {"n2"}  # at once, because the revision is old by now


async def test_a_request_that_waited_long_is_answered_without_changes(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "WAIT_S", 0.05)
    revision = (await http.cluster())["revision"]
    news = await http.cluster(revision)
    assert (news["revision"], news["nodes"]) == (revision, [])


async def test_a_request_with_wait_0_is_answered_at_once(http: Http) -> None:
    revision = (await http.cluster())["revision"]
    assert (await http.cluster(f"{revision}&wait=0"))["nodes"] == []


@pytest.mark.parametrize("after", ["", "x", "ffffffff.3"])
async def test_after_an_unknown_revision_all_nodes_are_sent(http: Http, after: str) -> None:
    assert names(await http.cluster(after)) == {"n1", "n2"}


async def test_a_waiting_request_gets_all_nodes_from_a_new_leadership(http: Http) -> None:
    waits = asyncio.create_task(http.cluster((await http.cluster())["revision"]))
    await http.until_waiting()
    http.live = http.shown.make_live()
    news = await waits
    assert "after" not in news
    assert names(news) == {"n1", "n2"}


async def test_a_waiting_request_ends_with_the_leadership(http: Http) -> None:
    revision = (await http.cluster())["revision"]
    waits = asyncio.create_task(http.get(f"/v1/cluster?after={revision}"))
    await http.until_waiting()
    http.live = None
    assert (await waits)[0] == 503


async def test_a_waiting_request_ends_when_the_page_stops(http: Http) -> None:
    revision = (await http.cluster())["revision"]
    waits = asyncio.create_task(http.get(f"/v1/cluster?after={revision}"))
    await http.until_waiting()
    http.page.stop()
    assert (await waits)[0] == 503


async def test_the_number_of_waiting_requests_is_bounded(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "WATCHERS", 2)
    revision = (await http.cluster())["revision"]
    path = f"/v1/cluster?after={revision}"
    waiting = [asyncio.create_task(http.get(path)) for _ in range(2)]
    await http.until_waiting(2)
    status, answer, _ = await http.get(path)
    assert (status, int(answer.headers["Retry-After"]) > 0) == (503, True)
    http.shown.world.bind("a", "n1")
    http.shown.world.now += 10
    assert [(await request)[0] for request in waiting] == [200, 200]
    assert (await http.get(path))[0] == 200


async def test_a_closed_connection_frees_its_place_among_waiting_requests(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "WATCHERS", 1)
    revision = (await http.cluster())["revision"]
    path = f"/v1/cluster?after={revision}"
    leaves = asyncio.create_task(http.get(path))
    await http.until_waiting(1)
    leaves.cancel()
    await http.until_waiting(0)
