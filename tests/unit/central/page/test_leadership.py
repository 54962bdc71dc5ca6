"""Test the page in a leadership: it shows the state of the watches, belongs to the current leader, and can be turned off."""

import gc

import pytest

from central.daemon.daemon import Replica
from central.page.live import EVERY_S
from tests.fakes.kube_objects import devices_path
from tests.fakes.led import Led
from tests.unit.central.conftest import Lease
from tests.unit.central.page.shown import names, said


@pytest.mark.central(page=True)
async def test_the_page_shows_the_state_of_the_watches(cluster: Led) -> None:
    await cluster.put_node("n2", 2)
    await cluster.put_pod("a")
    assert await cluster.bind("a", "n1") == ""
    await cluster.pause(2 * EVERY_S)
    live = cluster.leadership.live
    assert live is not None
    await live.catch_up()
    whole = said(live.whole())
    assert names(whole) == {*cluster.node_names()}
    held = [holder["pod"] for node in whole["nodes"] for gpu in node["gpus"] for holder in gpu.get("holders", [])]
    assert held == ["a"]
    await cluster.server.remove(devices_path("n2"))
    await cluster.pause(2 * EVERY_S)
    await live.catch_up()
    assert names(said(live.whole())) == {"n1"}


@pytest.mark.central(page=True)
async def test_a_replica_shows_its_present_leadership_while_it_leads(cluster: Led, replica: Replica, lease: Lease) -> None:
    assert replica.live() is None  # the leadership has read nothing yet
    await cluster.pause()
    assert replica.live() is cluster.leadership.live is not None
    lease.held = False
    assert replica.live() is None
    lease.held = True
    replica.lost()
    assert replica.live() is None


async def test_a_leadership_without_a_page_keeps_nothing_for_it(cluster: Led) -> None:
    assert cluster.leadership.live is None


@pytest.mark.parametrize("ends", [False, True])
async def test_objects_of_a_leadership_are_exempt_from_garbage_collection(cluster: Led, ends: bool) -> None:
    if ends:
        await cluster.leadership.end()
    assert (gc.get_freeze_count() == 0) is ends
