"""Test VFs that move into pods: a real ledger with its journal, a runtime of two lists, an attacher that moves nothing."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hooks.attach.preparer import Operation
from hooks.grant.unhealthy import Unhealthy
from hooks.ledger.attachment import parse_attachments
from hooks.ledger.period import End, Ended
from hooks.ledger.store import read_history
from hooks.model.assignment import Refusal
from hooks.model.attachment import NetdevPolicy, Step, VfSettings
from hooks.model.container import Answer, Container, Sandbox
from hooks.model.inventory import Vf
from hooks.node import node as node_module
from hooks.node import unreported
from hooks.node.node import Node
from lading.log import Event, Log
from lading.reasons import Reason
from lading.vocabulary import ATTACHMENTS, GRANT, PciAddress, PodUid, SandboxId
from tests.coroutines import until
from tests.fakes import holders
from tests.fakes.full_disk import full_disk
from tests.fakes.records import Records
from tests.unit.hooks import inventories
from tests.unit.hooks.inventories import inventory
from tests.unit.hooks.node.rig import Rig, reason, sandbox_of
from tests.unit.hooks.rules import RULES as NO_NETDEVS

POLICY = NetdevPolicy(attaches=True, by_default=True)
RULES = replace(NO_NETDEVS, netdev=POLICY)
TWO = {"lading.dev/vfs": "2"}


def vf(number: int, *, netdev: str | None = None, unhealthy: str = "") -> Vf:
    at = inventories.vf(number, unhealthy=unhealthy)
    return replace(at, link_layer="Ethernet", netdev=f"eth{number}" if netdev is None else netdev)


BDFS = [vf(i).bdf for i in range(4)]
HOME = inventory(vfs=tuple(vf(i) for i in range(4)))


@pytest.fixture
def rig(tmp_path: Path, log: Log) -> Rig:
    return Rig(tmp_path, log, rules=RULES, devices=HOME)


async def ask(node: Node, sandbox: Sandbox, name: str = "train") -> Answer | Refusal:
    """Ask the node for a container's devices as a front end does."""
    answer = node.adjust_container(sandbox, Container(name=name))
    return answer if isinstance(answer, Answer | Refusal) else await answer


async def stop(node: Node, sandbox: Sandbox) -> None:
    """Ask before the runtime stops a sandbox that has VFs."""
    undone = node.stopping(sandbox)
    assert undone is not None
    await undone


async def create(rig: Rig, node: Node, pod: str, sandbox: str, name: str = "train") -> str:
    answer = await ask(node, sandbox_of(pod, sandbox, TWO), name)
    assert isinstance(answer, Answer), answer
    annotations = answer.adjustment.annotations
    return rig.runtime.create(sandbox, name, wears=annotations[GRANT], attached=annotations[ATTACHMENTS])


def given(node: Node, pod: str) -> list[PciAddress]:
    grant = node.ledger.find(PodUid(pod), "train")
    return [one.bdf for one in grant.devices.vfs] if grant else []


def rows(node: Node) -> dict[PciAddress, Step]:
    return {row.bdf: row.step for row in node.ledger.journal.rows()}


def ending(rig: Rig, node: Node) -> bool:
    """Return whether VFs wait for their release, so that the node compares again soon."""
    return rig.vfs.ending(node.ledger.is_stopped, node.ledger.grants())


async def test_the_node_compares_again_soon_while_vfs_wait_for_their_release(
    monkeypatch: pytest.MonkeyPatch, rig: Rig, node: Node
) -> None:
    monkeypatch.setattr(node_module, "RELEASE_RETRY_S", 0.0)
    monkeypatch.setattr(unreported, "AGAIN_S", 3600.0)
    give_up(rig)
    sandbox = rig.runtime.run("pod-1")
    rig.runtime.exit(await create(rig, node, "pod-1", sandbox))
    await rig.read_inventory(node, vf(0), replace(vf(1), driver="", unhealthy="no driver"), vf(2), vf(3))
    assert isinstance(await ask(node, sandbox_of("pod-1", sandbox, TWO)), Answer)
    rig.attacher.stuck = True
    keeping = asyncio.create_task(node.keep_reconciled())
    await until(lambda: len(rig.attacher.reconciled) > 5)
    assert set(rows(node)) == set(BDFS[:3])
    rig.attacher.stuck = False
    await until(lambda: set(rows(node)) == {BDFS[0], BDFS[2]})
    keeping.cancel()


