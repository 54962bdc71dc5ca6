"""Test that borrowed devices are taken back: after the delay, for a pod that then fits, and no more than it needs."""

from pathlib import Path
from typing import Any

from central.controllers.events import EventReason
from central.controllers.take_back import SCAN_S
from central.quota.model import LABEL_PREEMPTIBLE, LABEL_QUOTA
from lading.log import Event
from lading.vocabulary import RESOURCE_GPU
from tests.fakes.kube_objects import pod_path
from tests.fakes.led import REFUSED, Led, play
from tests.unit.central.controllers.test_evict import evicted, told

DELAY_S = 120.0


def of(team: str) -> dict[str, str]:
    return {LABEL_QUOTA: team}


async def run(one: Led, name: str, team: str, gpus: int, **message: Any) -> str:
    labels = of(team) | message.pop("labels", {})
    await one.put_pod(name, {RESOURCE_GPU: str(gpus)}, labels=labels, **message)
    text = await one.schedule(name)
    await one.pause()
    return text


async def lent(one: Led, **options: Any) -> None:
    """Lend 16 cards: quotas a and b have min 8 and max 16; four pods of a hold all cards."""
    await one.put_node("n1", 16)
    for team in "ab":
        await one.put_quota(team, least=8, most=16)
    await one.pause(2)
    for number in range(4):
        created = f"2026-11-21T00:00:{number:02}Z"
        assert await run(one, f"a{number}", "a", 4, created=created, **options) == ""


async def ended(one: Led, *names: str) -> None:
    for name in names:
        await one.remove_pod(name)
    await one.pause(1)


def runtime(one: Led, team: str) -> float:
    snapshot = one.leadership.quotas.snapshot()
    assert snapshot is not None
    return snapshot.runtime[RESOURCE_GPU][next(quota for quota in snapshot.tree.quotas if quota == team)] / 1000


