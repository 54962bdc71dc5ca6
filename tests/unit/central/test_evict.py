"""Room made for the important, and the end of clashes: who is evicted, when, and what is held meanwhile."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from central.bind.signer import Signer
from central.counts import EvictOutcome
from central.evict import CONFLICT, NOMINATION_S, PREEMPTED, SPARED_S
from lading.log import Event
from lading.vocabulary import ASSIGNMENT, ASSIGNMENT_SIGNATURE
from tests.fakes.kube_objects import WHOLE, gpu_uuid, grant, pod_path, share
from tests.fakes.kube_server import Fault, Request
from tests.fakes.led import REFUSED, Led, play
from tests.fakes.signing import a_signer


def evicted(one: Led) -> list[str]:
    return [request.path.split("/")[-2] for request in one.sent("/eviction")]


def told(one: Led) -> list[tuple[str, str]]:
    """Kubernetes Events: the pod, and the reason."""
    return [(request.body["involvedObject"]["name"], request.body["reason"]) for request in one.sent("/events")]


def nominated(one: Led, name: str) -> str:
    return one.term.scheduler.nominated_node(one.uid(name))


async def bound(one: Led, name: str, limits: Mapping[str, str] = WHOLE, **words: Any) -> None:
    await one.put_pod(name, limits, **words)
    assert await one.schedule(name) == ""
    await one.pause()


# For a pod of higher priority


def test_the_whole_way(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await bound(one, "low", priority=1)
        await one.report("n1", grants=[grant(one.uid("low"), "n1", 0)])
        await one.put_pod("high", priority=9)
        assert await one.schedule("high") == REFUSED
        await one.pause(1)
        assert (evicted(one), nominated(one, "high"), one.bound_to("low")) == (["low"], "n1", "n1")
        assert told(one) == [("low", PREEMPTED)]
        assert one.sent(f"{pod_path('high')}/status") == []  # nothing is free yet
        await one.remove_pod("low")
        await one.pause(1)
        assert one.sent(f"{pod_path('high')}/status") == []  # its node grants it still
        await one.report("n1")
        await one.put_pod("other")
        assert await one.schedule("other") == REFUSED  # the room is held
        await one.pause(1)
        assert len(one.sent(f"{pod_path('high')}/status")) == 1  # woken
        assert await one.schedule("high") == ""
        await one.pause()
        assert one.term.ledger.nominations() == ()

    play(story, tmp_path)


def test_a_pod_that_waits_for_its_victims_is_let_wait(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await bound(one, "low", priority=1)
        await one.put_pod("high", priority=9)
        assert await one.schedule("high") == REFUSED
        await one.pause(1)
        held = one.term.ledger.nominations()
        assert await one.schedule("high") == REFUSED
        await one.pause(1)
        assert (evicted(one), one.term.ledger.nominations()) == (["low"], held)

    play(story, tmp_path)


def test_two_of_high_priority_get_two_victims(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_node("n2")
        for name in ("low1", "low2"):
            await bound(one, name, priority=1)
        for name in ("high1", "high2", "high3"):
            await one.put_pod(name, priority=9)
            assert await one.schedule(name) == REFUSED
        await one.pause(2)
        assert sorted(evicted(one)) == ["low1", "low2"]

    play(story, tmp_path)


def test_a_nomination_ends_in_time(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await bound(one, "low", priority=1)
        await one.put_pod("high", priority=9)
        assert await one.schedule("high") == REFUSED
        await one.pause(1)
        await one.remove_pod("low")
        await one.put_pod("other")
        await one.pause(NOMINATION_S - 10)
        assert await one.schedule("other") == REFUSED
        await one.pause(20)
        assert await one.schedule("other") == ""

    play(story, tmp_path)


def test_what_a_budget_spares(tmp_path: Path) -> None:
    def is_cheap(request: Request) -> bool:
        return request.path.endswith("cheap/eviction")

    async def story(one: Led) -> None:
        await one.put_node("n2")
        await bound(one, "cheap", priority=1)
        await bound(one, "dear", priority=2)
        one.server.fail(Fault(status=429), when=is_cheap)
        await one.put_pod("high", priority=9)
        assert await one.schedule("high") == REFUSED
        await one.pause(1)
        assert (evicted(one), nominated(one, "high")) == (["cheap", "dear"], one.bound_to("dear"))
        assert told(one) == [("dear", PREEMPTED)]
        counts = one.term.scheduler.counts
        assert counts.evicted == {(PREEMPTED, EvictOutcome.SPARED): 1, (PREEMPTED, EvictOutcome.EVICTED): 1}
        assert counts.nominated == 2

    play(story, tmp_path)


def test_when_a_budget_spares_everybody_they_are_asked_again_later(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await bound(one, "low", priority=1)
        one.server.evictable = False
        await one.put_pod("high", priority=9)
        assert await one.schedule("high") == REFUSED
        await one.pause(SPARED_S / 2)
        assert (evicted(one), nominated(one, "high")) == (["low"], "")
        one.server.evictable = True
        await one.pause(2 * SPARED_S)
        assert (evicted(one), nominated(one, "high")) == (["low", "low"], "n1")

    play(story, tmp_path)


def test_who_is_gone_meanwhile_needs_no_victims(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_node("n1", 2)
        await bound(one, "low1", priority=1)
        await bound(one, "low2", priority=1)
        one.server.slowness = lambda request: (1.0, 1.0) if request.path.endswith("/eviction") else (0.0, 0.0)
        await one.put_pod("high", {"lading.dev/gpu": "2"}, priority=9)
        assert await one.schedule("high") == REFUSED
        await one.pause(1)
        await one.remove_pod("high")
        await one.pause(10)
        assert len(evicted(one)) == 1

    play(story, tmp_path)


def test_room_that_appears_while_it_is_planned_needs_no_victims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("central.slices.SLICE_S", -1.0)  # others have their turn after each step

    async def story(one: Led) -> None:
        await one.put_node("n2")
        await bound(one, "low1", priority=1)
        await bound(one, "low2", priority=2)
        await one.put_pod("high", priority=9)
        assert await one.schedule("high") == REFUSED
        await asyncio.sleep(0)
        one.term.ledger.remove_pod(one.uid("low2"))
        await one.pause(1)
        assert (evicted(one), nominated(one, "high")) == ([], "")

    play(story, tmp_path)


def test_a_victim_that_ends_while_it_is_planned_is_not_enough_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else has what it left: it is planned anew."""
    monkeypatch.setattr("central.slices.SLICE_S", -1.0)

    async def story(one: Led) -> None:
        await one.put_node("n2")
        await bound(one, "low1", priority=1)
        await bound(one, "low2", priority=2)
        await one.put_pod("high", priority=9)
        await one.put_pod("higher", priority=10)
        assert await one.schedule("high") == REFUSED
        await asyncio.sleep(0)
        ledger = one.term.ledger
        taken = ledger.pod(one.uid("low1")).taken  # type: ignore[union-attr]
        assert taken is not None
        ledger.remove_pod(one.uid("low1"))
        assert ledger.predict(one.uid("higher"), "n1", taken, 100.0) is None
        await one.pause(1)
        assert (evicted(one), nominated(one, "high")) == (["low2"], "n2")

    play(story, tmp_path)