# in


async def test_the_answer_has_the_attachments_as_the_journal_has_them(rig: Rig, node: Node) -> None:
    sandbox = rig.runtime.run("pod-1")
    answer = await ask(node, sandbox_of("pod-1", sandbox, TWO))
    assert isinstance(answer, Answer)
    attached = parse_attachments(answer.adjustment.annotations[ATTACHMENTS])
    assert attached == node.ledger.journal.rows()
    assert [row.bdf for row in attached] == given(node, "pod-1") == BDFS[:2]
    assert rig.moved == [(Operation.ATTACH, True)]
    again = await ask(node, sandbox_of("pod-1", sandbox, TWO))
    assert isinstance(again, Answer)
    assert again.adjustment == answer.adjustment


async def test_a_new_sandbox_begins_the_attachments_of_its_containers(rig: Rig, node: Node) -> None:
    sandbox = sandbox_of("pod-1", rig.runtime.run("pod-1"), {"lading.dev/vfs.train": BDFS[0], "lading.dev/gpus.other": "0"})
    work = node.sandbox_created(sandbox)
    assert work is not None
    await work
    assert given(node, "pod-1") == BDFS[:1]
    assert rig.moved == [(Operation.ATTACH, True)]
    answer = await ask(node, sandbox)
    assert isinstance(answer, Answer)
    assert answer.reused


@pytest.mark.parametrize("annotations", [{"example.com/x": "y"}, {"lading.dev/vfs.train": "no such"}, TWO])
async def test_a_sandbox_whose_annotations_give_no_container_a_vf_begins_nothing(
    annotations: dict[str, str], rig: Rig, node: Node
) -> None:
    work = node.sandbox_created(sandbox_of("pod-1", rig.runtime.run("pod-1"), annotations))
    if work is not None:
        await work
    assert node.ledger.grants() == ()


async def test_the_grant_is_written_before_anything_moves(rig: Rig, node: Node) -> None:
    rig.attacher.pause()
    asking = asyncio.create_task(ask(node, sandbox_of("pod-1", rig.runtime.run("pod-1"), TWO)))
    await until(lambda: bool(rig.attacher.asked))
    assert given(node, "pod-1") == BDFS[:2]
    assert not asking.done()
    other = await asyncio.wait_for(ask(node, sandbox_of("pod-2", "s9", {"example.com/x": "y"})), 1)
    assert isinstance(other, Answer)  # no one else waits
    rig.attacher.go_on()
    assert isinstance(await asking, Answer)


async def test_a_refusal_is_the_answer_and_the_grant_stays_for_the_retry(
    monkeypatch: pytest.MonkeyPatch, rig: Rig, node: Node
) -> None:
    for module, name in ((node_module, "RELEASE_RETRY_S"), (node_module, "RETRY_S"), (unreported, "AGAIN_S")):
        monkeypatch.setattr(module, name, 3600.0)
    keeping = asyncio.create_task(node.keep_reconciled())
    await until(lambda: node.reconcile_age_s < math.inf)
    rig.attacher.refuses = True
    sandbox = rig.runtime.run("pod-1")
    assert reason(await ask(node, sandbox_of("pod-1", sandbox, TWO))) is Reason.ATTACH_FAILED
    assert rig.moved == [(Operation.ATTACH, False)]
    before = len(rig.attacher.reconciled)
    await until(lambda: len(rig.attacher.reconciled) > before)  # undoing is tried again at once, not in an hour
    keeping.cancel()
    rig.attacher.refuses = False
    assert isinstance(await ask(node, sandbox_of("pod-1", sandbox, TWO)), Answer)
    assert given(node, "pod-1") == BDFS[:2]


