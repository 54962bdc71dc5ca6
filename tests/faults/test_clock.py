"""Let the wall clock jump forward and back: no device in use is released, and no ended grant stays.

`Node.clock` is the only clock that dates grants and tombstones; all waits use the monotonic clock.
"""

import pytest

from hooks.ledger.reconcile import GRACE_S
from hooks.model.container import Answer
from lading.log import Level, Log
from lading.reasons import Reason
from tests.unit.hooks.node.test_node import Play, Rig, holders, play, reason
from tests.unit.runtimeproxy.conftest import Records

__all__ = ["play"]

HOUR = 3600
JUMPS = [-(2**31), -30 * 365 * 24 * HOUR, -HOUR, -GRACE_S, -1, 0, 1, GRACE_S, HOUR, 30 * 365 * 24 * HOUR]


class WallClock:
    def __init__(self) -> None:
        self.now = 2_000_000_000.0

    def __call__(self) -> float:
        return self.now

    def pass_on(self, seconds: float) -> None:
        """Time goes by, or the clock is set."""
        self.now += seconds


@pytest.fixture
def log() -> Log:
    return Log(Records(), Level.ERROR)


@pytest.mark.parametrize("jump", JUMPS)
def test_what_is_in_use_is_kept_and_what_is_over_goes(play: Play, jump: int) -> None:
    async def scenario(rig: Rig) -> None:
        clock = WallClock()
        async with rig.node() as node:
            node.clock = clock
            await node.reconcile()
            used, over = rig.runtime.run("used"), rig.runtime.run("over")
            rig.create(node, "used", used)
            rig.create(node, "over", over, {"lading.dev/gpus": "1"})
            clock.pass_on(jump)
            await node.reconcile()
            assert holders(node) == {"used", "over"}
            assert reason(rig.ask(node, "rival", rig.runtime.run("rival"))) is Reason.DEVICE_HELD
            rig.stop(node, "over", over)
            clock.pass_on(-jump)
            await node.reconcile()
            assert holders(node) == {"used"}

    play(scenario)


@pytest.mark.parametrize("jump", JUMPS)
def test_a_grant_that_no_one_can_vouch_for_is_not_stuck(play: Play, jump: int) -> None:
    """Check a grant whose pod vanished before the clock was set: the grant ends at the latest after another grace period."""

    async def scenario(rig: Rig) -> None:
        clock = WallClock()
        async with rig.node() as node:
            node.clock = clock
            await node.reconcile()
            deleted, _ = rig.runtime.run("gone"), rig.runtime.run("other")
            rig.create(node, "gone", deleted)
            rig.runtime.remove(deleted)
            clock.pass_on(jump)
            await node.reconcile()
            clock.pass_on(2 * GRACE_S)
            await node.reconcile()
            assert holders(node) == set()
            assert isinstance(rig.ask(node, "next", rig.runtime.run("next")), Answer)

    play(scenario)


@pytest.mark.parametrize("jump", JUMPS)
def test_a_tombstone_holds_as_long_as_its_sandbox_is_there(play: Play, jump: int) -> None:
    async def scenario(rig: Rig) -> None:
        clock = WallClock()
        async with rig.node() as node:
            node.clock = clock
            await node.reconcile()
            stopped, _ = rig.runtime.run("pod"), rig.runtime.run("other")
            rig.stop(node, "pod", stopped)
            clock.pass_on(jump)
            await node.reconcile()
            assert reason(rig.ask(node, "pod", stopped)) is Reason.SANDBOX_STOPPED
            rig.runtime.remove(stopped)
            clock.pass_on(2 * GRACE_S)
            await node.reconcile()
            assert dict(node.ledger.tombstones()) == {}

    play(scenario)
