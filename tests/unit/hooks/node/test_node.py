"""Test a node: a real ledger, a runtime of two lists, a hand-made inventory."""

import asyncio
import json
import socket
import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hooks.grant.dirty import CleanCheck, CleanRule
from hooks.ledger.period import Began, End
from hooks.ledger.store import read_history
from hooks.model.assignment import Form, GrantedDevices, GrantedGpu, Refusal, Trust
from hooks.model.container import Answer, Container
from hooks.model.inventory import DriverMount, Inventory
from hooks.node import node as node_module
from hooks.node import unreported
from hooks.node.bypass import Bypassed
from hooks.node.node import Node
from hooks.vendors.nvidia.settings import NvidiaSettings
from hooks.vendors.nvidia.vendor import Nvidia
from lading.log import Event, Level
from lading.reasons import Reason
from lading.signature import sign
from lading.vocabulary import ASSIGNMENT, ASSIGNMENT_SIGNATURE, GpuUuid, PodUid, SandboxId
from tests.coroutines import until
from tests.fakes.full_disk import full_disk
from tests.fakes.holders import NOW, grant, whole
from tests.fakes.holders import gpu_uuid as held_uuid
from tests.fakes.records import Records
from tests.unit.hooks.inventories import gpu, inventory, mig_gpu, running, uuid, vf
from tests.unit.hooks.node.rig import DEVICES, GPU_0, Rig, holders, reason, sandbox_of
from tests.unit.hooks.rules import RULES


async def after_reading(node: Node, pod: str = "pod-1", cards: str = "0") -> Answer | Refusal:
    """Ask for what is decided again after a new reading."""
    answer = node.adjust_container(sandbox_of(pod, "s0", {"lading.dev/gpus": cards}), Container(name="train"))
    assert not isinstance(answer, Answer | Refusal)
    return await answer


# release


async def test_devices_of_a_stopped_sandbox_are_free_at_once(records: Records, rig: Rig, node: Node) -> None:
    """Check that the grants are released without a grace period, because the hook server observed the stop of the pod."""
    rig.clock = lambda: NOW + 0.5
    sandbox = rig.run_pod(node, "pod-1")
    freed_after: list[float] = []
    node.released = freed_after.append
    rig.stop(node, "pod-1", sandbox)
    assert await node.reconcile()
    assert holders(node) == set()
    assert not node.life.stopped
    (seconds,) = freed_after
    assert 0 <= seconds < 10
    (period,) = read_history(node.ledger.path)
    assert (period.began, period.key_id) == (Began.CREATED, "")
    assert period.end == End(at=NOW)
    assert isinstance(rig.ask(node, "pod-2", rig.runtime.run("pod-2")), Answer)
    assert records.fields(Event.GRANT_RELEASED)[0]["devices"] == uuid(0)


async def test_a_sandbox_that_was_not_observed_to_stop_has_its_grace(rig: Rig, node: Node) -> None:
    sandbox = rig.run_pod(node, "pod-1")
    rig.runtime.stop(sandbox)
    await node.reconcile()
    assert holders(node) == {"pod-1"}


async def test_a_pod_with_a_newer_sandbox_keeps_its_devices(rig: Rig, node: Node) -> None:
    old = rig.run_pod(node, "pod-1")
    rig.stop(node, "pod-1", old)
    new = rig.runtime.run("pod-1")
    await node.reconcile()
    assert holders(node) == {"pod-1"}
    assert not node.life.stopped  # or it would be looked at every two seconds for as long as the pod lives
    answer = rig.ask(node, "pod-1", new)
    assert isinstance(answer, Answer)
    assert answer.reused


async def test_a_stop_during_the_runtimes_lists_is_compared_next_time(rig: Rig, node: Node) -> None:
    sandbox = rig.run_pod(node, "pod-1")
    rig.runtime.pause()
    comparing = asyncio.create_task(node.reconcile())
    await asyncio.sleep(0)
    rig.stop(node, "pod-1", sandbox)
    rig.runtime.go_on()
    await comparing
    assert holders(node) == {"pod-1"}
    assert node.life.stopped == {"pod-1"}
    await node.reconcile()
    assert holders(node) == set()