async def test_a_pod_in_the_hosts_network_is_refused_before_it_has_a_grant(rig: Rig, node: Node) -> None:
    sandbox = sandbox_of("pod-1", rig.runtime.run("pod-1"), TWO, host_network=True)
    assert reason(await ask(node, sandbox)) is Reason.HOST_NETWORK
    assert (node.ledger.grants(), rig.attacher.asked) == ((), [])


async def test_without_network_devices_an_answer_has_no_attachments(rig: Rig) -> None:
    rig.rules = replace(RULES, netdev=NetdevPolicy(attaches=True))
    async with rig.node() as node:
        answer = await ask(node, sandbox_of("pod-1", rig.runtime.run("pod-1"), TWO))
        assert isinstance(answer, Answer)
        assert set(answer.adjustment.annotations) == {GRANT}
        assert [one.netdev for one in rig.attacher.asked[0]] == [False, False]


# while it is away


async def test_a_vf_in_a_pod_is_healthy_and_its_container_may_restart(records: Records, rig: Rig, node: Node) -> None:
    """Check a VF without a network device in sysfs."""
    sandbox = rig.runtime.run("pod-1")
    container = await create(rig, node, "pod-1", sandbox)
    await rig.read_inventory(node, vf(0, netdev=""), vf(1, netdev=""), vf(2), vf(3))
    await node.reconcile()
    assert node.inventory == HOME
    assert node.unhealthy == ()
    rig.runtime.exit(container)
    assert isinstance(await ask(node, sandbox_of("pod-1", sandbox, TWO)), Answer)
    assert records.events().count(Event.DEVICE_UNHEALTHY) == 0


async def test_a_vf_that_failed_is_reported_with_its_reason(rig: Rig, node: Node) -> None:
    await create(rig, node, "pod-1", rig.runtime.run("pod-1"))
    row = node.ledger.journal.rows()[0]
    node.ledger.journal.reach(row.bdf, row.generation, Step.ATTACHED, failure="the driver hangs")
    watch, node.watch = node.watch, None
    before_the_first_look = node.unhealthy  # no one can say
    assert before_the_first_look == ()
    node.watch = watch
    (text,) = node.unhealthy
    assert row.bdf in text
    assert "default/name-of-pod-1/train" in text
    assert "the driver hangs" in text


async def test_an_unhealthy_device_is_reported_with_its_holder(records: Records, rig: Rig, node: Node) -> None:
    await create(rig, node, "pod-1", rig.runtime.run("pod-1"))
    await rig.read_inventory(node, replace(vf(0), driver="", unhealthy="no driver is bound to it"), vf(1), vf(2), vf(3))
    (fields,) = records.fields(Event.DEVICE_UNHEALTHY)
    assert (fields["device"], fields["pod_uid"], fields["container"]) == (BDFS[0], "pod-1", "train")


async def test_a_vf_that_another_program_moved_is_checked_twice_and_then_not_given(
    records: Records, rig: Rig, node: Node
) -> None:
    await rig.read_inventory(node, vf(0, netdev=""), vf(1), vf(2), vf(3))
    rig.devices = HOME  # it was away when that was read, and is back
    await node.reconcile()
    assert rig.vfs.strays == frozenset()
    await rig.read_inventory(node, vf(0, netdev=""), vf(1), vf(2), vf(3))
    await node.reconcile()
    await node.reconcile()
    assert rig.vfs.strays == {BDFS[0]}
    assert [fields["device"] for fields in records.fields(Event.VF_UNKNOWN_HOLDER)] == [BDFS[0]]
    assert isinstance(await ask(node, sandbox_of("pod-1", rig.runtime.run("pod-1"), TWO)), Answer)
    assert given(node, "pod-1") == BDFS[1:3]
    named = sandbox_of("pod-2", rig.runtime.run("pod-2"), {"lading.dev/vfs": BDFS[0]})
    assert reason(await ask(node, named)) is Reason.DEVICE_UNHEALTHY
    await rig.read_inventory(node, vf(0), vf(1, netdev=""), vf(2, netdev=""), vf(3))
    await node.reconcile()
    assert rig.vfs.strays == frozenset()
    await rig.read_inventory(node, vf(0, netdev=""), vf(1, netdev=""), vf(2, netdev=""), vf(3))
    await node.reconcile()
    assert len(records.fields(Event.VF_UNKNOWN_HOLDER)) == 2  # it went again


