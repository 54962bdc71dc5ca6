"""Test the page in a leadership: it shows the state of the watches, belongs to the current leader, and can be turned off."""

import asyncio
import gc
from pathlib import Path

import pytest

from central.daemon.daemon import Replica
from central.daemon.leadership import Leadership
from central.page.live import EVERY_S
from central.request.model import Policy
from tests.fakes.kube_objects import devices_path
from tests.fakes.led import Led, play
from tests.unit.central.page.shown import names, said


def make_leadership(one: Led) -> Leadership:
    clock = asyncio.get_running_loop().time
    return Leadership(
        one.client, None, policy=Policy.BINPACK, leads=lambda: one.leads, clock=clock, log=one.records.log, page=True
    )


def test_what_the_watches_say_is_shown(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.leadership.end()
        one.leadership = make_leadership(one).begin()
        await one.pause()
        await one.put_node("n2", 2)
        await one.put_pod("a")
        assert await one.bind("a", "n1") == ""
        await one.pause(2 * EVERY_S)
        live = one.leadership.live
        assert live is not None
        await live.catch_up()
        whole = said(live.whole())
        assert names(whole) == {*one.node_names()}
        held = [holder["pod"] for node in whole["nodes"] for gpu in node["gpus"] for holder in gpu.get("holders", [])]
        assert held == ["a"]
        await one.server.remove(devices_path("n2"))
        await one.pause(2 * EVERY_S)
        await live.catch_up()
        assert names(said(live.whole())) == {"n1"}

    play(story, tmp_path)


def test_it_is_the_present_terms_and_only_of_who_leads(tmp_path: Path) -> None:
    class Lease:
        def is_leader(self) -> bool:
            return one_leads[0]

    one_leads = [True]

    async def story(one: Led) -> None:
        await one.leadership.end()
        replica = Replica(lambda: make_leadership(one), one.records.log, clock=asyncio.get_running_loop().time)
        replica.election = Lease()  # type: ignore[assignment]
        assert replica.live() is None
        replica.gained()
        one.leadership = replica.leadership  # type: ignore[assignment]
        assert replica.live() is None  # nothing is read yet
        await one.pause()
        assert replica.live() is one.leadership.live is not None
        one_leads[0] = False
        assert replica.live() is None
        await replica.close()

    play(story, tmp_path)


def test_where_it_is_not_wanted_nothing_is_kept(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        assert one.leadership.live is None

    play(story, tmp_path)


@pytest.mark.parametrize("ends", [False, True])
def test_what_was_read_is_not_checked_by_every_collection(tmp_path: Path, ends: bool) -> None:
    async def story(one: Led) -> None:
        if ends:
            await one.leadership.end()
        assert (gc.get_freeze_count() == 0) is ends

    play(story, tmp_path)
