"""Filter, bind, watch, delete, in any order, with outcomes of every kind: no device twice, nothing lost, nothing for ever.

`Cluster` plays the API server; what it knows is the truth. The watch shows a pod late, or kube-scheduler shows it first. A
Binding succeeds, is refused, or nobody knows, until it is looked at. Nodes report grants of what runs, and take their time.
"""

from collections import Counter, deque
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from central.api.known import Ident
from central.ask.model import Policy
from central.assignment.annotation import OwnAssignment, parse_own
from central.scheduler import PREDICTION_S, Bound, NotBound, Reservation
from lading.vocabulary import ASSIGNMENT
from tests.fakes.kube_objects import WHOLE, Json, decoded, pod, share, vfs
from tests.fakes.rooms import CARD_MIB
from tests.unit.central.world import World, uid_of

NODES = ("n1", "n2")
shapes = st.sampled_from(
    [WHOLE, {"lading.dev/gpu": "2"}, share("30Gi"), share("50Gi", 60), share(core=40), vfs(1), WHOLE | vfs(2)]
)
OUTCOMES = ("done", "refused", "lost", "unclear")


@dataclass
class Truth:
    """One pod at the API server."""

    shown: Json
    open: Reservation | None = None  # a Binding of it may be under way, or its outcome is not known to central
    node: str = ""


@dataclass
class Cluster:
    pods: dict[str, Truth] = field(default_factory=dict)
    gone: dict[str, Json] = field(default_factory=dict)
    unseen: deque[tuple[str, Json | None]] = field(default_factory=deque)  # events that the watch has not sent yet


