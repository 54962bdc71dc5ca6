"""Test evictions for pods of higher priority and for clashes: who is evicted, when, and what is reserved meanwhile."""

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from central.controllers.event_reasons import EventReason
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
from tests.fakes.led import REFUSED, Led
from tests.fakes.signing import a_signer


def evicted(cluster: Led) -> list[str]:
    return [request.path.split("/")[-2] for request in cluster.sent("/eviction") if is_for_good(request)]


def is_for_good(request: Request) -> bool:
    """Return whether the eviction is no dry run."""
    return request.path.endswith("/eviction") and "dryRun" not in request.query


def told(cluster: Led) -> list[tuple[str, str]]:
    """Return the Kubernetes Events: the pod and the reason of each."""
    return [(request.body["involvedObject"]["name"], request.body["reason"]) for request in cluster.sent("/events")]


def nominated(cluster: Led, name: str) -> str:
    return cluster.leadership.scheduler.nominated_node(cluster.uid(name))


# For a pod of higher priority


async def low_and_high(cluster: Led) -> None:
    """Fill the card with a pod of priority 1, and let central evict the pod for another one of priority 9."""
    await cluster.place("low", priority=1)
    await cluster.refuse("high", priority=9)
    await cluster.pause(1)


async def test_a_victim_is_evicted_and_its_devices_are_reserved_until_the_pod_is_bound(cluster: Led) -> None:
    await cluster.place("low", priority=1)
    await cluster.report("n1", grants=[grant(cluster.uid("low"), "n1", 0)])
    await cluster.refuse("high", priority=9)
    await cluster.pause(1)
    assert (evicted(cluster), nominated(cluster, "high"), cluster.bound_to("low")) == (["low"], "n1", "n1")
    assert told(cluster) == [("low", EventReason.PREEMPTED)]
    assert cluster.sent(f"{pod_path('high')}/status") == []  # nothing is free yet
    await cluster.remove_pod("low")
    await cluster.pause(1)
    assert cluster.sent(f"{pod_path('high')}/status") == []  # the node's report still has the grant
    await cluster.report("n1")
    await cluster.put_pod("other")
    assert await cluster.schedule("other") == REFUSED  # the card is reserved
    await cluster.pause(1)
    assert len(cluster.sent(f"{pod_path('high')}/status")) == 1
    assert await cluster.schedule("high") == ""
    await cluster.pause()
    assert cluster.leadership.ledger.nominations() == ()


async def test_no_second_victim_is_evicted_for_a_pod_that_waits_for_its_first(cluster: Led) -> None:
    await low_and_high(cluster)
    held = cluster.leadership.ledger.nominations()
    assert await cluster.schedule("high") == REFUSED
    await cluster.pause(1)
    assert (evicted(cluster), cluster.leadership.ledger.nominations()) == (["low"], held)


async def test_two_pods_of_high_priority_get_one_victim_each(cluster: Led) -> None:
    await cluster.put_node("n2")
    for name in ("low1", "low2"):
        await cluster.place(name, priority=1)
    for name in ("high1", "high2", "high3"):
        await cluster.refuse(name, priority=9)
    await cluster.pause(2)
    assert sorted(evicted(cluster)) == ["low1", "low2"]


async def test_a_reservation_for_a_pod_ends_after_a_time(cluster: Led) -> None:
    await low_and_high(cluster)
    await cluster.remove_pod("low")
    await cluster.put_pod("other")
    await cluster.pause(NOMINATION_S - 10)
    assert await cluster.schedule("other") == REFUSED
    await cluster.pause(20)
    assert await cluster.schedule("other") == ""


async def test_a_reservation_lasts_as_long_as_the_grace_period_of_its_victims(cluster: Led) -> None:
    grace_s = 5 * NOMINATION_S
    await cluster.put_node("n1", 2)
    for name in ("low1", "low2"):
        await cluster.place(name, priority=1, grace_s=grace_s)
    await cluster.refuse("high", {"lading.dev/gpu": "2"}, priority=9)
    await cluster.pause(1)
    deleted, ending = evicted(cluster)
    await cluster.remove_pod(deleted)
    await cluster.pause(grace_s - 10)
    await cluster.put_pod("small")
    assert (await cluster.schedule("small"), nominated(cluster, "high")) == (REFUSED, "n1")
    await cluster.remove_pod(ending)
    await cluster.pause(1)
    assert await cluster.schedule("high") == ""
    assert sorted(evicted(cluster)) == ["low1", "low2"]


