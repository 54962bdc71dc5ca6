"""Test that a pod of higher priority takes what it needs from pods of lower priority and no more, within disruption budgets."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from lading.vocabulary import POLICY
from tests.cluster.pods import Pods, container
from tests.cluster.scheduling.world import World, asks

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

CLASSES: Final[Mapping[str, Mapping[str, Any]]] = {
    "low": {"value": 1000},
    "middle": {"value": 2000},
    "high": {"value": 100_000},
    "patient": {"value": 100_000, "preemptionPolicy": "Never"},
}
BUDGETS: Final = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


@pytest.fixture(autouse=True)
def classes(world: World) -> Iterator[None]:
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    for name, body in CLASSES.items():
        world.api.call("POST", path, {"metadata": {"name": name}, **body})
    yield
    for name in CLASSES:
        world.api.call("DELETE", f"{path}/{name}")
    world.cordon()


def share(world: World, pods: Pods, name: str, memory: str, priority: str) -> None:
    """Create a share on the card with the least free memory."""
    world.run(pods, name, memory=memory, priorityClassName=priority, annotations={POLICY: "binpack"})


def there(world: World, *names: str) -> set[str]:
    """Return those of these pods that exist and are not being deleted."""
    result = {pod["metadata"]["name"]: pod for pod in world.api.pods()}
    return {name for name in names if name in result and "deletionTimestamp" not in result[name]["metadata"]}


def protect(world: World, pod: str) -> None:
    """Create a disruption budget that allows no eviction of the pod, and wait until the disruption controller has counted the
    pod."""
    world.api.patch_pod(pod, {"metadata": {"labels": {"app": pod}}})
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": pod}}}
    world.api.call("POST", BUDGETS, {"metadata": {"name": pod}, "spec": spec})

    def counted() -> bool:
        status: Mapping[str, Any] = world.api.call("GET", f"{BUDGETS}/{pod}").get("status", {})
        return status.get("currentHealthy") == 1

    world.cluster.eventually(counted, "a budget that was counted")


def unprotect(world: World, pod: str) -> None:
    world.api.call("DELETE", f"{BUDGETS}/{pod}")


def test_exactly_the_share_that_suffices_goes(world: World, pods: Pods) -> None:
    """Use two cards of 79 GiB. One has shares of 40 and 30 GiB; a share of 36 GiB fits once either of them ends, and the older
    one stays."""
    world.cordon(*world.gpus[2:])
    share(world, pods, "older", "40Gi", "low")
    world.sit_out(1.0)  # creation times are whole seconds
    share(world, pods, "younger", "30Gi", "low")
    share(world, pods, "important", "70Gi", "middle")
    assert world.assigned("older") == world.assigned("younger") != world.assigned("important")
    world.create(pods, "urgent", memory="36Gi", priorityClassName="high")
    world.await_bound("urgent")
    assert there(world, "older", "younger", "important") == {"older", "important"}
    assert world.assigned("urgent") == world.assigned("older")
    pods.wait_ready("urgent")
    world.check(pods, "urgent", "older", "important")


def test_a_pod_that_a_budget_keeps_stays_and_another_goes(world: World, pods: Pods) -> None:
    world.cordon(*world.gpus[1:])
    share(world, pods, "older", "40Gi", "low")
    share(world, pods, "younger", "30Gi", "low")
    protect(world, "younger")
    try:
        world.create(pods, "urgent", memory="36Gi", priorityClassName="high")
        world.await_bound("urgent")
        assert there(world, "older", "younger") == {"younger"}
    finally:
        unprotect(world, "younger")


def test_a_pod_of_equal_priority_waits(world: World, pods: Pods) -> None:
    world.cordon(*world.gpus[1:])
    share(world, pods, "first", "70Gi", "middle")
    world.create(pods, "equal", memory="20Gi", priorityClassName="middle")
    world.create(pods, "patient", memory="20Gi", priorityClassName="patient")
    world.await_refused("equal")
    world.await_refused("patient")
    world.create(pods, "small", memory="4Gi", priorityClassName="low")
    pods.wait_ready("small")  # kube-scheduler and central have had their turns
    assert there(world, "first") == {"first"}
    assert not world.bound("equal")
    assert not world.bound("patient")


def test_for_cpu_no_one_goes_while_the_devices_are_short(world: World, pods: Pods) -> None:
    """Check the answer to a preemption for cpu: central states whether the devices would suffice. Central does not requeue a
    pod that only cpu keeps from every node: kube-scheduler tries it again when a pod ends, or after 5 minutes."""
    free = float(world.api.node(world.node)["status"]["allocatable"]["cpu"])
    most = f"{int(free * 800)}m"
    world.cordon("all")
    pods.run("hog", containers=[container(resources={"requests": {"cpu": most}})], priorityClassName="low")
    pods.run("brief")
    world.create(pods, "urgent", containers=[container(resources=asks(gpu=1, cpu=most))], priorityClassName="high")
    assert "Insufficient cpu" in world.await_refused("urgent")
    world.create(pods, "also", gpu=1, priorityClassName="high")
    world.await_refused("also")
    assert there(world, "hog") == {"hog"}
    world.cordon()
    world.await_bound("also")
    assert there(world, "hog") == {"hog"}
    pods.delete("brief")
    world.await_bound("urgent")
    assert there(world, "hog") == set()
    pods.wait_ready("urgent")
    world.check(pods, "urgent")