class Scheduling(RuleBasedStateMachine):
    @initialize(policy=st.sampled_from(Policy), limits=st.lists(shapes, min_size=4, max_size=10), shown=st.booleans())
    def begin(self, policy: Policy, limits: list[dict[str, str]], shown: bool) -> None:
        self.world = World(policy=policy)
        self.cluster = Cluster()
        self.count = 0
        for node in NODES:
            self.world.node(node, 2, 3)
        for each in limits:
            self.create(each, 0)
        if shown:
            self.watch(len(limits))

    def _change(self, name: str, shown: Json) -> None:
        self.cluster.pods[name].shown = self.world.pods[name] = shown
        self.cluster.unseen.append((name, shown))

    def _some(self, pick: int, *, bound: bool | None = None, is_open: bool | None = None) -> str | None:
        names = [
            name
            for name, truth in self.cluster.pods.items()
            if (bound is None or bool(truth.node) is bound) and (is_open is None or (truth.open is not None) is is_open)
        ]
        return names[pick % len(names)] if names else None

    # ---- what happens

    @rule(limits=shapes, priority=st.integers(0, 2))
    def create(self, limits: dict[str, str], priority: int) -> None:
        self.count += 1
        name = f"p{self.count}"
        shown = pod(name, limits, version=self.world.next_version(), priority=priority)
        self.cluster.pods[name] = Truth(shown)
        self._change(name, shown)

    @rule(pick=st.integers(0, 99), nodes=st.sampled_from([NODES, NODES[:1], NODES[1:]]))
    def filter(self, pick: int, nodes: tuple[str, ...]) -> None:
        name = self._some(pick)
        if name is not None:
            answer = self.world.filter(name, *nodes)
            said = [*answer.NodeNames, *answer.FailedNodes, *answer.FailedAndUnresolvableNodes]
            assert sorted(said) == sorted(nodes)

    @rule(pick=st.integers(0, 99), node=st.sampled_from(NODES), outcome=st.sampled_from(OUTCOMES))
    def bind(self, pick: int, node: str, outcome: str) -> None:
        """`lost`: it never arrives, `unclear`: it is done, and central does not know either of these."""
        name = self._some(pick)
        if name is None:
            return
        truth = self.cluster.pods[name]
        reserved = self.world.scheduler.reserve(uid_of(name), node)
        if isinstance(reserved, Bound):
            assert truth.node == node
        if isinstance(reserved, Bound | NotBound):
            return
        assert not truth.node
        assert truth.open is None
        if outcome == "refused":
            self.world.scheduler.release(reserved)
            return
        if outcome in {"done", "unclear"}:
            self._bind_truly(name, reserved)
        if outcome == "done":
            self.world.scheduler.confirm(reserved)
        else:
            truth.open = reserved

    def _bind_truly(self, name: str, reserved: Reservation) -> None:
        truth = self.cluster.pods[name]
        truth.node = reserved.node
        shown = {**truth.shown, "spec": {**truth.shown["spec"], "nodeName": reserved.node}}
        given = {"annotations": {ASSIGNMENT: reserved.assignment}, "resourceVersion": str(self.world.next_version())}
        self._change(name, {**shown, "metadata": {**shown["metadata"], **given}})

    @rule(picks=st.lists(st.integers(0, 99), min_size=2, max_size=6), outcomes=st.lists(st.sampled_from(OUTCOMES), min_size=6))
    def schedule(self, picks: list[int], outcomes: list[str]) -> None:
        """As kube-scheduler does it, several in a row."""
        for pick, outcome in zip(picks, outcomes, strict=False):
            name = self._some(pick)
            fits = self.world.filter(name, *NODES).NodeNames if name is not None else ()
            if name is not None and fits:
                best = self.world.scheduler.prioritize(decoded(self.world.pods[name]), list(fits))
                self.bind(pick, best or fits[0], outcome)

    @rule(pick=st.integers(0, 99))
    def settle(self, pick: int) -> None:
        name = self._some(pick, is_open=True)
        if name is None:
            return
        truth = self.cluster.pods[name]
        assert truth.open is not None
        if truth.node:
            self.world.scheduler.confirm(truth.open)
        else:
            self.world.scheduler.release(truth.open)
        truth.open = None

    @precondition(lambda self: self.cluster.unseen)
    @rule(count=st.integers(1, 4))
    def watch(self, count: int) -> None:
        for _ in range(min(count, len(self.cluster.unseen))):
            name, shown = self.cluster.unseen.popleft()
            if shown is None:
                self.world.pod_feed.removed(_ident(name), str(self.world.next_version()))
            else:
                self.world.pod_feed.changed(decoded(shown))

    @rule()
    def list_again(self) -> None:
        self.cluster.unseen.clear()
        shown = [decoded(truth.shown) for truth in self.cluster.pods.values()]
        self.world.pod_feed.replaced(shown, str(self.world.next_version()))

    @rule(pick=st.integers(0, 99))
    def delete(self, pick: int) -> None:
        name = self._some(pick)
        if name is None:
            return
        truth = self.cluster.pods.pop(name)
        self.cluster.gone[name] = self.world.pods.pop(name)
        self.cluster.unseen.append((name, None))
        if truth.open is not None:
            self.world.scheduler.release(truth.open)  # a look at the pod finds none

    @precondition(lambda self: self.cluster.gone)
    @rule(pick=st.integers(0, 99))
    def filter_too_late(self, pick: int) -> None:
        """kube-scheduler has not heard that it is gone."""
        names = list(self.cluster.gone)
        self.world.scheduler.filter(decoded(self.cluster.gone[names[pick % len(names)]]), NODES)

    @rule(seconds=st.sampled_from([0.1, PREDICTION_S]))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.ledger.expire(self.world.now)

    # ---- what is always so

    @invariant()
    def no_card_beyond_its_capacity(self) -> None:
        mib: Counter[str] = Counter()
        core: Counter[str] = Counter()
        held: Counter[str] = Counter()
        whole: set[str] = set()
        for truth in self.cluster.pods.values():
            if not truth.node:
                continue
            own = parse_own(truth.shown["metadata"]["annotations"][ASSIGNMENT], [])
            assert isinstance(own, OwnAssignment)
            for uuid, part in own.taken.gpus.items():
                mib[uuid] += part.memory_mib
                core[uuid] += part.core_percent
                held[uuid] += 1
                whole |= {uuid} if part.whole else set()
            for address in own.taken.vfs:
                held[f"{truth.node} {address}"] += 1
                whole.add(f"{truth.node} {address}")
        assert all(amount <= CARD_MIB for amount in mib.values())
        assert all(amount <= 100 for amount in core.values())
        assert all(held[device] == 1 for device in whole)

    @invariant()
    def what_is_bound_or_may_be_is_not_free(self) -> None:
        for name, truth in self.cluster.pods.items():
            node = truth.node or (truth.open.node if truth.open else "")
            if node:
                assert uid_of(name) in {held.holder.pod for held in self.world.ledger.holders(node)}

    def teardown(self) -> None:
        """At the end of all pods nothing is held, and nobody waits."""
        while self._some(0):
            self.delete(0)
        if self.cluster.unseen:
            self.watch(len(self.cluster.unseen))
        self.list_again()
        self.wait(PREDICTION_S)
        assert all(self.world.is_free(node) for node in NODES)
        snapshot = self.world.ledger.snapshot()
        assert (snapshot.pods, snapshot.own, len(self.world.pending)) == ({}, {}, 0)


def _ident(name: str) -> Ident:
    return Ident("default", name, uid_of(name))


TestScheduling = Scheduling.TestCase
TestScheduling.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
