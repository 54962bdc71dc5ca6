"""Test devices that leave service and come back: health, cordons, a drained node."""

import pytest

from central.search.placement import Missing
from simnode.nvml import GPU_IS_LOST, Failure
from tests.cluster.pods import Pods
from tests.cluster.scheduling.world import World

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]


def test_a_lost_card_gets_no_pod_until_it_is_well(world: World, pods: Pods) -> None:
    world.run(pods, *(f"fills-{n}" for n in range(7)), gpu=1)
    used = {card for n in range(7) for card in world.assigned(f"fills-{n}")["main"].gpus}
    (left,) = set(world.gpus) - used
    world.set_nvml(failures=(Failure(gpu=world.gpus.index(left), status=GPU_IS_LOST),))
    try:
        world.cluster.eventually(lambda: _unhealthy(world) == [left], "a report of it")
        world.create(pods, "late", gpu=1)
        world.await_refused("late")
        (reason,) = world.why("late")["nodes"]
        assert reason["reason"] in (Missing.UNHEALTHY, Missing.TOO_FEW_FREE_GPUS)
        assert not world.bound("late")
    finally:
        world.set_nvml()
    world.await_bound("late", within_s=20.0)
    assert world.assigned("late")["main"].gpus == (left,)
    pods.wait_ready("late")
    world.check(pods, "late")


def _unhealthy(world: World) -> list[str]:
    status = world.api.call("GET", f"/apis/devices.lading.dev/v1alpha1/nodedevices/{world.node}")["status"]
    return [gpu["uuid"] for gpu in status["gpus"] if gpu.get("unhealthy")]


def test_cordoned_devices_get_no_new_pod_and_those_that_run_stay(world: World, pods: Pods) -> None:
    world.run(pods, "before", gpu=1)
    world.cordon("all")
    try:
        world.create(pods, "late", gpu=1)
        assert Missing.UNHEALTHY.shown in world.await_refused("late")
        world.check(pods, "before")
        world.cordon(*(gpu for gpu in world.gpus if gpu != world.gpus[5]))
        world.await_bound("late", within_s=10.0)
        assert world.assigned("late")["main"].gpus == (world.gpus[5],)
        world.create(pods, "later", gpu=1)
        world.await_refused("later")
    finally:
        world.cordon()
    world.await_bound("later", within_s=10.0)


def test_a_cordoned_pf_takes_its_vfs_with_it(world: World, pods: Pods) -> None:
    first, *others = [pf for pf, _ in world.lading.node.profile.pfs]
    world.cordon(*others)
    try:
        world.run(pods, "both", rdma=2)
        own = {vf.bdf for bdf, pf in world.lading.node.profile.pfs if bdf == first for vf in pf.vfs}
        assert set(world.assigned("both")["main"].vfs) == own
        world.create(pods, "third", rdma=1)
        world.await_refused("third")
    finally:
        world.cordon()
    world.await_bound("third", within_s=10.0)


def test_a_drained_node_is_empty_and_takes_pods_again(world: World, pods: Pods) -> None:
    names = [f"drained-{n}" for n in range(3)]
    world.run(pods, *names, gpu=2, rdma=1)
    done = world.cluster.kubectl("drain", world.node, "--force", "--ignore-daemonsets", "--timeout=60s", deadline_s=90.0)
    try:
        assert done.returncode == 0, done.stderr
        world.await_idle()
        assert not world.ledger()
        world.create(pods, "next", gpu=8)
        assert "unschedulable" in world.await_refused("next")
    finally:
        world.cluster.kubectl("uncordon", world.node)
    world.await_bound("next", within_s=20.0)
    pods.wait_ready("next")
    world.check(pods, "next")
