"""Test the attacher with a kernel call that does not return, in simulated time: callers get an error, and others wait only as
long as necessary."""

import asyncio
import threading

import pytest

from hooks.attach.attacher import RECONCILE_WAIT_S
from hooks.ledger.reconcile import GRACE_S
from hooks.model.assignment import Refusal
from hooks.model.attachment import Step, VfSettings
from lading.log import Event
from lading.reasons import Reason
from lading.threads import in_thread
from lading.vocabulary import SandboxId
from tests.vfs.life import DEADLINE_S, Node, pod_of, reason

pytestmark = pytest.mark.simulated_time


def hanging_node(method: str = "set_vf") -> tuple[Node, asyncio.Event]:
    """Return a node where VF 0 hangs in the method until the event is set."""
    node = Node(2, sandboxes=("p1-s0", "p2-s0"))
    return node, node.kernel.hold(method)


def now() -> float:
    return asyncio.get_running_loop().time()


async def all_is_over() -> None:
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


async def test_a_call_that_hangs_is_reported_and_what_it_began_is_undone_when_it_returns() -> None:
    node, gate = hanging_node()
    hanging = await node.attach("p1-s0", 0)
    assert reason(hanging) is Reason.ATTACH_FAILED
    assert now() == DEADLINE_S
    assert await node.attach("p1-s0", 0) == hanging  # the same one, and it is not waited for another time
    assert now() == DEADLINE_S
    await asyncio.sleep(3600)
    row = node.attachment()
    assert row.step is Step.CONFIGURING
    assert row.failure
    assert node.records.events() == [Event.VF_ATTACH_FAILED]  # once, in an hour
    gate.set()
    await all_is_over()
    assert node.all_free()


async def test_a_call_that_returns_in_time_is_not_reported() -> None:
    node, gate = hanging_node()
    asyncio.get_running_loop().call_later(DEADLINE_S - 1, gate.set)
    (row,) = await node.attached("p1-s0", 0)
    assert (row.step, row.failure) == (Step.ATTACHED, "")
    assert node.records.events() == [Event.VF_ATTACHED]


async def test_a_call_that_took_all_the_time_is_the_last() -> None:
    """Check that work for which no caller waits any more ends: the retry finds an attached VF or none."""
    node, gate = hanging_node()
    assert reason(await node.attach("p1-s0", 0)) is Reason.ATTACH_FAILED
    node.kernel.changes.clear()
    gate.set()
    await all_is_over()
    assert not any(change.startswith("move") for change in node.kernel.changes)
    assert node.all_free()
    (row,) = await node.attached("p1-s0", 0)
    assert row.step is Step.ATTACHED
    assert node.problems() == []


async def test_a_stop_waits_for_a_call_that_hangs() -> None:
    node, gate = hanging_node()
    await node.attach("p1-s0", 0)
    stop = asyncio.ensure_future(node.stopping("p1-s0"))
    await asyncio.sleep(3600)
    assert not stop.done()
    node.attachment()
    gate.set()
    await stop
    assert node.all_free()


async def test_a_vf_that_hangs_keeps_no_other_from_its_pod() -> None:
    node, gate = hanging_node()
    hanging = asyncio.ensure_future(node.attach("p1-s0", 0))
    await asyncio.sleep(1)  # it hangs by now
    other = await node.attacher.attach(node.wanted(1, settings=VfSettings()), pod_of("p2-s0"))
    assert not isinstance(other, Refusal)
    await node.reconcile()
    assert now() == 1
    assert not hanging.done()
    await hanging
    gate.set()
    await node.stopping("p1-s0")
    assert node.problems() == []


async def test_a_release_that_hangs_holds_a_reconciliation_for_a_few_seconds() -> None:
    node, gate = hanging_node("move_out")
    await node.attach("p1-s0", 0)
    node.ready.discard(SandboxId("p1-s0"))
    node.now += GRACE_S
    for number in (1, 2):  # the next one waits for the same release
        await node.reconcile()
        assert now() == number * RECONCILE_WAIT_S
    await asyncio.sleep(DEADLINE_S)
    row = node.attachment()
    assert row.failure
    gate.set()
    await all_is_over()
    assert node.all_free()
    assert node.records.events() == [Event.VF_ATTACHED, Event.VF_RELEASE_FAILED, Event.VF_RELEASED]


def test_what_blocks_a_thread_does_not_block_the_loop() -> None:
    """Check it with real threads, and so without a simulated clock."""
    node = Node(2, sandboxes=("p1-s0", "p2-s0"))
    node.start(in_thread=in_thread)
    stuck, gate = threading.Event(), threading.Event()

    def point(at: str) -> None:
        if at == "before set_vf":
            stuck.set()
            assert gate.wait(10)

    node.kernel.point = point

    async def attach_both() -> None:
        hanging = asyncio.ensure_future(node.attached("p1-s0", 0))
        assert await in_thread(lambda: stuck.wait(10))
        other = await node.attacher.attach(node.wanted(1, settings=VfSettings()), pod_of("p2-s0"))
        assert not isinstance(other, Refusal)
        gate.set()
        await hanging

    asyncio.run(attach_both())
    assert node.problems() == []