async def test_a_victim_that_does_not_end_in_its_grace_period_is_not_waited_for(cluster: Led) -> None:
    await cluster.put_node("n2")
    await cluster.place("stuck", priority=1, grace_s=10)
    await cluster.place("other", priority=5)
    await cluster.refuse("high", priority=9)
    await cluster.pause(NOMINATION_S)
    assert nominated(cluster, "high") == cluster.bound_to("stuck")
    await cluster.pause(30)
    assert (evicted(cluster), nominated(cluster, "high")) == (["stuck", "other"], cluster.bound_to("other"))


async def test_another_victim_is_evicted_if_a_budget_refuses_the_first(cluster: Led) -> None:
    def is_cheap(request: Request) -> bool:
        return request.path.endswith("cheap/eviction")

    await cluster.put_node("n2")
    await cluster.place("cheap", priority=1)
    await cluster.place("dear", priority=2)
    cluster.server.fail(Fault(status=429), when=is_cheap)
    await cluster.refuse("high", priority=9)
    await cluster.pause(1)
    assert (evicted(cluster), nominated(cluster, "high")) == (["dear"], cluster.bound_to("dear"))
    assert told(cluster) == [("dear", EventReason.PREEMPTED)]
    counts = cluster.leadership.scheduler.counts
    assert counts.evicted == {(EventReason.PREEMPTED, EvictOutcome.SPARED): 1, (EventReason.PREEMPTED, EvictOutcome.EVICTED): 1}
    assert counts.nominated == 2


async def test_evictions_that_budgets_refuse_are_tried_again_later(cluster: Led) -> None:
    await cluster.place("low", priority=1)
    cluster.server.evictable = False
    await cluster.refuse("high", priority=9)
    await cluster.pause(SPARED_S / 2)
    assert (evicted(cluster), nominated(cluster, "high")) == ([], "")
    cluster.server.evictable = True
    await cluster.pause(2 * SPARED_S)
    assert (evicted(cluster), nominated(cluster, "high")) == (["low"], "n1")


@pytest.mark.parametrize("protected", range(3))
async def test_where_each_node_has_one_protected_pod_no_pod_is_evicted(cluster: Led, protected: int) -> None:
    for node in ("n1", "n2"):
        await cluster.put_node(node, 3)
        for number in range(3):
            labels = {"app": "kept"} if number == protected else {}
            await cluster.place(f"{node}-{number}", priority=number, labels=labels)
    await cluster.put_budget("kept", {"app": "kept"})
    await cluster.refuse("high", {"lading.dev/gpu": "3"}, priority=9)
    await cluster.pause(5 * SPARED_S)
    assert (cluster.sent("/eviction"), nominated(cluster, "high")) == ([], "")
    await cluster.put_budget("kept", {"app": "kept"}, allowed=1)
    await cluster.pause(2 * SPARED_S)
    assert len(evicted(cluster)) == 3


async def test_a_node_without_protected_pods_is_chosen_though_it_costs_more(cluster: Led) -> None:
    await cluster.put_node("n2")
    await cluster.place("kept", priority=1, labels={"app": "kept"})
    await cluster.place("dear", priority=5)
    await cluster.put_budget("kept", {"app": "kept"})
    await cluster.refuse("high", priority=9)
    await cluster.pause(1)
    assert [request.path.split("/")[-2] for request in cluster.sent("/eviction")] == ["dear", "dear"]  # a dry run, and for good
    assert evicted(cluster) == ["dear"]


async def test_no_more_pods_of_one_budget_go_than_it_allows(cluster: Led) -> None:
    await cluster.put_node("n1", 3)
    for name, priority in {"a": 1, "b": 1, "other": 5}.items():
        await cluster.place(name, priority=priority, labels={"app": "x"} if name != "other" else {})
    await cluster.put_budget("x", {"app": "x"}, allowed=1)
    await cluster.refuse("high", {"lading.dev/gpu": "2"}, priority=9)
    await cluster.pause(1)
    assert sorted(evicted(cluster)) in (["a", "other"], ["b", "other"])


async def test_a_pod_with_two_budgets_is_never_a_victim(cluster: Led) -> None:
    """Check a pod with two budgets: the Eviction API refuses it, whatever they allow."""
    await cluster.place("low", priority=1, labels={"app": "x", "tier": "y"})
    await cluster.put_budget("x", {"app": "x"}, allowed=5)
    await cluster.put_budget("y", {"tier": "y"}, allowed=5)
    await cluster.refuse("high", priority=9)
    await cluster.pause(SPARED_S)
    assert cluster.sent("/eviction") == []