async def test_the_reported_time_is_of_deciding_without_attaching(
    monkeypatch: pytest.MonkeyPatch, rig: Rig, node: Node
) -> None:
    now, reported = [0.0], list[float]()
    monkeypatch.setattr("hooks.node.node.time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: 0.0))
    node.answered = lambda _, seconds: reported.append(seconds)
    rig.attacher.pause()
    asked = asyncio.create_task(ask(node, sandbox_of("pod-1", rig.runtime.run("pod-1"), TWO)))
    await asyncio.sleep(0)
    now[0] += 7.0
    rig.attacher.go_on()
    assert isinstance(await asked, Answer)
    assert reported == [0.0]


# out


async def test_a_stop_returns_the_vfs_and_then_ends_the_grants(rig: Rig, node: Node) -> None:
    sandbox = rig.runtime.run("pod-1")
    await create(rig, node, "pod-1", sandbox)
    await stop(node, sandbox_of("pod-1", sandbox, TWO))
    assert rows(node) == {}
    assert rig.moved[-1] == (Operation.RELEASE, True)
    rig.runtime.stop(sandbox)
    node.stopped(sandbox_of("pod-1", sandbox, TWO))
    rig.runtime.run("another")
    await node.reconcile()
    assert node.ledger.grants() == ()


async def test_a_stop_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch, rig: Rig, node: Node) -> None:
    """Check that a release that takes longer continues, and the grant stays until it is done; then the grant ends without
    another minute."""
    monkeypatch.setattr("hooks.attach.preparer.STOP_WAIT_S", 0.01)
    sandbox = rig.runtime.run("pod-1")
    rig.runtime.run("another")
    await create(rig, node, "pod-1", sandbox)
    rig.attacher.pause()
    await stop(node, sandbox_of("pod-1", sandbox, TWO))
    assert rig.moved[-1] == (Operation.RELEASE, False)
    rig.runtime.stop(sandbox)
    node.stopped(sandbox_of("pod-1", sandbox, TWO))
    comparing = asyncio.create_task(node.reconcile())
    await until(lambda: len(rig.attacher.reconciled) > 1)
    assert given(node, "pod-1") == BDFS[:2]
    assert ending(rig, node)
    other = await ask(node, sandbox_of("pod-2", rig.runtime.run("pod-2"), {"lading.dev/vfs": "3"}))
    assert reason(other) is Reason.CAPACITY_EXCEEDED
    node.ledger.release(PodUid("pod-1"), end=End(at=0))  # a person may do this: the row alone holds them
    other = await ask(node, sandbox_of("pod-2", "s9", {"lading.dev/vfs": BDFS[0]}))
    assert reason(other) is Reason.DEVICE_HELD
    comparing.cancel()
    rig.attacher.go_on()
    await until(lambda: rows(node) == {})


async def test_vfs_that_return_late_are_free_without_another_wait(
    monkeypatch: pytest.MonkeyPatch, rig: Rig, node: Node
) -> None:
    monkeypatch.setattr("hooks.node.node.RELEASE_RETRY_S", 3600.0)
    sandbox = rig.runtime.run("pod-1")
    rig.runtime.run("another")
    await create(rig, node, "pod-1", sandbox)
    keeping = asyncio.create_task(node.keep_reconciled())
    rig.runtime.stop(sandbox)
    node.ledger.tombstone(SandboxId(sandbox), 0)  # heard before we were started again
    await until(lambda: node.ledger.grants() == ())
    assert rows(node) == {}
    keeping.cancel()


