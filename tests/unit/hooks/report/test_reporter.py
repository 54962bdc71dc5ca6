"""Test the reporter step by step, with a node that the test changes, and an API server of one object, a Node, and scripted
failures."""

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hooks.ledger.period import End
from hooks.ledger.share_bypass import How, ShareBypass
from hooks.ledger.store import Ledger
from hooks.node.node import Node
from hooks.report import reporter
from hooks.report.reporter import RENEW_S, SCAN_S, Reporter, connect
from lading.errors import ConfigError
from lading.kube.errors import ConflictError, InvalidError, NotFoundError, TooManyRequestsError, UnreachableError
from lading.log import Event, Level, Log
from lading.nodedevices import Status
from lading.vocabulary import PodUid
from tests.fakes.holders import grant, whole
from tests.fakes.kube_server import FakeKubeServer, Fault
from tests.fakes.records import Records
from tests.fakes.runtime import FakeRuntime
from tests.unit.hooks.daemon.test_metrics import Watch, a_node
from tests.unit.hooks.inventories import gpu, inventory, running, uuid

REPORTS = (Event.REPORT_APPLIED, Event.REPORT_FAILED)
DOWN = UnreachableError("cannot patch: connection refused")


class Kube:
    """Act as the API server where the reporter relies on it: a status does not create its object, and an object is created
    once."""

    def __init__(self) -> None:
        self.nodes = {"n1": "uid-of-n1"}
        self.served = True  # the CRD is there
        self.object: dict[str, Any] | None = None
        self.applied: list[Status] = []
        self.failures: deque[Exception] = deque()  # errors of the next calls
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
    """Hold a node with two cards, and its reporter. Time passes when the test decides."""

    def __init__(self, node: Node, log: Log, records: Records, *, use_interval_s: float) -> None:
        self.node = node
        self.kube = Kube()
        self.records = records
        self.now = 1000.0
        self.waits: list[float] = []  # the pauses of keep_reporting, in seconds
        self.until = 3
        self.credentials: deque[Exception] = deque()  # errors of the next tries to read credentials
        self.connections = 0
        node.watch = Watch(inventory(gpus=(gpu(0), gpu(1))))
        self.reporter = Reporter(
            node,
            node_name="n1",
            connect=self.connect,
            log=log,
            use_interval_s=use_interval_s,
            sleep=self.sleep,
            clock=lambda: self.now,
            chance=lambda: 1.0,
        )

    async def scan(self) -> float:
        return await self.reporter.scan(self.kube)

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

    def fall_ill(self, index: int, reason: str) -> None:
        gpus = [dataclasses.replace(gpu(i), unhealthy=reason if i == index else "") for i in (0, 1)]
        self.node.watch = Watch(inventory(gpus=tuple(gpus)))


@pytest.fixture
def use_interval_s() -> float:
    return 0  # the use of the cards is not reported


with_use = pytest.mark.parametrize("use_interval_s", [60])


@pytest.fixture
def world(tmp_path: Path, log: Log, records: Records, use_interval_s: float) -> Iterator[World]:
    with Ledger.open(tmp_path / "state" / "node.db") as ledger:
        yield World(a_node(ledger, FakeRuntime(), tmp_path, log), log, records, use_interval_s=use_interval_s)


# ---- what is reported, and when


async def test_the_first_report_makes_the_object_with_the_node_as_its_owner(world: World) -> None:
    assert await world.scan() == SCAN_S
    assert world.kube.calls == ["apply", "get", "create", "apply"]
    assert world.kube.object is not None
    assert world.kube.object["metadata"] == {
        "name": "n1",
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-of-n1"}],
    }
    assert [card.uuid for card in world.kube.applied[-1].gpus] == [uuid(0), uuid(1)]
    assert (world.reporter.age_s, world.reporter.stale_s) == (0, 0)


async def test_an_unchanged_report_is_not_sent_again(world: World) -> None:
    await world.scan()
    calls = len(world.kube.calls)
    for _ in range(5):
        world.now += SCAN_S
        world.node.watch = Watch(inventory(gpus=(gpu(0), gpu(1))))  # read again, and the same
        await world.scan()
    assert len(world.kube.calls) == calls


