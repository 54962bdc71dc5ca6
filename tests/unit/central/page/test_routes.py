"""Test the page over real HTTP: the answers, the headers for the browser, refused callers, and waiting for changes."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
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


@asynccontextmanager
async def serving() -> AsyncIterator[Http]:
    shown = Shown()
    for name in ("n1", "n2"):
        shown.world.node(name, 1)
    one: Http
    page = PageRoutes(lambda: one.live)
    answers = Answers(shown)
    server = PageServer(
        lambda: answers if one.live is not None else None,
        answered=lambda name, status, seconds: one.answered.append((name, status)),
        page=page,
    )
    host, port = await server.start(Address("127.0.0.1", 0), None)
    try:
        async with aiohttp.ClientSession(auto_decompress=False, skip_auto_headers=["Accept-Encoding"]) as session:
            one = Http(session, f"http://{host}:{port}", shown, page)
            yield one
    finally:
        await server.close()


def play(story: Callable[[Http], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with serving() as one, asyncio.timeout(20):
            await story(one)

    asyncio.run(whole())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "EVERY_S", 0.01)


# ---- what a browser gets


def test_every_file_that_the_page_names_is_there() -> None:
    async def story(one: Http) -> None:
        for path in STATIC.iterdir():
            if path.name in ("index.html", "standby.html"):
                continue
            status, answer, body = await one.get(f"/{path.name}")
            assert (status, body) == (200, path.read_bytes())
            kind = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}[path.suffix]
            assert answer.content_type == kind
        status, answer, body = await one.get("/")
        assert (status, answer.content_type, body) == (200, "text/html", (STATIC / "index.html").read_bytes())

    play(story)


def test_every_answer_keeps_a_browser_from_everything_else() -> None:
    async def story(one: Http) -> None:
        for path in ("/", "/main.js", "/v1/cluster"):
            _, answer, _ = await one.get(path)
            policy = dict(part.strip().partition(" ")[::2] for part in answer.headers["Content-Security-Policy"].split(";"))
            assert policy["default-src"] == "'none'"
            assert policy["frame-ancestors"] == "'none'"
            assert not [
                word for text in policy.values() for word in text.split() if word not in ("'none'", "'self'", "'script'")
            ]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert "Set-Cookie" not in answer.headers

    play(story)


@pytest.mark.parametrize("path", ["/", "/style.css", "/v1/cluster"])
def test_what_the_browser_has_is_not_sent_again(path: str) -> None:
    async def story(one: Http) -> None:
        _, answer, _ = await one.get(path)
        status, again, body = await one.get(path, If_None_Match=f'"other", {answer.headers["ETag"]}')
        assert (status, body, again.headers["ETag"]) == (304, b"", answer.headers["ETag"])

    play(story)


@pytest.mark.parametrize(
    ("said", "packed"), [("gzip, br", True), ("br;q=1, GZIP;q=0.5", True), ("gzip;q=0", False), ("identity", False)]
)
def test_gzip_where_it_is_taken(said: str, packed: bool) -> None:
    async def story(one: Http) -> None:
        for path, start in (("/", b"<!doctype html>"), ("/v1/cluster", b"{")):
            _, answer, body = await one.get(path, Accept_Encoding=said)
            assert (answer.headers.get("Content-Encoding") == "gzip") is packed
            assert (gzip.decompress(body) if packed else body).startswith(start)

    play(story)


def test_a_large_answer_is_packed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_PART", 64)

    async def story(one: Http) -> None:
        _, _, plain = await one.get("/v1/cluster", Accept_Encoding="identity")
        _, _, packed = await one.get("/v1/cluster", Accept_Encoding="gzip")
        assert json.loads(gzip.decompress(packed)) == json.loads(plain)

    play(story)


def test_those_who_open_it_together_are_answered_with_one_and_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = []
    real = routes._joined

    async def joined(parts: Iterable[bytes], *, packs: bool) -> bytes:
        packed.append(packs)
        return await real(parts, packs=packs)

    monkeypatch.setattr(routes, "_joined", joined)

    async def story(one: Http) -> None:
        answers = await asyncio.gather(*(one.get("/v1/cluster", Accept_Encoding="gzip") for _ in range(5)))
        assert len({body for _, _, body in answers}) == 1
        assert packed == [True]
        one.shown.world.bind("a", "n1")
        one.shown.world.now += EVERY_S
        _, _, body = await one.get("/v1/cluster", Accept_Encoding="gzip")
        (node,) = [node for node in json.loads(gzip.decompress(body))["nodes"] if node["name"] == "n1"]
        assert node["gpus"][0]["state"] == "held"

    play(story)


def test_who_waits_is_notified_anew_though_nothing_else_is_new() -> None:
    async def story(one: Http) -> None:
        one.shown.world.bind("holds", "n1")
        one.shown.world.bind("too", "n2")
        one.shown.world.show("a")
        one.shown.world.filter("a")
        refused = []
        for _ in range(2):
            one.shown.world.now += 10
            _, _, body = await one.get("/v1/cluster", Accept_Encoding="gzip")
            refused.append(json.loads(gzip.decompress(body))["pending"][0]["refused_s"])
        assert refused == [10.0, 20.0]

    play(story)


def test_why_a_pod_waits() -> None:
    async def story(one: Http) -> None:
        for name, status in (("a", 200), ("b", 404)):
            assert (await one.get(f"/v1/why/default/{name}"))[0] == status
        assert one.answered == [("why", 200), ("why", 404)]

    play(story)


def test_what_central_decides_by() -> None:
    async def story(one: Http) -> None:
        status, _, body = await one.get("/v1/configuration")
        assert (status, msgspec.json.decode(body, type=EffectiveConfiguration).policy) == (200, Policy.BINPACK)

    play(story)


@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind", "preempt"])
def test_no_verb_of_the_extender_is_here(verb: str) -> None:
    async def story(one: Http) -> None:
        async with one.session.post(f"{one.url}/{verb}", json={}) as answer:
            assert answer.status == 404

    play(story)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "HEAD"])
def test_nothing_but_get(method: str) -> None:
    async def story(one: Http) -> None:
        for path in ("/", "/main.js", "/v1/cluster", "/v1/why/default/a", "/v1/configuration"):
            async with one.session.request(method, f"{one.url}{path}") as answer:
                assert answer.status == 405

    play(story)


@pytest.mark.parametrize("path", ["/../live.py", "/static/main.js", "/..%2flive.py", "/index.html", "/standby.html"])
def test_nothing_but_these_files(path: str) -> None:
    async def story(one: Http) -> None:
        status, _, _ = await one.get(path)
        assert status == 404

    play(story)


# ---- who is turned away


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("10.1.2.3", 200),
        ("evil.example", 421),
        ("evil.example:8080", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example:80", 421),
        ("[evil]:1", 421),
    ],
)
def test_a_name_that_someone_made_point_here(host: str, status: int) -> None:
    async def story(one: Http) -> None:
        for path in ("/", "/main.js", "/v1/cluster", "/v1/why/default/a"):
            assert (await one.get(path, Host=host))[0] == status

    play(story)


def test_only_a_connection_from_here_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that only connections from this machine are tested by name: the API server's proxy comes from elsewhere and
    forwards its own name."""
    monkeypatch.setattr(routes, "_is_loopback", lambda peer: False)

    async def story(one: Http) -> None:
        assert (await one.get("/v1/cluster", Host="api.example.com:6443"))[0] == 200

    play(story)


