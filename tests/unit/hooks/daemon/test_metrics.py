import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hooks.attach.preparer import Operation, VfPreparer
from hooks.daemon.metrics import Metrics
from hooks.inventory.watch import InventoryWatch
from hooks.ledger.period import End
from hooks.ledger.share_bypass import How, ShareBypass
from hooks.ledger.store import Ledger
from hooks.model.assignment import GrantedDevices, GrantedGpu, Refusal
from hooks.model.attachment import NetdevPolicy, Step
from hooks.model.container import Adjustment, Answer, Sandbox
from hooks.model.inventory import Inventory
from hooks.node.bypass import Bypassed
from hooks.node.node import Node
from hooks.ports import CardService, Preparer
from hooks.report.reporter import Reporter, connect
from lading.errors import StateError
from lading.log import Log
from lading.reasons import Reason
from lading.vocabulary import ContainerId, PodUid
from tests.coroutines import until
from tests.fakes.attacher import FakeAttacher
from tests.fakes.full_disk import full_disk
from tests.fakes.holders import BOOT, grant, row, share, vf_bdf, vfs, whole
from tests.fakes.runtime import FakeRuntime
from tests.fakes.samples import samples
from tests.unit.hooks.inventories import gpu, inventory, mig_uuid, running, uuid, vf
from tests.unit.hooks.rules import RULES


def a_node(ledger: Ledger, runtime: FakeRuntime, folder: Path, log: Log) -> Node:
    return Node(
        ledger=ledger,
        lists=runtime.lists,
        host_root=folder,
        boot_id=BOOT,
        log=log,
        rules=lambda: RULES,
        reconcile_interval_s=3600.0,
        preparers=(VfPreparer(journal=ledger.journal, attacher=FakeAttacher(ledger.journal), policy=NetdevPolicy()),),
    )


@pytest.fixture
def node(tmp_path: Path, log: Log) -> Iterator[Node]:
    with Ledger.open(tmp_path / "state" / "node.db") as ledger:
        yield a_node(ledger, FakeRuntime(), tmp_path, log)


@pytest.fixture
def metrics(node: Node) -> Metrics:
    return Metrics(node)


def test_answers_are_counted_by_their_outcome(metrics: Metrics) -> None:
    held = grant("p", "c", whole(0))
    for answer in (
        Answer(adjustment=Adjustment(), grant=held),
        Answer(adjustment=Adjustment(), grant=held, reused=True),
        Answer(adjustment=Adjustment()),
        Refusal(reason=Reason.DEVICE_HELD, message=""),
    ):
        metrics.answered(answer, 0.003)
    result = samples(metrics)
    for outcome, reason in (("created", ""), ("reused", ""), ("no-devices", ""), ("refused", "device-held")):
        assert result[f"lading_hooks_containers_total{{outcome={outcome},reason={reason}}}"] == 1
    assert result["lading_hooks_decision_seconds_count"] == 4


def test_grants_are_those_of_the_ledger(node: Node, metrics: Metrics) -> None:
    node.ledger.record(grant("p", "pending", whole(0), containers={}))
    node.ledger.record(grant("p", "held", whole(1), containers={"c1": "s1"}))
    result = samples(metrics)
    assert result["lading_hooks_grants{form=manual,state=held}"] == 1
    assert result["lading_hooks_grants{form=manual,state=pending}"] == 1
    assert result["lading_hooks_grants{form=signed,state=held}"] == 0


def test_devices_are_those_of_the_inventory(node: Node, metrics: Metrics) -> None:
    assert samples(metrics)["lading_hooks_devices{health=healthy,kind=gpu}"] == 0
    assert samples(metrics)["lading_hooks_inventory_age_seconds"] == float("inf")
    node.watch = Watch(inventory(gpus=(gpu(0), gpu(1, unhealthy="Xid 79")), vfs=(vf(0),)))
    result = samples(metrics)
    assert [
        result[f"lading_hooks_devices{{health={h},kind={k}}}"] for k in ("gpu", "vf") for h in ("healthy", "unhealthy")
    ] == [1, 1, 1, 0]
    assert result["lading_hooks_inventory_age_seconds"] == 7


class Watch(InventoryWatch):
    """Represent the watch at a moment that the test chooses."""

    def __init__(self, current: Inventory) -> None:
        self._now = current

    @property
    def current(self) -> Inventory:
        return self._now

    @property
    def age_s(self) -> float:
        return 7.0


