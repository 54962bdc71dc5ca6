"""Test which pods would have to go for one of higher priority: no more than necessary, the least important, on the best
node."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from central.decide.preempt import Plan
from central.ledger.model import NodeCapacity
from central.search.filters import CardFilter, find_filters
from central.search.fit import fit
from central.search.placement import Placement
from central.state.pending import Pending
from lading.vocabulary import PodUid
from tests.depth import repeats
from tests.fakes.kube_objects import WHOLE, grant, share, vfs
from tests.unit.central.world import World, uid_of


def wanting(made: World, limits: dict[str, str] = WHOLE, priority: int = 100, **options: object) -> Pending:
    made.show("high", limits, priority=priority, **options)
    return made.pending_pod("high")


def plan_for(made: World, limits: dict[str, str] = WHOLE, *, spared: str = "", nodes: tuple[str, ...] = ()) -> Plan | None:
    pod = wanting(made, limits)
    return made.plan(pod, nodes or made.ledger.nodes(), spared=frozenset({uid_of(spared)} if spared else ()))


def victims(plan: Plan | None) -> list[str]:
    assert plan is not None
    return [victim.name for victim in plan.victims]


def full(**priorities: int) -> World:
    """Create one node, on which each pod, by name, has one card."""
    made = World()
    made.node("n1", len(priorities))
    for name, priority in priorities.items():
        made.bind(name, "n1", priority=priority)
    return made


TWO = {"lading.dev/gpu": "2"}


@pytest.mark.parametrize(
    ("priorities", "plan", "expected"),
    [
        pytest.param({"a": 30, "b": 10, "c": 20}, {}, ["b"], id="the pod of lowest priority"),
        pytest.param({"a": 30, "b": 10, "c": 20, "d": 40}, {"limits": TWO}, ["b", "c"], id="no more pods than necessary"),
        pytest.param({"a": 30, "b": 10}, {"spared": "b"}, ["a"], id="no pod that a budget protects"),
        pytest.param({"a": 100}, {}, None, id="no pod of equal priority"),
        pytest.param({"a": 101}, {}, None, id="no pod of higher priority"),
        pytest.param({"a": 1}, {"limits": TWO}, None, id="none if the pod can never fit"),
        pytest.param({"a": 1}, {"nodes": ("n7",)}, None, id="none on a node that kube-scheduler does not name"),
    ],
)
def test_victims_of_a_pod_on_a_full_node(priorities: dict[str, int], plan: dict[str, Any], expected: list[str] | None) -> None:
    result = plan_for(full(**priorities), **plan)
    assert (result and victims(result)) == expected
    assert result is None or result.node == "n1"


def test_of_equal_pods_the_newer_is_the_victim() -> None:
    made = World.of(n1=2)
    made.bind("old", "n1", created="2026-11-20T00:00:00Z")
    made.bind("young", "n1", created="2026-11-21T00:00:00Z")
    assert victims(plan_for(made)) == ["young"]


def test_a_pod_with_the_preemption_policy_never_has_no_victims() -> None:
    made = full(a=1)
    assert made.plan(wanting(made, never=True), ["n1"]) is None


def test_a_pod_that_frees_no_requested_device_is_no_victim() -> None:
    made = World()
    made.node("n1", 2, 2)
    made.bind("vf-only", "n1", vfs(2), priority=1)
    made.bind("first", "n1", share("50Gi"), priority=2)
    made.bind("second", "n1", share("60Gi"), priority=3)
    assert victims(plan_for(made, share("40Gi"))) == ["first"]
    assert victims(plan_for(made, vfs(1))) == ["vf-only"]
    assert victims(plan_for(made, share("40Gi") | vfs(1))) == ["vf-only", "first"]


def test_of_a_shared_card_no_more_pods_than_needed_are_victims() -> None:
    made = World.of(n1=1)
    for name, priority in {"a": 1, "b": 2, "c": 3, "d": 4}.items():
        made.bind(name, "n1", share("20Gi"), priority=priority)
    assert victims(plan_for(made, share("40Gi"))) == ["a", "b"]
    assert victims(plan_for(made)) == ["a", "b", "c", "d"]


def test_no_pod_is_a_victim_if_all_allowed_victims_are_not_enough() -> None:
    made = World.of(n1=1)
    made.bind("a", "n1", share("10Gi"), priority=1)
    made.bind("b", "n1", share("10Gi"), priority=500)
    assert plan_for(made) is None


def test_devices_that_the_node_alone_granted_have_no_victim() -> None:
    made = World()
    made.node("n1", 1, grants=[grant("uid-manual", "n1", 0)])
    made.show("manual", node="n1", priority=1, annotations={"lading.dev/gpus": "0"})
    assert plan_for(made) is None


def test_a_pod_that_fits_on_a_free_node_needs_no_victims() -> None:
    made = full(a=1)
    made.node("n2", 1)
    assert plan_for(made) is None


def test_a_pod_that_is_being_deleted_is_no_victim() -> None:
    made = full(a=30, b=10)
    made.show("a", node="n1", priority=30, deleting=True, annotations=made.pods["a"]["metadata"]["annotations"])
    result = plan_for(made)
    assert result is not None
    assert [(victim.name, victim.deleting) for victim in result.victims] == [("a", True)]


def test_devices_that_are_reserved_for_another_pod_are_not_free() -> None:
    made = full(a=1)
    result = plan_for(made)
    assert result is not None
    made.ledger.claims.nominate(uid_of("first"), "n1", result.placement.taken, 100.0)
    assert plan_for(made) is None


def test_the_node_whose_victims_cost_least_is_chosen() -> None:
    """Compare nodes. Each node has the priority and the minute of creation of its pods. The preemptor requests all cards of a
    node, and two plans are wanted."""
    cases = [
        ({"n1": [(9, 0), (1, 0)], "n2": [(8, 0), (8, 0)]}, "n2"),  # the lowest highest priority
        ({"n1": [(9, 0), (5, 0)], "n2": [(9, 0), (4, 0)]}, "n2"),  # then the lowest sum
        ({"n1": [(-9, 0), (-9, 0)], "n2": [(-9, 0)]}, "n2"),  # then the fewest, whatever the sign
        ({"n1": [(9, 1), (1, 9)], "n2": [(9, 2), (1, 0)]}, "n2"),  # then the youngest of the most important
        ({"n1": [(9, 1), (1, 0)], "n2": [(9, 1), (1, 0)]}, "n1"),  # then by name
    ]
    for nodes, best in cases:
        made = World()
        for node, pods in nodes.items():
            made.node(node, 2)
            for number, (priority, minute) in enumerate(pods):
                limits = TWO if len(pods) == 1 else WHOLE
                made.bind(f"{node}-{number}", node, limits, priority=priority, created=f"2026-11-21T00:0{minute}:00Z")
        result = plan_for(made, TWO)
        assert result is not None
        assert result.node == best, nodes


shapes = st.sampled_from([WHOLE, share("20Gi"), share("40Gi", 30), vfs(1), share("30Gi") | vfs(1)])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(shapes, st.integers(0, 3)), max_size=7), shapes)
def test_a_plan_is_enough_and_no_victim_of_it_is_too_many(
    held: list[tuple[dict[str, str], int]], wanted: dict[str, str]
) -> None:
    made = World()
    made.node("n1", 2, 2)
    for number, (limits, priority) in enumerate(held):
        made.show(f"p{number}", limits, priority=priority)
        if made.filter(f"p{number}").fitting:
            made.bind(f"p{number}", "n1", limits, priority=priority)
        else:
            made.deleted(f"p{number}")
    pod = wanting(made, wanted, priority=2)

    def fits(deleted: set[PodUid]) -> bool:
        return isinstance(
            fit(made.ledger.without(pod.uid, *deleted).capacity("n1"), pod.request, policy=made.policy), Placement
        )

    lower = {record.uid for record in made.ledger.bound_on("n1") if record.priority < 2}
    result = made.plan(pod, ["n1"])
    if result is None:
        assert fits(set()) or not fits(lower)
        return
    deleted = {victim.uid for victim in result.victims}
    assert deleted <= lower
    assert fits(deleted)
    assert not any(fits(deleted - {one}) for one in deleted)


def cost(plan: Plan) -> tuple[int, int, int, int, str]:
    """Return the cost by which kube-scheduler compares. Priorities are shifted so that the lowest possible one is zero."""
    going = [victim for victim in plan.victims if not victim.deleting]
    highest = max((victim.priority for victim in going), default=-1)
    eldest = min((victim.created for victim in going if victim.priority == highest), default=0)
    return highest, sum(victim.priority + 2**31 for victim in going), len(going), -eldest, plan.node


held_pods = st.lists(
    st.tuples(shapes, st.integers(0, 3), st.integers(0, 9), st.sampled_from([True, False, False])), max_size=14
)


@settings(max_examples=repeats(50, long=500))
@given(held_pods, st.one_of(shapes, st.just(TWO)))
def test_no_node_has_a_plan_that_costs_less(held: list[tuple[dict[str, str], int, int, bool]], wanted: dict[str, str]) -> None:
    made = World()
    for node in ("n1", "n2", "n3"):
        made.node(node, 2, 2)
    for number, (limits, priority, minute, deleting) in enumerate(held):
        name, text = f"p{number}", {"priority": priority, "created": f"2026-11-21T00:0{minute}:00Z"}
        made.show(name, limits, **text)
        (node, *_) = [*made.filter(name).fitting, ""]
        if not node:
            made.deleted(name)
            continue
        made.bind(name, node, limits, **text)
        if deleting:
            given = made.pods[name]["metadata"]["annotations"]
            made.show(name, limits, node=node, deleting=True, annotations=given, **text)
    pod = wanting(made, wanted, priority=3)
    alone = [result for node in made.ledger.nodes() if (result := made.plan(pod, [node]))]
    if any(
        isinstance(made.scheduler.verdict(pod.request, node, made.ledger.without(pod.uid)), Placement)
        for node in made.ledger.nodes()
    ):
        assert made.plan(pod, made.ledger.nodes()) is None
    else:
        assert made.plan(pod, made.ledger.nodes()) == min(alone, key=cost, default=None)


@pytest.mark.parametrize(("limits", "held"), [(TWO, WHOLE), (vfs(2), vfs(1)), ({"lading.dev/gpu": "1"}, share("20Gi"))])
def test_the_last_plan_costs_least(limits: dict[str, str], held: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Search thirty nodes, each of which would do."""
    made = World()
    for number in range(30):
        made.node(f"n{number:02}", 2 if held != share("20Gi") else 1, 4)
        for each in range(8):
            made.show(f"p{number}-{each}", held)
            if made.filter(f"p{number}-{each}", f"n{number:02}").fitting:
                made.bind(f"p{number}-{each}", f"n{number:02}", held)
            else:
                made.deleted(f"p{number}-{each}")
    pod = wanting(made, limits)
    fits = []

    def counted(capacity: NodeCapacity, *text: Any) -> Sequence[CardFilter]:
        fits.append(capacity.name)
        return find_filters(capacity, *text)

    made.scheduler.judged(pod.request)
    monkeypatch.setattr("central.search.fit.find_filters", counted)
    result = made.plan(pod, made.ledger.nodes())
    assert result is not None
    assert set(fits) == {result.node} == {"n00"}