@pytest.mark.parametrize("down", [True, False])
async def test_lists_that_failed_or_are_empty_release_nothing(down: bool, rig: Rig, node: Node) -> None:
    sandbox = rig.runtime.run("pod-1")
    await create(rig, node, "pod-1", sandbox)
    rig.runtime.down = down
    rig.runtime.remove(sandbox)
    await node.reconcile()
    assert set(rows(node)) == set(BDFS[:2])


async def test_a_release_that_had_begun_goes_on_without_the_runtimes_lists(rig: Rig, node: Node) -> None:
    sandbox = rig.runtime.run("pod-1")
    await create(rig, node, "pod-1", sandbox)
    rig.runtime.remove(sandbox)
    begun = node.ledger.journal.rows()[0]
    node.ledger.journal.reach(begun.bdf, begun.generation, Step.RESTORING)
    await node.reconcile()
    assert set(rows(node)) == set(BDFS[:2]) - {begun.bdf}


async def test_the_attacher_is_notified_which_sandboxes_are_ready_or_have_live_containers(rig: Rig, node: Node) -> None:
    one, other, empty = (rig.runtime.run(f"pod-{i}") for i in (1, 2, 3))
    kept = rig.runtime.create(other, "train")
    rig.runtime.stop(other, but=kept)
    exited = rig.runtime.create(one, "train")
    rig.runtime.exit(exited)
    await node.reconcile()
    ready, live, unheld = rig.attacher.reconciled[-1]
    assert ready == {SandboxId(one), SandboxId(empty)}
    assert live == {SandboxId(other)}
    assert not unheld


async def test_attachments_begun_during_the_lists_are_not_compared_with_them(rig: Rig, node: Node) -> None:
    await create(rig, node, "pod-1", rig.runtime.run("pod-1"))
    before = {row.generation for row in node.ledger.journal.rows()}
    asked = rig.runtime.asked
    rig.runtime.pause()
    comparing = asyncio.create_task(node.reconcile())
    await until(lambda: rig.runtime.asked > asked)
    await ask(node, sandbox_of("pod-2", "s9", TWO))
    rig.runtime.go_on()
    await comparing
    assert rig.attacher.known == before


# after a ledger was lost


async def test_an_adopted_grant_has_its_attachments_again(rig: Rig) -> None:
    async with rig.node() as node:
        await create(rig, node, "pod-1", rig.runtime.run("pod-1"))
        before = node.ledger.journal.rows()
    (rig.folder / "state" / "node.db").rename(rig.folder / "lost.db")
    for left in (rig.folder / "state").iterdir():
        left.unlink()
    async with rig.node() as node:
        assert given(node, "pod-1") == BDFS[:2]
        assert node.ledger.journal.rows() == before
        assert all(row.step is Step.ATTACHED for row in before)


# a device that became unhealthy


def give_up(rig: Rig) -> None:
    rig.rules = replace(RULES, unhealthy=Unhealthy.GIVE_UP)


async def test_by_default_a_container_waits_for_its_unhealthy_device(rig: Rig, node: Node) -> None:
    sandbox = rig.runtime.run("pod-1")
    rig.runtime.exit(await create(rig, node, "pod-1", sandbox))
    await rig.read_inventory(node, vf(0), replace(vf(1), driver="", unhealthy="no driver"), vf(2), vf(3))
    assert reason(await ask(node, sandbox_of("pod-1", sandbox, TWO))) is Reason.DEVICE_UNHEALTHY
    assert given(node, "pod-1") == BDFS[:2]
    await rig.read_inventory(node, vf(0), vf(1), vf(2), vf(3))
    assert isinstance(await ask(node, sandbox_of("pod-1", sandbox, TWO)), Answer)


