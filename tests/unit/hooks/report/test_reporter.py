"""The reporter step by step: a node that a test changes, and an API server that is one object, a Node, and failures to come."""

import asyncio
import dataclasses
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hooks.ledger.store import Ledger
from hooks.node import Node
from hooks.report import reporter
from hooks.report.reporter import LOOK_S, RENEW_S, Reporter, connect
from lading.errors import ConfigError
from lading.kube.errors import ConflictError, InvalidError, NotFoundError, TooManyRequestsError, UnreachableError
from lading.log import Event, Level, Log
from lading.nodedevices import Status
from lading.vocabulary import PodUid
from tests.fakes.holders import grant, whole
from tests.fakes.kube_server import FakeKubeServer, Fault
from tests.unit.hooks.inventories import gpu, inventory, uuid
from tests.unit.hooks.test_metrics import Runtime, Watch, a_node
from tests.unit.runtimeproxy.conftest import Records

REPORTS = (Event.REPORT_APPLIED, Event.REPORT_FAILED)
DOWN = UnreachableError("cannot patch: connection refused")


class Kube:
    """Honest where the reporter leans on it: a status is no way to make its object, an object is made once."""

    def __init__(self) -> None:
        self.nodes = {"n1": "uid-of-n1"}
        self.served = True  # the CRD is there
        self.object: dict[str, Any] | None = None
        self.applied: list[Status] = []
        self.failures: deque[Exception] = deque()  # of the next calls
        self.calls: list[str] = []

    async def get(self, path: str) -> bytes:
        self._begin("get")
        name = path.removeprefix("/api/v1/nodes/")
        if name not in self.nodes:
            raise NotFoundError(f"no node {name}", status=404)
        return msgspec.json.encode({"kind": "Node", "metadata": {"name": name, "uid": self.nodes[name]}})

    async def create(self, path: str, body: object) -> bytes:
        self._begin("create")
        assert path == "/apis/devices.lading.dev/v1alpha1/nodedevices"
        if not self.served:
            raise NotFoundError("no such resource", status=404)
        if self.object is not None:
            raise ConflictError("AlreadyExists", status=409)
        self.object = msgspec.json.decode(msgspec.json.encode(body))
        return b"{}"

    async def apply(self, path: str, body: object, *, manager: str, force: bool) -> bytes:
        self._begin("apply")
        assert (path, manager, force) == ("/apis/devices.lading.dev/v1alpha1/nodedevices/n1/status", "lading-hooks", True)
        if self.object is None:
            raise NotFoundError("no such object", status=404)
        sent = msgspec.json.decode(msgspec.json.encode(body))
        assert {k: v for k, v in sent.items() if k != "status"} == {
            "apiVersion": "devices.lading.dev/v1alpha1",
            "kind": "NodeDevices",
            "metadata": {"name": "n1"},
        }
        self.applied.append(msgspec.convert(sent["status"], Status))
        return b"{}"

    def _begin(self, call: str) -> None:
        self.calls.append(call)
        if self.failures:
            raise self.failures.popleft()


class World:
    """A node with two cards, and its reporter. Time passes when a test says so."""

    def __init__(self, node: Node, log: Log, records: Records) -> None:
        self.node = node
        self.kube = Kube()
        self.records = records
        self.now = 1000.0
        self.waits: list[float] = []  # that keep_reporting was told to
        self.until = 3
        self.credentials: deque[Exception] = deque()  # that are not there
        self.connections = 0
        node.watch = Watch(inventory(gpus=(gpu(0), gpu(1))))
        self.reporter = Reporter(
            node,
            node_name="n1",
            connect=self.connect,
            log=log,
            sleep=self.sleep,
            clock=lambda: self.now,
            chance=lambda: 1.0,
        )

    async def look(self) -> float:
        return await self.reporter.look(self.kube)

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds
        if len(self.waits) == self.until:
            raise asyncio.CancelledError

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Kube]:
        if self.credentials:
            raise self.credentials.popleft()
        self.connections += 1
        yield self.kube

    def fall_ill(self, index: int, why: str) -> None:
        gpus = [dataclasses.replace(gpu(i), unhealthy=why if i == index else "") for i in (0, 1)]
        self.node.watch = Watch(inventory(gpus=tuple(gpus)))


