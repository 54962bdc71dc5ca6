"""Check gangs whose members are created, deleted, annotated late, or change their gang, while objects and leaders change.

`Cluster` is the truth: the objects of the API server. kube-scheduler asks in any order. A Binding succeeds, is refused, or
succeeds without central knowing. Any event can interrupt a plan. After each step the ledger, the gangs and the bound pods are
compared. `LADING_DEPTH` (tests/depth.py) makes the test longer.
"""

import math
from collections import Counter
from typing import Any, Final

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from central.api.cached_objects import Ident
from central.api.pod_groups import GANG_KINDS, PodGroup
from central.controllers.event_reasons import EventReason
from central.controllers.gangs import FINISH_S, GangFeed, GangKeeper, GangObjectFeed
from central.decide.gangs import GangPlanner
from central.decide.scheduler import Reservation
from central.decide.victims import Protection
from central.gang.gang import Gang
from central.gang.life import Phase
from central.ledger.model import Claim, PodRecord
from lading.vocabulary import ASSIGNMENT, GANG, GANG_MIN, PodUid
from tests.depth import repeats
from tests.properties.test_gangs import assigned, run
from tests.unit.central.world import World, uid_of

KOORDINATOR: Final = "gang.scheduling.koordinator.sh/"
LABEL: Final = "pod-group.scheduling.sigs.k8s.io"
CARDS: Final = {"n1": 3, "n2": 2}
NAMES: Final = ("a", "b")
GROUP: Final = '["default/a","default/b"]'
MOST_PODS: Final = 10

# Annotations of a pod: none, Lading's with a minimum, or Koordinator's without and with an object, in a group or not.
WORDS: Final = st.one_of(
    st.just({}),
    st.builds(lambda name, least: {GANG: name, GANG_MIN: str(least)}, st.sampled_from(NAMES), st.sampled_from([2, 2, 2, 3])),
    st.builds(
        lambda name, groups: {f"{KOORDINATOR}name": name, f"{KOORDINATOR}min-available": "2", **groups},
        st.sampled_from(NAMES),
        st.sampled_from([{}, {f"{KOORDINATOR}groups": GROUP}]),
    ),
    st.builds(lambda name: {"label": name}, st.sampled_from(NAMES)),
)
PICK: Final = st.integers(min_value=0, max_value=99)
OUTCOMES: Final = st.sampled_from(["done", "done", "done", "refused", "unseen"])


