"""Test calls to a fake API server: the requests, the results, and the error for each failure."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import msgspec
import pytest

from lading.kube import client as module
from lading.kube.client import KubeClient
from lading.kube.config import open_access
from lading.kube.errors import (
    ConflictError,
    GoneError,
    KubeError,
    MalformedError,
    NotFoundError,
    TooManyRequestsError,
    UnauthorizedError,
    UnclearError,
    UnreachableError,
)
from lading.kube.resource import NODES, PODS
from simnode.api_server import write_kubeconfig
from simnode.pki import Authority
from tests.fakes.kube_objects import deep_fields
from tests.fakes.kube_server import FakeKubeServer, Fault

POD = PODS.path("default", "train")
TOKEN = "s3cret"  # noqa: S105
PATIENT_S = 30.0  # where nothing is to run out of time, however busy the machine is


@pytest.fixture(autouse=True)
async def no_task_is_left() -> AsyncIterator[None]:
    yield
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.fixture
async def server() -> AsyncIterator[FakeKubeServer]:
    async with FakeKubeServer() as server:
        server.token = TOKEN
        yield server


@pytest.fixture
async def client(server: FakeKubeServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    access = open_access(server.write_kubeconfig(tmp_path / "kubeconfig", token=TOKEN))
    async with KubeClient(access, user_agent="lading-test", timeout_s=PATIENT_S) as client:
        yield client


async def test_get_create_merge_delete(server: FakeKubeServer, client: KubeClient) -> None:
    await client.create(NODES.path(), {"metadata": {"name": "n1"}, "spec": {"a": 1, "b": 2}})
    await client.merge(NODES.path(name="n1"), {"spec": {"a": None}})
    node = msgspec.json.decode(await client.get(NODES.path(name="n1")))
    assert node["spec"] == {"b": 2}
    with pytest.raises(ConflictError) as there:
        await client.create(NODES.path(), {"metadata": {"name": "n1"}})
    assert there.value.reason == "AlreadyExists"
    with pytest.raises(ConflictError):
        await client.merge(NODES.path(name="n1"), {"metadata": {"resourceVersion": "7"}})
    with pytest.raises(ConflictError):
        await client.delete(NODES.path(name="n1"), uid="another")
    await client.delete(NODES.path(name="n1"), uid=node["metadata"]["uid"], grace_s=0)
    assert server.calls("DELETE")[-1].body["gracePeriodSeconds"] == 0
    with pytest.raises(NotFoundError):
        await client.get(NODES.path(name="n1"))


async def test_apply_names_its_manager(server: FakeKubeServer, client: KubeClient) -> None:
    path = NODES.path(name="n1")
    await client.apply(path, {"spec": {"a": 1}}, manager="one")
    with pytest.raises(ConflictError):
        await client.apply(path, {"spec": {"a": 2}}, manager="two")
    await client.apply(path, {"spec": {"a": 2}}, manager="two", force=True)
    call = server.calls("PATCH")[-1]
    assert call.query["force"] == "true"
    assert call.headers["Content-Type"] == "application/apply-patch+yaml"


async def test_bind_is_one_call_for_one_uid_and_version(server: FakeKubeServer, client: KubeClient) -> None:
    pod = (await server.put(POD, {}))["metadata"]

    async def bind(*, name: str = "train", uid: str = pod["uid"], version: str = pod["resourceVersion"]) -> None:
        await client.bind(namespace="default", name=name, uid=uid, resource_version=version, node="n1", annotations={"a": "b"})

    with pytest.raises(ConflictError):
        await bind(uid="another")
    with pytest.raises(ConflictError):
        await bind(version="1")
    with pytest.raises(NotFoundError):
        await bind(name="gone")
    await bind()
    bound = server.objects[POD]
    assert (bound["spec"]["nodeName"], bound["metadata"]["annotations"]) == ("n1", {"a": "b"})
    with pytest.raises(ConflictError):
        await bind(version=bound["metadata"]["resourceVersion"])


async def test_a_dry_run_of_an_eviction_changes_nothing(server: FakeKubeServer, client: KubeClient) -> None:
    await server.put(PODS.path("default", "train"), {"metadata": {"name": "train"}})
    uid = server.objects[PODS.path("default", "train")]["metadata"]["uid"]
    await client.evict(namespace="default", name="train", uid=uid, dry_run=True)
    assert PODS.path("default", "train") in server.objects
    assert server.requests[-1].query["dryRun"] == "All"


async def test_an_eviction_that_is_answered_with_a_failure_and_201_failed(server: FakeKubeServer, client: KubeClient) -> None:
    """Check the API server's refusal of a pod that several budgets cover."""
    message = b'{"kind": "Status", "status": "Failure", "code": 500, "message": "more than one PodDisruptionBudget"}'
    server.fail(Fault(status=201, body=message))
    with pytest.raises(UnclearError):
        await client.evict(namespace="default", name="train", uid="u")