def test_lend_and_take_back(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await lent(one)
        assert runtime(one, "a") == 16
        assert await run(one, "b", "b", 6) == REFUSED
        assert (runtime(one, "a"), runtime(one, "b")) == (10, 6)
        await one.pause(DELAY_S - 5)
        assert evicted(one) == []
        await one.pause(10)
        assert sorted(evicted(one)) == ["a2", "a3"]  # the newest
        assert {reason for _, reason in told(one)} == {EventReason.QUOTA_TAKEN_BACK}
        assert one.records.count(Event.QUOTA_TAKEN_BACK) == 1
        await ended(one, "a2", "a3")
        assert await one.schedule("b") == ""
        await one.pause()
        assert one.free_cards() == 2
        assert await run(one, "a4", "a", 4) == REFUSED
        pod = one.leadership.pending.get(one.uid("a4"))
        assert pod is not None
        assert pod.quota is not None
        assert pod.quota.why == "quota a: 12 of 10 GPUs: what it may use now"
        await one.pause(2 * DELAY_S)
        assert len(evicted(one)) == 2  # nothing more
        await ended(one, "b")
        assert runtime(one, "a") == 12
        assert await one.schedule("a4") == ""

    play(story, tmp_path, quota_delay_s=DELAY_S)


def test_a_lower_priority_goes_before_a_newer_pod(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_node("n1", 4)
        for team in "ab":
            await one.put_quota(team, least=2, most=4)
        await one.pause(2)
        for number, priority in enumerate((5, 1, 9, 9)):
            assert await run(one, f"a{number}", "a", 1, priority=priority) == ""
        assert await run(one, "b", "b", 1) == REFUSED
        await one.pause(DELAY_S + 5)
        assert evicted(one) == ["a1"]

    play(story, tmp_path, quota_delay_s=DELAY_S)


def test_a_pod_that_ends_meanwhile_spares_the_others(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await lent(one)
        assert await run(one, "b", "b", 6) == REFUSED
        await one.pause(DELAY_S / 2)
        await ended(one, "a0", "a1")
        assert await one.schedule("b") == ""
        await one.pause(2 * DELAY_S)
        assert evicted(one) == []

    play(story, tmp_path, quota_delay_s=DELAY_S)


def test_nothing_goes_for_a_pod_that_would_not_fit_then(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await lent(one)
        await one.put_node("n2", 1)
        await one.put_pod("b", {RESOURCE_GPU: "6"}, labels=of("b"))
        assert one.filter("b", "n2") == []  # kube-scheduler would put it nowhere else
        await one.pause(2 * DELAY_S)
        assert evicted(one) == []
        assert one.filter("b", "n1", "n2") == []
        await one.pause(SCAN_S * 3)
        assert sorted(evicted(one)) == ["a2", "a3"]

    play(story, tmp_path, quota_delay_s=DELAY_S)


def test_pods_that_are_never_preempted_stay(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.put_node("n1", 4)
        for team in "ab":
            await one.put_quota(team, least=2, most=4)
        await one.pause(2)
        for number in range(2):
            assert await run(one, f"a{number}", "a", 1, labels={LABEL_PREEMPTIBLE: "false"}) == ""
        for number in range(2, 4):
            assert await run(one, f"a{number}", "a", 1) == ""
        for number in range(2):
            assert await run(one, f"b{number}", "b", 1) == REFUSED
        await one.pause(DELAY_S + 10)
        assert sorted(evicted(one)) == ["a2", "a3"]

    play(story, tmp_path, quota_delay_s=DELAY_S)


def test_a_budget_that_allows_none_holds(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await lent(one)
        await one.put_budget("all", of("a"), allowed=0)
        assert await run(one, "b", "b", 6) == REFUSED
        await one.pause(DELAY_S + 10)
        await one.put_budget("all", of("a"), allowed=1)  # and two have to go
        await one.pause(SCAN_S * 5)
        assert one.sent("/eviction") == []  # not even a dry run
        await one.put_budget("all", of("a"), allowed=2)
        await one.pause(SCAN_S * 5)
        assert len(evicted(one)) == 2

    play(story, tmp_path, quota_delay_s=DELAY_S)


def test_without_a_delay_nothing_is_taken_back(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await lent(one)
        assert await run(one, "b", "b", 6) == REFUSED
        await one.pause(10 * DELAY_S)
        assert evicted(one) == []

    play(story, tmp_path, quota_delay_s=0.0)


def test_a_pod_that_was_let_in_to_borrow_takes_nothing_back(tmp_path: Path) -> None:
    """Check three quotas that may use 6, 5 and 5 of 16 cards: the cards that b may borrow are free, but on no single node."""

    async def story(one: Led) -> None:
        await one.put_node("n1", 8)
        await one.put_node("n2", 8)
        for team in "abc":
            await one.put_quota(team, most=16)
        await one.pause(2)
        for node in ("n1", "n2"):
            await one.put_pod(f"a-{node}", {RESOURCE_GPU: "4"}, labels=of("a"))
            assert one.filter(f"a-{node}", node) == [node]
            assert await one.bind(f"a-{node}", node) == ""
            await one.pause()
        await one.put_pod("c", {RESOURCE_GPU: "8"}, labels=of("c"))
        assert await run(one, "b", "b", 8) == REFUSED
        assert (runtime(one, "a"), runtime(one, "b")) == (6, 5)
        pod = one.leadership.pending.get(one.uid("b"))
        assert pod is not None
        assert pod.quota is None  # only devices are missing
        await one.pause(2 * DELAY_S)
        assert one.sent("/eviction") == []

    play(story, tmp_path, quota_delay_s=DELAY_S)


def test_a_pod_that_ends_already_is_not_evicted(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await lent(one)
        assert await run(one, "b", "b", 6) == REFUSED
        await one.pause(DELAY_S / 2)
        leaving = one.json("a3")
        leaving["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
        await one.server.put(pod_path("a3"), leaving)
        await one.pause(DELAY_S)
        assert evicted(one) == ["a2"]  # with the one that ends it is enough

    play(story, tmp_path, quota_delay_s=DELAY_S)


def test_a_pod_that_would_borrow_takes_nothing_back(tmp_path: Path) -> None:
    """Check quotas without min: a larger part by weight is no guarantee for a pod that exceeds its quota's runtime."""

    async def story(one: Led) -> None:
        await one.put_node("n1", 8)
        for team in "ab":
            await one.put_quota(team, most=8)
        await one.pause(2)
        assert await run(one, "a", "a", 8) == ""
        assert await run(one, "b", "b", 8) == REFUSED
        await one.pause(2 * DELAY_S)
        assert evicted(one) == []

    play(story, tmp_path, quota_delay_s=DELAY_S)