@pytest.mark.parametrize(
    ("peer", "is_here"), [("127.0.0.1", True), ("::1", True), ("", True), ("10.0.0.1", False), ("fd00::1", False)]
)
def test_which_connections_are_from_here(peer: str, is_here: bool) -> None:
    assert routes._is_loopback(peer) is is_here


def test_a_replica_that_stands_by() -> None:
    async def story(one: Http) -> None:
        one.live = None
        status, answer, body = await one.get("/")
        assert (status, answer.content_type, answer.headers["Connection"]) == (503, "text/html", "close")
        assert body == (STATIC / "standby.html").read_bytes()
        for path in ("/v1/cluster", "/v1/why/default/a", "/v1/configuration"):
            status, answer, _ = await one.get(path)
            assert (status, answer.headers["Connection"]) == (503, "close")
        assert (await one.get("/style.css"))[0] == 200

    play(story)


# ---- waiting for news


def test_who_has_the_newest_waits_for_the_next() -> None:
    async def story(one: Http) -> None:
        whole = await one.cluster()
        waits = asyncio.create_task(one.cluster(whole["revision"]))
        await one.until_waiting()
        one.shown.world.bind("a", "n2")
        one.shown.world.now += 10
        news = await waits
        assert (names(news), news["after"]) == ({"n2"}, whole["revision"])
        assert names(await one.cluster(whole["revision"])) == {"n2"}  # at once, for who comes late

    play(story)


