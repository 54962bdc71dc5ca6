"""Test that borrowed devices are taken back: after the delay, for a pod that then fits, and no more than it needs."""

from typing import Any

import pytest

from central.controllers.event_reasons import EventReason
from central.controllers.take_back import SCAN_S
from central.quota.model import LABEL_PREEMPTIBLE, LABEL_QUOTA
from lading.log import Event
from lading.vocabulary import RESOURCE_GPU
from tests.fakes.kube_objects import pod_path
from tests.fakes.led import REFUSED, Led
from tests.unit.central.controllers.test_evict import evicted, told

DELAY_S = 120.0
pytestmark = pytest.mark.central(quota_delay_s=DELAY_S)


def of(team: str) -> dict[str, str]:
    return {LABEL_QUOTA: team}


async def run(cluster: Led, name: str, team: str, gpus: int, **message: Any) -> str:
    labels = of(team) | message.pop("labels", {})
    await cluster.put_pod(name, {RESOURCE_GPU: str(gpus)}, labels=labels, **message)
    text = await cluster.schedule(name)
    await cluster.pause()
    return text


async def lent(cluster: Led, **options: Any) -> None:
    """Lend 16 cards: quotas a and b have min 8 and max 16; four pods of a hold all cards."""
    await cluster.put_node("n1", 16)
    await cluster.put_quotas("ab", least=8, most=16)
    for number in range(4):
        created = f"2026-11-21T00:00:{number:02}Z"
        assert await run(cluster, f"a{number}", "a", 4, created=created, **options) == ""


async def ended(cluster: Led, *names: str) -> None:
    for name in names:
        await cluster.remove_pod(name)
    await cluster.pause(1)


def runtime(cluster: Led, team: str) -> float:
    snapshot = cluster.leadership.quotas.snapshot()
    assert snapshot is not None
    return snapshot.runtime[RESOURCE_GPU][next(quota for quota in snapshot.tree.quotas if quota == team)] / 1000


async def test_lent_cards_are_taken_back_after_the_delay_and_lent_again(cluster: Led) -> None:
    await lent(cluster)
    assert runtime(cluster, "a") == 16
    assert await run(cluster, "b", "b", 6) == REFUSED
    assert (runtime(cluster, "a"), runtime(cluster, "b")) == (10, 6)
    await cluster.pause(DELAY_S - 5)
    assert evicted(cluster) == []
    await cluster.pause(10)
    assert sorted(evicted(cluster)) == ["a2", "a3"]  # the newest
    assert {reason for _, reason in told(cluster)} == {EventReason.QUOTA_TAKEN_BACK}
    assert cluster.records.count(Event.QUOTA_TAKEN_BACK) == 1
    await ended(cluster, "a2", "a3")
    assert await cluster.schedule("b") == ""
    await cluster.pause()
    assert cluster.free_cards() == 2
    assert await run(cluster, "a4", "a", 4) == REFUSED
    pod = cluster.leadership.pending.get(cluster.uid("a4"))
    assert pod is not None
    assert pod.quota is not None
    assert pod.quota.why == "quota a: 12 of 10 GPUs: what it may use now"
    await cluster.pause(2 * DELAY_S)
    assert len(evicted(cluster)) == 2  # nothing more
    await ended(cluster, "b")
    assert runtime(cluster, "a") == 12
    assert await cluster.schedule("a4") == ""


async def test_a_pod_of_lower_priority_is_evicted_before_a_newer_pod(cluster: Led) -> None:
    await cluster.put_node("n1", 4)
    await cluster.put_quotas("ab", least=2, most=4)
    for number, priority in enumerate((5, 1, 9, 9)):
        assert await run(cluster, f"a{number}", "a", 1, priority=priority) == ""
    assert await run(cluster, "b", "b", 1) == REFUSED
    await cluster.pause(DELAY_S + 5)
    assert evicted(cluster) == ["a1"]


async def test_a_pod_that_ends_meanwhile_spares_the_others(cluster: Led) -> None:
    await lent(cluster)
    assert await run(cluster, "b", "b", 6) == REFUSED
    await cluster.pause(DELAY_S / 2)
    await ended(cluster, "a0", "a1")
    assert await cluster.schedule("b") == ""
    await cluster.pause(2 * DELAY_S)
    assert evicted(cluster) == []


