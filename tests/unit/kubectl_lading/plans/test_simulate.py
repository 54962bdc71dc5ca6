"""Test `simulate` as a command: the priorities of its pods, and the size of its output."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from central.api.pod_groups import GANG_KINDS
from central.request.reasons import OfPod
from kubectl_lading.plans.simulate import CLASSES
from lading.kube.resource import NODE_DEVICES
from tests.docs import ROOT
from tests.fakes.busy_cluster import A100, BusyCluster
from tests.fakes.kube_server import FakeKubeServer, Fault
from tests.fakes.kubectl_lading import Cli, served

LIMITS = "schedulerName: lading, containers: [{name: main, resources: {limits: {lading.dev/gpu: 8}}}]"
EIGHT = f"{{metadata: {{annotations: {{lading.dev/gpu-model: {A100}}}}}, spec: {{{LIMITS}}}}}"


def a_pod(name: str, spec: str = "") -> str:
    return (
        f"kind: Pod\nmetadata: {{name: {name}, annotations: {{lading.dev/gpu-model: {A100}}}}}\nspec: {{{spec}{LIMITS}}}\n---\n"
    )


@pytest.fixture
def cluster() -> BusyCluster:
    cluster = BusyCluster()
    for name, value, default in (("training", 100_000, False), ("usual", 2, True)):
        made = {"metadata": {"name": name}, "value": value, "globalDefault": default}
        cluster.objects[CLASSES.path(name=name)] = made | {"preemptionPolicy": "PreemptLowerPriority"}
    return cluster


def simulated(cli: Cli, text: str) -> dict[str, Any]:
    (cli.kubeconfig.parent / "pods.yaml").write_text(text)
    done = cli.run("simulate", "-f", str(cli.kubeconfig.parent / "pods.yaml"), "-o", "json")
    assert done.exit_code == 0, done.output
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_priorities_are_those_that_the_api_server_would_give(cli: Cli) -> None:
    own = "kind: PriorityClass\nmetadata: {name: own}\nvalue: 50\n---\n"
    text = a_pod("plain") + a_pod("first", "priorityClassName: training, ") + a_pod("ours", "priorityClassName: own, ") + own
    message = simulated(cli, text)
    assert [(pod["pod"], pod["priority"]) for pod in message["pods"]] == [("first", 100_000), ("ours", 50), ("plain", 2)]
    assert message["passed_over"] == []


def test_whom_central_would_evict(cli: Cli) -> None:
    (pod,) = simulated(cli, a_pod("first", "priorityClassName: training, "))["pods"]
    assert pod["node"] == ""
    assert [one["pod"] for one in pod["preemption"]["victims"]] == ["finetune"]
    shown = cli.run("simulate", "-f", str(cli.kubeconfig.parent / "pods.yaml")).stdout
    assert "team-a/finetune" in shown
    assert "100000" in shown


def test_an_isolation_that_no_node_offers_and_one_that_a_node_offers(tmp_path: Path) -> None:
    cluster = BusyCluster()
    status = cluster.objects[NODE_DEVICES.path(name="busy-b")]["status"]
    status["isolations"] = ["none", "tokens"]
    share = "schedulerName: lading, containers: [{name: main, resources: {limits: {lading.dev/gpu-core: 5}}}]"
    pods = (
        f"kind: Pod\nmetadata: {{name: {name}, annotations: {{lading.dev/isolation: {name}}}}}\nspec: {{{share}}}\n---\n"
        for name in ("tokens", "mps")
    )
    with served(cluster, tmp_path) as cli:
        text = {pod["pod"]: pod for pod in simulated(cli, "".join(pods))["pods"]}
    assert text["tokens"]["node"] == "busy-b"
    assert (text["mps"]["node"], set(text["mps"]["why"]["reasons"])) == ("", {"no-isolation", "unreachable"})


def test_a_class_that_there_is_not(cli: Cli) -> None:
    (pod,) = simulated(cli, a_pod("first", "priorityClassName: trainin, "))["pods"]
    assert (pod["node"], pod["why"]) == ("", None)
    assert "training" in pod["problem"]


def test_an_error_of_many_equal_pods_is_shown_once(cli: Cli) -> None:
    pod = f"{{spec: {{priorityClassName: trainin, {LIMITS}}}}}"
    text = simulated(cli, f"kind: Deployment\nmetadata: {{name: x}}\nspec: {{replicas: 200, template: {pod}}}")
    assert [pod["pod"] for pod in text["pods"]] == [f"x-{number}" for number in range(200)]
    shown = cli.run("simulate", "-f", str(cli.kubeconfig.parent / "pods.yaml")).stdout
    assert "x-0 and 199 more" in shown
    assert len(shown.splitlines()) < 12


def test_without_the_right_to_read_classes(server: FakeKubeServer, cli: Cli) -> None:
    server.fail(Fault(status=403, reason="Forbidden"), when=lambda request: request.path == CLASSES.path())
    (cli.kubeconfig.parent / "pods.yaml").write_text(a_pod("first", "priorityClassName: unknown, "))
    done = cli.run("simulate", "-f", str(cli.kubeconfig.parent / "pods.yaml"), "-o", "json")
    (pod,) = json.loads(done.stdout)["pods"]
    assert (pod["priority"], bool(pod["why"])) == (0, True)
    assert "PriorityClasses" in done.stderr


def test_a_reader_has_the_right_to_read_classes() -> None:
    role = next(iter(yaml.safe_load_all((ROOT / "deploy/rbac/reader.yaml").read_text())))
    assert any(CLASSES.plural in rule["resources"] and "list" in rule["verbs"] for rule in role["rules"])


def test_equal_pods_share_one_list_of_verdicts(cli: Cli) -> None:
    one, many = (
        simulated(cli, f"kind: Deployment\nmetadata: {{name: x}}\nspec: {{replicas: {count}, template: {EIGHT}}}")
        for count in (1, 200)
    )
    assert one["verdicts"] == many["verdicts"]
    assert {tuple(pod["verdicts"]) for pod in many["pods"]} == {tuple(one["pods"][0]["verdicts"])}
    assert [pod["why"]["name"] for pod in many["pods"]] == [pod["pod"] for pod in many["pods"]]
    (pod,) = one["pods"]
    assert pod["why"]["nodes"] == []
    mine = [one["verdicts"][number] for number in pod["verdicts"]]
    assert sum(len(verdict["nodes"]) for verdict in mine) == sum(pod["why"]["reasons"].values()) == 9
    assert {verdict["reason"] for verdict in mine} == pod["why"]["reasons"].keys()
    shown = cli.run("simulate", "-f", str(cli.kubeconfig.parent / "pods.yaml")).stdout
    assert "x-0 and 199 more" in shown
    assert len(shown.splitlines()) < 12


POD_GROUP = """
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata: {name: train}
spec: {minMember: 3}
"""


def test_a_gang_whose_minimum_a_pod_group_of_the_manifest_says(cli: Cli) -> None:
    labels = "metadata: {labels: {scheduling.x-k8s.io/pod-group: train}}"
    limits = LIMITS.replace("gpu: 8", "gpu: 1")
    job = f"kind: Job\nmetadata: {{name: x}}\nspec: {{parallelism: 2, template: {{{labels}, spec: {{{limits}}}}}}}"
    text = simulated(cli, f"{POD_GROUP}\n---\n{job}")
    assert [pod["code"] for pod in text["pods"]] == [OfPod.GANG_WAITS_FOR_MEMBERS] * 2
    assert "2 of 3 members" in text["pods"][0]["problem"]
    text = simulated(cli, f"{POD_GROUP}\n---\n{job.replace('parallelism: 2', 'parallelism: 3')}")
    assert all(pod["node"] for pod in text["pods"])
    assert text["passed_over"] == []


def test_a_reader_has_the_right_to_read_pod_groups() -> None:
    role = next(iter(yaml.safe_load_all((ROOT / "deploy/rbac/reader.yaml").read_text())))
    for kind in GANG_KINDS:
        assert any(
            kind.resource.plural in rule["resources"] and kind.resource.group in rule["apiGroups"] for rule in role["rules"]
        )