class Changes(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.truth: dict[str, dict[str, Any]] = {}  # pods, as the API server has them
        self.objects: dict[str, PodGroup] = {}
        self.bound_in: dict[str, str] = {}  # the gang of each pod when it was bound
        self.made = 0
        self.now = 0.0
        self.version = 0
        self.unclear: dict[str, Reservation] = {}
        self.evicted: set[str] = set()
        self.lead()

    # ---- central

    @rule()
    def lead(self) -> None:
        """Begin a new leadership, which knows only the objects of the API server."""
        self.world = World(now=self.now, version=self.version)
        for node, cards in CARDS.items():
            self.world.node(node, cards)
        self.feed = GangFeed(self.world.scheduler.starts, self.world.ledger, now=lambda: self.now)
        self.object_feed = GangObjectFeed(self.world.scheduler.starts, GANG_KINDS[1])
        self.planner = GangPlanner(self.world.scheduler)
        self.keeper = GangKeeper(
            self.world.scheduler,
            self.planner,
            requeue=lambda uids: None,
            evictions=self,
            patience_s=20.0,
            clock=lambda: self.world.now,
            log=self.world.records.log,
        )
        self.unclear.clear()
        for name in self.truth:
            self.show(name)
        for one in self.objects.values():
            self.object_feed.changed(one)

    def protection(self) -> Protection | None:
        return Protection()

    async def evict(self, victim: PodRecord, reason: str, cause: str, *, dry_run: bool = False) -> bool:
        if reason == EventReason.GANG_INCOMPLETE:
            result = self.world.scheduler.gangs.of(victim.uid)
            assert result is not None
            assert self.bound_in.get(victim.name) == result[0].key.text, "evicted for a gang that it named later"
        if not dry_run:
            self.evicted.add(victim.name)
        return True

    # ---- pods and objects

    def show(self, name: str) -> None:
        message = self.truth[name]
        text = dict(message["says"])
        labels = {LABEL: text.pop("label")} if "label" in text else {}
        shown = self.world.show(
            name,
            annotations=text | message.get("assigned", {}),
            labels=labels,
            node=message.get("node", ""),
            deleting=message.get("deleting", False),
            created=message["created"],
            priority=message["priority"],
        )
        self.version = self.world.version
        self.feed.changed(shown)

    def some(self, pick: int, *, bound: bool | None = None) -> str | None:
        names = [name for name, text in self.truth.items() if bound is None or bool(text.get("node")) is bound]
        return names[pick % len(names)] if names else None

    @rule(says=WORDS, count=st.integers(min_value=1, max_value=3), priority=st.sampled_from([0, 0, 0, 5]))
    def create(self, says: dict[str, str], count: int, priority: int) -> None:
        for _ in range(count if len(self.truth) < MOST_PODS else 0):
            self.made += 1
            created = f"2026-11-21T00:00:{self.made % 60:02d}Z"
            self.truth[f"p{self.made}"] = {"says": says, "created": created, "priority": priority}
            self.show(f"p{self.made}")

    @rule(says=WORDS, priority=st.sampled_from([0, 5]))
    def create_and_plan(self, says: dict[str, str], priority: int) -> None:
        self.create(says, 3, priority)
        self.ask_all()
        self.scan()

    @rule(says=WORDS, outcome=OUTCOMES)
    def create_and_bind(self, says: dict[str, str], outcome: str) -> None:
        self.create_and_plan(says, 0)
        self.bind_all(outcome)

    @rule(pick=PICK, says=WORDS)
    def annotate(self, pick: int, says: dict[str, str]) -> None:
        if (name := self.some(pick)) is not None:
            self.truth[name]["says"] = says
            self.show(name)

    @rule(pick=PICK)
    def touch(self, pick: int) -> None:
        if (name := self.some(pick)) is not None:
            self.show(name)

    @rule(name=st.sampled_from(NAMES), least=st.integers(min_value=1, max_value=3), groups=st.booleans())
    def put_object(self, name: str, least: int, groups: bool) -> None:
        annotations = {f"{KOORDINATOR}groups": GROUP} if groups else {}
        metadata = {"name": name, "namespace": "default", "uid": f"object-{name}", "annotations": annotations}
        self.objects[name] = msgspec.convert({"metadata": metadata, "spec": {"minMember": least}}, PodGroup)
        self.object_feed.changed(self.objects[name])

    @rule(name=st.sampled_from(NAMES))
    def remove_object(self, name: str) -> None:
        if self.objects.pop(name, None) is not None:
            self.object_feed.removed(Ident("default", name, f"object-{name}"), "")

    @rule(pick=PICK, count=st.integers(min_value=1, max_value=4))
    def delete(self, pick: int, count: int) -> None:
        """Set a deletionTimestamp on pods, one after the other."""
        for number in range(count):
            if (name := self.some(pick + number)) is not None:
                self.truth[name]["deleting"] = True
                self.show(name)

    @rule(pick=PICK)
    def remove(self, pick: int) -> None:
        if (name := self.some(pick)) is not None:
            self.end(name)

    @rule()
    def end_deleted(self) -> None:
        for name in [name for name, text in self.truth.items() if text.get("deleting")]:
            self.end(name)

    def end(self, name: str) -> None:
        if self.truth.pop(name, None) is not None:
            self.unclear.pop(name, None)
            self.world.deleted(name)
            self.version = self.world.version
            self.feed.removed(Ident("default", name, uid_of(name)), "")

    @rule(cards=st.integers(min_value=0, max_value=3))
    def report(self, cards: int) -> None:
        """Make cards of node n1 unhealthy, or healthy again."""
        self.world.version = self.version
        self.world.report("n1", cards)
        self.version = self.world.version

    # ---- kube-scheduler

    @rule(pick=PICK, names=st.sampled_from([("n1", "n2"), ("n1", "n2"), ("n1", "n2"), ("n2",)]))
    def ask(self, pick: int, names: tuple[str, ...]) -> None:
        name = self.some(pick, bound=False)
        if name is not None and not self.truth[name].get("deleting"):
            self.world.filter(name, *names)

    @rule()
    def ask_all(self) -> None:
        for name in [name for name, text in self.truth.items() if not (text.get("node") or text.get("deleting"))]:
            self.world.filter(name, "n1", "n2")

    @rule(pick=PICK, outcome=OUTCOMES)
    def bind(self, pick: int, outcome: str) -> None:
        name = self.some(pick, bound=False)
        if name is not None and not self.truth[name].get("deleting"):
            self.bind_one(name, outcome)

    @rule(outcome=OUTCOMES)
    def bind_all(self, outcome: str) -> None:
        for _ in range(2):  # the first ones of a gang wait at the barrier for the last
            for name in [name for name, text in self.truth.items() if not (text.get("node") or text.get("deleting"))]:
                self.bind_one(name, outcome)

    def bind_one(self, name: str, outcome: str) -> None:
        uid = uid_of(name)
        result = self.world.scheduler.gangs.of(uid)
        if name in self.unclear:
            return
        planned = result[0].life.places.get(uid) if result else None
        node = planned.node if planned else next(iter(self.world.filter(name, "n1", "n2").fitting), "")
        if not node or self.keeper.enter(uid, node) != "":
            return
        begins = result is not None and not self.has_begun(result[0])
        reserved = self.world.scheduler.reserve(uid, node)
        if not isinstance(reserved, Reservation):
            return
        gang = self.world.scheduler.gangs.get(result[0].key) if result else None
        if gang is not None and begins:
            self.check_start(gang)
        if outcome == "refused":
            self.world.scheduler.release(reserved)
            return
        self.bound_in[name] = result[0].key.text if result else ""
        self.truth[name] |= {"node": node, "assigned": {ASSIGNMENT: reserved.assignment}}
        if outcome == "done":
            self.world.scheduler.confirm(reserved)
            self.show(name)
        else:
            self.unclear[name] = reserved

    def has_begun(self, gang: Gang) -> bool:
        """Return whether, by the truth, a member that is not being deleted is or may be bound with this gang."""
        return any(
            text.get("node") and not text.get("deleting") and self.bound_in.get(name) == gang.key.text
            for name, text in self.truth.items()
            if uid_of(name) in gang.members
        )

    def check_start(self, gang: Gang) -> None:
        """Check that a gang without running pods starts all or nothing: each role has its minimum of bound or planned pods."""
        there: Counter[str] = Counter()
        for name, text in self.truth.items():
            member = gang.members.get(uid_of(name))
            if member is None or text.get("deleting"):
                continue
            if text.get("node") or member.uid in gang.life.places:
                there[member.membership.role] += 1
        assert gang.has_minimum, "a start without a minimum"
        assert all(there[role] >= least for role, least in gang.terms.least.items()), "a start in part"

    # ---- time

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, FINISH_S / 2]))
    def wait(self, seconds: float) -> None:
        """Let the outcome of each Binding become known."""
        self.now += seconds
        self.world.now = self.now
        self.world.ledger.expire(self.now)
        for name in [*self.unclear]:
            del self.unclear[name]
            if name in self.truth:
                self.show(name)

    @rule()
    def scan(self) -> None:
        run(self.keeper.scan())

    @precondition(lambda self: any(gang.phase is Phase.QUEUED for gang in self.world.scheduler.gangs))
    @rule(pick=PICK, steps=st.integers(min_value=1, max_value=12), what=st.integers(min_value=0, max_value=4))
    def plan_with_an_interruption(self, pick: int, steps: int, what: int) -> None:
        """Let an event happen between two steps of the search for a plan."""
        queued = [gang for gang in self.world.scheduler.gangs if self.keeper.is_due(gang)]
        if not queued:
            return
        gang = queued[pick % len(queued)]
        planning = self.planner.planning(gang)
        try:
            for _ in range(steps):
                next(planning)
            self.interrupt(what, pick)
            while True:
                next(planning)
        except StopIteration as end:
            current = self.world.scheduler.gangs.get(gang.key)
            if current is not None:
                self.keeper.apply(current, end.value)

    def interrupt(self, what: int, pick: int) -> None:
        match what:
            case 0:
                self.create({}, 1, 0)
                self.ask_all()
            case 1:
                self.annotate(pick, {GANG: "a", GANG_MIN: "2"})
            case 2:
                self.report(pick % 4)
            case 3:
                self.delete(pick, 1)
            case _:
                self.bind(pick, "done")

    @rule()
    def end_evicted(self) -> None:
        for name in [*self.evicted]:
            self.end(name)
        self.evicted.clear()

    # ---- what has to be true

    @invariant()
    def each_claim_of_a_plan_has_a_plan_that_names_it(self) -> None:
        own = self.world.ledger.snapshot().own
        claims = {uid: its[Claim.PLANNED] for uid, its in own.items() if Claim.PLANNED in its}
        gangs = [*self.world.scheduler.gangs]
        planned = {uid: one for gang in gangs for uid, one in gang.plan.items()}
        kept = {uid: claim for gang in gangs for uid, claim in gang.life.kept.items()}
        assert claims.keys() == planned.keys() | kept.keys()
        for uid, one in planned.items():
            assert (claims[uid].node, claims[uid].taken) == (one.node, one.placement.taken)
        for uid, claim in kept.items():
            assert claims[uid] == claim
        waits = {uid for gang in gangs for uid, member in gang.members.items() if member.waits}
        assert planned.keys() <= waits, "a place for a member that cannot be bound"

    @invariant()
    def each_plan_has_an_end_and_enough_places(self) -> None:
        for gang in self.world.scheduler.gangs:
            if gang.plan or gang.life.kept:
                assert gang.life.until < math.inf
            if gang.phase is Phase.PLANNED:
                reserved = any(self.world.ledger.own_claim(uid, Claim.RESERVED) is not None for uid in gang.members)
                assert gang.covered or reserved, "a plan for a part"
            assert not (gang.life.kept and not gang.life.is_open and not gang.finishing), (
                "room is kept for a start that did not begin"
            )

    @invariant()
    def only_gangs_that_exist_hold_up_others(self) -> None:
        gangs = {gang.key for gang in self.world.scheduler.gangs}
        assert {gang.key for gang in self.world.scheduler.gangs.named} <= gangs

    @invariant()
    def no_card_has_two_pods(self) -> None:
        held = Counter(card for text in self.truth.values() for card in assigned_cards(text))
        assert all(count == 1 for count in held.values())

    @invariant()
    def nominations_are_those_of_pods_that_exist(self) -> None:
        assert {PodUid(claim.holder.pod) for claim in self.world.ledger.nominations()} <= {*map(uid_of, self.truth)}

    def teardown(self) -> None:
        """Check that without faults each gang is whole or unbound, and that nothing is held after the end of all pods."""
        if not hasattr(self, "world"):
            return
        self.report(CARDS["n1"])
        for _ in range(60):
            self.wait(2.0)
            self.end_deleted()
            self.scan()
            self.ask_all()
            self.bind_all("done")
            self.end_evicted()
            self.each_claim_of_a_plan_has_a_plan_that_names_it()
            self.each_plan_has_an_end_and_enough_places()
        for gang in self.world.scheduler.gangs:
            assert gang.ordinary or not gang.has_minimum or not any(gang.bound().values()), (
                "a gang bound in part outlives its time"
            )
        for name in [*self.truth]:
            self.end(name)
        self.scan()
        assert len(self.world.scheduler.gangs) == 0
        assert all(self.world.is_free(node) for node in CARDS)