async def test_a_victim_that_is_refused_after_the_first_was_evicted_is_asked_again(cluster: Led) -> None:
    def is_of_b(request: Request) -> bool:
        return is_for_good(request) and request.path.endswith("b/eviction")

    await cluster.put_node("n1", 2)
    await cluster.put_node("n2", 2)
    await cluster.place("a", priority=1)  # the first to go
    await cluster.place("b", priority=2)
    await cluster.place("dear", {"lading.dev/gpu": "2"}, priority=5)
    cluster.server.fail(Fault(status=429), when=is_of_b, times=2)
    await cluster.refuse("high", {"lading.dev/gpu": "2"}, priority=9)
    await cluster.pause(1)
    assert nominated(cluster, "high") == cluster.bound_to("a")
    await cluster.pause(3 * SPARED_S)
    assert (evicted(cluster), nominated(cluster, "high")) == (["a", "b", "b", "b"], cluster.bound_to("a"))


async def test_without_the_right_to_read_budgets_pods_are_placed_and_none_is_evicted(cluster: Led) -> None:
    def is_budgets(request: Request) -> bool:
        return request.path.endswith("/poddisruptionbudgets")

    await cluster.leadership.end()
    cluster.server.fail(Fault(status=403, reason="Forbidden"), when=is_budgets, times=1000)
    await cluster.begin()
    await cluster.place("low", priority=1)
    await cluster.refuse("high", priority=9)
    await cluster.pause(SPARED_S)
    assert (cluster.sent("/eviction"), cluster.bound_to("low")) == ([], "n1")


async def test_a_pod_that_is_deleted_meanwhile_needs_no_more_victims(cluster: Led) -> None:
    await cluster.put_node("n1", 2)
    await cluster.place("low1", priority=1)
    await cluster.place("low2", priority=1)
    cluster.server.slowness = lambda request: (1.0, 1.0) if is_for_good(request) else (0.0, 0.0)
    await cluster.refuse("high", {"lading.dev/gpu": "2"}, priority=9)
    await cluster.pause(1)
    await cluster.remove_pod("high")
    await cluster.pause(10)
    assert len(evicted(cluster)) == 1


