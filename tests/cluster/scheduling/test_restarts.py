"""Restart Lading's processes, kubelet and the API server: running pods are not touched, and new pods get their devices once."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from simnode.containerd import PrivateContainerd
from tests.cluster.pods import Pods
from tests.cluster.scheduling.world import Seen, World

pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]

Stable = dict[str, tuple[Any, dict[str, Seen]]]


def stable(world: World, pods: Pods, names: Sequence[str]) -> Stable:
    """Return what a restart of any part must not change."""
    return {
        name: ((pods.status(name)["containerID"], pods.status(name)["restartCount"]), world.assigned(name)) for name in names
    }


def test_a_rolling_restart_of_all_of_lading_while_pods_come_and_go(world: World, pods: Pods) -> None:
    """Stop each process while a pod waits for it or is about to be bound."""
    world.run(pods, "long-0", "long-1", gpu=1, rdma=1)
    before = stable(world, pods, ["long-0", "long-1"])
    scheduling, lading = world.scheduling, world.lading

    def replica(number: int) -> Callable[[], None]:
        def restart() -> None:
            scheduling.replicas[number].stop()
            scheduling.replicas[number].start()

        return restart

    def scheduler() -> None:
        scheduling.scheduler.kill()
        scheduling.scheduler.start()

    def kubelet() -> None:
        world.cluster.kubelet.stop()
        world.cluster.kubelet.start()

    def hooks() -> None:
        lading.hooks.kill()
        lading.hooks.start()

    restarts = [replica(0), replica(1), scheduler, hooks, lading.proxy.restart, kubelet]
    for number, restart in enumerate(restarts):
        name = f"step-{number}"
        world.create(pods, name, gpu=2, rdma=1)
        restart()
        pods.wait_ready(name)
        world.check(pods, name)
        if number >= 2:  # three have six cards
            pods.delete(f"step-{number - 2}")
    assert stable(world, pods, ["long-0", "long-1"]) == before
    world.check(pods, "long-0", "long-1")


def test_the_leader_dies_while_every_card_is_taken_and_the_next_one_knows_who_has_what(world: World, pods: Pods) -> None:
    names = [f"held-{n}" for n in range(8)]
    world.run(pods, *names, gpu=1)
    before = stable(world, pods, names)
    world.create(pods, "late", gpu=1)
    world.await_refused("late")
    dead = world.scheduling.leader
    dead.kill()
    deleted = world.assigned("held-6")
    pods.delete("held-6")  # while no one leads
    world.scheduling.await_leader()
    assert world.scheduling.leader is not dead
    world.await_bound("late", within_s=60.0)
    assert world.assigned("late") == deleted
    dead.start()
    pods.wait_ready("late")
    world.check(pods, "late")
    names.remove("held-6")
    assert stable(world, pods, names) == {name: before[name] for name in names}


def test_whom_the_former_leader_refused_the_next_one_wakes(world: World, pods: Pods) -> None:
    """End a cordon after a change of leader: kube-scheduler does not ask again about the pod, because it does not know of
    cordons."""
    world.cordon("all")
    try:
        world.create(pods, "late", gpu=1)
        world.await_refused("late")
        dead = world.scheduling.leader
        dead.kill()
        world.scheduling.await_leader()
        dead.start()
    finally:
        world.cordon()
    world.await_bound("late", within_s=10.0)


def test_a_node_that_reboots_gives_its_pods_the_same_devices_again(
    world: World, pods: Pods, runtime: PrivateContainerd
) -> None:
    """End kubelet, Lading's daemons and all containers, and change the boot id; kubelet creates the containers again. Until
    lading-hooks has reported, central assigns nothing on the node."""
    names = ["reboot-0", "reboot-1"]
    world.run(pods, *names, gpu=3, rdma=2)
    world.create(pods, "late", gpu=3)
    world.await_refused("late")
    before = {name: world.assigned(name) for name in names}
    restarts = {name: pods.status(name)["restartCount"] for name in names}
    world.cluster.kubelet.stop()
    world.lading.stop()
    with runtime.client() as direct:
        direct.remove_every_pod()
    boot_id: Path = world.lading.node.root / "proc/sys/kernel/random/boot_id"
    boot_id.write_text(f"{uuid4()}\n")
    world.lading.shares.start()
    world.lading.proxy.start()
    world.cluster.kubelet.start()
    world.cluster.eventually(lambda: "rebooted" in json.dumps(world.why("late")), "what central says of the node")
    world.lading.hooks.start()
    for name in names:
        pods.wait_restarts(name, restarts[name] + 1)
        pods.wait_ready(name)
    assert {name: world.assigned(name) for name in names} == before
    world.check(pods, *names)
    assert not world.bound("late")
    pods.delete("reboot-0")
    pods.wait_ready("late")
    world.check(pods, "late")


def test_an_api_server_that_is_away_changes_nothing_and_all_goes_on_after_it(world: World, pods: Pods) -> None:
    names = [f"before-{n}" for n in range(4)]
    world.run(pods, *names, gpu=1)
    before = stable(world, pods, names)
    coming = [f"during-{n}" for n in range(6)]
    for name in coming:
        world.create(pods, name, gpu=1)
    server = world.cluster.control_plane.server
    server.kill()  # with Bindings under way
    world.sit_out(20.0)
    server.start()
    server.wait_until(world.api.ready, "a ready API server")
    world.scheduling.restart_ended()
    world.cluster.eventually(lambda: len(world.waiting(coming)) == 2, "four more bound pods", within_s=90.0)
    bound = sorted(set(coming) - set(world.waiting(coming)))
    for name in bound:
        pods.wait_ready(name)
    world.check(pods, *bound)
    assert stable(world, pods, names) == before
    for name in names[:2]:
        pods.delete(name)
    for name in coming:
        pods.wait_ready(name)
    world.check(pods, *coming)