async def test_processes_come_and_go_and_are_no_news(world: World) -> None:
    await world.scan()
    busy = dataclasses.replace(gpu(0), processes=running(1, 2))  # processes of the host: there is no /proc below this root
    world.node.watch = Watch(inventory(gpus=(busy, gpu(1))))
    await world.scan()
    assert len(world.kube.applied) == 1


async def test_health_goes_both_ways(world: World) -> None:
    for reason in ("", "GPU is lost", ""):
        world.fall_ill(1, reason)
        await world.scan()
    assert [status.gpus[1].unhealthy for status in world.kube.applied] == ["", "GPU is lost", ""]


async def test_grants_and_reconciliation_are_news(world: World) -> None:
    await world.scan()
    world.node.ledger.record(grant("p", "c", whole(0)))
    world.node.ledger.record(grant("p", "d", whole(1)))  # two changes, one report
    await world.scan()
    world.node.reconciled = True
    await world.scan()
    world.node.ledger.release(PodUid("p"), end=End(at=5))
    await world.scan()
    assert [(len(s.grants), s.reconciled) for s in world.kube.applied] == [(0, False), (2, False), (2, True), (0, True)]


async def test_before_the_first_inventory_nothing_is_reported(world: World) -> None:
    world.node.watch = None
    world.now += 90
    assert await world.scan() == SCAN_S
    assert world.kube.calls == []
    assert world.reporter.stale_s == 90
    assert world.reporter.age_s == float("inf")


async def test_an_unchanged_report_is_renewed_after_a_while(world: World) -> None:
    await world.scan()
    world.now += 0.8 * RENEW_S
    await world.scan()
    assert len(world.kube.applied) == 1
    world.kube.object = None  # deleted: by a person, or with its Node
    world.now += 0.4 * RENEW_S
    await world.scan()
    assert world.kube.applied[0] == world.kube.applied[1]
    assert world.kube.object is not None


async def test_the_report_has_the_earlier_holders_of_cards(world: World) -> None:
    world.node.ledger.record(grant("p", "c", whole(0)))
    await world.scan()
    world.node.ledger.release(PodUid("p"), end=End(at=7))
    await world.scan()
    assert [len(status.past) for status in world.kube.applied] == [0, 1]
    assert (world.kube.applied[-1].past[0].pod, world.kube.applied[-1].past[0].until) == ("p", 7)


async def test_a_bypass_of_a_share_is_news(world: World) -> None:
    await world.scan()
    one = ShareBypass(pod=PodUid("p"), container="c", namespace="n", pod_name="a", card=uuid(0), how=How.MEMORY)
    world.node.share_bypasses = (one,)
    await world.scan()
    world.node.share_bypasses = ()
    await world.scan()
    assert [len(status.share_bypasses) for status in world.kube.applied] == [0, 1, 0]


async def test_a_card_is_reported_as_dirty_from_the_report_on_in_which_its_last_grant_is_deleted(world: World) -> None:
    world.node.ledger.record(grant("p", "c", whole(0)))
    await world.scan()
    world.node.ledger.release(PodUid("p"), end=End(at=7))
    world.node.hand_over.read_soon = lambda: None
    world.node.hand_over.left([uuid(0)])
    await world.scan()
    world.node.hand_over.read(float("inf"), {uuid(0): "90 MiB of it", uuid(1): ""}, 60)
    await world.scan()
    world.node.hand_over.read(float("inf"), {uuid(0): "", uuid(1): ""}, 61)
    await world.scan()
    reports = [(len(status.grants), status.gpus[0].dirty) for status in world.kube.applied]
    waits = "it has not been read since its last holder was gone"
    assert reports == [(1, ""), (0, waits), (0, "90 MiB of it; since 1970-01-01 00:01:00 UTC"), (0, "")]
    assert {status.gpus[1].dirty for status in world.kube.applied} == {""}


# ---- what is in use of the cards


def use(world: World, mib: int, percent: int) -> None:
    world.node.watch = Watch(inventory(gpus=(dataclasses.replace(gpu(0), used_mib=mib, busy_percent=percent), gpu(1))))


def seen(world: World) -> list[tuple[int | None, int | None]]:
    """Return the use of the first card in each report."""
    return [(status.use[0].memory_used_mib, status.use[0].busy_percent) for status in world.kube.applied]


