"""Check the ledger under events in any order: no device is given twice, no held device looks free, and a restart is equal.

`Cluster` simulates an API server with its nodes. Pod events reach the ledger late, and repeatedly. Node reports and readiness
reach it at once, after the pod events before a change of readiness. Bindings succeed, are refused, or end unknown.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from central.assignment.model import Part, Taken
from central.assignment.sharing import AffinityGroup, groups_of
from central.ledger.facts import LINGER_S
from central.ledger.ledger import Ledger
from central.ledger.model import Claim, NodeFacts, PodRecord
from central.ledger.parts import covers
from central.ledger.views import Snapshot
from central.request.model import Sharing
from lading.nodedevices import Grant, GrantedGpu, NodeDevices
from lading.vocabulary import GpuUuid, PciAddress, PodUid
from tests.depth import repeats
from tests.fakes.capacities import CARD_MIB
from tests.unit.central.ledger.facts import READY, WHOLE, pod, report, taken, uid

NODES = ("n1", "n2")
amounts = st.sampled_from([Part(20_000, 0), Part(10_000, 0), Part(40_000, 30), Part(CARD_MIB, 100), Part(0, 60)])
words = st.sampled_from(["", "", "x", "y"])
labels = st.builds(Sharing, namespace=st.sampled_from("ab"), affinity=words, anti_affinity=words, exclusion=words)
labelled = st.builds(lambda part, text: part._replace(sharing=(text,)), amounts, labels)
isolated = st.builds(lambda part: part._replace(isolation=("tokens",)), amounts)
parts = st.just(WHOLE) | amounts | labelled | isolated
OFFERED = {"n1": ("none", "tokens"), "n2": ()}
wishes = st.builds(
    taken, st.dictionaries(st.sampled_from([0, 1]), parts, max_size=2), st.sets(st.sampled_from([0, 1, 2, 3]), max_size=2)
).filter(lambda wish: bool(wish.gpus or wish.vfs))
nodes = st.sampled_from(NODES)
picks = st.integers(0, 999)


def add_up(
    claims: Mapping[PodUid, Mapping[Claim, Taken]], without: Claim | None = None
) -> dict[str, tuple[int, int, int, int]]:
    """Return, by device: MiB, percent, pods with the whole device (their figures do not count), pods. Each pod counts with its
    largest claim."""
    total: dict[str, tuple[int, int, int, int]] = {}
    for of_pod in claims.values():
        most: defaultdict[str, tuple[int, int, int]] = defaultdict(lambda: (0, 0, 0))
        for kind, each in of_pod.items():
            if kind is without:
                continue
            for uuid, part in each.gpus.items():
                figures = zip(most[uuid], (part.memory_mib, part.core_percent, int(part.whole)), strict=True)
                most[uuid] = tuple(map(max, figures))  # type: ignore[assignment]
            for vf in each.vfs:
                most[vf] = (0, 0, 1)
        for device, (memory, core, whole) in most.items():
            mib, percent, wholes, pods = total.get(device, (0, 0, 0, 0))
            total[device] = (mib + (0 if whole else memory), percent + (0 if whole else core), wholes + whole, pods + 1)
    return total


def over_capacity(used: Mapping[str, tuple[int, int, int, int]]) -> list[str]:
    return [
        device
        for device, (memory, core, wholes, pods) in used.items()
        if (wholes and pods > 1) or (not wholes and (memory > CARD_MIB or core > 100))
    ]


Sharers = dict[tuple[str, GpuUuid], dict[PodUid, set[Sharing]]]


def sharers(nodes: Mapping[str, Mapping[PodUid, Mapping[Claim, Taken]]], kinds: Collection[Claim] = tuple(Claim)) -> Sharers:
    """Return, by node and card, all labels of the pods with a claim of these kinds there."""
    result: Sharers = {}
    for name, claims in nodes.items():
        for of, by_kind in claims.items():
            for claim in (claim for kind, claim in by_kind.items() if kind in kinds):
                for uuid, part in claim.gpus.items():
                    result.setdefault((name, uuid), {}).setdefault(of, set()).update(part.sharing)
    return result


def against_the_rules(on: Sharers) -> list[object]:
    """Return violations of the rules: pairs of pods on one card, and groups on several cards."""
    wrong: list[object] = []
    homes: defaultdict[tuple[str, str], set[tuple[str, GpuUuid]]] = defaultdict(set)
    for card, pods in on.items():
        for (one, text), (other, others) in combinations(pods.items(), 2):
            excluded = [{(label.namespace, label.exclusion) for label in each if label.exclusion} for each in (text, others)]
            distances = [
                {(label.namespace, label.anti_affinity) for label in each if label.anti_affinity} for each in (text, others)
            ]
            if excluded[0] != excluded[1] or distances[0] & distances[1]:
                wrong.append((one, other, card))
        for label in set().union(*pods.values()):
            if label.affinity:
                homes[label.namespace, label.affinity].add(card)
    return wrong + [cards for cards in homes.values() if len(cards) > 1]


def isolations(
    claims: Mapping[PodUid, Mapping[Claim, Taken]], kinds: Collection[Claim] = tuple(Claim)
) -> dict[GpuUuid, dict[PodUid, set[str]]]:
    """Return, by card of one node, all isolations of the shares of pods with claims of these kinds there."""
    pod_uids: dict[GpuUuid, dict[PodUid, set[str]]] = {}
    for of, by_kind in claims.items():
        for claim in (claim for kind, claim in by_kind.items() if kind in kinds):
            for uuid, part in claim.gpus.items():
                pod_uids.setdefault(uuid, {}).setdefault(of, set()).update(part.isolation)
    return {uuid: {of: its or {"none"} for of, its in pods.items()} for uuid, pods in pod_uids.items()}


def grant_all(record: PodRecord) -> Grant:
    """Return one container that gets all devices of the assignment."""
    assert record.taken is not None
    gpus = tuple(
        GrantedGpu(uuid=uuid)
        if part.whole
        else GrantedGpu(
            uuid=uuid,
            memory_mib=part.memory_mib or None,
            core_percent=part.core_percent or None,
            isolation=next(iter(part.isolation), ""),
        )
        for uuid, part in record.taken.gpus.items()
    )
    return Grant(pod=record.uid, container="c", gpus=gpus, vfs=tuple(sorted(record.taken.vfs)))


@dataclass
class Binding:
    node: str
    taken: Taken


class Cluster(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.version = 10
        self.now = 0.0
        self.ledger = Ledger()
        self.pods: dict[PodUid, PodRecord] = {}
        self.under_way: dict[PodUid, Binding] = {}  # Bindings that may still be sent
        self.grants: dict[str, dict[PodUid, Grant]] = {name: {} for name in NODES}
        self.reachable = dict.fromkeys(NODES, True)
        self.reports: dict[str, NodeDevices] = {}
        self.late: deque[PodRecord | PodUid] = deque()
        self.delivered: list[PodRecord] = []
        self.floor: dict[str, dict[PodUid, Taken]] = {name: {} for name in NODES}
        for name in NODES:
            self.ledger.facts.set_node(name, READY, self.tick())
            self.report(name)

    def tick(self) -> int:
        self.version += 1
        return self.version

    # ---- the API server and its watches

    def write(self, record: PodRecord) -> None:
        self.pods[record.uid] = replace(record, version=self.tick())
        self.late.append(self.pods[record.uid])

    def deliver(self) -> None:
        event = self.late.popleft()
        if isinstance(event, PodRecord):
            self.ledger.facts.set_pod(event)
            self.delivered.append(event)
        else:
            self.ledger.facts.remove_pod(event)

    def report(self, name: str) -> None:
        self.reports[name] = report(name, self.tick(), grants=self.grants[name].values(), isolations=OFFERED[name])
        self.ledger.facts.set_report(self.reports[name])

    def pick(self, number: int, **wanted: Any) -> PodRecord:
        result = self.those(**wanted)
        return result[number % len(result)]

    def those(self, *, bound: bool) -> list[PodRecord]:
        return [record for record in self.pods.values() if bool(record.node) == bound and not record.terminal]

    @rule(count=st.integers(1, 3))
    def watch_catches_up(self, count: int) -> None:
        for _ in range(min(count, len(self.late))):
            self.deliver()

    @precondition(lambda self: self.delivered)
    @rule(number=picks)
    def an_event_comes_again(self, number: int) -> None:
        self.ledger.facts.set_pod(self.delivered[number % len(self.delivered)])

    @rule(name=nodes)
    def a_report_comes_again(self, name: str) -> None:
        self.ledger.facts.set_report(self.reports[name])

    @rule()
    def relist(self) -> None:
        self.late.clear()
        self.ledger.facts.replace_pods(self.pods.values(), self.version)
        self.ledger.facts.replace_reports(self.reports.values(), self.version)

    # ---- pods come, are bound, end

    @rule(wish=wishes, name=nodes)
    def create_and_reserve(self, wish: Taken, name: str) -> None:
        created = pod(f"p{self.tick()}")
        self.write(created)
        if self.ledger.claims.reserve(created.uid, name, wish, 1) is None:
            self.under_way[created.uid] = Binding(name, wish)

    @rule(wish=wishes, name=nodes, until=st.floats(0, 50), number=picks, nominate=st.booleans())
    @precondition(lambda self: self.those(bound=False))
    def plan(self, wish: Taken, name: str, until: float, number: int, nominate: bool) -> None:
        of = self.pick(number, bound=False).uid
        if nominate:
            self.ledger.claims.nominate(of, name, wish, self.now + until)
        else:
            self.ledger.claims.predict(of, name, wish, self.now + until)

    @precondition(lambda self: self.under_way)
    @rule(number=picks, outcome=st.sampled_from(["known", "unknown", "refused", "lost"]))
    def bind(self, number: int, outcome: str) -> None:
        of = list(self.under_way)[number % len(self.under_way)]
        record, binding = self.pods.get(of), self.under_way[of]
        if outcome == "lost":  # never arrived, and no one knows: it may be sent again
            return
        del self.under_way[of]
        if outcome == "refused" or record is None or record.node:
            self.ledger.claims.release(of)
            return
        self.write(replace(record, node=binding.node, taken=binding.taken))
        if outcome == "known":
            self.ledger.claims.confirm(of)

    @precondition(lambda self: self.those(bound=True))
    @rule(number=picks, deleted=st.booleans())
    def end(self, number: int, deleted: bool) -> None:
        """Delete a bound pod by force, or make its phase terminal. The kubelet of a reachable node reports a terminal phase
        when no container runs any more, so that a grant that the node has not reported is over by then.

        Source: mergePodStatus of kubernetes/pkg/kubelet/status/status_manager.go.
        """
        record = self.pick(number, bound=True)
        if not deleted and self.reachable[record.node] and record.uid in self.unreported(record.node):
            del self.grants[record.node][record.uid]
        if deleted:
            del self.pods[record.uid]
            self.late.append(record.uid)
        else:
            self.write(replace(record, terminal=True))

    @precondition(lambda self: self.those(bound=False))
    @rule(number=picks)
    def delete_unbound(self, number: int) -> None:
        of = self.pick(number, bound=False).uid
        del self.pods[of]
        self.late.append(of)

    # ---- nodes

    @precondition(lambda self: self.those(bound=True))
    @rule(number=picks)
    def grant(self, number: int) -> None:
        record = self.pick(number, bound=True)
        self.grants[record.node][record.uid] = grant_all(record)
        if self.reachable[record.node]:
            self.report(record.node)

    @rule(name=nodes)
    def release_what_ended(self, name: str) -> None:
        self.grants[name] = {of: grant for of, grant in self.grants[name].items() if self.runs(of)}
        if self.reachable[name]:
            self.report(name)

    def unreported(self, name: str) -> set[PodUid]:
        """Return the pods to which the node granted devices while it was not reachable, and which its last report lacks."""
        return self.grants[name].keys() - {grant.pod for grant in self.reports[name].status.grants}

    def runs(self, of: PodUid) -> bool:
        return of in self.pods and not self.pods[of].terminal

    @rule(name=nodes)
    def readiness_changes(self, name: str) -> None:
        while self.late:
            self.deliver()
        self.reachable[name] = not self.reachable[name]
        self.ledger.facts.set_node(name, NodeFacts(ready=self.reachable[name]), self.tick())
        self.floor[name] = {} if self.reachable[name] else self.facts(name)

    @rule(name=nodes)
    def a_report_arrives_from_a_node_that_is_not_ready(self, name: str) -> None:
        self.report(name)

    @rule(seconds=st.floats(0, 30))
    def time_passes(self, seconds: float) -> None:
        """Let time pass. A node that is reachable again reports within LINGER_S. If it has grants for deleted pods that it has
        not reported, it reports first."""
        due = self.now // LINGER_S != (self.now + seconds) // LINGER_S
        for name in NODES:
            if self.reachable[name] and (due or self.unreported(name) - self.pods.keys()):
                self.report(name)
        self.now += seconds
        self.ledger.expire(self.now)

    # ---- what must hold

    def facts(self, name: str) -> dict[PodUid, Taken]:
        plans = {Claim.PREDICTED, Claim.NOMINATED, Claim.RESERVED}
        return {held.holder.pod: held.taken for held in self.ledger.holders(name) if not held.claims.keys() & plans}

    @invariant()
    def never_over_capacity(self) -> None:
        for node in self.ledger.snapshot().nodes.values():
            assert over_capacity(add_up(node.claims, without=Claim.NOMINATED)) == []

    @invariant()
    def no_one_is_beside_whom_labels_keep_off(self) -> None:
        """Check the devices that central assigns. A node's grant to a deleted pod has no labels any more, and a nomination is
        for the time after other pods have ended."""
        claims = {name: node.claims for name, node in self.ledger.snapshot().nodes.items()}
        assert against_the_rules(sharers(claims, {Claim.RESERVED, Claim.BOUND})) == []
        assert against_the_rules(sharers(claims, {Claim.PREDICTED})) == []
        of_all = against_the_rules(sharers(claims, {Claim.RESERVED, Claim.BOUND, Claim.PREDICTED}))
        assert [wrong for wrong in of_all if isinstance(wrong, tuple)] == []  # a prediction elsewhere may be a pod's own

    @invariant()
    def a_card_has_one_isolation(self) -> None:
        """Check that a card has one isolation of all assigned shares, and that the node offers it."""
        for name, node in self.ledger.snapshot().nodes.items():
            for pods in isolations(node.claims, {Claim.RESERVED, Claim.BOUND, Claim.PREDICTED}).values():
                (one,) = set().union(*pods.values())
                assert one in {"none", *OFFERED[name]}

    @invariant()
    def groups_are_where_their_pods_are(self) -> None:
        on = sharers({name: node.claims for name, node in self.ledger.snapshot().nodes.items()})
        for group in {
            AffinityGroup(label.namespace, label.affinity) for pods in on.values() for label in set().union(*pods.values())
        }:
            cards = {card for card, pods in on.items() if any(group in groups_of(text) for text in pods.values())}
            assert self.ledger.without().group_cards(group) == cards

    @invariant()
    def the_running_sums_are_the_sums(self) -> None:
        for node in self.ledger.snapshot().nodes.values():
            sums: dict[str, tuple[int, int, int, int]] = {vf: (0, 0, pods, pods) for vf, pods in node.vfs.items()}
            sums |= {uuid: (use.memory_mib, use.core_percent, use.whole, use.pods) for uuid, use in node.cards.items()}
            assert sums == add_up(node.claims)

    @invariant()
    def capacities_are_what_the_sums_leave(self) -> None:
        for name in NODES:
            fresh = self.ledger.without(uid("nobody")).capacity(name)
            used = add_up(self.ledger.snapshot().nodes[name].claims)
            for card in fresh.cards:
                memory, core, wholes, pods = used.get(card.gpu.uuid, (0, 0, 0, 0))
                assert card.pods == pods
                assert card.free_mib == (0 if wholes else max(0, CARD_MIB - memory))
                assert card.free_core == (0 if wholes else max(0, 100 - core))
            assert all(vf.free == (vf.vf.bdf not in used) for vf in fresh.vfs)

    @invariant()
    def what_is_held_is_not_free(self) -> None:
        """Check that devices of bound pods, and devices that nodes have granted, are not free."""
        for name in NODES:
            holds = {held.holder.pod: held.taken for held in self.ledger.holders(name)}
            must = {r.uid: r.taken for r in self.pods.values() if r.node == name and not r.terminal and r.taken is not None}
            for of, held in must.items():
                assert of in holds
                assert covers(holds[of], held)
            for of in self.grants[name]:
                assert of in holds

    @invariant()
    def nothing_is_freed_on_an_unreachable_node(self) -> None:
        for name in NODES:
            if not self.reachable[name]:
                now = self.facts(name)
                assert all(of in now and covers(now[of], held) for of, held in self.floor[name].items())
                self.floor[name] = now

    def teardown(self) -> None:
        """Deliver all events, outcomes and reports. Then the ledger must equal a ledger that is built from the lists."""
        if not hasattr(self, "ledger"):
            return
        while self.late:
            self.deliver()
        for reservation in self.ledger.reservations():
            self.ledger.claims.release(reservation.holder.pod)
        self.ledger.expire(float("inf"))
        for name in NODES:
            self.reachable[name] = True
            self.ledger.facts.set_node(name, READY, self.tick())
            self.release_what_ended(name)
        again = Ledger()
        again.facts.replace_reports(self.reports.values(), self.version)
        again.facts.replace_pods(self.pods.values(), self.version)
        again.facts.replace_nodes(dict.fromkeys(NODES, (READY, self.version)), self.version)
        assert self.ledger.snapshot() == again.snapshot()


Cluster.TestCase.settings = settings(max_examples=repeats(30, long=600), stateful_step_count=40, deadline=None)
TestCluster = pytest.mark.repeats(Cluster.TestCase)


# The same final objects, in any order

names = st.sampled_from(["a", "b", "c", "d"])


@st.composite
def final_objects(draw: st.DrawFn) -> list[Any]:
    """Draw the final pods, reports and readiness; None for deleted objects."""
    pods: dict[str, Any] = {
        f"pod {name}": pod(
            name,
            draw(st.integers(2, 9)),
            node=draw(st.sampled_from(["", *NODES])),
            takes=draw(wishes),
            terminal=draw(st.booleans()),
        )
        if draw(st.integers(0, 4))
        else uid(name)
        for name in draw(st.sets(names))
    }
    grants = [grant_all(pod(name, takes=draw(wishes))) for name in draw(st.sets(names))]
    reports = [
        report(name, draw(st.integers(2, 9)), grants=grants if draw(st.booleans()) else (), isolations=OFFERED[name])
        for name in draw(st.sets(nodes))
    ]
    ready = [(name, draw(st.booleans()), draw(st.integers(2, 9))) for name in draw(st.sets(nodes))]
    return [*pods.values(), *reports, *ready]


def tell(ledger: Ledger, what: Any) -> None:
    match what:
        case PodRecord():
            ledger.facts.set_pod(what)
        case NodeDevices():
            ledger.facts.set_report(what)
        case (str() as name, bool() as reachable, int() as version):
            ledger.facts.set_node(name, NodeFacts(ready=reachable), version)
        case _:
            ledger.facts.remove_pod(what)


def older(what: Any) -> Any:
    match what:
        case PodRecord():
            return replace(what, version=what.version - 1, node="n1", terminal=False, taken=taken({0: WHOLE}))
        case NodeDevices():
            return report(what.metadata.name, int(what.metadata.resource_version) - 1)
        case (name, reachable, version):
            return (name, not reachable, version - 1)
        case _:
            return PodRecord(uid=what, namespace="default", name="late", version=99, node="n1", taken=taken({0: WHOLE}))


def told(objects: list[Any]) -> Snapshot:
    ledger = Ledger()
    for each in objects:
        tell(ledger, each)
    return ledger.snapshot()


@given(final_objects(), st.data())
def test_any_order_repetition_and_lateness_of_the_same_objects_is_the_same(objects: list[Any], data: st.DataObject) -> None:
    order = data.draw(st.permutations(objects))
    late = data.draw(st.lists(st.sampled_from(objects), max_size=5)) if objects else []
    expected = told(objects)
    assert told([*order, *late, *map(older, late)]) == expected


@given(final_objects(), wishes, nodes)
def test_release_undoes_a_reservation(objects: list[Any], wish: Taken, node: str) -> None:
    ledger = Ledger()
    for each in objects:
        tell(ledger, each)
    before = ledger.snapshot()
    new = uid("new")
    ledger.claims.reserve(new, node, wish, 1)
    ledger.claims.release(new)
    assert ledger.snapshot() == before


@given(final_objects(), wishes, nodes)
def test_a_reservation_is_made_exactly_where_there_is_room_and_brings_nothing_over_it(
    objects: list[Any], wish: Taken, node: str
) -> None:
    ledger = Ledger()
    for each in objects:
        tell(ledger, each)
    before = ledger.snapshot()
    reserved = ledger.claims.reserve(uid("new"), node, wish, 1) is None
    nodes = {name: dict(each.claims) for name, each in before.nodes.items()}
    nodes.setdefault(node, {})[uid("new")] = {Claim.RESERVED: wish}
    requested: set[GpuUuid | PciAddress] = {*wish.gpus, *wish.vfs}
    fits = not requested & set(over_capacity(add_up(nodes[node])))
    may = allowed(sharers(nodes), uid("new")) and alike(isolations(nodes[node]), uid("new"), OFFERED[node])
    assert reserved == (fits and may and ledger.capacity(node).serving)


def alike(on: Mapping[GpuUuid, Mapping[PodUid, set[str]]], new: PodUid, offered: Collection[str]) -> bool:
    """Return whether the new pod has the isolation of the other pods on its cards, and an isolation that the node offers."""
    each = [pods for pods in on.values() if new in pods]
    return all(its == pods[new] for pods in each for its in pods.values()) and all(
        pods[new] <= {"none", *offered} for pods in each
    )


def allowed(on: Sharers, new: PodUid) -> bool:
    """Return whether the new pod breaks no rule. Conflicts among other pods, which final objects may contain, are ignored."""
    for card, pods in on.items():
        for of in pods.keys() - {new} if new in pods else ():
            if against_the_rules({card: {of: pods[of], new: pods[new]}}):
                return False
    own = {group for pods in on.values() for group in groups_of(pods.get(new, ()))}
    homes = [[card for card, pods in on.items() if any(group in groups_of(text) for text in pods.values())] for group in own]
    return all(len(cards) == 1 for cards in homes)


small = st.builds(lambda mib, text: Part(mib, sharing=(text,) if text else ()), st.integers(1, 9), st.none() | labels)
attempts = st.tuples(nodes, st.dictionaries(st.sampled_from([0, 1]), small, min_size=1, max_size=2), st.booleans())


@given(st.lists(attempts, max_size=12))
def test_labels_alone_decide_where_there_is_room_for_all(wanted: list[tuple[str, dict[int, Part], bool]]) -> None:
    """Check that exactly the pods that break no rule are reserved or predicted."""
    ledger = Ledger()
    for name in NODES:
        tell(ledger, report(name))
        tell(ledger, (name, True, 1))
    for number, (name, on_cards, firmly) in enumerate(wanted):
        new, wish = uid(str(number)), taken(on_cards)
        there = {each: dict(node.claims) for each, node in ledger.snapshot().nodes.items()}
        there[name][new] = {Claim.RESERVED: wish}
        claimed = ledger.claims.reserve(new, name, wish, 1) if firmly else ledger.claims.predict(new, name, wish, until=1)
        assert (claimed is None) == (against_the_rules(sharers(there)) == [])