def test_no_news_for_a_long_time_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "WAIT_S", 0.05)

    async def story(one: Http) -> None:
        revision = (await one.cluster())["revision"]
        news = await one.cluster(revision)
        assert (news["revision"], news["nodes"]) == (revision, [])

    play(story)


def test_who_does_not_want_to_wait() -> None:
    async def story(one: Http) -> None:
        revision = (await one.cluster())["revision"]
        assert (await one.cluster(f"{revision}&wait=0"))["nodes"] == []

    play(story)


@pytest.mark.parametrize("after", ["", "x", "ffffffff.3"])
def test_of_a_revision_that_no_one_knows_all_is_sent(after: str) -> None:
    async def story(one: Http) -> None:
        assert names(await one.cluster(after)) == {"n1", "n2"}

    play(story)


def test_a_new_term_while_one_waits() -> None:
    async def story(one: Http) -> None:
        waits = asyncio.create_task(one.cluster((await one.cluster())["revision"]))
        await one.until_waiting()
        one.live = one.shown.make_live()
        news = await waits
        assert "after" not in news
        assert names(news) == {"n1", "n2"}

    play(story)


def test_leadership_lost_while_one_waits() -> None:
    async def story(one: Http) -> None:
        revision = (await one.cluster())["revision"]
        waits = asyncio.create_task(one.get(f"/v1/cluster?after={revision}"))
        await one.until_waiting()
        one.live = None
        assert (await waits)[0] == 503

    play(story)


def test_a_stop_keeps_no_one_waiting() -> None:
    async def story(one: Http) -> None:
        revision = (await one.cluster())["revision"]
        waits = asyncio.create_task(one.get(f"/v1/cluster?after={revision}"))
        await one.until_waiting()
        one.page.stop()
        assert (await waits)[0] == 503

    play(story)


def test_so_many_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "WATCHERS", 2)

    async def story(one: Http) -> None:
        revision = (await one.cluster())["revision"]
        path = f"/v1/cluster?after={revision}"
        waiting = [asyncio.create_task(one.get(path)) for _ in range(2)]
        await one.until_waiting(2)
        status, answer, _ = await one.get(path)
        assert (status, int(answer.headers["Retry-After"]) > 0) == (503, True)
        one.shown.world.bind("a", "n1")
        one.shown.world.now += 10
        assert [(await one_of)[0] for one_of in waiting] == [200, 200]
        assert (await one.get(path))[0] == 200  # there is room again

    play(story)


def test_who_left_does_not_keep_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "WATCHERS", 1)

    async def story(one: Http) -> None:
        revision = (await one.cluster())["revision"]
        path = f"/v1/cluster?after={revision}"
        leaves = asyncio.create_task(one.get(path))
        await one.until_waiting(1)
        leaves.cancel()
        await one.until_waiting(0)

    play(story)