async def test_a_container_that_outlives_its_sandbox_keeps_its_devices_until_it_exits(rig: Rig, node: Node) -> None:
    sandbox = rig.runtime.run("pod-1")
    container = rig.create(node, "pod-1", sandbox)
    rig.stop(node, "pod-1", sandbox, but=container)
    await node.reconcile()
    assert reason(rig.ask(node, "pod-2", rig.runtime.run("pod-2"))) is Reason.DEVICE_HELD
    assert node.life.stopped == {"pod-1"}  # it is looked at again soon
    rig.runtime.exit(container)
    await node.reconcile()
    assert holders(node) == set()


async def test_an_unreported_end_of_a_pod_is_found_by_two_comparisons_after_the_start(
    monkeypatch: pytest.MonkeyPatch, rig: Rig
) -> None:
    """Kill the daemon during the stop. The pod's grant is young, and the next periodic comparison is an hour away."""
    monkeypatch.setattr(unreported, "AGAIN_S", 0.0)
    rig.runtime.run("other")
    sandbox = rig.runtime.run("pod-1")
    async with rig.node() as node:
        rig.create(node, "pod-1", sandbox)
    async with rig.node(reconciled=False) as node:
        assert holders(node) == {"pod-1"}
        keeping = asyncio.create_task(node.keep_reconciled())
        await until(lambda: node.reconciled)
        rig.runtime.stop(sandbox)
        await until(lambda: not holders(node))
        keeping.cancel()


async def test_the_node_compares_again_soon_while_a_container_of_a_stopped_sandbox_lives(
    monkeypatch: pytest.MonkeyPatch, rig: Rig
) -> None:
    monkeypatch.setattr(node_module, "RELEASE_RETRY_S", 0.0)
    monkeypatch.setattr(unreported, "AGAIN_S", 3600.0)
    async with rig.node(reconciled=False) as node:
        sandbox = rig.runtime.run("pod-1")
        await node.reconcile()
        container = rig.create(node, "pod-1", sandbox)
        rig.stop(node, "pod-1", sandbox, but=container)
        keeping = asyncio.create_task(node.keep_reconciled())
        await until(lambda: rig.runtime.asked > 5)
        assert holders(node) == {"pod-1"}
        rig.runtime.exit(container)
        await until(lambda: not holders(node))
        keeping.cancel()


async def test_after_the_start_comparisons_follow_one_another_only_until_two_agree(
    monkeypatch: pytest.MonkeyPatch, rig: Rig
) -> None:
    monkeypatch.setattr(unreported, "AGAIN_S", 0.0)
    async with rig.node(reconciled=False) as node:
        keeping = asyncio.create_task(node.keep_reconciled())
        await until(lambda: rig.runtime.asked == 2)
        await asyncio.sleep(0.05)  # with AGAIN_S = 0 another comparison would come at once, but threads take part in it
        assert rig.runtime.asked == 2
        keeping.cancel()