async def test_with_give_up_a_container_gets_another_vf_and_the_unhealthy_vf_returns(
    records: Records, rig: Rig, node: Node
) -> None:
    give_up(rig)
    sandbox = rig.runtime.run("pod-1")
    rig.runtime.exit(await create(rig, node, "pod-1", sandbox))
    await rig.read_inventory(node, vf(0), replace(vf(1), driver="", unhealthy="no driver"), vf(2), vf(3))
    answer = await ask(node, sandbox_of("pod-1", sandbox, TWO))
    assert isinstance(answer, Answer)
    assert not answer.reused
    assert given(node, "pod-1") == [BDFS[0], BDFS[2]]
    assert set(rows(node)) == set(BDFS[:3])
    assert ending(rig, node)
    await node.reconcile()
    assert set(rows(node)) == {BDFS[0], BDFS[2]}
    assert len(records.fields(Event.GRANT_RELEASED)) == 1
    first, second = read_history(node.ledger.path)
    assert (first.devices.names, second.devices.names) == (BDFS[:2], [BDFS[0], BDFS[2]])
    assert (first.end.how if first.end else None, second.end) == (Ended.GIVEN_UP, None)
    again = await ask(node, sandbox_of("pod-1", sandbox, TWO))
    assert isinstance(again, Answer)
    assert again.reused


async def test_a_device_is_not_given_up_while_the_ledger_cannot_be_written(rig: Rig, node: Node) -> None:
    give_up(rig)
    sandbox = rig.runtime.run("pod-1")
    rig.runtime.exit(await create(rig, node, "pod-1", sandbox))
    await rig.read_inventory(node, vf(0), replace(vf(1), driver="", unhealthy="no driver"), vf(2), vf(3))
    with full_disk(node.ledger.path):
        assert reason(await ask(node, sandbox_of("pod-1", sandbox, TWO))) is Reason.LEDGER_UNAVAILABLE
    assert given(node, "pod-1") == BDFS[:2]


async def test_attachments_of_an_earlier_setting_still_hold_their_vfs(rig: Rig) -> None:
    rig.rules = NO_NETDEVS
    async with rig.node() as node:
        row = replace(holders.row(pod="pod-9", sandbox=rig.runtime.run("pod-9")), vf=vf(0))
        node.ledger.journal.begin(row)
        assert reason(await ask(node, sandbox_of("pod-1", "s1", {"lading.dev/vfs": BDFS[0]}))) is Reason.DEVICE_HELD
        assert rows(node) == {BDFS[0]: Step.ATTACHED}
        await stop(node, sandbox_of("pod-9", row.sandbox, TWO))
        assert rows(node) == {}


async def test_a_vf_is_attached_with_the_settings_of_its_grant(rig: Rig) -> None:
    rig.rules = replace(RULES, netdev=replace(RULES.netdev, settings=VfSettings(mtu=4000)))
    async with rig.node() as node:
        assert isinstance(await ask(node, sandbox_of("pod-1", rig.runtime.run("pod-1"), TWO)), Answer)
        assert {row.settings for row in node.ledger.journal.rows()} == {VfSettings(mtu=4000)}


async def test_the_shown_inventory_is_built_once_for_each_change(rig: Rig, node: Node) -> None:
    """Count the builds: a container without a VF needs the overlay too, beside pods with hundreds of VFs."""
    at_home = node.inventory
    await create(rig, node, "p1", rig.runtime.run("p1"))
    away = node.inventory
    assert away is not at_home
    assert node.inventory is away
    await rig.read_inventory(node, vf(0, netdev=""), *HOME.vfs[1:])
    assert node.inventory is not away
    assert node.inventory == away