@with_use
async def test_use_is_a_report_of_its_own_once_in_a_while(world: World) -> None:
    use(world, 300, 50)
    await world.scan()
    for second in range(1, 150):
        world.now += 1
        use(world, 512 * second, second % 100)
        await world.scan()
    assert seen(world) == [(256, 50), (72 * 512, 70), (144 * 512, 45)]  # every 72 s: a fifth may be added to 60


@with_use
async def test_use_that_is_nearly_the_same_is_no_news(world: World) -> None:
    use(world, 300, 50)
    await world.scan()
    for mib, percent in ((310, 51), (350, 49), (300, 50)):
        world.now += 100
        use(world, mib, percent)
        await world.scan()
    assert seen(world) == [(256, 50)]


@with_use
async def test_the_time_of_use_is_when_the_cards_were_read(world: World) -> None:
    world.node.clock = lambda: 1_000_000.0 + world.now
    use(world, 300, 50)
    await world.scan()
    use(world, 301, 50)
    world.now += 100
    await world.scan()
    world.now += 1.1 * RENEW_S  # with what is reported anyway it is told anew
    await world.scan()
    assert [status.used_at for status in world.kube.applied] == [1_001_000 - 7, 1_001_000 - 7 + 100 + 660]


@with_use
async def test_use_that_does_not_change_is_as_fresh_as_the_renewals(world: World) -> None:
    world.node.clock = lambda: world.now
    use(world, 300, 50)
    for _ in range(int(5 * RENEW_S)):
        world.now += 1
        await world.scan()
        assert world.now - world.kube.applied[-1].used_at <= 1.2 * (RENEW_S + 60) + 7 + 1
    assert len(world.kube.applied) == 5


@with_use
async def test_the_time_of_use_is_never_negative(world: World) -> None:
    world.node.clock = lambda: 3.0  # the card was asked 7 s ago, before time 0
    use(world, 300, 50)
    await world.scan()
    assert world.kube.applied[0].used_at == 0


@with_use
async def test_a_report_of_a_change_repeats_the_use_that_was_reported_last(world: World) -> None:
    use(world, 300, 50)
    await world.scan()
    use(world, 9000, 100)
    world.node.ledger.record(grant("p", "c", whole(0)))
    await world.scan()
    assert seen(world) == [(256, 50), (256, 50)]


@pytest.mark.parametrize(("use_interval_s", "cards_tell"), [(0, True), (60, False)])
async def test_no_use_is_reported_with_an_interval_of_0_or_from_cards_that_do_not_tell(world: World, cards_tell: bool) -> None:
    if cards_tell:
        use(world, 300, 50)
    await world.scan()
    assert (world.kube.applied[0].use, world.kube.applied[0].used_at) == ((), 0)


# ---- failures


async def test_a_failure_is_reported_once_counted_and_made_up_for(world: World) -> None:
    await world.scan()
    world.fall_ill(0, "lost")
    world.kube.failures.extend([DOWN, DOWN, DOWN])
    waits = []
    for _ in range(3):
        waits.append(await world.scan())
        world.now += waits[-1]
    assert waits == [0.5, 1.0, 2.0]
    assert world.reporter.failures == 3
    assert world.reporter.failure == str(DOWN)
    assert world.reporter.stale_s == sum(waits)
    assert await world.scan() == SCAN_S
    assert world.kube.applied[-1].gpus[0].unhealthy == "lost"
    assert (world.reporter.stale_s, world.reporter.failure) == (0, "")
    text = [(level, event) for level, event, _, _ in world.records.written if event in REPORTS]
    assert text == [
        (Level.INFO, Event.REPORT_APPLIED),
        (Level.WARNING, Event.REPORT_FAILED),
        (Level.INFO, Event.REPORT_APPLIED),
    ]


async def test_after_an_outage_an_unchanged_report_is_applied_again(world: World) -> None:
    await world.scan()
    world.fall_ill(0, "lost")
    world.kube.failures.append(DOWN)
    await world.scan()
    world.fall_ill(0, "")  # the state that the API server has, as far as the node knows
    await world.scan()
    assert len(world.kube.applied) == 2


async def test_the_wait_grows_to_half_a_minute_and_is_what_the_server_asks_for(world: World) -> None:
    world.kube.failures.extend([DOWN] * 10)
    waits = [await world.scan() for _ in range(10)]
    assert waits == sorted(waits)
    assert waits[-1] == 30
    world.kube.failures.append(TooManyRequestsError("later", status=429, retry_after_s=45))
    assert await world.scan() == 45