def test_each_held_device_is_exported_with_its_holder(node: Node, metrics: Metrics) -> None:
    share_of = GrantedGpu(uuid=uuid(1), memory_mib=8138, core_percent=30)
    instance = GrantedGpu(uuid=uuid(2), mig_uuid=mig_uuid(20))
    assert not any("device_held" in name for name in samples(metrics))
    devices = GrantedDevices(gpus=(GrantedGpu(uuid=uuid(0)), share_of, instance), vfs=vfs(3).vfs)
    node.ledger.record(grant("p", "c", devices))
    result = samples(metrics)
    who = "namespace=default,pod=name-of-p"
    for kind, device in (("gpu", uuid(0)), ("gpu", uuid(1)), ("mig", mig_uuid(20)), ("vf", vf_bdf(3))):
        assert result[f"lading_device_holder{{container=c,device={device},kind={kind},{who}}}"] == 1
    shared = {name: value for name, value in result.items() if "device_held" in name}
    assert shared == {
        f"lading_device_held_mib{{container=c,device={uuid(1)},kind=gpu,{who}}}": 8138,
        f"lading_device_held_percent{{container=c,device={uuid(1)},kind=gpu,{who}}}": 30,
    }
    node.ledger.release(PodUid("p"), end=End(at=0))
    assert not any("device_holder" in name for name in samples(metrics))


def test_the_memory_that_a_container_uses_on_its_card_is_exported(node: Node, metrics: Metrics) -> None:
    link = node.host_root / "proc/self/ns/pid"
    link.parent.mkdir(parents=True)
    link.symlink_to("pid:[4026531836]")
    (node.host_root / "proc/7").mkdir()
    (node.host_root / "proc/7/cgroup").write_text(f"0::/kubepods/podp/{'a' * 64}\n")
    node.watch = Watch(inventory(gpus=(replace(gpu(0), processes=running(7, used_mib=513)), gpu(1))))
    node.ledger.record(
        grant("p", "c", GrantedDevices(gpus=(GrantedGpu(uuid=uuid(0)), GrantedGpu(uuid=uuid(1))), vfs=vfs(3).vfs))
    )
    result = {name: value for name, value in samples(metrics).items() if "device_used" in name}
    who = "namespace=default,pod=name-of-p"
    assert result == {f"lading_device_used_mib{{container=c,device={uuid(0)},kind=gpu,{who}}}": 513}


def test_dirty_cards_are_exported(node: Node, metrics: Metrics) -> None:
    node.hand_over.read(1.0, {uuid(0): "its memory is in use", uuid(1): ""}, 7)
    result = {name: value for name, value in samples(metrics).items() if "dirty" in name}
    assert result == {f"lading_gpu_dirty{{uuid={uuid(0)}}}": 1}


class Services(Preparer):
    """Represent a preparer that only runs a daemon for a card."""

    def wants(self, answer: Answer) -> bool:
        return False

    async def prepare(self, sandbox: Sandbox, answer: Answer) -> Adjustment | Refusal:
        return Adjustment()

    def has(self, sandbox: Sandbox) -> bool:
        return False

    async def undo(self, sandbox: Sandbox) -> None: ...

    def services(self) -> tuple[CardService, ...]:
        return (CardService(name="mps", card=uuid(0), runs=True, clients=3, fault=False, failures=2),)


def test_programs_that_serve_a_card_are_exported(node: Node, metrics: Metrics) -> None:
    node.preparers = (Services(),)
    result = {name: value for name, value in samples(metrics).items() if "gpu_service" in name}
    values = {"up": 1, "clients": 3, "fault": 0, "failures_total": 2}
    assert result == {f"lading_gpu_service_{name}{{service=mps,uuid={uuid(0)}}}": value for name, value in values.items()}


def test_bypassed_shares_are_exported_once_for_each_reason(node: Node, metrics: Metrics) -> None:
    one = ShareBypass(pod=PodUid("p"), container="c", namespace="n", pod_name="a", card=uuid(0), how=How.PROCESS)
    node.share_bypasses = (one, replace(one, pod=PodUid("again")), replace(one, how=How.MEMORY))
    result = {name: value for name, value in samples(metrics).items() if "share_bypassed" in name}
    who = f"container=c,device={uuid(0)},kind=gpu,namespace=n,pod=a"
    assert result == {f"lading_share_bypassed{{{who},why={reason}}}": 1 for reason in ("process", "memory")}


def test_two_pods_of_one_name_are_one_holder(node: Node, metrics: Metrics) -> None:
    """Check that series are unique although two pods have the same name while the older one ends."""
    for pod in ("p1", "p2"):
        node.ledger.record(replace(grant(pod, "c", share(1, memory_mib=1024)), pod_name="train-0"))
    shown = generate_latest(metrics.registry).decode()
    assert shown.count("\nlading_device_holder{") == 1
    assert [value for name, value in samples(metrics).items() if "held_mib" in name] == [2048]


@pytest.mark.parametrize("name", ['train"} 1\nup 0', "back\\slash", "\\n", "näme \U0001f6a2", "{}, =\t"])
def test_a_hostile_name_stays_a_name(name: str, node: Node, metrics: Metrics) -> None:
    node.ledger.record(replace(grant("p", name, whole(0)), pod_name=name, namespace=name))
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    (result,) = (sample for family in families for sample in family.samples if family.name == "lading_device_holder")
    assert {result.labels[key] for key in ("namespace", "pod", "container")} == {name}


