"""Gangs on a real control plane of many nodes, which are objects: Kubernetes' own PodGroups (1.36, alpha), and large waves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from lading.vocabulary import GANG, GANG_MIN
from simnode.control_plane import ControlPlane
from simnode.scheduling import Scheduling, SigningKey, install
from tests.cluster.conftest import DEPLOY
from tests.cluster.scheduling.fleet import CARDS, Fleet
from tests.logs import LOGS

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

NODES: Final = 8
PODGROUPS: Final = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
PODS: Final = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def plane(assets: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("native")
    gates = ("GenericWorkload", "GangScheduling")
    control = ControlPlane(folder, assets=assets, gates=gates, apis=("scheduling.k8s.io/v1alpha2",))
    logs = pytestconfig.stash.setdefault(LOGS, [])
    logs.extend(control.logs)
    with control:
        control.create_namespace("default")
        install(control, DEPLOY)
        scheduling = Scheduling(control, deploy=DEPLOY, key=SigningKey(folder), replicas=1)
        logs.extend(scheduling.logs)
        with Fleet(control, [f"n{number}" for number in range(NODES)]), scheduling:
            yield control


@pytest.fixture(autouse=True)
def empty(plane: ControlPlane) -> Iterator[None]:
    yield
    for pod in pods(plane):
        plane.api.call("DELETE", f"{PODS}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
    plane.eventually(lambda: not pods(plane), "no pods")


def pods(plane: ControlPlane) -> list[dict[str, Any]]:
    return list(plane.api.call("GET", PODS)["items"])


def create(plane: ControlPlane, name: str, gpus: int, *, group: str = "", annotations: dict[str, str] | None = None) -> None:
    container = {"name": "main", "image": "pause", "resources": {"limits": {"lading.dev/gpu": str(gpus)}}}
    spec: dict[str, Any] = {"containers": [container], "schedulerName": "lading"}
    spec |= {"schedulingGroup": {"podGroupName": group}} if group else {}
    plane.api.call("POST", PODS, {"metadata": {"name": name, "annotations": annotations or {}}, "spec": spec})


def bound(plane: ControlPlane) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods(plane) if pod["spec"].get("nodeName")}


def await_bound(plane: ControlPlane, names: set[str], *, within_s: float = 60.0) -> None:
    plane.eventually(lambda: names <= bound(plane), f"{len(names)} bound pods", within_s=within_s)


def test_a_native_gang_without_room_holds_nothing_against_other_pods_and_starts_whole(plane: ControlPlane) -> None:
    """Five members on four free cards: kube-scheduler tries them together, again and again."""
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


def test_a_gang_of_sixty_four_is_bound_in_one_wave(plane: ControlPlane) -> None:
    size = NODES * CARDS
    said = {GANG: "large", GANG_MIN: str(size)}
    for number in range(size - 1):
        create(plane, f"large{number}", 1, annotations=said)
    assert bound(plane) == set()
    create(plane, "last", 1, annotations=said)
    plane.eventually(lambda: len(bound(plane)) == size, "the whole gang", within_s=60)
