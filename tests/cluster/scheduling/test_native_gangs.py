"""Test gangs on a real control plane of many nodes, which are objects only: Kubernetes' own PodGroups (1.36, alpha), and large
waves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from lading.vocabulary import GANG, GANG_MIN
from simnode.control_plane import ControlPlane
from simnode.scheduling import Scheduling, SigningKey, install
from tests.cluster.conftest import DEPLOY
from tests.cluster.scheduling.fleet import CARDS, MERGE, Fleet
from tests.logs import LOGS

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

NODES: Final = 8
RACK: Final = "topology.kubernetes.io/rack"
HOST: Final = "kubernetes.io/hostname"
RACKS: Final = {"r0": (0, 1), "r1": (2, 3), "r2": (4, 5, 6, 7)}
PODGROUPS: Final = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
PODS: Final = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def plane(assets: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("native")
    gates = ("GenericWorkload", "GangScheduling", "TopologyAwareWorkloadScheduling")
    control = ControlPlane(folder, assets=assets, gates=gates, apis=("scheduling.k8s.io/v1alpha2",))
    logs = pytestconfig.stash.setdefault(LOGS, [])
    logs.extend(control.logs)
    with control:
        control.create_namespace("default")
        install(control, DEPLOY)
        scheduling = Scheduling(control, deploy=DEPLOY, key=SigningKey(folder), replicas=1)
        logs.extend(scheduling.logs)
        with Fleet(control, [f"n{number}" for number in range(NODES)]):
            for rack, numbers in RACKS.items():
                for number in numbers:
                    labels = {"metadata": {"labels": {RACK: rack, HOST: f"n{number}"}}}
                    control.api.call("PATCH", f"/api/v1/nodes/n{number}", labels, content_type=MERGE)
            with scheduling:
                yield control


@pytest.fixture(autouse=True)
def empty(plane: ControlPlane) -> Iterator[None]:
    yield
    for pod in pods(plane):
        plane.api.call("DELETE", f"{PODS}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
    plane.eventually(lambda: not pods(plane), "no pods")


def pods(plane: ControlPlane) -> list[dict[str, Any]]:
    return list(plane.api.call("GET", PODS)["items"])


def create(
    plane: ControlPlane, name: str, gpus: int, *, group: str = "", annotations: dict[str, str] | None = None, **options: Any
) -> None:
    container = {"name": "main", "image": "pause", "resources": {"limits": {"lading.dev/gpu": str(gpus)}}}
    spec: dict[str, Any] = {"containers": [container], "schedulerName": "lading", **options}
    spec |= {"schedulingGroup": {"podGroupName": group}} if group else {}
    plane.api.call("POST", PODS, {"metadata": {"name": name, "annotations": annotations or {}}, "spec": spec})


def bound(plane: ControlPlane) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods(plane) if pod["spec"].get("nodeName")}


def await_bound(plane: ControlPlane, names: set[str], *, within_s: float = 60.0) -> None:
    plane.eventually(lambda: names <= bound(plane), f"{len(names)} bound pods", within_s=within_s)


def test_a_native_gang_without_room_holds_nothing_against_other_pods_and_starts_whole(plane: ControlPlane) -> None:
    """Create five members for four free cards: kube-scheduler tries them together repeatedly, and none may hold a card
    meanwhile."""
    for number in range(NODES):
        create(plane, f"hold{number}", CARDS if number else CARDS - 4)
    plane.eventually(lambda: len(bound(plane)) == NODES, "full nodes")
    policy = {"schedulingPolicy": {"gang": {"minCount": 5}}}
    plane.api.call("POST", PODGROUPS, {"metadata": {"name": "five"}, "spec": policy})
    members = {f"member{number}" for number in range(5)}
    for name in members:
        create(plane, name, 1, group="five")
    for number in range(3):
        create(plane, f"single{number}", 1)
        await_bound(plane, {f"single{number}"}, within_s=10)
        assert not members & bound(plane)
    plane.api.call("DELETE", f"{PODS}/hold1", {"gracePeriodSeconds": 0})
    await_bound(plane, members)


def test_a_native_gang_in_one_rack_starts_in_the_only_one_that_holds_it(plane: ControlPlane) -> None:
    """Check that kube-scheduler, which tries all members in each rack, is accepted in one rack, and in none while no rack has
    enough cards."""
    for number in (0, 2, 4, 5, 6):
        create(plane, f"hold{number}", 4, nodeSelector={HOST: f"n{number}"})
    plane.eventually(lambda: len(bound(plane)) == 5, "five pods that hold four cards each")
    policy = {"schedulingPolicy": {"gang": {"minCount": 2}}, "schedulingConstraints": {"topology": [{"key": RACK}]}}
    plane.api.call("POST", PODGROUPS, {"metadata": {"name": "near"}, "spec": policy})
    members = {"near0", "near1"}
    for name in members:
        create(plane, name, CARDS, group="near")
    create(plane, "single", CARDS)  # while the gang is tried in rack after rack
    await_bound(plane, {"single"}, within_s=20)
    assert not members & bound(plane)
    for name in ("single", "hold2"):
        plane.api.call("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
    await_bound(plane, members)
    placed = {pod["spec"]["nodeName"] for pod in pods(plane) if pod["metadata"]["name"] in members}
    assert placed == {"n2", "n3"}


def test_a_gang_of_sixty_four_is_bound_in_one_wave(plane: ControlPlane) -> None:
    size = NODES * CARDS
    message = {GANG: "large", GANG_MIN: str(size)}
    for number in range(size - 1):
        create(plane, f"large{number}", 1, annotations=message)
    assert bound(plane) == set()
    create(plane, "last", 1, annotations=message)
    plane.eventually(lambda: len(bound(plane)) == size, "the whole gang", within_s=60)
