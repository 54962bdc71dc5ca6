"""Filter, bind, watch, delete, in any order, with outcomes of every kind: no device twice, nothing lost, nothing for ever.

`Cluster` plays the API server; what it knows is the truth. The watch shows a pod late, or kube-scheduler shows it first. A
Binding succeeds, is refused, or no one knows, until it is looked at. Nodes report grants of what runs, and take their time.
"""

import json
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from central.api.cached_objects import Ident
from central.assignment.annotation import OwnAssignment, parse_own
from central.decide.scheduler import PREDICTION_S, Bound, NotBound, Reservation
from central.ledger.facts import UNREPORTED_S
from central.request.model import Policy
from lading.vocabulary import ASSIGNMENT, RESOURCE_GPU_CORE, RESOURCE_GPU_MEMORY
from tests.depth import repeats
from tests.fakes.capacities import CARD_MIB
from tests.fakes.kube_objects import WHOLE, Json, decoded, pod, share, vfs
from tests.unit.central.world import World, uid_of

NODES = ("n1", "n2")
shapes = st.sampled_from(
    [WHOLE, {"lading.dev/gpu": "2"}, share("30Gi"), share("50Gi", 60), share(core=40), vfs(1), WHOLE | vfs(2)]
)
RULES = ("share-affinity", "share-anti-affinity", "share-exclusion")
isolations = st.sampled_from([{}, {}, {"isolation": "tokens"}, {"isolation": "none"}])
labels = st.builds(lambda text, its: text | its, st.dictionaries(st.sampled_from(RULES), st.sampled_from("xy")), isolations)
OFFERED = {"n1": ["tokens", "none"], "n2": []}
OUTCOMES = ("done", "refused", "lost", "unclear")


@dataclass
class Truth:
    """Hold one pod as the API server has it."""

    shown: Json
    open: Reservation | None = None  # a Binding of it may be under way, or its outcome is not known to central
    node: str = ""


@dataclass
class Cluster:
    pods: dict[str, Truth] = field(default_factory=dict)
    deleted: dict[str, Json] = field(default_factory=dict)
    unseen: deque[tuple[str, Json | None]] = field(default_factory=deque)  # events that the watch has not sent yet


