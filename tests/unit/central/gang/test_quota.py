"""Test gangs in quotas: they borrow and return quota as a whole, in turns."""

import pytest

from central.controllers.event_reasons import EventReason
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.led import Led
from tests.unit.central.gang.members import bound, end_evicted, put_gang, reasons

NAME = "quota.scheduling.koordinator.sh/name"
DELAY_S = 30.0


def in_quota(name: str) -> dict[str, str]:
    return {NAME: name}


async def test_a_gang_that_its_quota_does_not_allow_holds_nothing(cluster: Led, scheduler: KubeScheduler) -> None:
    await cluster.report("n1", 8)
    await cluster.put_quotas("a", least=2, most=4)
    await put_gang(cluster, "large", 5, labels=in_quota("a"))
    await scheduler.run(3)
    assert (bound(cluster), reasons(scheduler, "large0")) == ([], {"quota-exceeded"})
    await put_gang(cluster, "small", 4, age=1, labels=in_quota("a"))
    await scheduler.run(3)
    assert len(bound(cluster)) == 4


async def test_three_quotas_with_a_gang_each_borrow_whole_gangs_in_turns(cluster: Led, scheduler: KubeScheduler) -> None:
    """Use 16 cards and three gangs of 8: the runtime of each quota is 5 or 6, so that without turns no gang would start."""
    await cluster.put_node("n1", 8)
    await cluster.put_node("n2", 8)
    await cluster.put_quotas("abc", least=0, most=16)
    for age, team in enumerate("abc"):
        await put_gang(cluster, team, 8, age=age, labels=in_quota(team))
    await scheduler.run(5)
    assert bound(cluster) == [f"{team}{number}" for team in "ab" for number in range(8)]
    assert reasons(scheduler, "c0") <= {"quota-turn", "gang-no-room"}
    await put_gang(cluster, "later", 8, age=9, labels=in_quota("a"))
    await scheduler.run(3)
    for number in range(8):
        await cluster.remove_pod(f"a{number}")
    await scheduler.run(5)
    assert [name for name in bound(cluster) if name[0] != "b"] == [f"c{number}" for number in range(8)]


@pytest.mark.central(quota_delay_s=DELAY_S)
async def test_lent_cards_are_taken_back_in_whole_gangs_after_the_delay(cluster: Led, scheduler: KubeScheduler) -> None:
    """Use two quotas with min 8 and max 16: one runs four gangs of 4, and a gang of 6 of the other one arrives."""
    await cluster.put_node("n1", 8)
    await cluster.put_node("n2", 8)
    await cluster.put_quotas("ab", least=8, most=16)
    for number in range(4):
        await put_gang(cluster, f"a{number}x", 4, age=number, labels=in_quota("a"))
        await scheduler.run(2)
    assert len(bound(cluster)) == 16
    await put_gang(cluster, "b", 6, age=9, labels=in_quota("b"))
    await scheduler.run(DELAY_S / 2)
    assert await end_evicted(cluster) == []
    await scheduler.run(DELAY_S)
    deleted = await end_evicted(cluster)
    assert {name.partition("x")[0] for name in deleted} == {"a2", "a3"}  # the newest, whole
    assert len(deleted) == 8
    assert {reason for reason, _ in cluster.leadership.scheduler.counts.evicted} == {EventReason.QUOTA_TAKEN_BACK}
    await scheduler.run(5)
    assert len([name for name in bound(cluster) if name.startswith("b")]) == 6
    await put_gang(cluster, "a9x", 4, age=20, labels=in_quota("a"))
    await scheduler.run(5)
    assert reasons(scheduler, "a9x0") == {"quota-exceeded"}
    assert sum(cluster.free_cards(node) for node in ("n1", "n2")) == 2
