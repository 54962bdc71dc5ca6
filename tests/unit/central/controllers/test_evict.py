"""Test evictions for pods of higher priority and for clashes: who is evicted, when, and what is reserved meanwhile."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from central.controllers.events import EventReason
from central.controllers.evict import SPARED_S
from central.daemon.keys import Signer
from central.decide.preempt import Plan, plans
from central.decide.scheduler import Scheduler
from central.ledger.claims import NOMINATION_S
from central.ledger.facts import UNREPORTED_S
from central.state.counts import EvictOutcome
from central.state.pending import Pending
from lading.log import Event
from lading.vocabulary import ASSIGNMENT, ASSIGNMENT_SIGNATURE
from tests.fakes.ended import end_pod
from tests.fakes.kube_objects import WHOLE, gpu_uuid, grant, pod_path, share
from tests.fakes.kube_server import Fault, Request
from tests.fakes.led import REFUSED, Led, play
from tests.fakes.signing import a_signer


def evicted(one: Led) -> list[str]:
    return [request.path.split("/")[-2] for request in one.sent("/eviction") if is_for_good(request)]


def is_for_good(request: Request) -> bool:
    """Return whether the eviction is no dry run."""
    return request.path.endswith("/eviction") and "dryRun" not in request.query


def told(one: Led) -> list[tuple[str, str]]:
    """Return the Kubernetes Events: the pod and the reason of each."""
    return [(request.body["involvedObject"]["name"], request.body["reason"]) for request in one.sent("/events")]


def nominated(one: Led, name: str) -> str:
    return one.leadership.scheduler.nominated_node(one.uid(name))


async def bound(one: Led, name: str, limits: Mapping[str, str] = WHOLE, **options: Any) -> None:
    await one.put_pod(name, limits, **options)
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
        assert told(one) == [("low", EventReason.PREEMPTED)]
        assert one.sent(f"{pod_path('high')}/status") == []  # nothing is free yet
        await one.remove_pod("low")
        await one.pause(1)
        assert one.sent(f"{pod_path('high')}/status") == []  # the node's report still has the grant
        await one.report("n1")
        await one.put_pod("other")
        assert await one.schedule("other") == REFUSED  # the room is held
        await one.pause(1)
        assert len(one.sent(f"{pod_path('high')}/status")) == 1  # woken
        assert await one.schedule("high") == ""
        await one.pause()
        assert one.leadership.ledger.nominations() == ()

    play(story, tmp_path)


def test_a_pod_that_waits_for_its_victims_is_let_wait(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await bound(one, "low", priority=1)
        await one.put_pod("high", priority=9)
        assert await one.schedule("high") == REFUSED
        await one.pause(1)
        held = one.leadership.ledger.nominations()
        assert await one.schedule("high") == REFUSED
        await one.pause(1)
        assert (evicted(one), one.leadership.ledger.nominations()) == (["low"], held)

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


def test_a_nomination_lasts_as_long_as_its_victims(tmp_path: Path) -> None:
    grace_s = 5 * NOMINATION_S

    async def story(one: Led) -> None:
        await one.put_node("n1", 2)
        for name in ("low1", "low2"):
            await bound(one, name, priority=1, grace_s=grace_s)
        await one.put_pod("high", {"lading.dev/gpu": "2"}, priority=9)
        assert await one.schedule("high") == REFUSED
        await one.pause(1)
        deleted, ending = evicted(one)
        await one.remove_pod(deleted)
        await one.pause(grace_s - 10)
        await one.put_pod("small")
        assert (await one.schedule("small"), nominated(one, "high")) == (REFUSED, "n1")
        await one.remove_pod(ending)
        await one.pause(1)
        assert await one.schedule("high") == ""
        assert sorted(evicted(one)) == ["low1", "low2"]

    play(story, tmp_path)


def test_a_victim_that_does_not_end_in_its_grace_period_is_not_waited_for(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_node("n2")
        await bound(one, "stuck", priority=1, grace_s=10)
        await bound(one, "other", priority=5)
        await one.put_pod("high", priority=9)
        assert await one.schedule("high") == REFUSED
        await one.pause(NOMINATION_S)
        assert nominated(one, "high") == one.bound_to("stuck")
        await one.pause(30)
        assert (evicted(one), nominated(one, "high")) == (["stuck", "other"], one.bound_to("other"))

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
        assert (evicted(one), nominated(one, "high")) == (["dear"], one.bound_to("dear"))
        assert told(one) == [("dear", EventReason.PREEMPTED)]
        counts = one.leadership.scheduler.counts
        assert counts.evicted == {
            (EventReason.PREEMPTED, EvictOutcome.SPARED): 1,
            (EventReason.PREEMPTED, EvictOutcome.EVICTED): 1,
        }
        assert counts.nominated == 2

    play(story, tmp_path)


def test_when_a_budget_spares_everybody_they_are_asked_again_later(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await bound(one, "low", priority=1)
        one.server.evictable = False
        await one.put_pod("high", priority=9)
        assert await one.schedule("high") == REFUSED
        await one.pause(SPARED_S / 2)
        assert (evicted(one), nominated(one, "high")) == ([], "")
        one.server.evictable = True
        await one.pause(2 * SPARED_S)
        assert (evicted(one), nominated(one, "high")) == (["low"], "n1")

    play(story, tmp_path)


@pytest.mark.parametrize("protected", range(3))
def test_where_each_node_has_one_protected_pod_no_pod_is_evicted(tmp_path: Path, protected: int) -> None:
    async def story(one: Led) -> None:
        for node in ("n1", "n2"):
            await one.put_node(node, 3)
            for number in range(3):
                labels = {"app": "kept"} if number == protected else {}
                await bound(one, f"{node}-{number}", priority=number, labels=labels)
        await one.put_budget("kept", {"app": "kept"})
        await one.put_pod("high", {"lading.dev/gpu": "3"}, priority=9)
        assert await one.schedule("high") == REFUSED
        await one.pause(5 * SPARED_S)
        assert (one.sent("/eviction"), nominated(one, "high")) == ([], "")
        await one.put_budget("kept", {"app": "kept"}, allowed=1)
        await one.pause(2 * SPARED_S)
        assert len(evicted(one)) == 3

    play(story, tmp_path)


def test_a_node_without_protected_pods_is_chosen_though_it_costs_more(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_node("n2")
        await bound(one, "kept", priority=1, labels={"app": "kept"})
        await bound(one, "dear", priority=5)
        await one.put_budget("kept", {"app": "kept"})
        await one.put_pod("high", priority=9)
        assert await one.schedule("high") == REFUSED
        await one.pause(1)
        assert [request.path.split("/")[-2] for request in one.sent("/eviction")] == ["dear", "dear"]  # a dry run, and for good
        assert evicted(one) == ["dear"]

    play(story, tmp_path)


def test_no_more_pods_of_one_budget_go_than_it_allows(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_node("n1", 3)
        for name, priority in {"a": 1, "b": 1, "other": 5}.items():
            await bound(one, name, priority=priority, labels={"app": "x"} if name != "other" else {})
        await one.put_budget("x", {"app": "x"}, allowed=1)
        await one.put_pod("high", {"lading.dev/gpu": "2"}, priority=9)
        assert await one.schedule("high") == REFUSED
        await one.pause(1)
        assert sorted(evicted(one)) in (["a", "other"], ["b", "other"])

    play(story, tmp_path)


def test_a_pod_with_two_budgets_is_never_a_victim(tmp_path: Path) -> None:
    """Check a pod with two budgets: the Eviction API refuses it, whatever they allow."""

    async def story(one: Led) -> None:
        await bound(one, "low", priority=1, labels={"app": "x", "tier": "y"})
        await one.put_budget("x", {"app": "x"}, allowed=5)
        await one.put_budget("y", {"tier": "y"}, allowed=5)
        await one.put_pod("high", priority=9)
        assert await one.schedule("high") == REFUSED
        await one.pause(SPARED_S)
        assert one.sent("/eviction") == []

    play(story, tmp_path)


def test_a_victim_that_is_refused_after_the_first_was_evicted_is_asked_again(tmp_path: Path) -> None:
    def is_of_b(request: Request) -> bool:
        return is_for_good(request) and request.path.endswith("b/eviction")

    async def story(one: Led) -> None:
        await one.put_node("n1", 2)
        await one.put_node("n2", 2)
        await bound(one, "a", priority=1)  # the first to go
        await bound(one, "b", priority=2)
        await bound(one, "dear", {"lading.dev/gpu": "2"}, priority=5)
        one.server.fail(Fault(status=429), when=is_of_b, times=2)
        await one.put_pod("high", {"lading.dev/gpu": "2"}, priority=9)
        assert await one.schedule("high") == REFUSED
        await one.pause(1)
        assert nominated(one, "high") == one.bound_to("a")
        await one.pause(3 * SPARED_S)
        assert (evicted(one), nominated(one, "high")) == (["a", "b", "b", "b"], one.bound_to("a"))

    play(story, tmp_path)


def test_without_the_right_to_read_budgets_pods_are_placed_and_none_is_evicted(tmp_path: Path) -> None:
    def is_budgets(request: Request) -> bool:
        return request.path.endswith("/poddisruptionbudgets")

    async def story(one: Led) -> None:
        await one.leadership.end()
        one.server.fail(Fault(status=403, reason="Forbidden"), when=is_budgets, times=1000)
        await one.begin()
        await bound(one, "low", priority=1)
        await one.put_pod("high", priority=9)
        assert await one.schedule("high") == REFUSED
        await one.pause(SPARED_S)
        assert (one.sent("/eviction"), one.bound_to("low")) == ([], "n1")

    play(story, tmp_path)


def test_who_is_deleted_meanwhile_needs_no_victims(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_node("n1", 2)
        await bound(one, "low1", priority=1)
        await bound(one, "low2", priority=1)
        one.server.slowness = lambda request: (1.0, 1.0) if is_for_good(request) else (0.0, 0.0)
        await one.put_pod("high", {"lading.dev/gpu": "2"}, priority=9)
        assert await one.schedule("high") == REFUSED
        await one.pause(1)
        await one.remove_pod("high")
        await one.pause(10)
        assert len(evicted(one)) == 1

    play(story, tmp_path)


def test_room_that_appears_while_it_is_planned_needs_no_victims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("central.loop.slices.SLICE_S", -1.0)  # others have their turn after each step

    async def story(one: Led) -> None:
        await one.put_node("n2")
        await bound(one, "low1", priority=1)
        await bound(one, "low2", priority=2)
        await one.put_pod("high", priority=9)
        assert await one.schedule("high") == REFUSED
        await asyncio.sleep(0)
        end_pod(one.leadership.ledger, one.uid("low2"))
        await one.pause(1)
        assert (evicted(one), nominated(one, "high")) == ([], "")

    play(story, tmp_path)


def test_a_victim_that_ends_while_it_is_planned_is_not_enough_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that central plans another eviction when the evicted pod has ended and a third pod has taken its devices."""
    monkeypatch.setattr("central.loop.slices.SLICE_S", -1.0)

    async def story(one: Led) -> None:
        await one.put_node("n2")
        await bound(one, "low1", priority=1)
        await bound(one, "low2", priority=2)
        await one.put_pod("high", priority=9)
        await one.put_pod("higher", priority=10)
        assert await one.schedule("high") == REFUSED
        await asyncio.sleep(0)
        ledger = one.leadership.ledger
        taken = ledger.pod(one.uid("low1")).taken  # type: ignore[union-attr]
        assert taken is not None
        end_pod(ledger, one.uid("low1"))
        assert ledger.claims.predict(one.uid("higher"), "n1", taken, 100.0) is None
        await one.pause(1)
        assert (evicted(one), nominated(one, "high")) == (["low2"], "n2")

    play(story, tmp_path)


