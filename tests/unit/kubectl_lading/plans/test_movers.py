"""Who may be moved, as far as the pod itself and disruption budgets say."""

from typing import Any

import msgspec
import pytest

from central.state.budgets import Budget, Selector, matches
from kubectl_lading.objects import FullPod
from kubectl_lading.plans.defrag import forbidden, notes


def mover(name: str, *, owner: str = "", labels: dict[str, str] | None = None, **spec: Any) -> FullPod:
    owners = [{"kind": owner, "name": "of", "controller": True}] if owner else []
    metadata = {"name": name, "namespace": "ns", "uid": name, "labels": labels or {}, "ownerReferences": owners}
    return msgspec.convert({"metadata": metadata, "spec": spec}, FullPod)


def budget(allowed: int, *, namespace: str = "ns", **labels: str) -> Budget:
    found = {
        "metadata": {"name": "pdb", "namespace": namespace},
        "spec": {"selector": {"matchLabels": labels}},
        "status": {"disruptionsAllowed": allowed},
    }
    return msgspec.convert(found, Budget)


def test_pods_of_a_node_stay_there() -> None:
    static = msgspec.structs.replace(mover("s").metadata, annotations={"kubernetes.io/config.mirror": "x"})
    pods = [mover("d", owner="DaemonSet"), mover("r", owner="ReplicaSet"), FullPod(metadata=static)]
    assert forbidden(pods, []).keys() == {"d", "s"}


def test_a_budget_lets_so_many_go() -> None:
    pods = [mover(name, labels={"app": "x"}) for name in "abc"]
    assert forbidden(pods, [budget(2, app="x")]).keys() == {"c"}
    assert forbidden(pods, [budget(0, app="x")]).keys() == {"a", "b", "c"}
    assert not forbidden(pods, [budget(0, app="y"), budget(0, namespace="other", app="x"), budget(9)])


def test_who_stays_anyway_does_not_count_for_a_budget() -> None:
    pods = [mover("d", owner="DaemonSet", labels={"app": "x"}), mover("a", labels={"app": "x"})]
    assert forbidden(pods, [budget(1, app="x")]).keys() == {"d"}


@pytest.mark.parametrize(
    ("operator", "values", "matching"),
    [
        ("In", ["a", "b"], {"a"}),
        ("NotIn", ["a"], {"c", ""}),
        ("Exists", [], {"a", "c"}),
        ("DoesNotExist", [], {""}),
        ("Newer", [], {"a", "c", ""}),
    ],
)
def test_selectors(operator: str, values: list[str], matching: set[str]) -> None:
    selector = msgspec.convert({"matchExpressions": [{"key": "app", "operator": operator, "values": values}]}, Selector)
    assert {label for label in ("a", "c", "") if matches(selector, {"app": label} if label else {})} == matching


def test_a_budget_without_a_selector_is_nobodys() -> None:
    nobody = msgspec.convert({"metadata": {"name": "p", "namespace": "ns"}, "spec": {"selector": None}}, Budget)
    assert not nobody.covers("ns", {})


def test_what_whoever_moves_it_has_to_know() -> None:
    assert len(list(notes(mover("a", owner="ReplicaSet")))) == 1
    (first, second) = notes(mover("a", nodeSelector={"x": "y"}, volumes=[{"persistentVolumeClaim": {}}]))
    assert "controller" in first
    assert "nodeSelector" in second
    assert "volumes" in second
