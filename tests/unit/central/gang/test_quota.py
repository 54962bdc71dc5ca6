"""Test gangs in quotas: they borrow and return quota as a whole, in turns."""

from pathlib import Path

from central.controllers.events import EventReason
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.led import Led, play
from tests.unit.central.gang.stories import bound, end_evicted, put_gang, reasons

NAME = "quota.scheduling.koordinator.sh/name"
DELAY_S = 30.0


def in_quota(name: str) -> dict[str, str]:
    return {NAME: name}


def test_a_gang_that_its_quota_does_not_allow_holds_nothing(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        await one.report("n1", 8)
        await one.put_quota("a", least=2, most=4)
        await one.pause(2)
        scheduler = KubeScheduler(one)
        await put_gang(one, "large", 5, labels=in_quota("a"))
        await scheduler.run(3)
        assert (bound(one), reasons(scheduler, "large0")) == ([], {"quota-exceeded"})
        await put_gang(one, "small", 4, age=1, labels=in_quota("a"))
        await scheduler.run(3)
        assert len(bound(one)) == 4
        await scheduler.end()

    play(story, tmp_path)


def test_three_quotas_with_a_gang_each_borrow_whole_gangs_in_turns(tmp_path: Path) -> None:
    """Use 16 cards and three gangs of 8: the runtime of each quota is 5 or 6, so that without turns no gang would start."""

    async def story(one: Led) -> None:
        await one.put_node("n1", 8)
        await one.put_node("n2", 8)
        for team in "abc":
            await one.put_quota(team, least=0, most=16)
        await one.pause(2)
        scheduler = KubeScheduler(one)
        for age, team in enumerate("abc"):
            await put_gang(one, team, 8, age=age, labels=in_quota(team))
        await scheduler.run(5)
        assert bound(one) == [f"{team}{number}" for team in "ab" for number in range(8)]
        assert reasons(scheduler, "c0") <= {"quota-turn", "gang-no-room"}
        await put_gang(one, "later", 8, age=9, labels=in_quota("a"))
        await scheduler.run(3)
        for number in range(8):
            await one.remove_pod(f"a{number}")
        await scheduler.run(5)
        assert [name for name in bound(one) if name[0] != "b"] == [f"c{number}" for number in range(8)]
        await scheduler.end()

    play(story, tmp_path)


def test_what_a_quota_lent_is_taken_back_in_whole_gangs_after_the_delay(tmp_path: Path) -> None:
    """Use two quotas with min 8 and max 16: one runs four gangs of 4, and a gang of 6 of the other one arrives."""

    async def story(one: Led) -> None:
        await one.put_node("n1", 8)
        await one.put_node("n2", 8)
        for team in "ab":
            await one.put_quota(team, least=8, most=16)
        await one.pause(2)
        scheduler = KubeScheduler(one)
        for number in range(4):
            await put_gang(one, f"a{number}x", 4, age=number, labels=in_quota("a"))
            await scheduler.run(2)
        assert len(bound(one)) == 16
        await put_gang(one, "b", 6, age=9, labels=in_quota("b"))
        await scheduler.run(DELAY_S / 2)
        assert await end_evicted(one) == []
        await scheduler.run(DELAY_S)
        deleted = await end_evicted(one)
        assert {name.partition("x")[0] for name in deleted} == {"a2", "a3"}  # the newest, whole
        assert len(deleted) == 8
        assert {reason for reason, _ in one.leadership.scheduler.counts.evicted} == {EventReason.QUOTA_TAKEN_BACK}
        await scheduler.run(5)
        assert len([name for name in bound(one) if name.startswith("b")]) == 6
        await put_gang(one, "a9x", 4, age=20, labels=in_quota("a"))
        await scheduler.run(5)
        assert reasons(scheduler, "a9x0") == {"quota-exceeded"}
        assert sum(one.free_cards(node) for node in ("n1", "n2")) == 2
        await scheduler.end()

    play(story, tmp_path, quota_delay_s=DELAY_S)
