"""List and watch against a fake API server: what the sink is told, through everything that a server does to a watch."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from central.api.cached_objects import Ident
from central.api.decoded import Unreadable
from central.api.watch import ABSENT_S, Reflector
from central.request.pod import Pod
from lading.kube.client import KubeClient
from lading.kube.config import open_access
from lading.kube.resource import PODS
from lading.log import Event
from tests.fakes.kube_objects import deep_fields
from tests.fakes.kube_server import FakeKubeServer, Fault, Request
from tests.fakes.records import Records


def path(name: str) -> str:
    return PODS.path("default", name)


def is_watch(request: Request) -> bool:
    return "watch" in request.query


def is_list(request: Request) -> bool:
    return "watch" not in request.query


@dataclass
class Told:
    """Keep the events of a watch. `there` has the objects that exist after them."""

    told: list[str] = field(default_factory=list)
    there: dict[str, Pod | Unreadable] = field(default_factory=dict)
    news: asyncio.Condition = field(default_factory=asyncio.Condition)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def replaced(self, objects: Sequence[Pod | Unreadable], version: str) -> None:
        self.there = {o.metadata.name: o for o in objects}
        self._tell("=" + ",".join(o.metadata.name for o in objects))

    def changed(self, obj: Pod | Unreadable) -> None:
        self.there[obj.metadata.name] = obj
        self._tell("+" + obj.metadata.name)

    def removed(self, deleted: Ident, version: str) -> None:
        assert self.there.pop(deleted.name).metadata.uid == deleted.uid
        assert int(version) > 0
        self._tell("-" + deleted.name)

    async def heard(self, *expected: str) -> None:
        """Wait for exactly these events, in this order, since the last call."""
        async with self.news:
            await self.news.wait_for(lambda: len(self.told) >= len(expected))
        assert self.told == list(expected)
        self.told.clear()

    def _tell(self, what: str) -> None:
        self.told.append(what)
        task = asyncio.create_task(self._notify())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _notify(self) -> None:
        async with self.news:
            self.news.notify_all()


@dataclass
class Rig:
    server: FakeKubeServer
    client: KubeClient
    sink: Told = field(default_factory=Told)
    records: Records = field(default_factory=Records)
    waits: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reflector = self.make_reflector()

    def make_reflector(self, **options: Any) -> Reflector[Pod]:
        return Reflector(self.client, PODS, Pod, self.sink, log=self.records.log, **{"sleep": self.sleep, **options})

    def start(self, **options: Any) -> None:
        if options:
            self.reflector = self.make_reflector(**options)
        self.running = asyncio.create_task(self.reflector.run())

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with FakeKubeServer() as server:
        access = open_access(server.write_kubeconfig(tmp_path / "kubeconfig"))
        async with KubeClient(access, user_agent="lading-test") as client:
            rig = Rig(server, client)
            yield rig
            assert not rig.running.done()
            rig.running.cancel()
            await asyncio.wait([rig.running])
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_objects_are_listed_and_then_watched(rig: Rig) -> None:
    await rig.server.put(path("a"), {"spec": {"nodeName": "n1"}})
    rig.start()
    await rig.sink.heard("=a")
    assert rig.reflector.synced.is_set()
    result = rig.sink.there["a"]
    assert isinstance(result, Pod)
    assert result.spec.node_name == "n1"
    await rig.server.put(path("b"), {})
    await rig.server.put(path("a"), {"status": {"phase": "Running"}})
    await rig.server.remove(path("b"))
    await rig.sink.heard("+b", "+a", "-b")
    assert rig.waits == []
    assert rig.records.count(Event.WATCH_SYNCED) == 1


async def test_the_list_is_consistent_and_in_pages(rig: Rig) -> None:
    rig.start()
    await rig.sink.heard("=")
    query = rig.server.calls("GET")[0].query
    assert query["limit"] == "1000"
    assert "resourceVersion" not in query


async def test_a_list_that_began_again_at_its_first_page_shows_each_object_once(rig: Rig) -> None:
    for i in range(1001):
        await rig.server.put(path(f"p{i}"), {})
    rig.server.fail(Fault(status=410), when=lambda r: "continue" in r.query)
    rig.start()
    await rig.reflector.synced.wait()
    assert len(rig.sink.told[0].split(",")) == 1001


async def test_a_watch_that_ends_continues_after_the_last_event(rig: Rig) -> None:
    rig.start()
    await rig.sink.heard("=")
    changed = await rig.server.put(path("a"), {})
    await rig.sink.heard("+a")
    await rig.server.send(None)
    await rig.server.until(lambda: len(rig.server.calls("GET", watch=True)) == 2)
    again = rig.server.calls("GET", watch=True)[1]
    assert again.query["resourceVersion"] == changed["metadata"]["resourceVersion"]
    await rig.server.put(path("b"), {})
    await rig.sink.heard("+b")
    assert len(rig.server.calls("GET")) == 1
    assert rig.waits == []


async def test_the_next_watch_begins_at_the_last_bookmark(rig: Rig) -> None:
    rig.start()
    await rig.sink.heard("=")
    await rig.server.bookmark(500)
    await rig.server.send(None)
    await rig.server.until(lambda: len(rig.server.calls("GET", watch=True)) == 2)
    assert rig.server.calls("GET", watch=True)[1].query["resourceVersion"] == "500"
    assert rig.sink.told == []


async def test_the_time_since_the_server_last_sent_something_is_known(rig: Rig) -> None:
    assert rig.reflector.silent_s == float("inf")
    rig.start()
    await rig.sink.heard("=")
    await asyncio.sleep(7)
    assert rig.reflector.silent_s == 7
    await rig.server.bookmark(500)
    await rig.server.put(path("a"), {})
    await rig.sink.heard("+a")
    assert rig.reflector.silent_s == 0


async def test_an_optional_kind_that_the_server_does_not_know_is_no_failure(rig: Rig) -> None:
    rig.server.fail(Fault(status=404), times=3)
    await rig.server.put(path("a"), {})
    rig.start(optional=True)
    await rig.sink.heard("=", "=a")  # there are none; the kind was installed
    assert rig.waits == [ABSENT_S] * 3
    assert (rig.reflector.failures, rig.records.count(Event.WATCH_FAILED)) == (0, 0)
    assert rig.reflector.synced.is_set()
    assert not rig.reflector.absent
    rig.server.fail(Fault(status=404), times=2)
    await rig.server.send(None)
    await rig.sink.heard("=", "=a")  # it was removed, and installed again


async def test_an_optional_kind_that_central_may_not_read_delays_nothing(rig: Rig) -> None:
    rig.server.fail(Fault(status=403), times=3)
    rig.start(optional=True)
    await rig.reflector.settled.wait()
    assert not rig.reflector.synced.is_set()
    await rig.sink.heard("=")
    assert rig.waits == [ABSENT_S] * 3
    assert rig.records.count(Event.WATCH_FAILED) == 1


async def test_a_needed_kind_that_the_server_does_not_know_is_a_failure(rig: Rig) -> None:
    rig.server.fail(Fault(status=404), times=3)
    rig.start()
    await rig.sink.heard("=")
    assert rig.reflector.failures == 3
    assert max(rig.waits) < ABSENT_S


@pytest.mark.parametrize("in_stream", [False, True])
async def test_a_watch_that_is_answered_with_status_410_lists_again(rig: Rig, in_stream: bool) -> None:
    rig.start()
    await rig.server.put(path("a"), {})
    await rig.server.put(path("b"), {})
    await rig.reflector.synced.wait()
    rig.sink.told.clear()
    if in_stream:
        await rig.server.until(lambda: rig.server.watching == 1)
        await rig.server.send(b'{"type":"ERROR","object":{"kind":"Status","code":410}}')
    else:
        rig.server.fail(Fault(status=410), when=is_watch)
        await rig.server.bookmark(500)
        await rig.server.send(None)
    await rig.sink.heard("=a,b")
    assert len(rig.server.calls("GET")) == 2


async def test_an_object_that_was_removed_between_two_watches_is_removed_by_the_list(rig: Rig) -> None:
    rig.start()
    await rig.sink.heard("=")
    await rig.server.put(path("a"), {})
    await rig.sink.heard("+a")
    rig.server.fail(Fault(status=410), when=is_watch)
    rig.server.fail(Fault(status=500), when=is_list)
    await rig.server.send(None)
    await rig.server.until(lambda: len(rig.server.calls("GET")) == 2)
    await rig.server.remove(path("a"))
    await rig.sink.heard("=")


async def test_repeated_and_late_events_change_nothing(rig: Rig) -> None:
    rig.start()
    await rig.sink.heard("=")
    pod = await rig.server.put(path("a"), {})
    await rig.server.remove(path("a"))
    late = msgspec.json.encode({"type": "ADDED", "object": pod})
    await rig.server.send(late)
    await rig.server.send(late)
    await rig.server.put(path("b"), {})
    await rig.sink.heard("+a", "-a", "+b")


async def test_an_object_that_replaces_another_of_its_name_removes_it_first(rig: Rig) -> None:
    rig.start()
    await rig.sink.heard("=")
    await rig.server.put(path("a"), {"metadata": {"uid": "old"}})
    new = {"metadata": {"name": "a", "namespace": "default", "uid": "new", "resourceVersion": "900"}}
    await rig.server.send(msgspec.json.encode({"type": "ADDED", "object": new}))
    await rig.sink.heard("+a", "-a", "+a")
    assert rig.sink.there["a"].metadata.uid == "new"


BROKEN = {"spec": {"nodeName": 7}}


async def test_a_deeply_nested_pod_is_listed_and_watched_whole(rig: Rig) -> None:
    """Check that the spec of such a pod is read, because the pod may hold devices."""

    def deep(version: int, node: str) -> bytes:
        metadata = {"name": "a", "namespace": "default", "uid": "u-a", "resourceVersion": str(version), **deep_fields()}
        return msgspec.json.encode({"metadata": metadata, "spec": {"nodeName": node}})

    page = b'{"metadata":{"resourceVersion":"5"},"items":[%s]}' % deep(5, "n1")
    rig.server.fail(Fault(body=page, headers={"Content-Type": "application/json"}), when=is_list)
    rig.start()
    for event in ("=a", "+a"):
        await rig.sink.heard(event)
        result = rig.sink.there["a"]
        assert isinstance(result, Pod)
        assert result.spec.node_name == ("n1" if event == "=a" else "n2")
        await rig.server.send(b'{"type":"MODIFIED","object":%s}' % deep(6, "n2"))
    assert rig.records.count(Event.OBJECT_UNREADABLE) == 0


async def test_an_unreadable_object_is_there_until_it_is_deleted(rig: Rig) -> None:
    await rig.server.put(path("a"), BROKEN)
    rig.start()
    await rig.sink.heard("=a")
    assert isinstance(rig.sink.there["a"], Unreadable)
    await rig.server.put(path("a"), BROKEN)
    await rig.server.put(path("b"), {})
    await rig.sink.heard("+a", "+b")
    assert [f["name"] for e, f in rig.records.seen if e is Event.OBJECT_UNREADABLE] == ["a"]
    await rig.server.put(path("a"), {})
    await rig.sink.heard("+a")
    assert isinstance(rig.sink.there["a"], Pod)
    await rig.server.put(path("a"), BROKEN)
    await rig.server.remove(path("a"))
    await rig.sink.heard("+a", "-a")
    assert rig.records.count(Event.OBJECT_UNREADABLE) == 2
    assert rig.waits == []


async def test_an_object_that_was_readable_in_a_list_is_logged_when_it_becomes_unreadable_again(rig: Rig) -> None:
    await rig.server.put(path("a"), BROKEN)
    rig.start()
    await rig.sink.heard("=a")
    rig.server.objects[path("a")] = {"metadata": rig.server.objects[path("a")]["metadata"]}  # while no one watched
    await rig.server.send(b'{"type":"ERROR","object":{"kind":"Status","code":410}}')
    await rig.sink.heard("=a")
    await rig.server.put(path("a"), BROKEN)
    await rig.sink.heard("+a")
    assert rig.records.count(Event.OBJECT_UNREADABLE) == 2


async def test_an_object_without_a_readable_name_is_passed_on_as_unreadable(rig: Rig) -> None:
    item = {"metadata": {"name": 1, "uid": "u"}}
    body = msgspec.json.encode({"metadata": {"resourceVersion": "100"}, "items": [item]})
    rig.server.fail(Fault(status=200, body=body))
    rig.start()
    await rig.sink.heard("=")
    assert isinstance(rig.sink.there[""], Unreadable)


@pytest.mark.parametrize(
    "line",
    [
        b"\xff",
        b'{"type":"ADDED","object":{"metadata":{"name":"a"',
        b'{"type":"MODIFIED","object":{"metadata":{"uid":7}}}',
        b'{"type":"DELETED","object":{"metadata":null}}',
        b'{"type":"BOOKMARK","object":[]}',
    ],
)
async def test_an_event_that_names_no_object_lists_again(rig: Rig, line: bytes) -> None:
    rig.start()
    await rig.sink.heard("=")
    await rig.server.send(line)
    await rig.sink.heard("=")
    await rig.server.put(path("a"), {})
    await rig.sink.heard("+a")


async def test_waits_after_failures_grow_until_an_event_arrives(rig: Rig) -> None:
    rig.server.fail(Fault(status=500), times=4)
    rig.start()
    await rig.sink.heard("=")
    first = list(rig.waits)
    assert len(first) == 4
    assert first[0] <= 0.5
    assert first[3] >= 2.0
    await rig.server.put(path("a"), {})
    await rig.sink.heard("+a")
    rig.server.fail(Fault(status=500), when=is_watch)
    await rig.server.send(None)
    await rig.server.until(lambda: len(rig.server.calls("GET", watch=True)) == 3)
    assert rig.waits[-1] <= 0.5
    assert rig.records.count(Event.WATCH_FAILED) == 2
    assert rig.reflector.failures == 5


async def test_the_wait_is_as_long_as_retry_after_says(rig: Rig) -> None:
    rig.server.fail(Fault(status=429, headers={"Retry-After": "40"}))
    rig.start()
    await rig.sink.heard("=")
    assert rig.waits == [40]


async def test_a_watch_that_fails_several_times_lists_again(rig: Rig) -> None:
    rig.start()
    await rig.sink.heard("=")
    rig.server.fail(Fault(status=504), when=is_watch, times=3)
    await rig.server.bookmark(500)
    await rig.server.send(None)
    await rig.sink.heard("=")
    assert len(rig.waits) == 3


async def test_a_watch_that_ends_at_once_is_a_failure(rig: Rig) -> None:
    for _ in range(2):
        await rig.server.send(None)
    rig.start()
    await rig.sink.heard("=")
    await rig.server.until(lambda: len(rig.server.calls("GET", watch=True)) == 3)
    assert len(rig.waits) == 2
    assert len(rig.server.calls("GET")) == 1


async def test_a_watch_that_never_sent_an_event_lists_again(rig: Rig) -> None:
    """Check a server that ends a watch without an event, as a real one does if its store was restored from a backup."""
    rig.start()
    await rig.sink.heard("=")
    began = asyncio.get_running_loop().time()
    await rig.sink.heard("=")
    assert 300 <= asyncio.get_running_loop().time() - began <= 601
    assert rig.waits == []
    assert rig.records.count(Event.WATCH_FAILED) == 0


@pytest.mark.parametrize("listed", [True, False])
async def test_an_object_that_the_sink_cannot_handle_is_set_aside(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    whole, each = rig.sink.replaced, rig.sink.changed

    def fail(obj: Pod | Unreadable) -> None:
        if obj.metadata.name == "b" and isinstance(obj, Pod):
            raise ZeroDivisionError
        each(obj)

    def fail_as_a_whole(objects: Sequence[Pod | Unreadable], version: str) -> None:
        if any(obj.metadata.name == "b" and isinstance(obj, Pod) for obj in objects):
            raise ZeroDivisionError
        whole(objects, version)

    async def put_all() -> None:
        for name in "abc":
            await rig.server.put(path(name), {})

    monkeypatch.setattr(rig.sink, "changed", fail)
    monkeypatch.setattr(rig.sink, "replaced", fail_as_a_whole)
    if listed:
        await put_all()
    rig.start(sleep=asyncio.sleep, clock=asyncio.get_running_loop().time)
    await rig.reflector.synced.wait()
    if not listed:
        await put_all()
    await asyncio.sleep(0.5)
    assert {name for name, obj in rig.sink.there.items() if isinstance(obj, Pod)} == {"a", "c"}
    await asyncio.sleep(20)
    (record, *more) = [fields for event, fields in rig.records.seen if event is Event.HANDLING_FAILED]
    assert len(more) < 4
    assert record["object"] == ("pods" if listed else "pods default/b")
    assert "ZeroDivisionError" in record["traceback"]
    monkeypatch.setattr(rig.sink, "changed", each)
    await asyncio.sleep(61)
    assert isinstance(rig.sink.there["b"], Pod)
    monkeypatch.setattr(rig.sink, "changed", fail)
    await rig.server.put(path("b"), {"spec": {"priority": 1}})
    await asyncio.sleep(0.5)
    await rig.server.remove(path("b"))
    await asyncio.sleep(0.5)
    assert set(rig.sink.there) == {"a", "c"}


def test_thousands_of_pods_are_parsed_in_little_time() -> None:
    """Read 2,000 pods of 3 KB in 0.2 s of one core, the rate of 100,000 in 10 s. Only ten times that is a failure, so that a
    slow machine passes."""
    container = {
        "name": "train",
        "image": "registry.example/team/train:1",
        "env": [{"name": f"NAME_{i}", "value": "v" * 40} for i in range(25)],
        "resources": {"limits": {"lading.dev/gpu": "1"}},
    }
    pod = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7", "labels": {"a": "b" * 500}},
        "spec": {"nodeName": "n1", "containers": [container]},
        "status": {"phase": "Running"},
    }
    body = msgspec.json.encode(pod)
    assert 2500 < len(body) < 4000
    reflector = Reflector(None, PODS, Pod, None, log=Records().log)  # type: ignore[arg-type]
    began = time.process_time()
    for _ in range(2000):
        reflector._parse(msgspec.Raw(body))
    assert time.process_time() - began < 2.0
