"""Test the attacher with several sandboxes of a pod: a newer one takes over, and stops come late, twice, or during an
attach."""

import asyncio

import pytest

from hooks.ledger.reconcile import GRACE_S
from hooks.model.assignment import Refusal
from hooks.model.attachment import RdmaMode, Step
from lading.log import Event
from lading.reasons import Reason
from lading.vocabulary import SandboxId
from tests.vfs.life import Node, path_of, reason

pytestmark = pytest.mark.simulated_time

# ---- sandboxes of one pod


async def test_the_pods_newer_sandbox_takes_over_what_the_older_one_did_not_return() -> None:
    node = Node()
    (old,) = await node.attached("p1-s0", 0)
    node.run("p1-s1")
    node.live.add(SandboxId("p1-s0"))
    assert reason(await node.attach("p1-s1", 0)) is Reason.DEVICE_HELD  # no one has listed yet
    await node.reconcile()
    assert reason(await node.attach("p1-s1", 0)) is Reason.DEVICE_HELD
    node.ready.discard(SandboxId("p1-s0"))
    await node.reconcile()
    assert reason(await node.attach("p1-s1", 0)) is Reason.DEVICE_HELD  # a container of the old one lives
    node.live.clear()
    node.ready.add(SandboxId("p1-s0"))
    await node.reconcile()
    assert reason(await node.attach("p1-s1", 0)) is Reason.DEVICE_HELD
    node.now += GRACE_S
    await node.reconcile()
    assert reason(await node.attach("p1-s1", 0)) is Reason.DEVICE_HELD
    node.ready.discard(SandboxId("p1-s0"))
    node.kernel.fail("move_out")
    await node.reconcile()
    (new,) = await node.attached("p1-s1", 0)
    assert new.generation > old.generation
    assert new.netdev == old.netdev
    assert new.config == old.config
    assert node.place() == path_of("p1-s1")
    assert node.problems() == []


async def test_a_late_stop_does_not_touch_the_newer_owner() -> None:
    node = Node()
    await node.attach("p1-s0", 0)
    node.run("p1-s1")
    node.ready.discard(SandboxId("p1-s0"))
    node.now += GRACE_S
    await node.reconcile()
    await node.attached("p1-s1", 0)
    changes = list(node.kernel.changes)
    await node.stopping("p1-s0")
    assert node.kernel.changes == changes
    assert node.place() == path_of("p1-s1")


# ---- stop, meanwhile


@pytest.mark.parametrize("turns", range(0, 60, 3))
async def test_a_stop_during_an_attach_ends_it_and_returns_the_vf(turns: int) -> None:
    node = Node(mode=RdmaMode.EXCLUSIVE)
    attaching = asyncio.ensure_future(node.attach("p1-s0", 0))
    for _ in range(turns):
        await asyncio.sleep(0)
    done = attaching.done()
    await node.stopping("p1-s0")
    outcome = await attaching
    assert done or reason(outcome) is Reason.SANDBOX_STOPPED or not isinstance(outcome, Refusal)
    assert node.all_free()


async def test_a_sandbox_that_is_stopped_gets_nothing_more() -> None:
    node = Node()
    node.kernel.point = lambda at: node.stopped.add(SandboxId("p1-s0")) if at == "after set_vf" else None
    assert reason(await node.attach("p1-s0", 0)) is Reason.SANDBOX_STOPPED
    assert "move" not in " ".join(node.kernel.changes)
    assert node.all_free()


async def test_two_stops_are_one_release() -> None:
    node = Node()
    await node.attach("p1-s0", 0)
    node.kernel.fail("move_out")
    await asyncio.gather(node.stopping("p1-s0"), node.stopping("p1-s0"))
    node.attachment()
    assert node.records.events().count(Event.VF_RELEASE_FAILED) == 1


async def test_a_call_that_was_given_up_leaves_the_attach_running_and_the_retry_gets_it() -> None:
    node = Node()
    call = asyncio.ensure_future(node.attach("p1-s0", 0))
    for _ in range(5):
        await asyncio.sleep(0)
    call.cancel()
    (row,) = await node.attached("p1-s0", 0)
    assert row.step is Step.ATTACHED
    assert node.records.events() == [Event.VF_ATTACHED]


async def test_a_stop_that_is_not_waited_for_goes_on() -> None:
    node = Node()
    await node.attach("p1-s0", 0)
    stop = asyncio.ensure_future(node.stopping("p1-s0"))
    for _ in range(3):
        await asyncio.sleep(0)
    stop.cancel()
    await node.attacher.detach_sandbox(SandboxId("p1-s0"))  # awaits the one that is under way
    assert node.all_free()
    assert node.records.events() == [Event.VF_ATTACHED, Event.VF_RELEASED]