async def test_the_last_pod_of_a_node_may_end_while_the_daemon_does_not_run(
    rig: Rig, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that an empty list counts once it was empty for a while, and that the time until then is shown."""
    rig.clock = lambda: NOW
    async with rig.node() as node:
        sandbox = rig.run_pod(node, "pod-1")
    rig.runtime.remove(sandbox)
    async with rig.node() as node:
        assert holders(node) == {"pod-1"}
        assert unreported.read_empty_until(node.ledger.path.parent) == int(NOW + unreported.EMPTY_S)
        monkeypatch.setattr(unreported, "EMPTY_S", 0.0)  # the time is over
        await node.reconcile()
        assert holders(node) == set()
        await node.reconcile()
        assert unreported.read_empty_until(node.ledger.path.parent) is None
    assert "for 60 s" in records.text()


@pytest.mark.parametrize("down", [True, False])
async def test_a_failed_or_empty_list_releases_nothing(down: bool, rig: Rig, node: Node) -> None:
    """Check a failed list, and an empty one except after the stop of the node's last pod was observed
    (tests/unit/hooks/ledger/test_reconcile.py)."""
    sandbox = rig.run_pod(node, "pod-1")
    if down:
        rig.stop(node, "pod-1", sandbox)
    rig.runtime.remove(sandbox)
    rig.runtime.down = down
    assert await node.reconcile() is not down
    assert holders(node) == {"pod-1"}


async def test_calls_are_answered_while_annotations_are_compared(monkeypatch: pytest.MonkeyPatch, node: Node) -> None:
    """Check it with long annotations, whose length a pod's author decides."""
    loop, answered = asyncio.get_running_loop(), threading.Event()

    def compared(*_: object, **__: object) -> tuple[Bypassed, ...]:
        loop.call_soon_threadsafe(answered.set)
        assert answered.wait(5), "the loop has no turn"
        return ()

    monkeypatch.setattr(node_module, "find_bypassed", compared)
    assert await node.reconcile()


@pytest.mark.parametrize(
    ("made_with", "asked_with", "accepts"),
    [
        (GPU_0, {}, Form.MANUAL),  # removed since the sandbox was made
        (GPU_0, {"lading.dev/gpus.train": "0"}, Form.MANUAL),  # another container's since
        ({"lading.dev/gpus.train": "0"}, {"lading.dev/gpus.train": "0"}, Form.SIGNED),  # the node accepts other forms since
    ],
)
async def test_a_container_that_was_answered_without_devices_is_not_reported_as_bypassed(
    records: Records, made_with: dict[str, str], asked_with: dict[str, str], accepts: Form, rig: Rig
) -> None:
    sandbox = rig.runtime.run("a", made_with)
    async with rig.node(reconciled=False) as node:
        rig.create(node, "a", sandbox, asked_with, "side")
    rig.rules = replace(RULES, trust=Trust(accepted=frozenset({accepts})))
    async with rig.node(reconciled=False) as node:  # a restart: only the container's annotation tells
        assert await node.reconcile()
        assert [one.pod for one in node.bypassed] == []
        rig.runtime.create(rig.runtime.run("b", GPU_0), "train")
        assert await node.reconcile()
        assert [one.pod for one in node.bypassed] == ["b"]
    assert [fields["pod_uid"] for fields in records.fields(Event.CONTAINER_BYPASSED)] == ["b"]
    assert Event.LEDGER_FAILED not in records.events()


async def test_a_pod_that_is_being_answered_is_left_alone(rig: Rig, node: Node) -> None:
    """Check a sandbox that is newer than the lists, which have only the stopped one."""
    old = rig.run_pod(node, "pod-1")
    rig.stop(node, "pod-1", old)
    rig.runtime.pause()
    comparing = asyncio.create_task(node.reconcile())
    await asyncio.sleep(0)
    assert isinstance(rig.ask(node, "pod-1", rig.runtime.run("pod-1")), Answer)
    rig.runtime.go_on()
    await comparing
    assert holders(node) == {"pod-1"}


async def test_the_comparison_runs_soon_after_a_stop(rig: Rig) -> None:
    async with rig.node(reconciled=False) as node:
        keeping = asyncio.create_task(node.keep_reconciled())
        await until(lambda: node.reconciled)
        sandbox = rig.run_pod(node, "pod-1")
        asked = rig.runtime.asked
        rig.stop(node, "pod-1", sandbox)
        await until(lambda: not holders(node))
        assert rig.runtime.asked == asked + 1
        keeping.cancel()


# the start


async def test_each_outage_of_the_runtime_is_reported_once(records: Records, rig: Rig) -> None:
    async with rig.node(reconciled=False) as node:
        for text in (1, 2):
            rig.runtime.down = True
            for _ in range(3):
                assert not await node.reconcile()
            assert records.events().count(Event.LEDGER_FAILED) == text
            rig.runtime.down = False
            assert await node.reconcile()


async def test_nothing_new_is_given_before_the_first_comparison(records: Records, rig: Rig) -> None:
    kept, late = rig.runtime.run("pod-1"), rig.runtime.run("pod-2")
    async with rig.node() as node:
        rig.create(node, "pod-1", kept)
    async with rig.node(reconciled=False) as node:
        rig.runtime.down = True
        assert not await node.reconcile()
        again = rig.ask(node, "pod-1", kept)
        assert isinstance(again, Answer)
        assert again.reused
        assert reason(rig.ask(node, "pod-2", late, {"lading.dev/gpus": "1"})) is Reason.NOT_RECONCILED
        rig.runtime.down = False
        assert await node.reconcile()
        assert isinstance(rig.ask(node, "pod-2", late, {"lading.dev/gpus": "1"}), Answer)
    assert len(records.fields(Event.LEDGER_RECONCILED)) == 2


async def test_a_grant_that_the_ledger_lacks_is_adopted_from_its_containers_annotation(records: Records, rig: Rig) -> None:
    lost = grant(devices=whole(0))
    container = rig.runtime.create(rig.runtime.run("pod-1"), "train", wears=lost)
    card = replace(gpu(0), uuid=held_uuid(0))
    async with rig.node(inventory(gpus=(card,))) as node:
        (adopted,) = node.ledger.grants()
        assert (adopted.key, adopted.devices, [c.id for c in adopted.containers]) == (lost.key, lost.devices, [container])
        assert reason(rig.ask(node, "pod-2", rig.runtime.run("pod-2"))) is Reason.DEVICE_HELD
        assert [period.began for period in read_history(node.ledger.path)] == [Began.ADOPTED]
    assert records.fields(Event.GRANT_ADOPTED)[0]["pod_uid"] == "pod-1"


async def test_a_ledger_that_could_not_adopt_gives_nothing_new(rig: Rig) -> None:
    """Check that a card which is free in the ledger may be in use: the holders are known but could not be written."""
    rig.runtime.create(rig.runtime.run("pod-1"), "train", wears=grant(devices=whole(0)))
    async with rig.node(inventory(gpus=(replace(gpu(0), uuid=held_uuid(0)),)), reconciled=False) as node:
        with full_disk(node.ledger.path):
            assert not await node.reconcile()
        assert reason(rig.ask(node, "pod-2", rig.runtime.run("pod-2"))) is Reason.NOT_RECONCILED
        assert await node.reconcile()
        assert reason(rig.ask(node, "pod-2", rig.runtime.run("pod-2"))) is Reason.DEVICE_HELD


async def test_without_an_inventory_no_device_is_given(rig: Rig, node: Node) -> None:
    node.watch = None
    assert reason(rig.ask(node, "pod-1", "s0")) is Reason.INVENTORY_UNAVAILABLE


# the driver's files at the moment of a decision


def with_files(rig: Rig, *names: str, socket: Path | None = None) -> Inventory:
    """Return devices whose driver has these files below the rig's folder, and perhaps a socket."""
    rig.rules = replace(RULES, vendors=(Nvidia(NvidiaSettings(driver_root=str(rig.folder))),))
    for name in names:
        (rig.folder / name).touch()
    mounts = [DriverMount(host_path=str(rig.folder / name), container_path=f"/usr/lib64/{name}") for name in names]
    if socket:
        mounts.append(DriverMount(host_path=str(socket), container_path="/run/socket", is_socket=True))
    (driver,) = DEVICES.drivers
    return replace(DEVICES, drivers=(replace(driver, mounts=tuple(mounts)),))


def mounted(answer: Answer | Refusal) -> list[str]:
    assert isinstance(answer, Answer), answer
    return [mount.container_path for mount in answer.adjustment.mounts]


@pytest.mark.parametrize("becomes", ["nothing", "folder"])
async def test_a_file_of_the_driver_that_is_deleted_since_the_devices_were_read_is_not_mounted(becomes: str, rig: Rig) -> None:
    devices = with_files(rig, "libcuda.so.1", "libnvidia-ml.so.1")
    async with rig.node(devices) as node:
        (rig.folder / "libcuda.so.1").unlink()
        if becomes == "folder":
            (rig.folder / "libcuda.so.1").mkdir()
        assert reason(rig.ask(node, "pod-1", "s0")) is Reason.DRIVER_FILES_MISSING
        assert node.ledger.grants() == ()


async def test_a_file_of_the_driver_that_is_back_is_mounted(rig: Rig) -> None:
    async with rig.node(with_files(rig, "libcuda.so.1", "libnvidia-ml.so.1")) as node:
        (rig.folder / "libcuda.so.1").unlink()
        assert reason(rig.ask(node, "pod-1", "s0")) is Reason.DRIVER_FILES_MISSING
        (rig.folder / "libcuda.so.1").touch()
        assert mounted(rig.ask(node, "pod-1", "s0")) == ["/usr/lib64/libcuda.so.1", "/usr/lib64/libnvidia-ml.so.1"]


async def test_a_socket_is_mounted_only_while_it_exists(short_folder: Path, rig: Rig) -> None:
    path = short_folder / "socket"
    async with rig.node(with_files(rig, "libcuda.so.1", socket=path)) as node:
        assert mounted(rig.ask(node, "pod-1", "s0")) == ["/usr/lib64/libcuda.so.1"]
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            assert mounted(rig.ask(node, "pod-1", "s0")) == ["/usr/lib64/libcuda.so.1", "/run/socket"]


# memory and processes that an earlier user left on a card


async def test_a_card_that_is_clean_by_now_is_given(rig: Rig) -> None:
    """Let the card's last user end after the last reading."""
    rig.rules = replace(RULES, clean=CleanRule(checks=frozenset(CleanCheck), tolerance_mib=1024))
    async with rig.node(replace(DEVICES, gpus=(replace(gpu(0), used_mib=80_000),))) as node:
        assert reason(await after_reading(node)) is Reason.DEVICE_DIRTY
        rig.devices = DEVICES
        assert isinstance(await after_reading(node), Answer)


async def test_each_answer_is_logged_and_counted_once(records: Records, rig: Rig) -> None:
    """Check that a refusal which a new reading lifts is not logged."""
    answers: list[Answer | Refusal] = []
    rig.rules = replace(RULES, clean=CleanRule(checks=frozenset(CleanCheck), tolerance_mib=1024))
    async with rig.node(replace(DEVICES, gpus=(replace(gpu(0), used_mib=80_000),)), reconciled=False) as node:
        node.answered = lambda answer, _: answers.append(answer)
        await node.reconcile()
        answered = [await after_reading(node)]
        rig.devices = DEVICES
        answered.append(await after_reading(node))
        assert answers == answered
    refused = [answer.reason for answer in answers if isinstance(answer, Refusal)]
    assert [fields["reason"] for fields in records.fields(Event.GRANT_REFUSED)] == refused == [Reason.DEVICE_DIRTY]
    assert records.events().count(Event.GRANT_CREATED) == 1


CHECKED = replace(RULES, clean=CleanRule(checks=frozenset(CleanCheck), tolerance_mib=64))


@pytest.mark.parametrize("by_hand", [False, True])
async def test_a_card_whose_last_holder_is_deleted_is_read_before_it_is_given(by_hand: bool, rig: Rig, node: Node) -> None:
    """Check a card whose memory was free at a reading that is older than the last holder's work."""
    rig.rules = CHECKED
    sandbox = rig.run_pod(node, "pod-2")
    if by_hand:
        node.ledger.release(PodUid("pod-2"), end=End(at=NOW))
    else:
        rig.stop(node, "pod-2", sandbox)
        await node.reconcile()
    rig.devices = replace(DEVICES, gpus=(replace(gpu(0), used_mib=80_000), *DEVICES.gpus[1:]))
    refusal = await after_reading(node)
    assert reason(refusal) is Reason.DEVICE_DIRTY
    assert isinstance(refusal, Refusal)
    assert "80000 MiB" in refusal.message
    assert " UTC" in refusal.message  # since when
    rig.devices = DEVICES
    assert isinstance(await after_reading(node), Answer)


async def test_only_cards_without_a_holder_and_without_instances_are_dirty(rig: Rig) -> None:
    """Check a card with instances: the driver counts the memory of all instances together."""
    rig.rules = CHECKED
    left = tuple(replace(card, used_mib=5000) for card in (gpu(0), gpu(1), mig_gpu(2)))
    rig.clock = lambda: NOW
    async with rig.node(replace(DEVICES, gpus=left), reconciled=False) as node:
        assert node.watch
        assert node.hand_over.since == {uuid(0): NOW, uuid(1): NOW}
        node.ledger.record(grant("pod-2", devices=GrantedDevices(gpus=(GrantedGpu(uuid=uuid(0)),))))
        await node.watch.refresh_now()
        assert node.hand_over.since == {uuid(1): NOW}


async def test_a_share_beside_another_one_does_not_wait_for_a_reading(rig: Rig, node: Node) -> None:
    rig.rules = CHECKED
    part = {"lading.dev/gpus": "0:memory=1Gi"}
    sandboxes = {pod: rig.runtime.run(pod, part) for pod in ("pod-2", "pod-3")}
    for pod, sandbox in sandboxes.items():
        rig.create(node, pod, sandbox, part)
    rig.stop(node, "pod-2", sandboxes["pod-2"])
    await node.reconcile()
    assert isinstance(rig.ask(node, "pod-1", "s0", part), Answer)


async def test_cards_are_restored_at_the_start_and_when_their_last_holder_is_deleted(rig: Rig) -> None:
    restored: list[frozenset[str]] = []
    go_on = threading.Event()

    def restore(cards: Collection[GpuUuid]) -> Sequence[str]:
        restored.append(frozenset(cards))
        go_on.wait(10.0)
        return ()

    async with rig.node(reconciled=False) as node:
        node.hand_over.restore = restore
        for cards in ({one.uuid for one in DEVICES.gpus}, {uuid(0)}):
            await node.reconcile()
            refusal = await after_reading(node)
            assert reason(refusal) is Reason.DEVICE_DIRTY
            assert restored[-1] == cards
            go_on.set()
            await until(lambda: not node.hand_over.waits())
            assert isinstance(rig.ask(node, "pod-1", "s0"), Answer)
            node.ledger.release(PodUid("pod-1"), end=End(at=NOW))
            go_on.clear()
        go_on.set()


# a driver that is loaded again


def bind(rig: Rig, number: int) -> int:
    """Bind the driver to a card, once more if it was bound. Return the number of the binding."""
    link = rig.folder / "sys/bus/pci/devices" / gpu(number).bdf / "driver"
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_symlink():
        link.rename(link.with_name("before"))  # so that its inode number is not free
    link.symlink_to("nvidia")
    return link.lstat().st_ino


async def test_a_card_whose_minor_changed_is_given_by_its_new_one(rig: Rig) -> None:
    """Reload the driver between two readings: the old minor is another card's."""
    before = replace(DEVICES, gpus=(replace(gpu(0, minor=2), binding=bind(rig, 0)),))
    async with rig.node(before) as node:
        bound = bind(rig, 0)
        assert reason(await after_reading(node)) is Reason.INVENTORY_UNAVAILABLE
        rig.devices = replace(DEVICES, gpus=(replace(gpu(0, minor=3), binding=bound),))
        answer = await after_reading(node)
        assert isinstance(answer, Answer)
        assert "/dev/nvidia3" in [device.container_path for device in answer.adjustment.devices]


async def test_a_driver_that_was_bound_again_concerns_its_own_card(rig: Rig) -> None:
    """Check a card that a container holds, and one that did not exist: the next reading may find it."""
    devices = replace(DEVICES, gpus=tuple(replace(gpu(n), binding=bind(rig, n)) for n in (0, 1)))
    async with rig.node(devices) as node:
        assert isinstance(rig.ask(node, "pod-1", "s0"), Answer)
        bind(rig, 0)
        assert reason(await after_reading(node)) is Reason.INVENTORY_UNAVAILABLE
        assert isinstance(rig.ask(node, "pod-2", "s1", {"lading.dev/gpus": "1"}), Answer)
        assert isinstance(rig.ask(node, "pod-3", "s2", {"lading.dev/vfs": "1"}), Answer)
        unknown = await after_reading(node, "pod-4", "7")
        assert reason(unknown) is Reason.DEVICE_UNKNOWN


# one decision at a time


async def test_interleaved_requests_never_share_a_device(rig: Rig, node: Node) -> None:
    async def ask(pod: str, annotations: dict[str, str]) -> Answer | Refusal:
        await asyncio.sleep(0)
        return rig.ask(node, pod, f"{pod}-s0", annotations)

    asked = [ask(f"pod-{n}", {"lading.dev/vfs": "1"}) for n in range(4)]
    asked += [ask(f"gpu-{n}", GPU_0) for n in range(3)]
    answers = await asyncio.gather(*asked)
    assert sum(isinstance(answer, Answer) for answer in answers[:4]) == 2
    assert sum(isinstance(answer, Answer) for answer in answers[4:]) == 1
    given = [d for g in node.ledger.grants() for d in (*g.devices.gpus, *g.devices.vfs)]
    assert len(given) == len(set(given)) == 3


async def test_a_grant_that_cannot_be_written_is_not_given(records: Records, rig: Rig, node: Node) -> None:
    with full_disk(node.ledger.path):
        assert reason(rig.ask(node, "pod-1", "s0")) is Reason.LEDGER_UNAVAILABLE
        node.stopping(sandbox_of("pod-1", "s0"))  # a stop is never in the way of anything
        assert node.ledger.grants() == ()
    assert isinstance(rig.ask(node, "pod-2", "s1"), Answer)
    assert Event.LEDGER_FAILED in records.events()


async def test_a_stop_that_could_not_be_written_frees_a_card_at_the_next_comparison(rig: Rig) -> None:
    """Check a stop whose sandbox's end was not observed either, with a grant younger than the grace for calls under way."""
    async with rig.node(reconciled=False) as node:
        sandbox = rig.runtime.run("pod-1")
        await node.reconcile()
        rig.create(node, "pod-1", sandbox)
        with full_disk(node.ledger.path):
            node.stopping(sandbox_of("pod-1", sandbox))
            assert reason(rig.ask(node, "pod-1", sandbox)) is Reason.SANDBOX_STOPPED
            rig.runtime.stop(sandbox)
        await node.reconcile()
        assert holders(node) == set()
        node.stopping(sandbox_of("pod-1", sandbox))  # again, and now it is written
    async with rig.node(reconciled=False) as node:
        assert node.ledger.is_stopped(SandboxId(sandbox))


async def test_a_stopped_sandbox_is_given_nothing_any_more(rig: Rig, node: Node) -> None:
    node.stopping(sandbox_of("pod-1", "s0"))
    assert reason(rig.ask(node, "pod-1", "s0")) is Reason.SANDBOX_STOPPED
    assert isinstance(rig.ask(node, "pod-1", "s1"), Answer)
    node.sandbox_removed(sandbox_of("pod-1", "s0"))
    assert reason(rig.ask(node, "pod-1", "s0")) is Reason.SANDBOX_STOPPED


async def test_a_removed_sandbox_counts_as_stopped(rig: Rig) -> None:
    """Kill the daemon before the release: the next one finds its tombstone."""
    sandbox, _ = rig.runtime.run("pod-1"), rig.runtime.run("pod-2")
    async with rig.node() as node:
        rig.create(node, "pod-1", sandbox)
        rig.runtime.remove(sandbox)
        node.sandbox_removed(sandbox_of("pod-1", sandbox))
    async with rig.node(reconciled=False) as node:
        assert holders(node) == {"pod-1"}
        await node.reconcile()
        assert holders(node) == set()


@pytest.mark.parametrize("turns", range(8))
async def test_the_node_can_be_stopped_at_any_moment(turns: int, rig: Rig) -> None:
    """End the daemon at each turn of the loop after a stopped sandbox."""
    async with rig.node(reconciled=False) as node:
        keeping = asyncio.create_task(node.keep_reconciled())
        await until(lambda: node.reconciled)
        for _ in range(10):
            await asyncio.sleep(0)
        node.stopped(sandbox_of("pod-1", "s0"))
        for _ in range(turns):
            await asyncio.sleep(0)
        keeping.cancel()
        await asyncio.wait({keeping}, timeout=1)
        assert keeping.cancelled()


async def test_containers_of_a_grant_are_learned_from_the_lists_and_forgotten(rig: Rig, node: Node) -> None:
    container = rig.create(node, "pod-1", rig.runtime.run("pod-1"))
    await node.reconcile()
    assert [c.id for g in node.ledger.grants() for c in g.containers] == [container]
    rig.runtime.remove_container(container)
    await node.reconcile()
    assert [g.containers for g in node.ledger.grants()] == [()]


# cards in use without a grant


def process(folder: Path, pid: int, cgroup: str) -> Path:
    path = folder / "proc" / str(pid) / "cgroup"
    path.parent.mkdir(parents=True)
    path.write_text(f"0::{cgroup}\n")
    return path


IN_USE = inventory(gpus=(replace(gpu(0), processes=running(42)), gpu(1)))
OTHER_POD = "/kubepods.slice/kubepods-podaaaa_bbbb.slice/cri-containerd-" + "c" * 64 + ".scope"


async def test_a_card_that_a_pod_uses_without_a_grant_is_held_while_it_uses_it(records: Records, rig: Rig) -> None:
    """Check that the process is looked up at the moment of the decision, because the inventory may be seconds old."""
    path = process(rig.folder, 42, OTHER_POD)
    async with rig.node(IN_USE) as node:
        assert reason(rig.ask(node, "pod-1", "s0")) is Reason.DEVICE_HELD
        node.inventory_changed(Inventory(), IN_USE)
        path.unlink()
        assert isinstance(rig.ask(node, "pod-1", "s0"), Answer)
    (unmanaged,) = records.fields(Event.HOLDER_FOREIGN)  # said once
    assert unmanaged["device"] == uuid(0)


async def test_a_process_of_the_host_or_of_the_pod_itself_holds_nothing(rig: Rig) -> None:
    path = process(rig.folder, 42, "/system.slice/dcgm.service")
    async with rig.node(IN_USE) as node:
        assert isinstance(rig.ask(node, "aaaa-bbbb", "s0"), Answer)
        path.write_text(f"0::{OTHER_POD}\n")
        assert isinstance(rig.ask(node, "aaaa-bbbb", "s0"), Answer)


async def test_a_card_whose_user_is_unknown_is_not_given(rig: Rig) -> None:
    (rig.folder / "proc/42/cgroup").mkdir(parents=True)
    async with rig.node(IN_USE) as node:
        assert reason(rig.ask(node, "pod-1", "s0")) is Reason.INVENTORY_UNAVAILABLE
        assert node.ledger.grants() == ()


# the history


async def test_the_history_names_the_key_that_signed_an_assignment(rig: Rig) -> None:
    key = Ed25519PrivateKey.generate()
    devices = {"train": {"gpus": [{"uuid": uuid(1)}]}}
    text = json.dumps({"v": 1, "pod": "pod-1", "node": "n1", "gen": 7, "containers": devices})
    rig.rules = replace(RULES, trust=Trust(accepted=frozenset({Form.SIGNED}), keys={"k1": key.public_key()}))
    async with rig.node() as node:
        rig.create(node, "pod-1", rig.runtime.run("pod-1"), {ASSIGNMENT: text, ASSIGNMENT_SIGNATURE: sign(key, "k1", text)})
        (period,) = read_history(node.ledger.path)
        assert (period.form, period.gen, period.key_id, period.devices.names) == (Form.SIGNED, 7, "k1", [uuid(1)])


# the log


async def test_changes_of_the_inventory_are_reported(records: Records, rig: Rig) -> None:
    ill = inventory(gpus=(gpu(0, unhealthy="it fell off the bus"), gpu(1)), vfs=(vf(0), vf(1)))
    async with rig.node(reconciled=False) as node:
        node.inventory_changed(DEVICES, ill)
        node.inventory_changed(ill, DEVICES)
        for _ in range(2):
            node.inventory_failed(OSError("NVML hangs"))
    assert [(level, fields["device"]) for level, event, _, fields in records.written if event is Event.DEVICE_UNHEALTHY] == [
        (Level.WARNING, uuid(0))
    ]
    assert [fields["device"] for fields in records.fields(Event.DEVICE_HEALTHY)] == [uuid(0)]
    assert records.fields(Event.INVENTORY_CHANGED) == [{"gpus": "2", "pfs": "1", "vfs": "2"}]  # the first one, in one line
    assert records.events().count(Event.INVENTORY_FAILED) == 1
