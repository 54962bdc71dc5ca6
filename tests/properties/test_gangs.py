"""Check invariants of gangs after each step, under filter, bind, watch events, failures, deletions and new leaders in any
order.

`Play` simulates the cluster, and knows the truth. kube-scheduler asks in any order. A Binding succeeds, is refused, or succeeds
without central knowing. `LADING_DEPTH` (tests/depth.py) makes the test longer; each play has its own seed.
"""

from collections import Counter
from collections.abc import Coroutine
from random import Random
from typing import Any, Final, TypeVar

import pytest

from central.api.cached_objects import Ident
from central.controllers.gangs import FINISH_S, GangFeed, GangKeeper
from central.decide.gangs import GangPlanner
from central.decide.scheduler import Reservation
from central.decide.victims import Protection
from central.gang.gang import Gang
from central.ledger.model import Claim, PodRecord
from lading.vocabulary import ASSIGNMENT, GANG, GANG_MIN, PodUid
from tests.depth import repeats
from tests.unit.central.world import World, uid_of

PLAYS: Final = repeats(24, long=800)
STEPS = 120
T = TypeVar("T")


def run(steps: Coroutine[Any, Any, T]) -> T:
    """Run what never has to wait: the clock stands still meanwhile."""
    try:
        steps.send(None)
    except StopIteration as end:
        done: T = end.value
        return done
    raise AssertionError("it waits for something")