@pytest.mark.parametrize(
    ("prepare", "hint"), [(lambda kube: kube.nodes.clear(), "node_name"), (lambda kube: setattr(kube, "served", False), "crds")]
)
async def test_a_missing_node_or_resource_definition_is_named(prepare: Callable[[Kube], None], hint: str, world: World) -> None:
    prepare(world.kube)
    await world.scan()
    assert hint in world.reporter.failure
    assert world.kube.applied == []
    assert world.records.written[-1][:2] == (Level.ERROR, Event.REPORT_FAILED)


async def test_an_object_that_another_client_created_meanwhile_is_used(world: World) -> None:
    original = world.kube.get

    async def get(path: str) -> bytes:
        world.kube.object = {"metadata": {"name": "n1"}}
        return await original(path)

    world.kube.get = get  # type: ignore[method-assign]
    assert await world.scan() == SCAN_S
    assert len(world.kube.applied) == 1


async def test_a_card_whose_user_cannot_be_read_is_not_reported_as_free(world: World) -> None:
    (world.node.host_root / "proc/7/cgroup").mkdir(parents=True)  # EISDIR
    world.node.watch = Watch(inventory(gpus=(dataclasses.replace(gpu(0), processes=running(7)),)))
    await world.scan()
    assert world.kube.calls == []
    assert world.reporter.failures == 1


async def test_a_fault_of_lading_does_not_end_the_daemon(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    def broken(*_: object, **__: object) -> Status:
        raise ZeroDivisionError

    monkeypatch.setattr(reporter, "build_status", broken)
    assert await world.scan() > 0
    assert "ZeroDivisionError" in world.reporter.failure


async def test_a_refusal_is_for_a_person_to_see(world: World) -> None:
    world.kube.failures.append(InvalidError("status.gpus: too many", status=422))
    await world.scan()
    assert world.records.written[-1][:2] == (Level.ERROR, Event.REPORT_FAILED)


# ---- the loop


async def keep(world: World) -> None:
    """Run the reporter until it has waited `world.until` times."""
    with pytest.raises(asyncio.CancelledError):
        await world.reporter.keep_reporting()


async def test_the_loop_keeps_one_connection_and_scans_again_and_again(world: World) -> None:
    world.kube.failures.append(DOWN)
    await keep(world)
    assert world.waits == [0.5, SCAN_S, SCAN_S]
    assert world.connections == 1
    assert len(world.kube.applied) == 1


async def test_credentials_may_come_later(world: World) -> None:
    world.credentials.extend([ConfigError("cannot use kubeconfig: no such file"), KeyError("users")])
    await keep(world)
    assert world.waits == [0.5, 1.0, SCAN_S]
    assert len(world.kube.applied) == 1


def test_credentials_that_never_come_do_not_delay_the_end_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    there = threading.Event()
    monkeypatch.setattr("lading.kube.config.open_access", lambda _: there.wait(5))

    async def connect_for_a_moment() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01), connect("kubeconfig"):
                pass

    begun = time.monotonic()
    asyncio.run(connect_for_a_moment())
    there.set()
    assert time.monotonic() - begun < 2


# ---- over HTTP


async def test_the_status_is_sent_as_a_forced_apply(tmp_path: Path, world: World) -> None:
    """Check the request with the real client and a kubeconfig."""
    async with FakeKubeServer() as kube:
        await kube.put("/api/v1/nodes/n1", {"kind": "Node"})
        kube.fail(Fault(status=503), when=lambda request: request.method == "POST")
        async with connect(str(kube.write_kubeconfig(tmp_path / "kubeconfig"))) as api:
            assert await world.reporter.scan(api) > 0
            assert world.reporter.failures == 1
            assert await world.reporter.scan(api) == SCAN_S
    assert [request.method for request in kube.requests] == ["PATCH", "GET", "POST", "PATCH", "GET", "POST", "PATCH"]
    last = kube.requests[-1]
    assert (last.query["fieldManager"], last.query["force"]) == ("lading-hooks", "true")
    assert last.headers["Content-Type"] == "application/apply-patch+yaml"
    assert len(last.body["status"]["gpus"]) == 2