def test_an_urgent_pod_does_not_wait_for_refused_pods_before_it(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await bound(one, "low", priority=2)
        await one.put_node("n2", 4)
        await bound(one, "useless", share("1Gi"), priority=1)
        for number in range(40):
            await one.put_pod(f"p{number}", {"lading.dev/gpu": "7"}, priority=2)
            assert await one.schedule(f"p{number}") == REFUSED
        await one.put_pod("urgent", {"lading.dev/gpu": "1"}, priority=9)
        one.filter("urgent", "n1")
        await one.pause(1)
        assert evicted(one) == ["low"]

    play(story, tmp_path)


def test_the_first_in_line_is_planned_for_first(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await bound(one, "low", priority=1)
        for name, priority in {"a": 2, "b": 9, "c": 3}.items():
            await one.put_pod(name, priority=priority)
        for name in ("a", "b", "c"):  # in one turn of the loop
            assert one.filter(name) == []
        await one.pause(1)
        assert [claim.holder.name for claim in one.leadership.ledger.nominations()] == ["b"]

    play(story, tmp_path)


def test_of_equal_pods_without_a_plan_one_is_planned_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = []

    def counted(scheduler: Scheduler, pod: Pending, *rest: Any) -> Iterator[Plan | None]:
        planned.append(pod.name)
        return plans(scheduler, pod, *rest)

    monkeypatch.setattr("central.controllers.evict.plans", counted)

    async def story(one: Led) -> None:
        await bound(one, "low", priority=1)
        for name in ("a", "b", "c"):
            await one.put_pod(name, {"lading.dev/gpu": "2"}, priority=9)
        for _ in range(2):
            for name in ("a", "b", "c"):
                assert one.filter(name) == []
            await one.pause()
        assert len(planned) == 1

    play(story, tmp_path)


def test_equal_priorities_cost_no_plan(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await bound(one, "a")
        await one.put_pod("b")
        assert await one.schedule("b") == REFUSED
        await one.pause(60)
        assert (evicted(one), one.leadership.ledger.lowest_priority()) == ([], 0)
        await one.remove_pod("a")
        assert one.leadership.ledger.lowest_priority() is None

    play(story, tmp_path)


def test_who_leads_no_more_evicts_no_one(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await bound(one, "low", priority=1)
        await one.put_pod("high", priority=9)
        one.leads = False
        assert await one.schedule("high") == REFUSED
        await one.pause(1)
        assert evicted(one) == []

    play(story, tmp_path)


# Two pods with one device


async def put_bound(one: Led, name: str, card: int = 0, *, signer: Signer | None = None, **parts: Any) -> None:
    """Bind a pod without central."""
    await one.put_pod(name, **parts)
    gpu = {"uuid": gpu_uuid("n1", card), "bdf": f"0000:{0x10 + card:02x}:00.0"}
    message = {"v": 1, "pod": one.uid(name), "node": "n1", "gen": 1, "containers": {"main": {"gpus": [gpu]}}}
    text = msgspec.json.encode(message).decode()
    annotations = {ASSIGNMENT: text} | ({ASSIGNMENT_SIGNATURE: signer.sign(text)} if signer else {})
    await one.put_pod(name, node="n1", annotations=annotations, **parts)


def test_the_younger_goes_and_no_one_else_while_it_ends(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await put_bound(one, "old", created="2026-11-20T00:00:00Z")
        await put_bound(one, "young", created="2026-11-21T00:00:00Z")
        await one.pause(30)
        assert (evicted(one), told(one)) == (["young"], [("young", EventReason.DEVICE_CONFLICT)])
        assert one.records.count(Event.BIND_CONFLICT) == 1
        await one.remove_pod("young")
        await one.pause(10)
        assert evicted(one) == ["young"]

    play(story, tmp_path)


@pytest.mark.parametrize("forger", [a_signer("k1"), a_signer("unknown"), None])
def test_an_assignment_that_no_configured_key_signed_holds_nothing(tmp_path: Path, forger: Signer | None) -> None:
    signer = a_signer("k1")

    async def story(one: Led) -> None:
        await put_bound(one, "forged", created="2026-11-20T00:00:00Z", signer=forger)
        await bound(one, "right")
        assert (one.bound_to("right"), one.records.count(Event.ASSIGNMENT_UNREADABLE)) == ("n1", 1)
        await one.pause(5)
        assert (evicted(one), one.records.count(Event.BIND_CONFLICT)) == ([], 0)

    play(story, tmp_path, signer)


def test_an_assignment_is_verified_in_the_list_and_when_it_changes(tmp_path: Path) -> None:
    signer = a_signer()

    async def story(one: Led) -> None:
        await bound(one, "a")
        await one.leadership.end()
        await one.begin()
        assert one.free_cards() == 0
        pod = one.json("a")
        pod["metadata"]["annotations"][ASSIGNMENT_SIGNATURE] = a_signer().sign("x")
        await one.server.put(pod_path("a"), pod)
        await one.pause()
        assert one.free_cards() == 1
        await one.leadership.end()
        await one.begin()
        assert one.free_cards() == 1

    play(story, tmp_path, signer)


def test_the_pod_whose_grant_the_node_reports_stays(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await put_bound(one, "old", created="2026-11-20T00:00:00Z")
        await one.put_pod("young", created="2026-11-21T00:00:00Z")
        await one.report("n1", grants=[grant(one.uid("young"), "n1", 0)])
        await put_bound(one, "young", created="2026-11-21T00:00:00Z")
        await one.pause(5)
        assert evicted(one) == ["old"]

    play(story, tmp_path)


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


async def refuse_after_a_force_delete(one: Led) -> None:
    """Force-delete the running pod `old` before a report without its grant, and let `new` get its card; then the report
    arrives."""
    await bound(one, "old")
    old = one.uid("old")
    await one.remove_pod("old", forced=True)
    await one.put_pod("new")
    await one.schedule("new")
    await one.report("n1", grants=[grant(old, "n1", 0)])


def test_a_force_deleted_pod_keeps_its_card_until_its_node_reports(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await refuse_after_a_force_delete(one)
        assert one.bound_to("new") == ""
        await one.pause(UNREPORTED_S + 1)
        assert (one.bound_to("new"), one.free_cards()) == ("", 0)
        await one.report("n1")
        assert await one.schedule("new") == ""
        assert evicted(one) == []

    play(story, tmp_path)


def test_a_node_with_nothing_to_say_has_the_card_back_soon(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await bound(one, "old")
        await one.remove_pod("old", forced=True)
        assert one.free_cards() == 0
        await one.pause(UNREPORTED_S + 1)
        assert one.free_cards() == 1

    play(story, tmp_path)


def test_no_pod_is_evicted_because_of_one_that_is_deleted(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await put_bound(one, "new")
        await one.report("n1", grants=[grant("uid-of-one-that-is-gone", "n1", 0)])
        await one.pause(30)
        assert (evicted(one), one.records.count(Event.BIND_CONFLICT)) == ([], 1)

    play(story, tmp_path)


def test_shares_that_fit_beside_each_other_are_no_clash(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await bound(one, "a", share("40Gi"))
        await bound(one, "b", share("40Gi"))
        await one.pause(5)
        assert (evicted(one), one.records.count(Event.BIND_CONFLICT)) == ([], 0)

    play(story, tmp_path)
