"""Test what a pod waits for, and what would help it."""

from collections.abc import Mapping
from typing import Any

import msgspec

from central.decide.why_pod import FITS, Why
from central.request.node_rules import traits_of
from central.search.placement import Missing
from central.state.budgets import NO_BUDGETS, Budget, Budgets
from central.state.nodes import Nodes
from kubectl_lading.deciding import NOT_ALLOWED
from kubectl_lading.pods.waiting import Wait, explain_wait
from tests.fakes.cluster_of import cluster_of
from tests.fakes.kube_objects import WHOLE, budget, share
from tests.unit.central.world import World


def wait(
    made: World,
    limits: Mapping[str, str] = WHOLE,
    *,
    reason: Why | None = None,
    most: int = 9,
    budgets: Budgets = NO_BUDGETS,
    **options: Any,
) -> Wait:
    made.show("waits", limits, **options)
    *_, result = explain_wait(
        cluster_of(made.ledger, made.pending, made.scheduler), made.pending_pod("waits"), reason, most=most, budgets=budgets
    )
    assert result is not None
    return result


def full(*priorities: int) -> World:
    made = World()
    made.node("n1", len(priorities))
    for number, priority in enumerate(priorities):
        made.bind(f"p{number}", "n1", priority=priority)
    return made


def test_enough_is_free_and_on_no_single_card() -> None:
    made = World()
    made.node("n1", 2)
    for name in ("a", "b"):
        made.bind(name, "n1", share("50Gi"))
    result = wait(made, share("40Gi"))
    assert [(one.node, one.cards, one.free_mib) for one in result.scattered] == [("n1", 2, 2 * 30 * 1024)]
    assert not wait(made, share("70Gi")).scattered
    assert not wait(made, WHOLE).scattered


def test_whose_end_would_help_and_how_many_nodes_were_left_out() -> None:
    made = World()
    for node in ("n1", "n2", "n3"):
        made.node(node)
        made.bind(f"on-{node}", node)
    result = wait(made, most=2)
    assert [one.node for one in result.helps] == ["n1", "n2"]
    assert result.not_looked_at == 1
    assert result.why.reasons == {Missing.TOO_FEW_FREE_GPUS: 3}


def test_preemption() -> None:
    preemption = wait(full(1, 2), priority=5).preemption
    assert preemption is not None
    assert (preemption.node, [one.pod for one in preemption.victims]) == ("n1", ["p0"])
    for no_one in (
        wait(full(5), priority=5),
        wait(full(1), priority=5, never=True),
        wait(full(1), {"lading.dev/gpu": "2"}, priority=5),
    ):
        assert no_one.preemption is not None
        assert not no_one.preemption.victims


def test_a_pod_that_a_budget_protects_is_no_victim() -> None:
    made = World()
    made.node("n1", 2)
    made.bind("kept", "n1", priority=1, labels={"app": "kept"})
    made.bind("other", "n1", priority=2)
    protecting = msgspec.convert(budget("kept", {"app": "kept"}), Budget)
    preemption = wait(made, priority=5, budgets=Budgets.of([protecting])).preemption
    assert preemption is not None
    assert [one.pod for one in preemption.victims] == ["other"]


def test_where_it_fits_no_one_is_evicted() -> None:
    made = full(1)
    made.node("n2")
    assert wait(made, priority=5).preemption is None


def test_a_node_with_the_devices_and_without_the_cpu() -> None:
    made = World()
    made.node("n1")
    made.readiness("n1", True, allocatable={"cpu": "1", "memory": "1Gi"})
    (node,) = wait(made, requests={"cpu": "2", "memory": "1Gi"}).why.nodes
    assert (node.reason, "2 cpu" in node.detail) == ("fits", True)
    (node,) = wait(made, requests={"cpu": "1", "memory": "1Gi"}).why.nodes
    assert node.detail == ""


def test_what_central_says_of_nodes_counts_first() -> None:
    made = full(1)
    reason = Why(namespace="default", name="waits", uid="uid-waits", state="pending", asks="x", making_room_on="n1")
    result = wait(made, reason=reason, priority=5)
    assert result.from_central
    assert result.why.nodes == []
    assert result.preemption is None  # it is under way


def test_a_node_that_fits_and_is_cordoned_is_not_one_that_fits() -> None:
    made = full()
    made.node("n2", 1)
    made.show("waits", WHOLE)
    hosts = Nodes()
    hosts.set(traits_of("n2", {}, (), unschedulable=True))
    cluster = cluster_of(made.ledger, made.pending, made.scheduler, hosts)
    *_, result = explain_wait(cluster, made.pending_pod("waits"), None, most=9)
    assert result is not None
    assert result.why.reasons[NOT_ALLOWED] == 1
    assert FITS not in result.why.reasons
    assert NOT_ALLOWED in result.fixes
    assert cluster.count_reasons(made.pending_pod("waits")) == result.why.reasons
