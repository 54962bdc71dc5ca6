"""Test gangs on a real control plane: kube-scheduler asks, central plans and binds, kubelet starts them. The node has eight
GPUs."""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from lading.vocabulary import GANG, GANG_MIN, GANG_ROLE
from tests.cluster.pods import Pods, container
from tests.cluster.scheduling.kinds import OPEN, is_created, served_kind
from tests.cluster.scheduling.world import World

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

GROUP: Final = "scheduling.x-k8s.io"
PODGROUPS: Final = f"/apis/{GROUP}/v1alpha1/namespaces/default/podgroups"


@pytest.fixture(autouse=True)
def in_service(world: World) -> Iterator[None]:
    yield
    world.cordon()


def gang(name: str, least: str, role: str = "") -> dict[str, Any]:
    return {"annotations": {GANG: name, GANG_MIN: least} | ({GANG_ROLE: role} if role else {})}


def bound(world: World, *names: str) -> set[str]:
    return {name for name in names if world.bound(name)}


def test_two_gangs_that_do_not_fit_together_start_one_after_the_other(world: World, pods: Pods) -> None:
    world.cordon(*world.gpus[4:])
    first, second = ([f"{name}{number}" for number in range(3)] for name in "ab")
    for number in range(3):  # in turns, as two controllers create them
        world.create(pods, f"a{number}", gpu=1, **gang("a", "3"))
        world.create(pods, f"b{number}", gpu=1, **gang("b", "3"))
    for name in first:
        world.await_bound(name)
    pods.wait_ready("a0")
    assert bound(world, *second) == set()
    assert "gang-no-room" in world.await_refused("b0") or world.why("b0")["gang"]["reason"] == "gang-no-room"
    world.check(pods, *first)
    for name in first:
        pods.delete(name)
    for name in second:
        pods.wait_ready(name)
    world.check(pods, *second)


def test_a_gang_waits_for_its_members_and_holds_nothing_meanwhile(world: World, pods: Pods) -> None:
    for number in range(3):
        world.create(pods, f"g{number}", gpu=2, **gang("g", "4"))
    assert "3 of 4 members exist (gang-waits-for-members)" in world.await_refused("g2")
    world.run(pods, "single", gpu=8)  # all cards of the cluster
    pods.delete("single")
    world.create(pods, "g3", gpu=2, **gang("g", "4"))
    for number in range(4):
        world.await_bound(f"g{number}", within_s=30)
        pods.wait_ready(f"g{number}")
    world.check(pods, *(f"g{number}" for number in range(4)))


def test_a_launcher_without_devices_starts_with_its_workers(world: World, pods: Pods) -> None:
    world.cordon(*world.gpus[1:])
    least = "launcher=1,worker=2"
    marked = [container(resources={"limits": {"lading.dev/gang-member": "1"}})]
    world.create(pods, "launcher", containers=marked, **gang("g", least, "launcher"))
    for number in range(2):
        world.create(pods, f"worker{number}", gpu=1, **gang("g", least, "worker"))
    assert "gang-" in world.await_refused("launcher")
    assert bound(world, "launcher", "worker0", "worker1") == set()
    world.cordon()
    for name in ("launcher", "worker0", "worker1"):
        world.await_bound(name)
        pods.wait_ready(name)
    assert pods.cards("launcher") == []


def test_a_taint_that_comes_after_the_plan_binds_no_member_alone(world: World, pods: Pods) -> None:
    """Taint the only node between plan and Binding: either all members are bound or none."""
    path = f"/api/v1/nodes/{world.node}"
    taint = {"spec": {"taints": [{"key": "full", "value": "yes", "effect": "NoSchedule"}]}}
    world.create(pods, "g0", gpu=1, **gang("g", "2"))
    world.await_refused("g0")
    world.api.call("PATCH", path, taint, content_type="application/merge-patch+json")
    try:
        world.create(pods, "g1", gpu=1, **gang("g", "2"))
        world.await_refused("g1")
        assert bound(world, "g0", "g1") == set()
    finally:
        world.api.call("PATCH", path, {"spec": {"taints": None}}, content_type="application/merge-patch+json")
    for name in ("g0", "g1"):
        world.await_bound(name)


@pytest.fixture
def podgroups(world: World) -> Iterator[None]:
    """Install the kind PodGroup of scheduler-plugins, which may be installed and removed while central runs."""
    with served_kind(world.api, GROUP, "v1alpha1", "PodGroup", {"spec": OPEN, "status": OPEN}):
        yield


@pytest.mark.usefixtures("podgroups")
def test_a_pod_group_of_another_system_says_the_minimum_also_if_it_comes_after_its_pods(world: World, pods: Pods) -> None:
    for number in range(2):
        world.create(pods, f"g{number}", gpu=1, labels={f"{GROUP}/pod-group": "g"})
    assert "there is no PodGroup default/g" in world.await_refused("g1")

    body = {"apiVersion": f"{GROUP}/v1alpha1", "kind": "PodGroup", "metadata": {"name": "g"}, "spec": {"minMember": 2}}
    world.cluster.eventually(lambda: is_created(world.api, PODGROUPS, body), "a PodGroup")
    for number in range(2):
        world.await_bound(f"g{number}", within_s=150)  # central asks for a kind that was missing once a minute