class Scheduling(RuleBasedStateMachine):
    @initialize(
        policy=st.sampled_from(Policy),
        limits=st.lists(shapes, min_size=4, max_size=10),
        written=st.lists(labels, min_size=10),
        shown=st.booleans(),
    )
    def begin(self, policy: Policy, limits: list[dict[str, str]], written: list[dict[str, str]], shown: bool) -> None:
        self.world = World(policy=policy)
        self.cluster = Cluster()
        self.count = 0
        for node in NODES:
            self.world.node(node, 2, 3, isolations=OFFERED[node])
        for each, text in zip(limits, written, strict=False):
            self.create(each, text, 0)
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

    @rule(limits=shapes, said=labels, priority=st.integers(0, 2))
    def create(self, limits: dict[str, str], said: dict[str, str], priority: int) -> None:
        self.count += 1
        name = f"p{self.count}"
        annotations = _annotations(said) if _is_share(limits) else {}
        shown = pod(name, limits, version=self.world.next_version(), priority=priority, annotations=annotations)
        self.cluster.pods[name] = Truth(shown)
        self._change(name, shown)

    @rule(pick=st.integers(0, 99), said=labels)
    def edit_labels(self, pick: int, said: dict[str, str]) -> None:
        """Edit the labels of a pod, as its owner may, also after it was bound."""
        name = self._some(pick)
        if name is not None:
            shown = self.cluster.pods[name].shown
            kept = {key: text for key, text in shown["metadata"].get("annotations", {}).items() if key == ASSIGNMENT}
            self._write(name, {**_annotations(said), **kept})

    def _write(self, name: str, annotations: dict[str, str]) -> None:
        shown = self.cluster.pods[name].shown
        now = {"annotations": annotations, "resourceVersion": str(self.world.next_version())}
        self._change(name, {**shown, "metadata": {**shown["metadata"], **now}})

    @rule(pick=st.integers(0, 99), nodes=st.sampled_from([NODES, NODES[:1], NODES[1:]]))
    def filter(self, pick: int, nodes: tuple[str, ...]) -> None:
        name = self._some(pick)
        if name is not None:
            answer = self.world.filter(name, *nodes)
            text = [*answer.fitting, *answer.fails, *answer.never]
            assert sorted(text) == sorted(nodes)

    @rule(pick=st.integers(0, 99), node=st.sampled_from(NODES), outcome=st.sampled_from(OUTCOMES))
    def bind(self, pick: int, node: str, outcome: str) -> None:
        """Bind a pod. `lost`: the Binding never arrives; `unclear`: it succeeds. Central cannot distinguish both outcomes."""
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
        truth.shown = {**truth.shown, "spec": {**truth.shown["spec"], "nodeName": reserved.node}}
        self._write(name, {**truth.shown["metadata"].get("annotations", {}), ASSIGNMENT: reserved.assignment})

    @rule(picks=st.lists(st.integers(0, 99), min_size=2, max_size=6), outcomes=st.lists(st.sampled_from(OUTCOMES), min_size=6))
    def schedule(self, picks: list[int], outcomes: list[str]) -> None:
        """Place several pods in a row, as kube-scheduler does."""
        for pick, outcome in zip(picks, outcomes, strict=False):
            name = self._some(pick)
            fits = self.world.filter(name, *NODES).fitting if name is not None else ()
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
        self.cluster.deleted[name] = self.world.pods.pop(name)
        self.cluster.unseen.append((name, None))
        if truth.open is not None:
            self.world.scheduler.release(truth.open)  # a look at the pod finds none

    @precondition(lambda self: self.cluster.deleted)
    @rule(pick=st.integers(0, 99))
    def filter_too_late(self, pick: int) -> None:
        """Filter a deleted pod, whose deletion kube-scheduler has not received yet."""
        names = list(self.cluster.deleted)
        self.world.scheduler.filter(decoded(self.cluster.deleted[names[pick % len(names)]]), NODES)

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
            own = parse_own(truth.shown["metadata"]["annotations"][ASSIGNMENT], [], namespace="default")
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
    def labels_are_kept(self) -> None:
        """Check the labels in the assignments, which may differ from the pods' current annotations."""
        on: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
        homes: defaultdict[str, set[str]] = defaultdict(set)
        for truth in self.cluster.pods.values():
            if truth.node:
                written = json.loads(truth.shown["metadata"]["annotations"][ASSIGNMENT])
                text = written.get("sharing", {})
                for gpu in written["containers"]["main"].get("gpus", []):
                    on[gpu["uuid"]].append(text)
                    homes[text.get("affinity", "")].add(gpu["uuid"])
        assert all(len(cards) == 1 for group, cards in homes.items() if group)
        for sharers in on.values():
            assert len({sharer.get("exclusion") for sharer in sharers}) == 1
            distances = [sharer["anti_affinity"] for sharer in sharers if "anti_affinity" in sharer]
            assert len(set(distances)) == len(distances)

    @invariant()
    def all_shares_of_a_card_have_an_isolation_that_its_node_offers(self) -> None:
        """Check the isolations of a card's shares. An assignment names the isolation if the node offers several."""
        on: defaultdict[str, set[str]] = defaultdict(set)
        for truth in self.cluster.pods.values():
            written = json.loads(truth.shown["metadata"]["annotations"][ASSIGNMENT]) if truth.node else {"containers": {}}
            for container in written["containers"].values():
                for gpu in container.get("gpus", []):
                    if gpu.keys() & {"memory_mib", "core_percent"}:
                        on[gpu["uuid"]].add(gpu.get("isolation", ""))
                        assert gpu.get("isolation", "") in (OFFERED[truth.node] or [""])
        assert all(len(isolations) == 1 for isolations in on.values())

    @invariant()
    def what_is_bound_or_may_be_is_not_free(self) -> None:
        for name, truth in self.cluster.pods.items():
            node = truth.node or (truth.open.node if truth.open else "")
            if node:
                assert uid_of(name) in {held.holder.pod for held in self.world.ledger.holders(node)}

    def teardown(self) -> None:
        """Check that no device is held after the end of all pods. Nodes do not report here, so devices stay held for a
        while."""
        while self._some(0):
            self.delete(0)
        if self.cluster.unseen:
            self.watch(len(self.cluster.unseen))
        self.list_again()
        self.wait(PREDICTION_S)
        self.wait(UNREPORTED_S)
        assert all(self.world.is_free(node) for node in NODES)
        snapshot = self.world.ledger.snapshot()
        assert (snapshot.pods, snapshot.own, len(self.world.pending)) == ({}, {}, 0)


def _is_share(limits: dict[str, str]) -> bool:
    return not limits.keys().isdisjoint({RESOURCE_GPU_CORE, RESOURCE_GPU_MEMORY})


def _annotations(text: dict[str, str]) -> dict[str, str]:
    return {f"lading.dev/{rule}": label for rule, label in text.items()}


def _ident(name: str) -> Ident:
    return Ident("default", name, uid_of(name))


TestScheduling = pytest.mark.repeats(Scheduling.TestCase)
TestScheduling.settings = settings(max_examples=repeats(30, long=400), stateful_step_count=40, deadline=None)
