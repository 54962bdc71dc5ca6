"""The page in a term: it shows what the watches say, is the present term's, and is left out where it is not wanted."""

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


def make_term(one: Led) -> Leadership:
    clock = asyncio.get_running_loop().time
    return Leadership(
        one.client, None, policy=Policy.BINPACK, leads=lambda: one.leads, clock=clock, log=one.records.log, page=True
    )


def test_what_the_watches_say_is_shown(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.term.end()
        one.term = make_term(one).begin()
        await one.pause()
        await one.put_node("n2", 2)
        await one.put_pod("a")
        assert await one.bind("a", "n1") == ""
        await one.pause(2 * EVERY_S)
        live = one.term.live
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
        await one.term.end()
        leadership = Replica(lambda: make_term(one), one.records.log, clock=asyncio.get_running_loop().time)
        leadership.election = Lease()  # type: ignore[assignment]
        assert leadership.live() is None
        leadership.gained()
        one.term = leadership.term  # type: ignore[assignment]
        assert leadership.live() is None  # nothing is read yet
        await one.pause()
        assert leadership.live() is one.term.live is not None
        one_leads[0] = False
        assert leadership.live() is None
        await leadership.close()

    play(story, tmp_path)


def test_where_it_is_not_wanted_nothing_is_kept(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        assert one.term.live is None

    play(story, tmp_path)


@pytest.mark.parametrize("ends", [False, True])
def test_what_was_read_is_not_looked_at_by_every_collection(tmp_path: Path, ends: bool) -> None:
    async def story(one: Led) -> None:
        if ends:
            await one.term.end()
        assert (gc.get_freeze_count() == 0) is ends

    play(story, tmp_path)