def assigned_cards(text: dict[str, Any]) -> list[str]:
    return assigned({"annotations": text.get("assigned", {}), "node": text.get("node")})


Changes.TestCase.settings = settings(
    max_examples=repeats(15, long=400),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestChanges = pytest.mark.repeats(Changes.TestCase)


# ---- what this found


def begun() -> Changes:
    machine = Changes()
    machine.begin()
    return machine


def test_a_plan_is_not_held_where_members_changed_during_its_search() -> None:
    """Let a bound pod with another minimum join the gang during the search. As the oldest pod it decides the minimum."""
    machine = begun()
    machine.create_and_plan(says={}, priority=0)
    machine.create_and_bind(says={GANG: "a", GANG_MIN: "3"}, outcome="done")
    machine.plan_with_an_interruption(pick=0, steps=1, what=1)
    machine.each_claim_of_a_plan_has_a_plan_that_names_it()
    assert machine.world.ledger.snapshot().own == {}


def test_a_pod_whose_gang_changed_while_its_binding_was_sent_was_bound_with_the_gang_before() -> None:
    """Check the pod's gang, because the pod would be evicted if the gang that it joined later started in part."""
    machine = begun()
    machine.create(says={"label": "b"}, count=1, priority=0)
    machine.create_and_plan(says={f"{KOORDINATOR}name": "b", f"{KOORDINATOR}min-available": "2"}, priority=5)
    machine.bind_all(outcome="unseen")
    machine.put_object(name="b", least=2, groups=True)
    machine.put_object(name="a", least=2, groups=True)
    machine.wait(1.0)
    result = machine.world.scheduler.gangs.of(uid_of("p1"))
    assert result is not None
    assert (result[0].key.name, result[1].alone) == ("a,default/b", True)
    machine.teardown()
