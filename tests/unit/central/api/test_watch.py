"""List and watch against a fake API server: what the sink is told, through everything that a server does to a watch."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from central.api.cached_objects import Ident
from central.api.watch import ABSENT_S, Reflector, Unreadable
from central.request.pod import Pod
from lading.kube.client import KubeClient
from lading.kube.config import open_access
from lading.kube.resource import PODS
from lading.log import Event
from tests.fakes.kube_objects import deep_fields
from tests.fakes.kube_server import FakeKubeServer, Fault, Request
from tests.fakes.records import Records
from tests.fakes.simulated_time import run_simulated


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
    sink: Told
    reflector: Reflector[Pod]
    records: Records
    waits: list[float]


Story = Callable[[Rig], Coroutine[Any, Any, None]]
Play = Callable[..., None]


@contextlib.asynccontextmanager
async def rig(folder: Path, optional: bool = False) -> AsyncIterator[Rig]:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    async with FakeKubeServer() as server:
        access = open_access(server.write_kubeconfig(folder / "kubeconfig"))
        async with KubeClient(access, user_agent="lading-test") as client:
            sink, records = Told(), Records()
            reflector = Reflector(client, PODS, Pod, sink, log=records.log, sleep=sleep, optional=optional)
            yield Rig(server, sink, reflector, records, waits)


@pytest.fixture
def play(tmp_path: Path) -> Play:
    async def play_one(story: Story, prepare: Story | None, optional: bool) -> None:
        async with asyncio.timeout(20), rig(tmp_path, optional) as one:
            if prepare is not None:
                await prepare(one)
            running = asyncio.create_task(one.reflector.run())
            try:
                await story(one)
                assert not running.done()
            finally:
                running.cancel()
                await asyncio.wait([running])
        assert asyncio.all_tasks() == {asyncio.current_task()}

    return lambda story, prepare=None, *, optional=False: asyncio.run(play_one(story, prepare, optional))


def test_listed_then_watched(play: Play) -> None:
    async def prepare(one: Rig) -> None:
        await one.server.put(path("a"), {"spec": {"nodeName": "n1"}})

    async def story(one: Rig) -> None:
        await one.sink.heard("=a")
        assert one.reflector.synced.is_set()
        result = one.sink.there["a"]
        assert isinstance(result, Pod)
        assert result.spec.node_name == "n1"
        await one.server.put(path("b"), {})
        await one.server.put(path("a"), {"status": {"phase": "Running"}})
        await one.server.remove(path("b"))
        await one.sink.heard("+b", "+a", "-b")
        assert one.waits == []
        assert one.records.count(Event.WATCH_SYNCED) == 1

    play(story, prepare)


def test_the_list_is_consistent_and_in_pages(play: Play) -> None:
    async def story(one: Rig) -> None:
        await one.sink.heard("=")
        query = one.server.calls("GET")[0].query
        assert query["limit"] == "1000"
        assert "resourceVersion" not in query

    play(story)


def test_a_list_that_began_anew_counts_once(play: Play) -> None:
    async def prepare(one: Rig) -> None:
        for i in range(1001):
            await one.server.put(path(f"p{i}"), {})
        one.server.fail(Fault(status=410), when=lambda r: "continue" in r.query)

    async def story(one: Rig) -> None:
        await one.reflector.synced.wait()
        assert len(one.sink.told[0].split(",")) == 1001

    play(story, prepare)


def test_a_watch_that_ends_is_taken_up_where_it_was(play: Play) -> None:
    async def story(one: Rig) -> None:
        await one.sink.heard("=")
        changed = await one.server.put(path("a"), {})
        await one.sink.heard("+a")
        await one.server.send(None)
        await one.server.until(lambda: len(one.server.calls("GET", watch=True)) == 2)
        again = one.server.calls("GET", watch=True)[1]
        assert again.query["resourceVersion"] == changed["metadata"]["resourceVersion"]
        await one.server.put(path("b"), {})
        await one.sink.heard("+b")
        assert len(one.server.calls("GET")) == 1
        assert one.waits == []

    play(story)


def test_a_bookmark_is_where_the_next_watch_begins(play: Play) -> None:
    async def story(one: Rig) -> None:
        await one.sink.heard("=")
        await one.server.bookmark(500)
        await one.server.send(None)
        await one.server.until(lambda: len(one.server.calls("GET", watch=True)) == 2)
        assert one.server.calls("GET", watch=True)[1].query["resourceVersion"] == "500"
        assert one.sink.told == []

    play(story)


def test_how_long_it_is_silent(play: Play) -> None:
    async def prepare(one: Rig) -> None:
        assert one.reflector.silent_s == float("inf")

    async def story(one: Rig) -> None:
        now = asyncio.get_running_loop().time
        await one.sink.heard("=")
        await one.server.until(lambda: one.server.watching == 1)
        before = now()
        assert 0 <= one.reflector.silent_s < before  # a list was heard
        await one.server.bookmark(500)
        await one.server.put(path("a"), {})
        await one.sink.heard("+a")
        assert one.reflector.silent_s <= now() - before

    play(story, prepare)


def test_an_optional_kind_that_the_server_does_not_know_is_no_failure(play: Play) -> None:
    async def prepare(one: Rig) -> None:
        one.server.fail(Fault(status=404), times=3)
        await one.server.put(path("a"), {})

    async def story(one: Rig) -> None:
        await one.sink.heard("=", "=a")  # there are none; the kind was installed
        assert one.waits == [ABSENT_S] * 3
        assert (one.reflector.failures, one.records.count(Event.WATCH_FAILED)) == (0, 0)
        assert one.reflector.synced.is_set()
        assert not one.reflector.absent
        one.server.fail(Fault(status=404), times=2)
        await one.server.send(None)
        await one.sink.heard("=", "=a")  # it was removed, and installed again

    play(story, prepare, optional=True)


def test_an_optional_kind_that_may_not_be_read_holds_nothing_up(play: Play) -> None:
    async def prepare(one: Rig) -> None:
        one.server.fail(Fault(status=403), times=3)

    async def story(one: Rig) -> None:
        await one.reflector.settled.wait()
        assert not one.reflector.synced.is_set()
        await one.sink.heard("=")
        assert one.waits == [ABSENT_S] * 3
        assert one.records.count(Event.WATCH_FAILED) == 1

    play(story, prepare, optional=True)


def test_a_needed_kind_that_the_server_does_not_know_is_a_failure(play: Play) -> None:
    async def prepare(one: Rig) -> None:
        one.server.fail(Fault(status=404), times=3)

    async def story(one: Rig) -> None:
        await one.sink.heard("=")
        assert one.reflector.failures == 3
        assert max(one.waits) < ABSENT_S

    play(story, prepare)


@pytest.mark.parametrize("in_stream", [False, True])
def test_deleted_lists_again(play: Play, in_stream: bool) -> None:
    async def story(one: Rig) -> None:
        await one.server.put(path("a"), {})
        await one.server.put(path("b"), {})
        await one.reflector.synced.wait()
        one.sink.told.clear()
        if in_stream:
            await one.server.until(lambda: one.server.watching == 1)
            await one.server.send(b'{"type":"ERROR","object":{"kind":"Status","code":410}}')
        else:
            one.server.fail(Fault(status=410), when=is_watch)
            await one.server.bookmark(500)
            await one.server.send(None)
        await one.sink.heard("=a,b")
        assert len(one.server.calls("GET")) == 2

    play(story)


def test_what_vanished_while_no_one_watched(play: Play) -> None:
    async def story(one: Rig) -> None:
        await one.sink.heard("=")
        await one.server.put(path("a"), {})
        await one.sink.heard("+a")
        one.server.fail(Fault(status=410), when=is_watch)
        one.server.fail(Fault(status=500), when=is_list)
        await one.server.send(None)
        await one.server.until(lambda: len(one.server.calls("GET")) == 2)
        await one.server.remove(path("a"))
        await one.sink.heard("=")

    play(story)


def test_repeated_and_late_lines_tell_nothing(play: Play) -> None:
    async def story(one: Rig) -> None:
        await one.sink.heard("=")
        pod = await one.server.put(path("a"), {})
        await one.server.remove(path("a"))
        late = msgspec.json.encode({"type": "ADDED", "object": pod})
        await one.server.send(late)
        await one.server.send(late)
        await one.server.put(path("b"), {})
        await one.sink.heard("+a", "-a", "+b")

    play(story)


def test_an_object_made_anew_under_its_name(play: Play) -> None:
    async def story(one: Rig) -> None:
        await one.sink.heard("=")
        await one.server.put(path("a"), {"metadata": {"uid": "old"}})
        new = {"metadata": {"name": "a", "namespace": "default", "uid": "new", "resourceVersion": "900"}}
        await one.server.send(msgspec.json.encode({"type": "ADDED", "object": new}))
        await one.sink.heard("+a", "-a", "+a")
        assert one.sink.there["a"].metadata.uid == "new"

    play(story)


BROKEN = {"spec": {"nodeName": 7}}


def test_a_deeply_nested_pod_is_listed_and_watched_whole(play: Play) -> None:
    """Check that the spec of such a pod is read, because the pod may hold devices."""

    def deep(version: int, node: str) -> bytes:
        metadata = {"name": "a", "namespace": "default", "uid": "u-a", "resourceVersion": str(version), **deep_fields()}
        return msgspec.json.encode({"metadata": metadata, "spec": {"nodeName": node}})

    async def prepare(one: Rig) -> None:
        page = b'{"metadata":{"resourceVersion":"5"},"items":[%s]}' % deep(5, "n1")
        one.server.fail(Fault(body=page, headers={"Content-Type": "application/json"}), when=is_list)

    async def story(one: Rig) -> None:
        for event in ("=a", "+a"):
            await one.sink.heard(event)
            result = one.sink.there["a"]
            assert isinstance(result, Pod)
            assert result.spec.node_name == ("n1" if event == "=a" else "n2")
            await one.server.send(b'{"type":"MODIFIED","object":%s}' % deep(6, "n2"))
        assert one.records.count(Event.OBJECT_UNREADABLE) == 0

    play(story, prepare)


def test_an_unreadable_object_is_there_until_it_is_deleted(play: Play) -> None:
    async def prepare(one: Rig) -> None:
        await one.server.put(path("a"), BROKEN)

    async def story(one: Rig) -> None:
        await one.sink.heard("=a")
        assert isinstance(one.sink.there["a"], Unreadable)
        await one.server.put(path("a"), BROKEN)
        await one.server.put(path("b"), {})
        await one.sink.heard("+a", "+b")
        assert [f["name"] for e, f in one.records.seen if e is Event.OBJECT_UNREADABLE] == ["a"]
        await one.server.put(path("a"), {})
        await one.sink.heard("+a")
        assert isinstance(one.sink.there["a"], Pod)
        await one.server.put(path("a"), BROKEN)
        await one.server.remove(path("a"))
        await one.sink.heard("+a", "-a")
        assert one.records.count(Event.OBJECT_UNREADABLE) == 2
        assert one.waits == []

    play(story, prepare)


def test_what_a_list_shows_readable_is_named_when_it_breaks_again(play: Play) -> None:
    async def prepare(one: Rig) -> None:
        await one.server.put(path("a"), BROKEN)

    async def story(one: Rig) -> None:
        await one.sink.heard("=a")
        one.server.objects[path("a")] = {"metadata": one.server.objects[path("a")]["metadata"]}  # while no one watched
        await one.server.send(b'{"type":"ERROR","object":{"kind":"Status","code":410}}')
        await one.sink.heard("=a")
        await one.server.put(path("a"), BROKEN)
        await one.sink.heard("+a")
        assert one.records.count(Event.OBJECT_UNREADABLE) == 2

    play(story, prepare)


def test_an_object_without_a_name_that_can_be_read(play: Play) -> None:
    async def prepare(one: Rig) -> None:
        item = {"metadata": {"name": 1, "uid": "u"}}
        body = msgspec.json.encode({"metadata": {"resourceVersion": "100"}, "items": [item]})
        one.server.fail(Fault(status=200, body=body))

    async def story(one: Rig) -> None:
        await one.sink.heard("=")
        assert isinstance(one.sink.there[""], Unreadable)

    play(story, prepare)


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
def test_a_line_about_no_one_lists_again(play: Play, line: bytes) -> None:
    async def story(one: Rig) -> None:
        await one.sink.heard("=")
        await one.server.send(line)
        await one.sink.heard("=")
        await one.server.put(path("a"), {})
        await one.sink.heard("+a")

    play(story)


def test_waits_grow_and_success_ends_them(play: Play) -> None:
    async def prepare(one: Rig) -> None:
        one.server.fail(Fault(status=500), times=4)

    async def story(one: Rig) -> None:
        await one.sink.heard("=")
        first = list(one.waits)
        assert len(first) == 4
        assert first[0] <= 0.5
        assert first[3] >= 2.0
        await one.server.put(path("a"), {})
        await one.sink.heard("+a")
        one.server.fail(Fault(status=500), when=is_watch)
        await one.server.send(None)
        await one.server.until(lambda: len(one.server.calls("GET", watch=True)) == 3)
        assert one.waits[-1] <= 0.5
        assert one.records.count(Event.WATCH_FAILED) == 2
        assert one.reflector.failures == 5

    play(story, prepare)


def test_the_server_says_how_long(play: Play) -> None:
    async def prepare(one: Rig) -> None:
        one.server.fail(Fault(status=429, headers={"Retry-After": "40"}))

    async def story(one: Rig) -> None:
        await one.sink.heard("=")
        assert one.waits == [40]

    play(story, prepare)


def test_a_watch_that_never_works_lists_again(play: Play) -> None:
    async def story(one: Rig) -> None:
        await one.sink.heard("=")
        one.server.fail(Fault(status=504), when=is_watch, times=3)
        await one.server.bookmark(500)
        await one.server.send(None)
        await one.sink.heard("=")
        assert len(one.waits) == 3

    play(story)


def test_a_watch_that_ends_at_once_is_a_failure(play: Play) -> None:
    async def prepare(one: Rig) -> None:
        for _ in range(2):
            await one.server.send(None)

    async def story(one: Rig) -> None:
        await one.sink.heard("=")
        await one.server.until(lambda: len(one.server.calls("GET", watch=True)) == 3)
        assert len(one.waits) == 2
        assert len(one.server.calls("GET")) == 1

    play(story, prepare)


def test_a_watch_that_never_reported_a_word_lists_again(tmp_path: Path) -> None:
    """Check a server that ends a watch without an event, as a real one does if its store was restored from a backup."""

    async def go() -> None:
        async with rig(tmp_path) as one:
            running = asyncio.create_task(one.reflector.run())
            await one.sink.heard("=")
            began = asyncio.get_running_loop().time()
            await one.sink.heard("=")
            assert 300 <= asyncio.get_running_loop().time() - began <= 601
            assert one.waits == []
            assert one.records.count(Event.WATCH_FAILED) == 0
            running.cancel()
            await asyncio.wait([running])

    run_simulated(go())


@pytest.mark.parametrize("listed", [True, False])
def test_an_object_that_the_sink_cannot_handle_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    async def go() -> None:
        async with rig(tmp_path) as one:
            clock = asyncio.get_running_loop().time
            one.reflector = Reflector(one.reflector._client, PODS, Pod, one.sink, log=one.records.log, clock=clock)
            whole, each = one.sink.replaced, one.sink.changed

            def fail(obj: Pod | Unreadable) -> None:
                if obj.metadata.name == "b" and isinstance(obj, Pod):
                    raise ZeroDivisionError
                each(obj)

            def fail_as_a_whole(objects: Sequence[Pod | Unreadable], version: str) -> None:
                if any(obj.metadata.name == "b" and isinstance(obj, Pod) for obj in objects):
                    raise ZeroDivisionError
                whole(objects, version)

            monkeypatch.setattr(one.sink, "changed", fail)
            monkeypatch.setattr(one.sink, "replaced", fail_as_a_whole)
            if listed:
                for name in "abc":
                    await one.server.put(path(name), {})
            running = asyncio.create_task(one.reflector.run())
            await one.reflector.synced.wait()
            if not listed:
                for name in "abc":
                    await one.server.put(path(name), {})
            await asyncio.sleep(0.5)
            assert {name for name, obj in one.sink.there.items() if isinstance(obj, Pod)} == {"a", "c"}
            await asyncio.sleep(20)
            (record, *more) = [fields for event, fields in one.records.seen if event is Event.HANDLING_FAILED]
            assert len(more) < 4
            assert record["object"] == ("pods" if listed else "pods default/b")
            assert "ZeroDivisionError" in record["traceback"]
            monkeypatch.setattr(one.sink, "changed", each)
            await asyncio.sleep(61)
            assert isinstance(one.sink.there["b"], Pod)
            monkeypatch.setattr(one.sink, "changed", fail)
            await one.server.put(path("b"), {"spec": {"priority": 1}})
            await asyncio.sleep(0.5)
            await one.server.remove(path("b"))
            await asyncio.sleep(0.5)
            assert set(one.sink.there) == {"a", "c"}
            running.cancel()
            await asyncio.wait([running])

    run_simulated(go())


def test_many_pods_cost_little() -> None:
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