async def test_a_vf_that_cni_brings_back_is_held_until_the_stop_has_succeeded(rig: Rig) -> None:
    """Check a VF between the end of the sandbox in the runtime's list and CNI's DEL, which runs later."""
    rig.rules = replace(RULES, netdev=NetdevPolicy(by_cni=True))
    async with rig.node() as node:
        sandbox = rig.runtime.run("p1")
        answer = await ask(node, sandbox_of("p1", sandbox, TWO))
        assert isinstance(answer, Answer)
        rig.runtime.create(sandbox, "train", wears=answer.adjustment.annotations[GRANT])
        node.stopping(sandbox_of("p1", sandbox, TWO))
        rig.runtime.stop(sandbox)
        await node.reconcile()
        assert given(node, "p1")
        node.stopped(sandbox_of("p1", sandbox, TWO))
        await node.reconcile()
        assert not given(node, "p1")


async def test_a_stop_that_timed_out_holds_no_vf(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
    rig.rules = replace(RULES, netdev=NetdevPolicy(by_cni=True))
    async with rig.node() as node:
        sandbox = rig.runtime.run("p1")
        assert isinstance(await ask(node, sandbox_of("p1", sandbox, TWO)), Answer)
        node.stopping(sandbox_of("p1", sandbox, TWO))
        rig.runtime.stop(sandbox)
        monkeypatch.setattr("hooks.node.life.STOPPING_S", -1.0)
        await node.reconcile()
        assert not given(node, "p1")


async def test_after_a_change_to_cni_attached_vfs_return_and_vfs_that_cni_moves_are_no_strays(rig: Rig) -> None:
    sandbox = rig.runtime.run("p1")
    async with rig.node() as node:
        await create(rig, node, "p1", sandbox)
    rig.rules = replace(RULES, netdev=NetdevPolicy(by_cni=True))
    async with rig.node() as node:
        await rig.read_inventory(node, vf(0, netdev=""), vf(1, netdev=""), vf(2, netdev=""), vf(3))
        await node.reconcile()
        assert (len(rows(node)), rig.vfs.strays, node.unhealthy) == (2, frozenset(), ())
        await stop(node, sandbox_of("p1", sandbox, TWO))
        assert rows(node) == {}
        rig.runtime.stop(sandbox)
        node.stopped(sandbox_of("p1", sandbox, TWO))
        await node.reconcile()
        assert not given(node, "p1")


async def test_a_grant_is_not_released_while_its_container_is_not_answered(rig: Rig, node: Node) -> None:
    """Check a sandbox that dies while a container of it is created again: its devices must not be another pod's when the answer
    is sent."""
    sandbox = rig.runtime.run("p1")
    container = await create(rig, node, "p1", sandbox)
    rig.runtime.exit(container)
    for row in node.ledger.journal.rows():
        node.ledger.journal.forget(row.bdf, row.generation)
    rig.attacher.pause()
    asking = asyncio.create_task(ask(node, sandbox_of("p1", sandbox, TWO)))
    await until(lambda: len(rig.attacher.asked) == 2)
    for row in node.ledger.journal.rows():
        node.ledger.journal.forget(row.bdf, row.generation)  # the state before the first step
    rig.runtime.stop(sandbox)
    node.clock = lambda: 10**10
    await node.reconcile()
    await node.reconcile()
    assert given(node, "p1")
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await node.reconcile()
    await node.reconcile()
    assert not given(node, "p1")


async def test_vfs_of_a_nodes_last_pod_come_back_although_its_end_was_not_reported(
    monkeypatch: pytest.MonkeyPatch, rig: Rig
) -> None:
    sandbox = rig.runtime.run("pod-1")
    async with rig.node() as node:
        assert isinstance(await ask(node, sandbox_of("pod-1", sandbox, TWO)), Answer)
    rig.runtime.remove(sandbox)
    async with rig.node() as node:
        assert len(node.ledger.journal.rows()) == 2
        monkeypatch.setattr(unreported, "EMPTY_S", 0.0)  # the time is over
        await node.reconcile()
        await node.reconcile()
        assert (node.ledger.journal.rows(), node.ledger.grants()) == ((), ())
