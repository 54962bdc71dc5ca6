"""Test which pods would have to move, and who may be moved."""

import json
from typing import Any

import msgspec
import pytest

from central.state.budgets import NO_BUDGETS, Budget, Budgets, Selector, matches
from kubectl_lading.objects import FullPod
from kubectl_lading.plans.defrag import forbidden, notes
from lading.kube.resource import BUDGETS, PODS
from tests.fakes.busy_cluster import BusyCluster
from tests.fakes.kube_server import FakeKubeServer, Fault
from tests.fakes.kubectl_lading import Cli


@pytest.fixture
def cluster() -> BusyCluster:
    return BusyCluster()


def advice(cli: Cli) -> dict[str, Any]:
    done = cli.run("defrag", "-o", "json")
    assert done.exit_code == 0, done.output
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def moved(result: dict[str, Any], pod: str) -> list[str]:
    (opening,) = [one for one in result["openings"] if one["pod"] == pod]
    return [move["pod"] for move in opening.get("moves", [])]


def test_a_namespace_limits_whom_room_is_made_for(cli: Cli) -> None:
    every = [one["pod"] for one in advice(cli)["openings"]]
    assert every
    for text, pods in ((("-n", "team-b"), []), (("-n", "team-b", "-A"), every), (("-n", "team-a"), every)):
        assert [one["pod"] for one in json.loads(cli.run("defrag", "-o", "json", *text).stdout)["openings"]] == pods


def test_room_is_made_and_nothing_is_written(server: FakeKubeServer, cli: Cli) -> None:
    result = advice(cli)
    assert moved(result, "eight") == ["finetune"]
    assert moved(result, "three") == ["busy-b-0"]
    assert {request.method for request in server.requests} == {"GET"}


def test_pods_of_a_daemon_set_stay(cli: Cli) -> None:
    result = advice(cli)
    assert moved(result, "share") == []
    assert {f"team-a/busy-c-{number}" for number in range(8)} <= result["stay"].keys()


def test_a_budget_that_lets_no_one_go(server: FakeKubeServer, cli: Cli) -> None:
    path = BUDGETS.path("team-a", "most-stay")
    server.store.put(path, server.store.objects[path] | {"status": {"disruptionsAllowed": 0}})
    result = advice(cli)
    assert moved(result, "three") == ["busy-a-0", "busy-a-1", "busy-a-2"]  # others, who would not be the first choice
    assert "team-a/busy-b-0" in result["stay"]


def test_a_pod_that_ended_meanwhile_is_not_moved(server: FakeKubeServer, cli: Cli) -> None:
    path = PODS.path("team-a", "finetune")
    server.fail(Fault(status=404, reason="NotFound"), when=lambda request: request.path == path, times=9)
    result = advice(cli)
    assert "finetune" not in moved(result, "eight")
    assert "team-a/finetune" in result["stay"]


def test_budgets_that_may_not_be_read(server: FakeKubeServer, cli: Cli) -> None:
    server.fail(Fault(status=403, reason="Forbidden"), when=lambda request: request.path == BUDGETS.path())
    done = cli.run("defrag", "-o", "json")
    assert json.loads(done.stdout)["budgets_read"] is False
    assert "disruption budgets" in done.stderr


def mover(name: str, *, owner: str = "", labels: dict[str, str] | None = None, **spec: Any) -> FullPod:
    owners = [{"kind": owner, "name": "of", "controller": True}] if owner else []
    metadata = {"name": name, "namespace": "ns", "uid": name, "labels": labels or {}, "ownerReferences": owners}
    return msgspec.convert({"metadata": metadata, "spec": spec}, FullPod)


def budget(allowed: int, *, namespace: str = "ns", **labels: str) -> Budget:
    result = {
        "metadata": {"name": "pdb", "namespace": namespace},
        "spec": {"selector": {"matchLabels": labels}},
        "status": {"disruptionsAllowed": allowed},
    }
    return msgspec.convert(result, Budget)


def test_pods_of_a_node_stay_there() -> None:
    static = msgspec.structs.replace(mover("s").metadata, annotations={"kubernetes.io/config.mirror": "x"})
    pods = [mover("d", owner="DaemonSet"), mover("r", owner="ReplicaSet"), FullPod(metadata=static)]
    assert forbidden(pods, NO_BUDGETS).keys() == {"d", "s"}


def test_a_budget_lets_so_many_go() -> None:
    pods = [mover(name, labels={"app": "x"}) for name in "abc"]
    assert forbidden(pods, Budgets.of([budget(2, app="x")])).keys() == {"c"}
    assert forbidden(pods, Budgets.of([budget(0, app="x")])).keys() == {"a", "b", "c"}
    assert not forbidden(pods, Budgets.of([budget(0, app="y"), budget(0, namespace="other", app="x"), budget(9)]))


def test_a_pod_that_several_budgets_cover_stays() -> None:
    """Check such a pod, which the Eviction API refuses however many each budget allows."""
    pods = [mover("a", labels={"app": "x", "tier": "y"}), mover("b", labels={"app": "x"})]
    assert forbidden(pods, Budgets.of([budget(1, app="x"), budget(9, tier="y")])).keys() == {"a"}


def test_a_pod_that_stays_on_its_node_does_not_count_for_a_budget() -> None:
    pods = [mover("d", owner="DaemonSet", labels={"app": "x"}), mover("a", labels={"app": "x"})]
    assert forbidden(pods, Budgets.of([budget(1, app="x")])).keys() == {"d"}


@pytest.mark.parametrize(
    ("operator", "values", "matching"),
    [
        *(("In", ["a", "b"], {"a"}), ("NotIn", ["a"], {"c", ""}), ("Exists", [], {"a", "c"}), ("DoesNotExist", [], {""})),
        ("Newer", [], {"a", "c", ""}),
    ],
)
def test_selectors(operator: str, values: list[str], matching: set[str]) -> None:
    selector = msgspec.convert({"matchExpressions": [{"key": "app", "operator": operator, "values": values}]}, Selector)
    assert {label for label in ("a", "c", "") if matches(selector, {"app": label} if label else {})} == matching


def test_a_budget_without_a_selector_is_nobodys() -> None:
    no_one = msgspec.convert({"metadata": {"name": "p", "namespace": "ns"}, "spec": {"selector": None}}, Budget)
    assert not no_one.covers("ns", {})


def test_notes_for_the_person_who_moves_a_pod() -> None:
    assert len(list(notes(mover("a", owner="ReplicaSet")))) == 1
    (first, second) = notes(mover("a", nodeSelector={"x": "y"}, volumes=[{"persistentVolumeClaim": {}}]))
    assert "controller" in first
    assert "nodeSelector" in second
    assert "volumes" in second
