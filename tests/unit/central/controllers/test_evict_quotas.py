"""Test preemption within a quota, from the refusal to the Binding, for pods and for gangs."""

from pathlib import Path

from central.controllers.events import EventReason
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.led import REFUSED, Led, play
from tests.unit.central.controllers.test_evict import evicted, told
from tests.unit.central.controllers.test_take_back import run
from tests.unit.central.gang.stories import bound, end_evicted, put_gang, reasons
from tests.unit.central.gang.test_quota import in_quota


def test_a_pod_beyond_its_quota_takes_the_place_of_one_of_lower_priority(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 4)
        await one.put_quota("a", most=2)
        await one.pause(2)
        for number in range(2):
            assert await run(one, f"low{number}", "a", 1, priority=number) == ""
        assert await run(one, "high", "a", 1, priority=10) == REFUSED
        await one.pause(2)
        assert evicted(one) == ["low0"]
        assert told(one) == [("low0", EventReason.PREEMPTED)]
        assert await one.schedule("high") == REFUSED  # it has not ended
        await one.remove_pod("low0")
        await one.pause(2)
        assert await one.schedule("high") == ""
        assert evicted(one) == ["low0"]

    play(story, tmp_path)


def test_no_one_is_evicted_of_another_quota_and_room_is_kept_instead(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 2)
        await one.put_quota("a", least=2)
        await one.put_quota("b")
        await one.pause(2)
        for number in range(2):
            assert await run(one, f"b{number}", "b", 1) == ""
        assert await run(one, "high", "a", 2, priority=10) == REFUSED
        await one.pause(60)
        assert await one.schedule("high") == REFUSED
        await one.pause(3)
        assert evicted(one) == []
        assert one.leadership.scheduler.room_for(one.uid("high")) == ("", "n1")

    play(story, tmp_path, patience_s=50.0)


def test_a_gang_evicts_pods_of_its_own_quota_until_it_fits_there(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 8)
        for team in "ab":
            await one.put_quota(team, most=4)
        await one.pause(2)
        scheduler = KubeScheduler(one)
        await put_gang(one, "of-b", 2, labels=in_quota("b"), priority=-5)
        await put_gang(one, "of-a", 2, labels=in_quota("a"))
        await put_gang(one, "too", 2, labels=in_quota("a"), priority=3)
        await scheduler.run(3)
        assert len(bound(one)) == 6
        await put_gang(one, "high", 2, age=9, labels=in_quota("a"), priority=10)
        await scheduler.run(1)
        assert reasons(scheduler, "high0") == {"quota-exceeded"}
        await scheduler.run(3)
        assert sorted(await end_evicted(one)) == ["of-a0", "of-a1"]
        await scheduler.run(5)
        assert [name for name in bound(one) if name.startswith("high")] == ["high0", "high1"]
        assert [name for name in bound(one) if name.startswith("of-b")] == ["of-b0", "of-b1"]
        await put_gang(one, "large", 5, age=10, labels=in_quota("a"), priority=20)
        await scheduler.run(5)
        assert await end_evicted(one) == []
        await scheduler.end()

    play(story, tmp_path)