async def test_evict_asks_the_budget(server: FakeKubeServer, client: KubeClient) -> None:
    pod = await server.put(POD, {})
    uid = pod["metadata"]["uid"]
    server.evictable = False
    with pytest.raises(TooManyRequestsError):
        await client.evict(namespace="default", name="train", uid=uid)
    server.evictable = True
    await client.evict(namespace="default", name="train", uid=uid, grace_s=5)
    assert POD not in server.objects
    options = server.calls("POST")[-1].body["deleteOptions"]
    assert options["gracePeriodSeconds"] == 5
    assert options["preconditions"] == {"uid": uid}


async def test_each_call_sends_its_time_limit(server: FakeKubeServer, client: KubeClient) -> None:
    await server.put(POD, {})
    await client.get(POD, timeout_s=20.0)
    call = server.calls("GET")[0]
    assert 0 < float(call.query["timeout"].removesuffix("s")) <= 20
    assert call.headers["User-Agent"] == "lading-test"
    assert "resourceVersion" not in call.query


def create(client: KubeClient, *, timeout_s: float = PATIENT_S) -> Awaitable[bytes]:
    return client.create(NODES.path(), {"metadata": {"name": "n1"}}, timeout_s=timeout_s)


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize(("status", "hang"), [(500, False), (503, False), (504, False), (0, False), (0, True)])
async def test_a_write_whose_answer_is_lost_may_or_may_not_have_taken_effect(
    status: int, hang: bool, done: bool, server: FakeKubeServer, client: KubeClient
) -> None:
    """Check a broken connection, a timeout and a 5xx: the error does not say whether the write was carried out."""
    if hang:
        await all_pages(client, NODES.path(), 1)  # connects: what runs out is the time for the answer
    server.fail(Fault(status=status, hang=hang, done=done))
    with pytest.raises(UnclearError):
        await create(client, timeout_s=1.0 if hang else PATIENT_S)
    assert (NODES.path(name="n1") in server.objects) is done
    assert len(server.calls("POST")) == 1


async def test_a_write_is_never_sent_twice(server: FakeKubeServer, client: KubeClient) -> None:
    """Check a connection that was kept alive from an earlier call too, on which aiohttp repeats a GET."""
    await create(client)
    for attempt in (
        client.merge(NODES.path(name="n1"), {"spec": {}}),
        client.create(NODES.path(), {"metadata": {"name": "b"}}),
    ):
        server.fail(Fault(done=True))
        with pytest.raises(UnclearError):
            await attempt
    assert len(server.calls("PATCH")) == 1
    assert len(server.calls("POST")) == 2


async def test_a_server_that_is_not_there_was_sent_nothing(tmp_path: Path) -> None:
    async with FakeKubeServer() as server:
        access = open_access(server.write_kubeconfig(tmp_path / "kubeconfig"))
    async with KubeClient(access, user_agent="lading-test") as client:
        with pytest.raises(UnreachableError):
            await create(client)
        with pytest.raises(UnclearError):  # aiohttp may have sent the request before
            await client.delete(POD)


async def test_a_server_that_is_not_there_is_named_without_its_tls_context(tmp_path: Path) -> None:
    access = open_access(write_kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:1", token=TOKEN))
    async with KubeClient(access, user_agent="lading-test") as client:
        with pytest.raises(UnreachableError) as failed:
            await client.get(POD)
    assert "127.0.0.1:1" in str(failed.value)
    assert " object at 0x" not in str(failed.value)


async def test_an_untrusted_certificate_and_a_closed_connection_are_named_in_words(tmp_path: Path) -> None:
    """A server whose authority the kubeconfig does not name, then one that closes each connection."""

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    pair = Authority(tmp_path / "pki").sign("server", "server", addresses=["127.0.0.1"])
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair.certificate, pair.key)
    messages = []
    for scheme, context in (("https", tls), ("http", None)):
        server = await asyncio.start_server(close, "127.0.0.1", 0, ssl=context)
        async with server:
            url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            access = open_access(write_kubeconfig(tmp_path / scheme, url, token=TOKEN))
            async with KubeClient(access, user_agent="lading-test") as client:
                with pytest.raises(KubeError) as failed:
                    await client.get(POD)
        messages.append(failed.value.message)
    assert "its certificate is not trusted: " in messages[0]
    assert "closed before an answer" in messages[1]
    assert not any("_ssl.c" in one or "Error" in one or " object at " in one for one in messages)


