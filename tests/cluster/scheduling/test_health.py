"""Test a device that becomes unhealthy under a running pod: the pod gets a condition and an Event, once each, and again after
recovery."""

from typing import Any

import pytest

from central.controllers.event_reasons import EventReason
from central.request.pod import DEVICES_HEALTHY
from simnode.nvml import GPU_IS_LOST, Failure
from tests.cluster.pods import Pods
from tests.cluster.scheduling.world import World

UNHEALTHY, HEALTHY = EventReason.DEVICE_UNHEALTHY, EventReason.DEVICE_HEALTHY
pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]


def condition(world: World, name: str) -> Any:
    """Return the pod's condition about its devices; empty if it has none."""
    conditions = world.api.pod(name)["status"].get("conditions", [])
    return next((c for c in conditions if c["type"] == DEVICES_HEALTHY), {})


def await_status(world: World, name: str, status: str) -> Any:
    world.cluster.eventually(
        lambda: condition(world, name).get("status") == status, f"{DEVICES_HEALTHY}={status} of {name}", within_s=60.0
    )
    return condition(world, name)


def told(world: World, name: str) -> list[str]:
    """Return the reasons of the Events about devices, for all pods that had this name."""
    reasons = [event.partition(":")[0] for event in world.api.pod_events(name)]
    return [reason for reason in reasons if reason in (UNHEALTHY, HEALTHY)]


def test_a_card_is_lost_under_a_pod_and_a_new_leader_repeats_nothing(world: World, pods: Pods) -> None:
    world.run(pods, "train", "beside", gpu=1)
    ((card,),) = [one.gpus for one in world.assigned("train").values()]
    container = pods.status("train")["containerID"]
    world.set_nvml(failures=(Failure(gpu=world.gpus.index(card), status=GPU_IS_LOST),))
    try:
        ill = await_status(world, "train", "False")
        assert ill["reason"] == UNHEALTHY
        assert all(part in ill["message"] for part in (card, world.node))
        pods.wait_event("train", f"{UNHEALTHY}: {ill['message']}")
        dead = world.scheduling.leader
        dead.kill()
        world.scheduling.await_leader()
        dead.start()
        world.run(pods, "late", gpu=1)  # the new leader serves, and has looked at this node
    finally:
        world.set_nvml()
    well = await_status(world, "train", "True")
    assert (well["reason"], well["lastTransitionTime"] >= ill["lastTransitionTime"]) == (HEALTHY, True)
    pods.wait_event("train", HEALTHY)
    assert sorted(told(world, "train")) == sorted([UNHEALTHY, HEALTHY])
    assert (condition(world, "beside"), told(world, "beside")) == ({}, [])
    assert (pods.ready("train"), pods.status("train")["containerID"]) == (True, container)  # it runs on all the while


def test_the_port_of_a_pf_goes_down_under_its_vfs(world: World, pods: Pods) -> None:
    world.run(pods, "verbs", rdma=1)
    world.run(pods, "cards", gpu=1)
    ((vf,),) = [one.vfs for one in world.assigned("verbs").values()]
    (pf,) = [bdf for bdf, pf in world.lading.node.profile.pfs if vf in {one.bdf for one in pf.vfs}]
    (state,) = (world.lading.node.pci(pf) / "infiniband").glob("*/ports/1/state")
    before = state.read_text()
    state.write_text("1: DOWN\n")
    try:
        ill = await_status(world, "verbs", "False")
        assert all(part in ill["message"] for part in (vf, pf))
    finally:
        state.write_text(before)
    await_status(world, "verbs", "True")
    pods.wait_event("verbs", HEALTHY)
    assert sorted(told(world, "verbs")) == sorted([UNHEALTHY, HEALTHY])
    assert condition(world, "cards") == {}


def test_a_restart_on_the_node_is_no_illness(world: World, pods: Pods) -> None:
    world.run(pods, "steady", gpu=1, rdma=1)
    world.lading.hooks.kill()
    world.lading.hooks.start()
    world.run(pods, "after", gpu=1, rdma=1)
    after = world.uid("after")
    world.cluster.eventually(lambda: after in world.reported(), "a report of the new process")
    for name in ("steady", "after"):
        assert (condition(world, name), told(world, name)) == ({}, [])
