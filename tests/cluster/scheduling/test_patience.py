"""Test a pod that waits for all cards of a node, on a real control plane where small pods hold the cpu of every node.

kube-scheduler leaves out the nodes without enough cpu, and asks central about none of them.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from simnode.control_plane import ControlPlane
from simnode.scheduling import Scheduling, SigningKey, install
from tests.cluster.conftest import DEPLOY
from tests.cluster.scheduling.fleet import CARDS, Fleet
from tests.cluster.scheduling.world import MERGE
from tests.logs import LOGS

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

PATIENCE_S: Final = 5
PODS: Final = "/api/v1/namespaces/default/pods"
NODES: Final = ("n0", "n1", "n2")
SMALL: Final = {"cpu": "15", "lading.dev/gpu": "1"}  # four of them leave 4 of 64 cores
LARGE: Final = {"cpu": "40", "lading.dev/gpu": str(CARDS)}


class Clustered:
    def __init__(self, plane: ControlPlane, scheduling: Scheduling) -> None:
        self.plane = plane
        self.scheduling = scheduling
        self.touched = 0

    def create(self, name: str, limits: dict[str, str], *, port: int = 0, **spec: Any) -> None:
        """Create a pod. `port` is the port of the node that the pod requests for itself."""
        ports = {"ports": [{"containerPort": port, "hostPort": port}]} if port else {}
        containers = [{"name": "main", "image": "pause", "resources": {"limits": limits}, **ports}]
        spec = {"containers": containers, "schedulerName": "lading", **spec}
        self.plane.api.call("POST", PODS, {"metadata": {"name": name}, "spec": spec})

    def delete(self, name: str) -> None:
        self.plane.api.call("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})

    def pods(self) -> dict[str, Any]:
        return {pod["metadata"]["name"]: pod for pod in self.plane.api.call("GET", PODS)["items"]}

    def bound_to(self, name: str) -> str:
        return str(self.pods()[name]["spec"].get("nodeName", ""))

    def await_bound(self, *names: str) -> None:
        self.plane.eventually(lambda: all(map(self.bound_to, names)), f"bound: {', '.join(names)}")

    def kept_for(self, name: str) -> str:
        status, body = self.scheduling.leader.get(f"/v1/why/default/{name}")
        return str(json.loads(body).get("keeping_room_on", "")) if status == 200 else ""

    def fill(self, node: str, pods: int) -> None:
        """Bind small pods there."""
        names = [f"{node}-{number}" for number in range(pods)]
        for name in names:
            self.create(name, SMALL, nodeSelector=on(node), tolerations=[{"operator": "Exists"}])
        self.await_bound(*names)

    def touch(self, name: str) -> None:
        """Have kube-scheduler try the pod again."""
        self.touched += 1
        body = {"metadata": {"annotations": {"example.com/touched": str(self.touched)}}}
        self.plane.api.call("PATCH", f"{PODS}/{name}", body, content_type=MERGE)


def on(node: str) -> dict[str, str]:
    return {"kubernetes.io/hostname": node}


@pytest.fixture(scope="module")
def whole(assets: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Clustered]:
    folder = tmp_path_factory.mktemp("patience")
    plane = ControlPlane(folder, assets=assets)
    logs = pytestconfig.stash.setdefault(LOGS, [])
    logs.extend(plane.logs)
    with plane:
        plane.create_namespace("default")
        install(plane, DEPLOY)
        key = SigningKey(folder / "keys")
        scheduling = Scheduling(plane, deploy=DEPLOY, key=key, replicas=1, settings={"patience": PATIENCE_S})
        logs.extend(scheduling.logs)
        with Fleet(plane, NODES), scheduling:
            for name in NODES:
                labels = {"metadata": {"labels": on(name)}}
                plane.api.call("PATCH", f"/api/v1/nodes/{name}", labels, content_type=MERGE)
            yield Clustered(plane, scheduling)


@pytest.fixture
def clustered(whole: Clustered) -> Iterator[Clustered]:
    yield whole
    whole.plane.api.call("PATCH", "/api/v1/nodes/n0", {"spec": {"taints": None}}, content_type=MERGE)
    for name in whole.pods():
        whole.delete(name)
    whole.plane.eventually(lambda: not whole.pods(), "no pods")


def test_a_pod_gets_the_node_whose_cpu_small_pods_hold_one_after_the_other(clustered: Clustered) -> None:
    taint = {"spec": {"taints": [{"key": "team", "value": "other", "effect": "NoSchedule"}]}}
    clustered.plane.api.call("PATCH", "/api/v1/nodes/n0", taint, content_type=MERGE)
    clustered.fill("n0", 3)  # fewer than on the others
    clustered.fill("n1", 4)
    clustered.fill("n2", 4)
    clustered.create("large", LARGE)
    clustered.plane.eventually(lambda: clustered.kept_for("large") != "", "room kept for the large pod")
    kept = clustered.kept_for("large")
    assert kept in {"n1", "n2"}
    for number in range(4):  # one ends, and the next one comes
        clustered.delete(f"{kept}-{number}")
        clustered.create(f"next-{number}", SMALL)
    clustered.await_bound("large")
    assert clustered.bound_to("large") == kept
    assert not any(clustered.bound_to(f"next-{number}") == kept for number in range(4))


def test_a_node_that_kube_scheduler_refuses_for_a_reason_of_its_own_is_left_for_another(clustered: Clustered) -> None:
    """Occupy a port of n1, which only kube-scheduler takes into account."""
    port = 8080
    clustered.create("full", {"lading.dev/gpu": str(CARDS)}, nodeSelector=on("n0"))
    clustered.create("porter", {"cpu": "100m"}, port=port, nodeSelector=on("n1"))
    clustered.fill("n1", 3)
    clustered.fill("n2", 4)
    clustered.await_bound("full", "porter")
    clustered.create("large", LARGE, port=port)
    clustered.plane.eventually(lambda: clustered.kept_for("large") == "n1", "room kept on n1")
    for number in range(3):
        clustered.delete(f"n1-{number}")

    def leaves() -> bool:
        clustered.touch("large")
        return clustered.kept_for("large") == "n2"

    clustered.plane.eventually(leaves, "room kept on n2", within_s=60)
    for number in range(4):
        clustered.delete(f"n2-{number}")
    clustered.await_bound("large")
    assert clustered.bound_to("large") == "n2"