class Play:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311  a seeded story, no secret
        self.truth: dict[str, dict[str, Any]] = {}  # pods, as the API server has them
        self.least: dict[str, int] = {}
        self.made = 0
        self.now = 0.0
        self.unclear: dict[str, Reservation] = {}
        self.evicted: set[str] = set()
        self.partly: dict[str, float] = {}  # gangs that are bound in part, since when
        self.lead()

    def lead(self) -> None:
        """Begin a new leadership, which knows only the objects of the API server."""
        self.world = World(now=self.now, version=getattr(self, "world", World()).version)
        self.world.node("n1", 3)
        self.world.node("n2", 2)
        self.feed = GangFeed(self.world.scheduler.starts, self.world.ledger, now=lambda: self.now)
        self.keeper = GangKeeper(
            self.world.scheduler,
            GangPlanner(self.world.scheduler),
            requeue=lambda uids: None,
            evictions=self,
            patience_s=30.0,
            clock=lambda: self.world.now,
            log=self.world.records.log,
        )
        self.unclear.clear()
        for name in self.truth:
            self.show(name)

    # ---- evictions, as central has them carried out

    def protection(self) -> Protection | None:
        return Protection()

    async def evict(self, victim: PodRecord, reason: str, cause: str, *, dry_run: bool = False) -> bool:
        if not dry_run:
            self.evicted.add(victim.name)
        return True

    # ---- what happens

    def show(self, name: str) -> None:
        text = self.truth[name]
        shown = self.world.show(name, **text)
        self.feed.changed(shown)

    def step(self) -> None:
        chosen = self.random.choice(
            [self.create, *[self.ask] * 6, *[self.bind] * 6, self.wait, self.scan, self.scan, self.delete]
        )
        chosen()
        if self.random.random() < 0.01:
            self.lead()
        for name in [*self.evicted]:
            self.remove(name)
        self.evicted.clear()

    def create(self) -> None:
        if len(self.truth) > 12:
            return
        gang = f"g{self.random.randrange(3)}"
        least = self.least.setdefault(gang, self.random.randint(2, 4))
        self.made += 1
        name = f"{gang}-{self.made}"
        annotations = {GANG: gang, GANG_MIN: str(least)} if self.random.random() < 0.9 else {}
        created = f"2026-11-21T00:00:{self.made % 60:02d}Z"
        priority = 0 if annotations else self.random.choice([0, 10])
        self.truth[name] = {"annotations": annotations, "created": created, "priority": priority}
        self.show(name)

    def some(self, *, bound: bool) -> str | None:
        names = [name for name, text in self.truth.items() if bool(text.get("node")) is bound]
        return self.random.choice(names) if names else None

    def ask(self) -> None:
        name = self.some(bound=False)
        if name is not None:
            before = self.plans()
            names = ["n1", "n2"] if self.random.random() < 0.95 else ["n2"]
            first = {*self.world.filter(name, *names).fitting}
            if first and self.world.scheduler.gangs.of(uid_of(name)):
                assert {*self.world.filter(name, *names).fitting} == first  # asked again, the answer is the same
            assert self.plans() <= before  # a question may end a plan, and makes none

    def plans(self) -> set[PodUid]:
        return {uid for uid, own in self.world.ledger.snapshot().own.items() if Claim.PLANNED in own}

    def bind(self) -> None:
        name = self.some(bound=False)
        result = self.world.scheduler.gangs.of(uid_of(name)) if name else None
        if name is None or name in self.unclear:
            return
        planned = result[0].life.places.get(result[1].uid) if result else None
        node = planned.node if planned else self.random.choice(["n1", "n2"])
        text = self.keeper.enter(uid_of(name), node)
        if text != "":
            return
        gang = self.world.scheduler.gangs.get(result[0].key) if result else None
        if gang is not None and not gang.ordinary:
            self.check_barrier(gang)
        reserved = self.world.scheduler.reserve(uid_of(name), node)
        if isinstance(reserved, Reservation):
            outcome = self.random.choice(["done", "done", "done", "refused", "unseen"])
            if outcome == "refused":
                self.world.scheduler.release(reserved)
                return
            self.truth[name] |= {
                "node": node,
                "annotations": self.truth[name]["annotations"] | {ASSIGNMENT: reserved.assignment},
            }
            if outcome == "done":
                self.world.scheduler.confirm(reserved)
                self.show(name)
            else:
                self.unclear[name] = reserved

    def check_barrier(self, gang: Gang) -> None:
        """Check a Binding: the barrier is open, and it opens only after enough members of the plan have arrived."""
        assert gang.life.is_open

    def wait(self, seconds: float | None = None) -> None:
        """Let time pass, of any length by default. What became of each Binding is known then."""
        self.now += self.random.choice([0.1, 1.0, 5.0, FINISH_S / 2]) if seconds is None else seconds
        self.world.now = self.now
        self.world.ledger.expire(self.now)
        for name in [*self.unclear]:
            del self.unclear[name]
            if name in self.truth:
                self.show(name)

    def scan(self) -> None:
        run(self.keeper.scan())

    def delete(self) -> None:
        name = self.some(bound=self.random.random() < 0.3)
        if name is not None and self.random.random() < 0.4:
            self.remove(name)

    def leave(self) -> None:
        """Remove the gang of a waiting pod, as its owner may."""
        name = self.some(bound=False)
        if name is not None and name not in self.unclear and self.random.random() < 0.3:
            self.truth[name]["annotations"] = {}
            self.show(name)

    def remove(self, name: str) -> None:
        if self.truth.pop(name, None) is not None:
            self.unclear.pop(name, None)
            self.world.deleted(name)
            self.feed.removed(_ident(name), "")

    # ---- what has to be true

    def check(self) -> None:
        own = self.world.ledger.snapshot().own
        members = {uid for gang in self.world.scheduler.gangs for uid in (*gang.members, *gang.life.kept)}
        assert {uid for uid in own if Claim.PLANNED in own[uid]} <= members, "room is held for no gang"
        for node, cards in (("n1", 3), ("n2", 2)):
            holders = [uid for uid, held in self.world.ledger.holds_on(node) for _ in held.gpus if not self.only_wished(uid)]
            assert len(holders) <= cards, "more is claimed than there is"
        cards_held = Counter(card for held in self.truth.values() for card in assigned(held))
        assert all(count == 1 for count in cards_held.values()), "a card has two pods"
        for gang in self.world.scheduler.gangs:
            planned = {uid for uid in gang.members if Claim.PLANNED in own.get(uid, {})}
            assert planned >= gang.plan.keys(), "a plan that the ledger does not hold"
            assert planned == gang.plan.keys() | (planned & self.reserved()), "a claim without a plan"
            if gang.plan and not gang.life.is_open and not gang.ordinary and not gang.finishing:
                planned_of = gang.planned()
                assert all(planned_of[role] >= lacking for role, lacking in gang.lacking().items()), "a plan for a part"

    def reserved(self) -> set[PodUid]:
        return {uid for uid, own in self.world.ledger.snapshot().own.items() if Claim.RESERVED in own}

    def only_wished(self, uid: PodUid) -> bool:
        """Return whether the pod holds devices by a nomination only, which may exceed the capacity."""
        own = self.world.ledger.snapshot().own.get(uid, {})
        record = self.world.ledger.pod(uid)
        return own.keys() == {Claim.NOMINATED} and not (record and record.node)

    def settle(self) -> None:
        """Run without faults, and check that each gang is whole or unbound, and that no device is held needlessly."""
        for _ in range(60):
            self.wait(2.0)
            self.scan()
            for name in [name for name, text in self.truth.items() if not text.get("node")]:
                fits = [*self.world.filter(name, "n1", "n2").fitting]
                if fits and self.keeper.enter(uid_of(name), fits[0]) == "":
                    self.finish(name, fits[0])
            for name in [*self.evicted]:
                self.remove(name)
            self.evicted.clear()
            self.check()
        for gang in self.world.scheduler.gangs:
            bound = sum(gang.bound().values())
            assert gang.ordinary or not bound, "a gang that is bound in part outlives its time"

    def finish(self, name: str, node: str) -> None:
        reserved = self.world.scheduler.reserve(uid_of(name), node)
        if isinstance(reserved, Reservation):
            self.world.scheduler.confirm(reserved)
            self.truth[name] |= {
                "node": node,
                "annotations": self.truth[name]["annotations"] | {ASSIGNMENT: reserved.assignment},
            }
            self.show(name)


def assigned(message: dict[str, Any]) -> list[str]:
    text = message["annotations"].get(ASSIGNMENT, "") if message.get("node") else ""
    return [part[:40] for part in text.split('"uuid":"')[1:]]


def _ident(name: str) -> Any:

    return Ident("default", name, uid_of(name))


@pytest.mark.repeats
@pytest.mark.parametrize("block", range(8))
def test_no_half_gang_outlives_its_time_and_no_card_has_two_pods(block: int) -> None:
    for seed in range(block, PLAYS, 8):
        play = Play(seed)
        try:
            for _ in range(STEPS):
                play.step()
                play.check()
            play.settle()
        except AssertionError as e:
            raise AssertionError(f"play {seed}: {e}") from e
