"""Let the wall clock jump forward and back: no device in use is released, and no ended grant stays.

`Node.clock` is the only clock that dates grants and tombstones; all waits use the monotonic clock.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hooks.ledger.reconcile import GRACE_S
from hooks.model.container import Answer
from hooks.node.node import Node
from lading.log import Level, Log
from lading.reasons import Reason
from tests.fakes.records import Records
from tests.unit.hooks.node.rig import Rig, holders, reason

HOUR = 3600
JUMPS = [-(2**31), -30 * 365 * 24 * HOUR, -HOUR, -GRACE_S, -1, 0, 1, GRACE_S, HOUR, 30 * 365 * 24 * HOUR]


class WallClock:
    def __init__(self) -> None:
        self.now = 2_000_000_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass, or set the clock."""
        self.now += seconds


@pytest.fixture
def clock() -> WallClock:
    return WallClock()


@pytest.fixture
def rig(tmp_path: Path, clock: WallClock) -> Rig:
    rig = Rig(tmp_path, Log(Records(), Level.ERROR))
    rig.clock = clock
    return rig


@pytest.fixture
async def node(rig: Rig) -> AsyncIterator[Node]:
    async with rig.node() as node:
        yield node


@pytest.mark.parametrize("jump", JUMPS)
async def test_a_jump_of_the_clock_ends_no_grant_in_use_and_keeps_no_ended_grant(
    rig: Rig, node: Node, clock: WallClock, jump: int
) -> None:
    used, over = rig.runtime.run("used"), rig.runtime.run("over")
    rig.create(node, "used", used)
    rig.create(node, "over", over, {"lading.dev/gpus": "1"})
    clock.advance(jump)
    await node.reconcile()
    assert holders(node) == {"used", "over"}
    assert reason(rig.ask(node, "rival", rig.runtime.run("rival"))) is Reason.DEVICE_HELD
    rig.stop(node, "over", over)
    clock.advance(-jump)
    await node.reconcile()
    assert holders(node) == {"used"}


@pytest.mark.parametrize("jump", JUMPS)
async def test_a_grant_whose_pod_vanished_before_a_jump_ends_after_the_grace_period(
    rig: Rig, node: Node, clock: WallClock, jump: int
) -> None:
    """Check that the grant ends at the latest after another grace period."""
    deleted, _ = rig.runtime.run("gone"), rig.runtime.run("other")
    rig.create(node, "gone", deleted)
    rig.runtime.remove(deleted)
    clock.advance(jump)
    await node.reconcile()
    clock.advance(2 * GRACE_S)
    await node.reconcile()
    assert holders(node) == set()
    assert isinstance(rig.ask(node, "next", rig.runtime.run("next")), Answer)


@pytest.mark.parametrize("jump", JUMPS)
async def test_a_tombstone_is_kept_as_long_as_its_sandbox_exists(rig: Rig, node: Node, clock: WallClock, jump: int) -> None:
    stopped, _ = rig.runtime.run("pod"), rig.runtime.run("other")
    rig.stop(node, "pod", stopped)
    clock.advance(jump)
    await node.reconcile()
    assert reason(rig.ask(node, "pod", stopped)) is Reason.SANDBOX_STOPPED
    rig.runtime.remove(stopped)
    clock.advance(2 * GRACE_S)
    await node.reconcile()
    assert dict(node.ledger.tombstones()) == {}
