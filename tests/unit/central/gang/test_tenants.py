"""Test the order in which gangs of several namespaces are planned."""

from collections.abc import Awaitable, Iterable

from central.controllers.gangs import GangFeed, GangKeeper
from central.decide.gangs import GangPlanner
from central.decide.victims import Protection
from central.gang.life import Phase
from central.ledger.model import PodRecord
from lading.vocabulary import GANG, GANG_MIN, PodUid
from tests.fakes.simulated_time import run_simulated
from tests.unit.central.world import World, uid_of


class NoEvictions:
    def protection(self) -> Protection | None:
        return None

    async def evict(self, victim: PodRecord, reason: str, cause: str, *, dry_run: bool = False) -> bool:
        raise AssertionError


class Gangs:
    """Create a cluster where gangs are planned when the test decides."""

    def __init__(self, cards: int) -> None:
        self.world = World()
        self.world.node("n0", cards)
        self.feed = GangFeed(self.world.scheduler.starts, self.world.ledger)
        self.keeper = GangKeeper(
            self.world.scheduler,
            GangPlanner(self.world.scheduler),
            requeue=self._requeue,
            evictions=NoEvictions(),
            patience_s=100.0,
            clock=lambda: self.world.now,
            log=self.world.records.log,
            sleep=self._sleep,
        )

    def _requeue(self, uids: Iterable[PodUid]) -> None:
        """Do nothing: the test itself asks again."""

    def _sleep(self, seconds: float) -> Awaitable[None]:
        raise AssertionError

    def put(self, name: str, namespace: str, *, age: int, members: int = 2) -> None:
        for number in range(members):
            text = {GANG: name, GANG_MIN: str(members)}
            created = f"2026-11-21T00:00:{age:02d}Z"
            shown = self.world.show(f"{name}-{number}", namespace=namespace, created=created, annotations=text)
            self.feed.changed(shown)
            self.world.filter(f"{name}-{number}")

    def planned(self) -> set[str]:
        run_simulated(self.keeper.scan())
        return {gang.key.name for gang in self.world.scheduler.gangs if gang.phase is Phase.PLANNED}

    def kept_for(self) -> set[str]:
        run_simulated(self.keeper.scan())
        return {claim.holder.namespace for claim in self.world.ledger.nominations()}


def test_each_namespace_has_its_turn_however_many_older_gangs_another_one_has() -> None:
    gangs = Gangs(6)
    for age in range(4):
        gangs.put(f"a{age}", "a", age=age)
    gangs.put("b0", "b", age=20)
    gangs.put("b1", "b", age=21)
    assert gangs.planned() == {"a0", "a1", "b0"}


def test_gangs_of_one_namespace_are_planned_by_age() -> None:
    gangs = Gangs(4)
    for age in (3, 1, 2):
        gangs.put(f"a{age}", "a", age=age)
    assert gangs.planned() == {"a1", "a2"}


def test_a_gang_that_does_not_fit_lets_a_gang_of_a_namespace_with_more_cards_pass() -> None:
    gangs = Gangs(4)
    gangs.world.bind("runs", "n0", namespace="a")
    gangs.put("large", "b", age=0, members=4)
    gangs.put("small", "a", age=1)
    assert gangs.planned() == {"small"}


def test_room_stays_with_the_gang_for_which_it_is_kept() -> None:
    gangs = Gangs(4)
    for number, namespace in enumerate("aabb"):
        gangs.world.bind(f"runs{number}", "n0", namespace=namespace)
    gangs.put("first", "a", age=0, members=4)
    gangs.put("second", "b", age=1, members=4)
    gangs.planned()
    gangs.world.now = 150.0
    assert gangs.kept_for() == {"a"}
    gangs.world.deleted("runs2")
    gangs.world.now = 152.0
    assert gangs.kept_for() == {"a"}
    for number in (0, 1, 3):
        gangs.world.deleted(f"runs{number}")
    assert gangs.planned() == {"first"}
    assert gangs.world.pending_pod("second-0").uid == uid_of("second-0")