def test_equal_priorities_cost_no_plan(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await bound(one, "a")
        await one.put_pod("b")
        assert await one.schedule("b") == REFUSED
        await one.pause(60)
        assert (evicted(one), one.term.ledger.lowest_priority()) == ([], 0)
        await one.remove_pod("a")
        assert one.term.ledger.lowest_priority() is None

    play(story, tmp_path)


def test_who_leads_no_more_evicts_nobody(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await bound(one, "low", priority=1)
        await one.put_pod("high", priority=9)
        one.leads = False
        assert await one.schedule("high") == REFUSED
        await one.pause(1)
        assert evicted(one) == []

    play(story, tmp_path)


# Two pods with one device


async def put_bound(one: Led, name: str, card: int = 0, *, signer: Signer | None = None, **words: Any) -> None:
    """Past central."""
    await one.put_pod(name, **words)
    gpu = {"uuid": gpu_uuid("n1", card), "bdf": f"0000:{0x10 + card:02x}:00.0"}
    said = {"v": 1, "pod": one.uid(name), "node": "n1", "gen": 1, "containers": {"main": {"gpus": [gpu]}}}
    text = msgspec.json.encode(said).decode()
    annotations = {ASSIGNMENT: text} | ({ASSIGNMENT_SIGNATURE: signer.sign(text)} if signer else {})
    await one.put_pod(name, node="n1", annotations=annotations, **words)


def test_the_younger_goes_and_nobody_else_while_it_ends(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await put_bound(one, "old", created="2026-11-20T00:00:00Z")
        await put_bound(one, "young", created="2026-11-21T00:00:00Z")
        await one.pause(30)
        assert (evicted(one), told(one)) == (["young"], [("young", CONFLICT)])
        assert one.records.count(Event.BIND_CONFLICT) == 1
        await one.remove_pod("young")
        await one.pause(10)
        assert evicted(one) == ["young"]

    play(story, tmp_path)


def test_the_forged_one_goes_though_it_is_older(tmp_path: Path) -> None:
    signer = a_signer()

    async def story(one: Led) -> None:
        await put_bound(one, "forged", created="2026-11-20T00:00:00Z", signer=a_signer())
        await put_bound(one, "right", created="2026-11-21T00:00:00Z", signer=signer)
        await one.pause(5)
        assert evicted(one) == ["forged"]

    play(story, tmp_path, signer)


def test_three_pods_on_one_card_end_one_after_the_other(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        for number in range(3):
            await put_bound(one, f"p{number}", created=f"2026-11-2{number}T00:00:00Z")
        await one.pause(30)
        assert evicted(one) == ["p2"]
        await one.remove_pod("p2")
        await one.pause(30)
        assert evicted(one) == ["p2", "p1"]
        await one.remove_pod("p1")
        await one.pause(30)
        assert evicted(one) == ["p2", "p1"]

    play(story, tmp_path)


def test_a_pod_that_has_it_by_hand_is_not_taken_for_forged(tmp_path: Path) -> None:
    signer = a_signer()

    async def story(one: Led) -> None:
        await one.put_pod("manual", {}, node="n1", annotations={"lading.dev/gpus": "0"}, created="2026-11-20T00:00:00Z")
        await put_bound(one, "a", created="2026-11-21T00:00:00Z", signer=signer)
        # A record only of the one that is central's; the other's is the node's word.
        await one.report("n1", grants=[grant(one.uid("manual"), "n1", 0)])
        await one.pause(5)
        assert evicted(one) == ["a"]

    play(story, tmp_path, signer)


def test_a_pod_that_asks_and_has_it_by_hand_is_not_taken_for_forged(tmp_path: Path) -> None:
    signer = a_signer()

    async def story(one: Led) -> None:
        await one.put_pod("manual", node="n1", annotations={"lading.dev/gpus": "0"}, created="2026-11-20T00:00:00Z")
        await put_bound(one, "a", created="2026-11-21T00:00:00Z", signer=signer)
        await one.report("n1", grants=[grant(one.uid("manual"), "n1", 0)])
        await one.pause(5)
        assert evicted(one) == ["a"]

    play(story, tmp_path, signer)


def test_a_clash_that_a_budget_protects_is_not_asked_about_every_second(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await put_bound(one, "old", created="2026-11-20T00:00:00Z")
        await put_bound(one, "young", created="2026-11-21T00:00:00Z")
        one.server.evictable = False
        await one.pause(3 * SPARED_S)
        assert 2 <= len(evicted(one)) <= 4
        assert set(evicted(one)) == {"young"}
        assert one.records.count(Event.BIND_CONFLICT) == 1

    play(story, tmp_path)


def test_shares_that_fit_beside_each_other_are_no_clash(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await bound(one, "a", share("40Gi"))
        await bound(one, "b", share("40Gi"))
        await one.pause(5)
        assert (evicted(one), one.records.count(Event.BIND_CONFLICT)) == ([], 0)

    play(story, tmp_path)