async def test_a_full_pool_sends_nothing(monkeypatch: pytest.MonkeyPatch, server: FakeKubeServer, client: KubeClient) -> None:
    monkeypatch.setattr(module, "CONNECT_S", 60.0)  # on a busy machine, the calls that fill the pool may take long to connect
    server.fail(Fault(hang=True), times=module.MAX_CONNECTIONS)
    held = [asyncio.create_task(client.get(POD)) for _ in range(module.MAX_CONNECTIONS)]
    await server.until(lambda: len(server.requests) == len(held))
    monkeypatch.setattr(module, "CONNECT_S", 0.2)  # the time limit of the call beyond the pool
    with pytest.raises(UnreachableError):
        await client.create(NODES.path(), {"metadata": {"name": "n1"}})
    for call in held:
        call.cancel()
    await asyncio.wait(held)


async def test_refused_credentials_are_read_anew(tmp_path: Path, server: FakeKubeServer, client: KubeClient) -> None:
    await server.put(POD, {})
    server.token = "another"  # noqa: S105
    with pytest.raises(UnauthorizedError) as refused:
        await client.get(POD)
    assert TOKEN not in str(refused.value)
    server.write_kubeconfig(tmp_path / "kubeconfig", token="another")  # noqa: S106
    await client.get(POD)
    (tmp_path / "kubeconfig").write_text("{}")
    server.token = "third"  # noqa: S105
    with pytest.raises(UnauthorizedError):
        await client.get(POD)
    with pytest.raises(UnreachableError):
        await client.get(POD)


async def test_the_retry_after_of_a_refusal_is_kept(server: FakeKubeServer, client: KubeClient) -> None:
    server.fail(Fault(status=429, headers={"Retry-After": "3"}))
    with pytest.raises(TooManyRequestsError) as later:
        await create(client)
    assert later.value.retry_after_s == 3


async def all_pages(client: KubeClient, path: str, limit: int) -> list[tuple[int, bool]]:
    pages = client.list_pages(path, limit=limit)
    async with contextlib.aclosing(pages):
        return [(len(page.items), page.first) async for page in pages]


async def test_a_list_in_pages(server: FakeKubeServer, client: KubeClient) -> None:
    assert await all_pages(client, PODS.path(), 2) == [(0, True)]
    for i in range(5):
        await server.put(PODS.path("default", f"p{i}"), {})
    assert await all_pages(client, PODS.path(), 2) == [(2, True), (2, False), (1, False)]


async def test_a_forgotten_continuation_begins_anew(server: FakeKubeServer, client: KubeClient) -> None:
    for i in range(5):
        await server.put(PODS.path("default", f"p{i}"), {})
    server.fail(Fault(status=410), when=lambda r: "continue" in r.query)
    assert await all_pages(client, PODS.path(), 3) == [(3, True), (3, True), (2, False)]
    server.fail(Fault(status=410), when=lambda r: "continue" in r.query, times=3)
    with pytest.raises(UnclearError):
        await all_pages(client, PODS.path(), 3)
    server.fail(Fault(status=410))
    with pytest.raises(GoneError):
        await all_pages(client, PODS.path(), 3)


@pytest.mark.parametrize(
    "body", [b"", b"no json", b"{}", b'{"metadata":{}}', b'{"metadata":{"resourceVersion":"1"},"items":{}}']
)
async def test_a_malformed_list_is_an_error(body: bytes, server: FakeKubeServer, client: KubeClient) -> None:
    server.fail(Fault(status=200, body=body))
    with pytest.raises(MalformedError):
        await all_pages(client, PODS.path(), 3)


