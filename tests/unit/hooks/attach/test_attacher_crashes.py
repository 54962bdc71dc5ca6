"""Test the attacher after the daemon was killed at any moment, or the machine rebooted: no VF is lost, and none is kept too
long."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from hooks.ledger.reconcile import GRACE_S
from hooks.model.attachment import RdmaMode, Step
from lading.vocabulary import SandboxId
from tests.fakes.simulated_time import run_simulated
from tests.vfs.life import MODES, Node
from tests.vfs.model import Crash

# ---- killed


def points_of(mode: RdmaMode) -> list[str]:
    """Return every moment of one attach and release at which a daemon can be killed."""
    node = Node(mode=mode)
    observed: list[str] = []
    node.kernel.point = observed.append

    async def live() -> None:
        await node.attach("p1-s0", 0)
        await node.stopping("p1-s0")

    run_simulated(live())
    return observed


async def nothing_more(node: Node) -> None:
    """Continue with reconciliation alone, because kubelet never comes back to this sandbox."""
    node.end("p1-s0")
    node.now += GRACE_S
    await node.reconcile()


async def stop_again(node: Node) -> None:
    await node.stopping("p1-s0")


async def create_and_stop_again(node: Node) -> None:
    if "p1-s0" not in node.stopped:
        (row,) = await node.attached("p1-s0", 0)
        assert row.step is Step.ATTACHED
        assert node.problems() == []
    await node.stopping("p1-s0")


async def create_in_a_newer_sandbox(node: Node) -> None:
    node.end("p1-s0")
    node.run("p1-s1")
    node.now += GRACE_S
    await node.reconcile()
    (row,) = await node.attached("p1-s1", 0)
    assert row.step is Step.ATTACHED
    assert node.problems() == []
    await node.stopping("p1-s0")
    assert node.problems() == []
    await node.stopping("p1-s1")


async def reboot(node: Node) -> None:
    node.reboot()
    await node.reconcile()


@pytest.mark.parametrize("then", [nothing_more, stop_again, create_and_stop_again, create_in_a_newer_sandbox, reboot])
@pytest.mark.parametrize("mode", MODES)
def test_killed_at_any_moment_nothing_is_lost(mode: RdmaMode, then: Callable[[Node], Coroutine[Any, Any, None]]) -> None:
    points = points_of(mode)
    assert {f"{at} {what}" for at in ("before", "after") for what in ("commit", "move_in", "move_out", "rename")} <= set(points)
    for number in range(len(points)):
        node = Node(mode=mode)
        passed = 0

        def kill(_: str, node: Node = node, number: int = number) -> None:
            nonlocal passed
            passed += 1
            if passed == number + 1:
                node.kernel.die()

        node.kernel.point = kill

        async def live(node: Node = node) -> None:
            await node.attach("p1-s0", 0)
            await node.stopping("p1-s0")

        with contextlib.suppress(Crash):
            run_simulated(live())
        assert node.kernel.dead
        node.kernel.point = lambda _: None
        node.start()
        assert node.problems() == [], (number, points[number])
        run_simulated(then(node))
        assert node.all_free(), (number, points[number], node.journal.rows(), node.problems())


# ---- what reconciliation does by itself


def ended_while_attaching() -> Node:
    """Return a node whose daemon is started again; the VF is in the pod's namespace, and the row does not know."""
    node = Node()
    node.kernel.point = lambda at: node.kernel.die() if at == "after move_in" else None
    with pytest.raises(Crash):
        run_simulated(node.attach("p1-s0", 0))
    node.kernel.point = lambda _: None
    node.start()
    return node


def test_an_attach_that_a_crash_interrupted_is_left_for_the_retry_for_a_while() -> None:
    node = ended_while_attaching()
    row = node.row()
    run_simulated(node.reconcile())
    assert node.row() == row
    node.now += GRACE_S
    run_simulated(node.reconcile())
    assert node.all_free()


def test_an_attach_that_goes_on_is_not_taken_for_one_that_was_given_up() -> None:
    node = ended_while_attaching()
    node.now += GRACE_S

    async def live() -> None:
        retry = asyncio.ensure_future(node.attached("p1-s0", 0))
        await asyncio.sleep(0)
        await asyncio.gather(node.reconcile(), retry)

    run_simulated(live())
    row = node.attachment()
    assert (row.step, row.generation) == (Step.ATTACHED, 1)
    assert node.problems() == []


@pytest.mark.simulated_time
async def test_vfs_of_a_ready_sandbox_or_a_live_container_are_kept_at_any_age() -> None:
    node = Node(sandboxes=("p1-s0", "p2-s0"))
    await node.attach("p1-s0", 0)
    await node.attach("p2-s0", 1)
    node.ready.clear()
    node.live = {SandboxId("p1-s0")}
    await node.reconcile()
    assert len(node.journal.rows()) == 2  # the lists may be older than the rows
    node.now += GRACE_S
    await node.reconcile()
    assert [row.sandbox for row in node.journal.rows()] == ["p1-s0"]
    assert node.problems() == []


@pytest.mark.simulated_time
async def test_after_a_reboot_rows_are_forgotten_without_a_change_of_the_kernel() -> None:
    node = Node()
    await node.attach("p1-s0", 0)
    node.reboot()
    node.kernel.changes.clear()
    await node.reconcile()
    assert node.all_free()
    assert node.kernel.changes == []


@pytest.mark.simulated_time
@pytest.mark.parametrize("sandbox", ["p1-s0", "p2-s0"])
async def test_after_a_reboot_a_vf_is_attached_anew(sandbox: str) -> None:
    """Check that the same sandbox has no VF either: a simulated node, or a runtime that keeps its state, may list it again."""
    node = Node()
    await node.attach("p1-s0", 0)
    node.reboot()
    node.run(sandbox)
    (row,) = await node.attached(sandbox, 0)
    assert (row.sandbox, row.generation) == (sandbox, 2)
    assert node.problems() == []