def test_holders_are_bounded(monkeypatch: pytest.MonkeyPatch, node: Node, metrics: Metrics) -> None:
    monkeypatch.setattr("hooks.daemon.metrics.MOST_HOLDERS", 3)
    for container in range(4):
        node.ledger.record(grant("p", f"c{container}", whole(0)))
    assert sum("device_holder" in name for name in samples(metrics)) == 3


def test_use_of_each_card_is_exported(node: Node, metrics: Metrics) -> None:
    cards = (replace(gpu(0), used_mib=513, busy_percent=7), replace(gpu(1), used_mib=0), gpu(2))
    node.watch = Watch(inventory(gpus=cards))
    result = samples(metrics)
    assert {name: value for name, value in result.items() if "lading_gpu" in name} == {
        f"lading_gpu_used_mib{{uuid={uuid(0)}}}": 513,
        f"lading_gpu_used_mib{{uuid={uuid(1)}}}": 0,
        f"lading_gpu_busy_percent{{uuid={uuid(0)}}}": 7,
    }


def test_releases_are_timed(metrics: Metrics) -> None:
    metrics.released(1.5)
    result = samples(metrics)
    assert (result["lading_hooks_release_seconds_count"], result["lading_hooks_release_seconds_sum"]) == (1, 1.5)


def test_attachments_are_those_of_the_journal_by_step(node: Node, metrics: Metrics) -> None:
    for number in (1, 2, 3):
        node.ledger.journal.begin(row(number))
    stuck = node.ledger.journal.rows()[0]
    node.ledger.journal.reach(stuck.bdf, stuck.generation, Step.RETURNING, failure="it hangs")
    result = samples(metrics)
    assert result["lading_hooks_vfs_attached{step=attached}"] == 2
    assert result["lading_hooks_vfs_attached{step=returning}"] == 1
    assert result["lading_hooks_vfs_attached{step=moving}"] == 0
    assert result["lading_hooks_vfs_stuck"] == 1


def test_moves_are_timed_and_failures_counted(metrics: Metrics) -> None:
    assert samples(metrics)["lading_hooks_vf_move_failures_total{operation=release}"] == 0
    metrics.moved(Operation.ATTACH, 0.2, succeeded=True)
    metrics.moved(Operation.RELEASE, 5.0, succeeded=False)
    result = samples(metrics)
    assert result["lading_hooks_vf_move_seconds_count{operation=attach}"] == 1
    assert result["lading_hooks_vf_move_seconds_sum{operation=release}"] == 5
    assert result["lading_hooks_vf_move_failures_total{operation=attach}"] == 0
    assert result["lading_hooks_vf_move_failures_total{operation=release}"] == 1


def test_metrics_of_reports_exist_on_a_node_that_reports(node: Node, metrics: Metrics) -> None:
    assert not any("report" in name for name in samples(metrics))
    reporter = Reporter(node, node_name="n1", connect=partial(connect, ""), log=node.log, clock=lambda: 5.0)
    reporter.failures = 3
    result = samples(Metrics(node, reporter))
    assert result["lading_hooks_report_age_seconds"] == float("inf")
    assert result["lading_hooks_report_stale_seconds"] == 0
    assert result["lading_hooks_report_failures_total"] == 3


def test_bypassed_containers_are_counted(node: Node, metrics: Metrics) -> None:
    assert samples(metrics)["lading_bypassed_containers"] == 0
    node.bypassed = (Bypassed(id=ContainerId("c"), container="c", pod=PodUid("u"), namespace="n", pod_name="p"),)
    assert samples(metrics)["lading_bypassed_containers"] == 1


@pytest.mark.parametrize("up", [True, False])
async def test_a_comparison_succeeds_or_is_a_failure(tmp_path: Path, log: Log, up: bool) -> None:
    with Ledger.open(tmp_path / "state" / "node.db") as ledger:
        runtime = FakeRuntime()
        runtime.down = not up
        node = a_node(ledger, runtime, tmp_path, log)
        metrics = Metrics(node)
        assert samples(metrics)["lading_hooks_reconcile_age_seconds"] == float("inf")
        keeping = asyncio.create_task(node.keep_reconciled())
        await until(lambda: node.reconciled or node.reconcile_failures > 0)
        keeping.cancel()
        result = samples(metrics)
    assert result["lading_hooks_reconcile_failures_total"] == (0 if up else 1)
    assert (result["lading_hooks_reconcile_age_seconds"] < 5) is up


def test_a_failed_write_of_the_ledger_is_counted_and_shown_until_a_write_succeeds(node: Node, metrics: Metrics) -> None:
    with full_disk(node.ledger.path):
        with pytest.raises(StateError):
            node.ledger.record(grant("p", "c", whole(0)))
        assert samples(metrics)["lading_hooks_ledger_write_failures_total"] == 1
        assert node.ledger.last_write
    node.ledger.record(grant("p", "c", whole(0)))
    assert samples(metrics)["lading_hooks_ledger_write_failures_total"] == 1
    assert node.ledger.last_write == ""