async def test_no_pod_is_evicted_for_a_pod_that_would_not_fit_then(cluster: Led) -> None:
    await lent(cluster)
    await cluster.put_node("n2", 1)
    await cluster.put_pod("b", {RESOURCE_GPU: "6"}, labels=of("b"))
    assert cluster.filter("b", "n2") == []  # kube-scheduler would put it nowhere else
    await cluster.pause(2 * DELAY_S)
    assert evicted(cluster) == []
    assert cluster.filter("b", "n1", "n2") == []
    await cluster.pause(SCAN_S * 3)
    assert sorted(evicted(cluster)) == ["a2", "a3"]


async def test_pods_that_must_not_be_preempted_are_not_evicted(cluster: Led) -> None:
    await cluster.put_node("n1", 4)
    await cluster.put_quotas("ab", least=2, most=4)
    for number in range(2):
        assert await run(cluster, f"a{number}", "a", 1, labels={LABEL_PREEMPTIBLE: "false"}) == ""
    for number in range(2, 4):
        assert await run(cluster, f"a{number}", "a", 1) == ""
    for number in range(2):
        assert await run(cluster, f"b{number}", "b", 1) == REFUSED
    await cluster.pause(DELAY_S + 10)
    assert sorted(evicted(cluster)) == ["a2", "a3"]


async def test_no_pod_is_evicted_unless_the_budget_allows_all_evictions(cluster: Led) -> None:
    await lent(cluster)
    await cluster.put_budget("all", of("a"), allowed=0)
    assert await run(cluster, "b", "b", 6) == REFUSED
    await cluster.pause(DELAY_S + 10)
    await cluster.put_budget("all", of("a"), allowed=1)  # and two have to go
    await cluster.pause(SCAN_S * 5)
    assert cluster.sent("/eviction") == []  # not even a dry run
    await cluster.put_budget("all", of("a"), allowed=2)
    await cluster.pause(SCAN_S * 5)
    assert len(evicted(cluster)) == 2


@pytest.mark.central(quota_delay_s=0.0)
async def test_without_a_delay_nothing_is_taken_back(cluster: Led) -> None:
    await lent(cluster)
    assert await run(cluster, "b", "b", 6) == REFUSED
    await cluster.pause(10 * DELAY_S)
    assert evicted(cluster) == []


async def test_a_pod_that_its_quota_admits_takes_nothing_back(cluster: Led) -> None:
    """Check three quotas that may use 6, 5 and 5 of 16 cards: the cards that b may borrow are free, but on no single node."""
    await cluster.put_node("n1", 8)
    await cluster.put_node("n2", 8)
    await cluster.put_quotas("abc", most=16)
    for node in ("n1", "n2"):
        await cluster.place(f"a-{node}", {RESOURCE_GPU: "4"}, labels=of("a"), on=node)
    await cluster.put_pod("c", {RESOURCE_GPU: "8"}, labels=of("c"))
    assert await run(cluster, "b", "b", 8) == REFUSED
    assert (runtime(cluster, "a"), runtime(cluster, "b")) == (6, 5)
    pod = cluster.leadership.pending.get(cluster.uid("b"))
    assert pod is not None
    assert pod.quota is None  # only devices are missing
    await cluster.pause(2 * DELAY_S)
    assert cluster.sent("/eviction") == []


async def test_a_pod_that_is_being_deleted_is_not_evicted(cluster: Led) -> None:
    await lent(cluster)
    assert await run(cluster, "b", "b", 6) == REFUSED
    await cluster.pause(DELAY_S / 2)
    leaving = cluster.json("a3")
    leaving["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
    await cluster.server.put(pod_path("a3"), leaving)
    await cluster.pause(DELAY_S)
    assert evicted(cluster) == ["a2"]  # with the one that ends it is enough


async def test_a_pod_beyond_its_runtime_takes_nothing_back(cluster: Led) -> None:
    """Check quotas without min: a larger part by weight is no guarantee for a pod that exceeds its quota's runtime."""
    await cluster.put_node("n1", 8)
    await cluster.put_quotas("ab", most=8)
    assert await run(cluster, "a", "a", 8) == ""
    assert await run(cluster, "b", "b", 8) == REFUSED
    await cluster.pause(2 * DELAY_S)
    assert evicted(cluster) == []
