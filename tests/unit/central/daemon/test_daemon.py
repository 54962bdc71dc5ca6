"""Test leaderships and the lease: none answers too early, none writes too late, and two of one process never overlap."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from central.controllers.binder import BIND_TIMEOUT_S
from central.daemon.daemon import AFTER_LEADERSHIP_S, Replica
from tests.fakes.kube_server import Fault
from tests.fakes.led import REFUSED, Led, is_binding, is_touch, play


class Lease:
    """Grant and take a lease by the test, in place of an election."""

    def __init__(self) -> None:
        self.held = True

    def is_leader(self) -> bool:
        return self.held


async def lead(one: Led) -> tuple[Replica, Lease]:
    await one.leadership.end()
    replica, lease = Replica(one.make_leadership, one.records.log, clock=asyncio.get_running_loop().time), Lease()
    replica.election = lease  # type: ignore[assignment]
    replica.gained()
    assert replica.leadership is not None
    one.leadership = replica.leadership
    return replica, lease


def again(one: Led, replica: Replica) -> None:
    replica.lost()
    replica.gained()
    assert replica.leadership is not None
    one.leadership = replica.leadership


def played(story: Callable[[Led, Replica, Lease], Any], folder: Path) -> None:
    async def whole(one: Led) -> None:
        replica, lease = await lead(one)
        await story(one, replica, lease)
        await replica.close()

    play(whole, folder)


def test_it_answers_when_it_has_read_and_while_it_holds_the_lease(tmp_path: Path) -> None:
    async def story(one: Led, replica: Replica, lease: Lease) -> None:
        assert not replica.leads()
        await one.pause()
        assert replica.leads()
        lease.held = False
        assert not replica.leads()
        lease.held = True
        replica.lost()
        assert not replica.leads()
        replica.lost()  # may be told again

    played(story, tmp_path)


def test_the_leader_is_the_present_leadership(tmp_path: Path) -> None:
    async def story(one: Led, replica: Replica, lease: Lease) -> None:
        await one.pause()
        former = replica.leader()
        assert former is replica.leadership is not None
        again(one, replica)
        assert replica.leader() is None  # nothing is read yet
        await one.pause(2 * AFTER_LEADERSHIP_S)
        assert replica.leader() is replica.leadership is not former

    played(story, tmp_path)


def test_a_process_that_leads_again_waits_for_its_own_last_binding(tmp_path: Path) -> None:
    """Let the lease expire during a Binding that hangs in a slow API server, which then answers every call."""

    async def story(one: Led, replica: Replica, lease: Lease) -> None:
        await one.put_pod("a")
        await one.put_pod("b")
        one.server.fail(Fault(hang=True, late_s=BIND_TIMEOUT_S), when=is_binding)
        binding = asyncio.create_task(one.bind("a", "n1"))
        await one.pause(0.1)
        again(one, replica)
        await one.pause()
        assert not replica.leads()
        await binding
        await one.pause(AFTER_LEADERSHIP_S)
        assert (replica.leads(), one.server.late) == (True, [200])
        assert await one.schedule("b") == REFUSED
        assert one.bound_to("a") == "n1"

    played(story, tmp_path)


def test_who_waited_long_enough_reads_at_once(tmp_path: Path) -> None:
    async def story(one: Led, replica: Replica, lease: Lease) -> None:
        replica.lost()
        await one.pause(AFTER_LEADERSHIP_S)
        replica.gained()
        await one.pause()
        assert replica.leads()

    played(story, tmp_path)


def test_another_may_lead_at_once_only_if_nothing_is_unclear(tmp_path: Path) -> None:
    async def story(one: Led, replica: Replica, lease: Lease) -> None:
        await one.put_pod("a")
        one.server.fail(Fault(status=500), when=is_binding)
        one.server.fail(Fault(status=500), when=is_touch, times=9)
        await one.bind("a", "n1")
        assert not await replica.close()

    played(story, tmp_path)

    async def clear(one: Led, replica: Replica, lease: Lease) -> None:
        await one.put_pod("a")
        assert await one.bind("a", "n1") == ""
        assert await replica.close()

    played(clear, tmp_path)