async def test_no_pod_is_evicted_if_a_card_becomes_free_during_the_search(
    cluster: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("central.loop.slices.SLICE_S", -1.0)  # others have their turn after each step
    await cluster.put_node("n2")
    await cluster.place("low1", priority=1)
    await cluster.place("low2", priority=2)
    await cluster.refuse("high", priority=9)
    await asyncio.sleep(0)
    end_pod(cluster.leadership.ledger, cluster.uid("low2"))
    await cluster.pause(1)
    assert (evicted(cluster), nominated(cluster, "high")) == ([], "")


async def test_a_plan_whose_devices_another_pod_takes_during_the_search_is_made_again(
    cluster: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that central plans another eviction when the evicted pod has ended and a third pod has taken its devices."""
    monkeypatch.setattr("central.loop.slices.SLICE_S", -1.0)
    await cluster.put_node("n2")
    await cluster.place("low1", priority=1)
    await cluster.place("low2", priority=2)
    await cluster.put_pod("high", priority=9)
    await cluster.put_pod("higher", priority=10)
    assert await cluster.schedule("high") == REFUSED
    await asyncio.sleep(0)
    ledger = cluster.leadership.ledger
    taken = ledger.pod(cluster.uid("low1")).taken  # type: ignore[union-attr]
    assert taken is not None
    end_pod(ledger, cluster.uid("low1"))
    assert ledger.claims.predict(cluster.uid("higher"), "n1", taken, 100.0) is None
    await cluster.pause(1)
    assert (evicted(cluster), nominated(cluster, "high")) == (["low2"], "n2")


async def test_an_urgent_pod_does_not_wait_for_refused_pods_before_it(cluster: Led) -> None:
    await cluster.place("low", priority=2)
    await cluster.put_node("n2", 4)
    await cluster.place("useless", share("1Gi"), priority=1)
    for number in range(40):
        await cluster.refuse(f"p{number}", {"lading.dev/gpu": "7"}, priority=2)
    await cluster.put_pod("urgent", {"lading.dev/gpu": "1"}, priority=9)
    cluster.filter("urgent", "n1")
    await cluster.pause(1)
    assert evicted(cluster) == ["low"]


async def test_victims_are_searched_first_for_the_pod_that_is_first_in_line(cluster: Led) -> None:
    await cluster.place("low", priority=1)
    for name, priority in {"a": 2, "b": 9, "c": 3}.items():
        await cluster.put_pod(name, priority=priority)
    for name in ("a", "b", "c"):  # in one turn of the loop
        assert cluster.filter(name) == []
    await cluster.pause(1)
    assert [claim.holder.name for claim in cluster.leadership.ledger.nominations()] == ["b"]


async def test_one_search_for_victims_serves_all_equal_pods(cluster: Led, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = []

    def counted(scheduler: Scheduler, pod: Pending, *rest: Any) -> Iterator[Plan | None]:
        planned.append(pod.name)
        return plans(scheduler, pod, *rest)

    monkeypatch.setattr("central.controllers.evict.plans", counted)
    await cluster.place("low", priority=1)
    for name in ("a", "b", "c"):
        await cluster.put_pod(name, {"lading.dev/gpu": "2"}, priority=9)
    for _ in range(2):
        for name in ("a", "b", "c"):
            assert cluster.filter(name) == []
        await cluster.pause()
    assert len(planned) == 1


async def test_no_victims_are_searched_among_pods_of_equal_priority(cluster: Led) -> None:
    await cluster.place("a")
    await cluster.refuse("b")
    await cluster.pause(60)
    assert (evicted(cluster), cluster.leadership.ledger.lowest_priority()) == ([], 0)
    await cluster.remove_pod("a")
    assert cluster.leadership.ledger.lowest_priority() is None


async def test_a_replica_that_leads_no_more_evicts_no_pod(cluster: Led) -> None:
    await cluster.place("low", priority=1)
    await cluster.put_pod("high", priority=9)
    cluster.leads = False
    assert await cluster.schedule("high") == REFUSED
    await cluster.pause(1)
    assert evicted(cluster) == []


# Two pods with one device


async def put_bound(cluster: Led, name: str, card: int = 0, *, signer: Signer | None = None, **parts: Any) -> None:
    """Bind a pod without central."""
    await cluster.put_pod(name, **parts)
    gpu = {"uuid": gpu_uuid("n1", card), "bdf": f"0000:{0x10 + card:02x}:00.0"}
    message = {"v": 1, "pod": cluster.uid(name), "node": "n1", "gen": 1, "containers": {"main": {"gpus": [gpu]}}}
    text = msgspec.json.encode(message).decode()
    annotations = {ASSIGNMENT: text} | ({ASSIGNMENT_SIGNATURE: signer.sign(text)} if signer else {})
    await cluster.put_pod(name, node="n1", annotations=annotations, **parts)


async def test_the_younger_of_two_pods_with_one_card_is_evicted_and_no_other_pod_while_it_ends(cluster: Led) -> None:
    await put_bound(cluster, "old", created="2026-11-20T00:00:00Z")
    await put_bound(cluster, "young", created="2026-11-21T00:00:00Z")
    await cluster.pause(30)
    assert (evicted(cluster), told(cluster)) == (["young"], [("young", EventReason.DEVICE_CONFLICT)])
    assert cluster.records.count(Event.BIND_CONFLICT) == 1
    await cluster.remove_pod("young")
    await cluster.pause(10)
    assert evicted(cluster) == ["young"]


@pytest.mark.parametrize("forger", [a_signer("k1"), a_signer("unknown"), None])
@pytest.mark.central(signer=a_signer("k1"))
async def test_an_assignment_that_no_configured_key_signed_holds_nothing(cluster: Led, forger: Signer | None) -> None:
    await put_bound(cluster, "forged", created="2026-11-20T00:00:00Z", signer=forger)
    await cluster.place("right")
    assert (cluster.bound_to("right"), cluster.records.count(Event.ASSIGNMENT_UNREADABLE)) == ("n1", 1)
    await cluster.pause(5)
    assert (evicted(cluster), cluster.records.count(Event.BIND_CONFLICT)) == ([], 0)


@pytest.mark.central(signer=a_signer())
async def test_an_assignment_is_verified_in_the_list_and_when_it_changes(cluster: Led) -> None:
    await cluster.place("a")
    await cluster.lead_again()
    assert cluster.free_cards() == 0
    pod = cluster.json("a")
    pod["metadata"]["annotations"][ASSIGNMENT_SIGNATURE] = a_signer().sign("x")
    await cluster.server.put(pod_path("a"), pod)
    await cluster.pause()
    assert cluster.free_cards() == 1
    await cluster.lead_again()
    assert cluster.free_cards() == 1


async def test_the_pod_whose_grant_the_node_reports_stays(cluster: Led) -> None:
    await put_bound(cluster, "old", created="2026-11-20T00:00:00Z")
    await cluster.put_pod("young", created="2026-11-21T00:00:00Z")
    await cluster.report("n1", grants=[grant(cluster.uid("young"), "n1", 0)])
    await put_bound(cluster, "young", created="2026-11-21T00:00:00Z")
    await cluster.pause(5)
    assert evicted(cluster) == ["old"]


async def test_three_pods_on_one_card_end_one_after_the_other(cluster: Led) -> None:
    for number in range(3):
        await put_bound(cluster, f"p{number}", created=f"2026-11-2{number}T00:00:00Z")
    await cluster.pause(30)
    assert evicted(cluster) == ["p2"]
    await cluster.remove_pod("p2")
    await cluster.pause(30)
    assert evicted(cluster) == ["p2", "p1"]
    await cluster.remove_pod("p1")
    await cluster.pause(30)
    assert evicted(cluster) == ["p2", "p1"]


@pytest.mark.parametrize("limits", [{}, WHOLE], ids=["without a request", "with a request"])
@pytest.mark.central(signer=a_signer())
async def test_a_pod_that_names_its_cards_by_hand_is_not_taken_for_forged(cluster: Led, limits: dict[str, str]) -> None:
    """Check a pod whose cards central knows from the node's grants alone."""
    await cluster.put_pod("manual", limits, node="n1", annotations={"lading.dev/gpus": "0"}, created="2026-11-20T00:00:00Z")
    await put_bound(cluster, "a", created="2026-11-21T00:00:00Z", signer=cluster.signer)
    await cluster.report("n1", grants=[grant(cluster.uid("manual"), "n1", 0)])
    await cluster.pause(5)
    assert evicted(cluster) == ["a"]


async def test_the_eviction_of_a_clashing_pod_that_a_budget_protects_is_tried_rarely(cluster: Led) -> None:
    await put_bound(cluster, "old", created="2026-11-20T00:00:00Z")
    await put_bound(cluster, "young", created="2026-11-21T00:00:00Z")
    cluster.server.evictable = False
    await cluster.pause(3 * SPARED_S)
    assert 2 <= len(evicted(cluster)) <= 4
    assert set(evicted(cluster)) == {"young"}
    assert cluster.records.count(Event.BIND_CONFLICT) == 1


async def test_a_force_deleted_pod_keeps_its_card_until_its_node_reports(cluster: Led) -> None:
    await cluster.place("old")
    old = cluster.uid("old")
    await cluster.remove_pod("old", forced=True)
    await cluster.refuse("new")
    await cluster.report("n1", grants=[grant(old, "n1", 0)])
    await cluster.pause(UNREPORTED_S + 1)
    assert (cluster.bound_to("new"), cluster.free_cards()) == ("", 0)
    await cluster.report("n1")
    assert await cluster.schedule("new") == ""
    assert evicted(cluster) == []


async def test_the_card_of_a_force_deleted_pod_is_free_after_a_time_if_its_node_reports_nothing(cluster: Led) -> None:
    await cluster.place("old")
    await cluster.remove_pod("old", forced=True)
    assert cluster.free_cards() == 0
    await cluster.pause(UNREPORTED_S + 1)
    assert cluster.free_cards() == 1


async def test_no_pod_is_evicted_because_of_the_grant_of_a_deleted_pod(cluster: Led) -> None:
    await put_bound(cluster, "new")
    await cluster.report("n1", grants=[grant("uid-of-one-that-is-gone", "n1", 0)])
    await cluster.pause(30)
    assert (evicted(cluster), cluster.records.count(Event.BIND_CONFLICT)) == ([], 1)


async def test_shares_that_fit_beside_each_other_are_no_clash(cluster: Led) -> None:
    await cluster.place("a", share("40Gi"))
    await cluster.place("b", share("40Gi"))
    await cluster.pause(5)
    assert (evicted(cluster), cluster.records.count(Event.BIND_CONFLICT)) == ([], 0)
