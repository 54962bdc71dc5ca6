"""Test preemption within a quota, from the refusal to the Binding, for pods and for gangs."""

import pytest

from central.controllers.event_reasons import EventReason
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.led import REFUSED, Led
from tests.unit.central.controllers.test_evict import evicted, told
from tests.unit.central.controllers.test_take_back import run
from tests.unit.central.gang.members import bound, end_evicted, put_gang, reasons
from tests.unit.central.gang.test_quota import in_quota


async def test_a_pod_beyond_its_quota_takes_the_place_of_one_of_lower_priority(cluster: Led) -> None:
    await cluster.report("n1", 4)
    await cluster.put_quotas("a", most=2)
    for number in range(2):
        assert await run(cluster, f"low{number}", "a", 1, priority=number) == ""
    assert await run(cluster, "high", "a", 1, priority=10) == REFUSED
    await cluster.pause(2)
    assert evicted(cluster) == ["low0"]
    assert told(cluster) == [("low0", EventReason.PREEMPTED)]
    assert await cluster.schedule("high") == REFUSED  # it has not ended
    await cluster.remove_pod("low0")
    await cluster.pause(2)
    assert await cluster.schedule("high") == ""
    assert evicted(cluster) == ["low0"]


@pytest.mark.central(patience_s=50.0)
async def test_no_one_is_evicted_of_another_quota_and_room_is_kept_instead(cluster: Led) -> None:
    await cluster.report("n1", 2)
    await cluster.put_quota("a", least=2)
    await cluster.put_quotas("b")
    for number in range(2):
        assert await run(cluster, f"b{number}", "b", 1) == ""
    assert await run(cluster, "high", "a", 2, priority=10) == REFUSED
    await cluster.pause(60)
    assert await cluster.schedule("high") == REFUSED
    await cluster.pause(3)
    assert evicted(cluster) == []
    assert cluster.leadership.scheduler.room_for(cluster.uid("high")) == ("", "n1")


async def test_a_gang_evicts_pods_of_its_own_quota_until_it_fits_there(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 8)
    await cluster.put_quotas("ab", most=4)
    await put_gang(cluster, "of-b", 2, labels=in_quota("b"), priority=-5)
    await put_gang(cluster, "of-a", 2, labels=in_quota("a"))
    await put_gang(cluster, "too", 2, labels=in_quota("a"), priority=3)
    await scheduler.run(3)
    assert len(bound(cluster)) == 6
    await put_gang(cluster, "high", 2, age=9, labels=in_quota("a"), priority=10)
    await scheduler.run(1)
    assert reasons(scheduler, "high0") == {"quota-exceeded"}
    await scheduler.run(3)
    assert sorted(await end_evicted(cluster)) == ["of-a0", "of-a1"]
    await scheduler.run(5)
    assert [name for name in bound(cluster) if name.startswith("high")] == ["high0", "high1"]
    assert [name for name in bound(cluster) if name.startswith("of-b")] == ["of-b0", "of-b1"]
    await put_gang(cluster, "large", 5, age=10, labels=in_quota("a"), priority=20)
    await scheduler.run(5)
    assert await end_evicted(cluster) == []