Play = Callable[[Callable[[World], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def play(tmp_path: Path, log: Log, records: Records) -> Play:
    async def run(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        with Ledger.open(tmp_path / "state" / "node.db") as ledger:
            await scenario(World(a_node(ledger, Runtime(), tmp_path, log), log, records))

    return lambda scenario: asyncio.run(run(scenario))


# ---- what is reported, and when


def test_the_first_report_makes_the_object_with_the_node_as_its_owner(play: Play) -> None:
    async def scenario(world: World) -> None:
        assert await world.look() == LOOK_S
        assert world.kube.calls == ["apply", "get", "create", "apply"]
        assert world.kube.object is not None
        assert world.kube.object["metadata"] == {
            "name": "n1",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-of-n1"}],
        }
        assert [card.uuid for card in world.kube.applied[-1].gpus] == [uuid(0), uuid(1)]
        assert (world.reporter.age_s, world.reporter.stale_s) == (0, 0)

    play(scenario)


def test_what_did_not_change_is_not_sent_again(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.look()
        calls = len(world.kube.calls)
        for _ in range(5):
            world.now += LOOK_S
            world.node.watch = Watch(inventory(gpus=(gpu(0), gpu(1))))  # read again, and the same
            await world.look()
        assert len(world.kube.calls) == calls

    play(scenario)


def test_processes_come_and_go_and_are_no_news(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.look()
        busy = dataclasses.replace(gpu(0), process_ids=(1, 2))  # of the host: there is no /proc below this root
        world.node.watch = Watch(inventory(gpus=(busy, gpu(1))))
        await world.look()
        assert len(world.kube.applied) == 1

    play(scenario)


def test_health_goes_both_ways(play: Play) -> None:
    async def scenario(world: World) -> None:
        for why in ("", "GPU is lost", ""):
            world.fall_ill(1, why)
            await world.look()
        assert [status.gpus[1].unhealthy for status in world.kube.applied] == ["", "GPU is lost", ""]

    play(scenario)


def test_grants_and_reconciliation_are_news(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.look()
        world.node.ledger.record(grant("p", "c", whole(0)))
        world.node.ledger.record(grant("p", "d", whole(1)))  # two changes, one report
        await world.look()
        world.node.reconciled = True
        await world.look()
        world.node.ledger.release(PodUid("p"))
        await world.look()
        assert [(len(s.grants), s.reconciled) for s in world.kube.applied] == [(0, False), (2, False), (2, True), (0, True)]

    play(scenario)


def test_before_the_first_inventory_nothing_is_said(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.node.watch = None
        world.now += 90
        assert await world.look() == LOOK_S
        assert world.kube.calls == []
        assert world.reporter.stale_s == 90
        assert world.reporter.age_s == float("inf")

    play(scenario)


def test_the_whole_is_applied_again_after_a_while(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.look()
        world.now += 0.8 * RENEW_S
        await world.look()
        assert len(world.kube.applied) == 1
        world.kube.object = None  # deleted: by a person, or with its Node
        world.now += 0.4 * RENEW_S
        await world.look()
        assert world.kube.applied[0] == world.kube.applied[1]
        assert world.kube.object is not None

    play(scenario)


# ---- failures


def test_a_failure_is_said_once_counted_and_made_up_for(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.look()
        world.fall_ill(0, "lost")
        world.kube.failures.extend([DOWN, DOWN, DOWN])
        waits = []
        for _ in range(3):
            waits.append(await world.look())
            world.now += waits[-1]
        assert waits == [0.5, 1.0, 2.0]
        assert world.reporter.failures == 3
        assert world.reporter.failure == str(DOWN)
        assert world.reporter.stale_s == sum(waits)
        assert await world.look() == LOOK_S
        assert world.kube.applied[-1].gpus[0].unhealthy == "lost"
        assert (world.reporter.stale_s, world.reporter.failure) == (0, "")
        said = [(level, event) for level, event, _, _ in world.records.written if event in REPORTS]
        assert said == [
            (Level.INFO, Event.REPORT_APPLIED),
            (Level.WARNING, Event.REPORT_FAILED),
            (Level.INFO, Event.REPORT_APPLIED),
        ]

    play(scenario)


def test_after_an_outage_the_whole_is_applied_though_nothing_changed(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.look()
        world.fall_ill(0, "lost")
        world.kube.failures.append(DOWN)
        await world.look()
        world.fall_ill(0, "")  # as the API server has it, as far as we know
        await world.look()
        assert len(world.kube.applied) == 2

    play(scenario)


def test_the_wait_grows_to_half_a_minute_and_is_what_the_server_asks_for(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.kube.failures.extend([DOWN] * 10)
        waits = [await world.look() for _ in range(10)]
        assert waits == sorted(waits)
        assert waits[-1] == 30
        world.kube.failures.append(TooManyRequestsError("later", status=429, retry_after_s=45))
        assert await world.look() == 45

    play(scenario)


@pytest.mark.parametrize(
    ("prepare", "hint"),
    [
        (lambda kube: kube.nodes.clear(), "node_name"),
        (lambda kube: setattr(kube, "served", False), "crds"),
    ],
)
def test_what_is_missing_is_named(play: Play, prepare: Callable[[Kube], None], hint: str) -> None:
    async def scenario(world: World) -> None:
        prepare(world.kube)
        await world.look()
        assert hint in world.reporter.failure
        assert world.kube.applied == []
        assert world.records.written[-1][:2] == (Level.ERROR, Event.REPORT_FAILED)

    play(scenario)


def test_an_object_that_came_meanwhile_is_used(play: Play) -> None:
    async def scenario(world: World) -> None:
        original = world.kube.get

        async def get(path: str) -> bytes:
            world.kube.object = {"metadata": {"name": "n1"}}
            return await original(path)

        world.kube.get = get  # type: ignore[method-assign]
        assert await world.look() == LOOK_S
        assert len(world.kube.applied) == 1

    play(scenario)


def test_a_card_whose_user_can_not_be_read_is_not_reported_as_free(play: Play) -> None:
    async def scenario(world: World) -> None:
        (world.node.host_root / "proc/7/cgroup").mkdir(parents=True)  # EISDIR
        world.node.watch = Watch(inventory(gpus=(dataclasses.replace(gpu(0), process_ids=(7,)),)))
        await world.look()
        assert world.kube.calls == []
        assert world.reporter.failures == 1

    play(scenario)


def test_a_fault_of_ours_does_not_end_the_daemon(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Status:
        raise ZeroDivisionError

    async def scenario(world: World) -> None:
        monkeypatch.setattr(reporter, "build_status", broken)
        assert await world.look() > 0
        assert "ZeroDivisionError" in world.reporter.failure

    play(scenario)


def test_a_refusal_is_for_a_person_to_see(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.kube.failures.append(InvalidError("status.gpus: too many", status=422))
        await world.look()
        assert world.records.written[-1][:2] == (Level.ERROR, Event.REPORT_FAILED)

    play(scenario)


# ---- the loop


async def keep(world: World) -> None:
    """Until it has waited `world.until` times."""
    with pytest.raises(asyncio.CancelledError):
        await world.reporter.keep_reporting()


def test_it_keeps_one_connection_and_looks_again_and_again(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.kube.failures.append(DOWN)
        await keep(world)
        assert world.waits == [0.5, LOOK_S, LOOK_S]
        assert world.connections == 1
        assert len(world.kube.applied) == 1

    play(scenario)


def test_credentials_may_come_later(play: Play) -> None:
    async def scenario(world: World) -> None:
        world.credentials.extend([ConfigError("cannot use kubeconfig: no such file"), KeyError("users")])
        await keep(world)
        assert world.waits == [0.5, 1.0, LOOK_S]
        assert len(world.kube.applied) == 1

    play(scenario)


# ---- over HTTP


def test_what_goes_over_the_wire_is_a_forced_apply(play: Play, tmp_path: Path) -> None:
    """The real client and a kubeconfig."""

    async def scenario(world: World) -> None:
        async with FakeKubeServer() as kube:
            config = {
                "clusters": [{"name": "c", "cluster": {"server": kube.url}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
            (tmp_path / "kubeconfig").write_text(json.dumps(config))
            await kube.put("/api/v1/nodes/n1", {"kind": "Node"})
            kube.fail(Fault(status=503), when=lambda request: request.method == "POST")
            async with connect(str(tmp_path / "kubeconfig")) as api:
                assert await world.reporter.look(api) > 0
                assert world.reporter.failures == 1
                assert await world.reporter.look(api) == LOOK_S
        assert [request.method for request in kube.requests] == ["PATCH", "GET", "POST", "PATCH", "GET", "POST", "PATCH"]
        last = kube.requests[-1]
        assert (last.query["fieldManager"], last.query["force"]) == ("lading-hooks", "true")
        assert last.headers["Content-Type"] == "application/apply-patch+yaml"
        assert len(last.body["status"]["gpus"]) == 2

    play(scenario)