async def watched(client: KubeClient, version: str, count: int) -> list[tuple[str, str]]:
    events = client.watch(PODS.path(), resource_version=version)
    observed: list[tuple[str, str]] = []
    async with contextlib.aclosing(events):
        async for event in events:
            observed.append((event.type, msgspec.json.decode(event.object)["metadata"].get("name", "")))
            if len(observed) == count:
                break
    return observed


async def test_a_watch_begins_after_the_given_version(server: FakeKubeServer, client: KubeClient) -> None:
    first = await server.put(POD, {})
    await server.put(PODS.path("other", "p2"), {})
    await server.put(NODES.path(name="n1"), {})
    await server.remove(POD)
    assert await watched(client, first["metadata"]["resourceVersion"], 2) == [("ADDED", "p2"), ("DELETED", "train")]
    query = server.calls("GET", watch=True)[0].query
    assert query["allowWatchBookmarks"] == "true"
    assert 300 <= int(query["timeoutSeconds"]) <= 600
    await server.until(lambda: not server.watching)  # the connection is closed with the iterator


async def test_a_watch_that_the_server_ends(server: FakeKubeServer, client: KubeClient) -> None:
    await server.send(None)
    assert await watched(client, "100", 9) == []


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}', GoneError),
        (b'{"type":"ERROR","object":{"kind":"Status","code":500}}', UnclearError),
        (b'{"type":"ADDED","object":', MalformedError),
        (b"\xff\xfe", MalformedError),
        (b"[]", MalformedError),
    ],
)
async def test_a_watch_that_breaks_off(line: bytes, kind: type[KubeError], server: FakeKubeServer, client: KubeClient) -> None:
    await server.send(line)
    with pytest.raises(kind):
        await watched(client, "100", 1)


async def test_a_watch_from_a_forgotten_version(server: FakeKubeServer, client: KubeClient) -> None:
    await server.put(POD, {})
    server.compact()
    with pytest.raises(GoneError):
        await watched(client, "1", 1)


async def test_a_connection_that_breaks_in_a_watch(server: FakeKubeServer, client: KubeClient) -> None:
    server.fail(Fault(), when=lambda r: "watch" in r.query, times=2)  # aiohttp tries a GET twice
    with pytest.raises(UnclearError):
        await watched(client, "100", 1)


# ---- what a user may nest as deep as the API server stores it

DEEP = msgspec.json.encode({"metadata": {"name": "deep", **deep_fields()}})
AS_JSON = {"Content-Type": "application/json"}


def names(*objects: bytes | msgspec.Raw) -> list[str]:
    return [msgspec.json.decode(one)["metadata"]["name"] for one in objects]


async def test_a_deeply_nested_object_ends_no_list_and_its_page_stays_whole(server: FakeKubeServer, client: KubeClient) -> None:
    page = b'{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}},%s,{"metadata":{"name":"b"}}]}' % DEEP
    server.fail(Fault(status=200, body=page, headers=AS_JSON))
    [result] = [page async for page in client.list_pages(PODS.path())]
    assert names(*result.items) == ["a", "deep", "b"]


async def test_a_deeply_nested_object_ends_no_watch(server: FakeKubeServer, client: KubeClient) -> None:
    await server.send(b'{"type":"ADDED","object":%s}' % DEEP)
    async with contextlib.aclosing(client.watch(PODS.path(), resource_version="1")) as events:
        assert names((await anext(events)).object) == ["deep"]


async def test_a_deeply_nested_object_is_got_created_and_patched(server: FakeKubeServer, client: KubeClient) -> None:
    server.fail(Fault(status=200, body=DEEP, headers=AS_JSON), times=5)
    answers = [
        await client.get(POD),
        await client.create(PODS.path("default"), {}),
        await client.merge(POD, {}),
        await client.merge_lists(POD, {}),
        await client.apply(POD, {}, manager="test"),
    ]
    assert names(*answers) == ["deep"] * 5


async def test_a_deeply_nested_error_is_an_error(server: FakeKubeServer, client: KubeClient) -> None:
    server.fail(Fault(status=409, body=b'{"reason":"Conflict","details":%s}' % DEEP, headers=AS_JSON))
    with pytest.raises(ConflictError):
        await client.merge(POD, {})


async def test_a_log_is_not_json_however_many_brackets_it_has(server: FakeKubeServer, client: KubeClient) -> None:
    log = b"[" * 5_000
    server.fail(Fault(status=200, body=log, headers={"Content-Type": "text/plain"}))
    assert await client.get(POD + "/log") == log
