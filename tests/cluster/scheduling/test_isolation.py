"""Test a share whose limits are enforced, from the pod's annotations to the memory and time that its program gets."""

import json
import subprocess
from typing import Any

import pytest

from central.search.placement import Missing
from lading.vocabulary import GPU_CORE_LIMIT, ISOLATION
from simnode import images
from simnode.cuda import CudaDriver, install_fake_cuda
from tests.cluster.pods import Pods, container
from tests.cluster.scheduling.world import World, asks

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def driver(whole: World) -> CudaDriver:
    return install_fake_cuda(whole.lading.node)


def cuda(driver: CudaDriver, **asked: Any) -> dict[str, Any]:
    """Return containers and volumes of a pod whose program finds the simulated cards."""
    options = driver.container()
    env = [{"name": name, "value": value} for name, value in options["env"].items()]
    (mount,) = options["mounts"]
    mounts = [{"name": "cards", "mountPath": mount.container_path}]
    main = container(resources=asks(**asked), env=env, volumeMounts=mounts, image=images.CUDA)
    return {"containers": [main], "volumes": [{"name": "cards", "hostPath": {"path": str(mount.host_path)}}]}


def shares(world: World) -> dict[str, dict[str, Any]]:
    """Return what the share server says, by pod."""
    command = [world.lading.shares.program, "status", "--config", str(world.lading.shares.config), "-o", "json"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {use["pod"]: use for use in json.loads(output)}


def test_a_share_is_kept_as_its_annotations_say(world: World, pods: Pods, driver: CudaDriver) -> None:
    by_turns = {ISOLATION: "tokens", GPU_CORE_LIMIT: "80"}
    world.run(pods, "kept", annotations=by_turns, **cuda(driver, memory="2Gi", core=70))
    assert pods.sh("kept", "gpu-work memory 1024 1025") == ["1024 MiB: 0", "1025 MiB: 2", "1024 of 2048 MiB are free"]
    world.run(pods, "beside", annotations={ISOLATION: "tokens"}, **cuda(driver, memory="1Gi", core=30))
    (card,) = world.assigned("kept")["main"].gpus
    assert world.assigned("beside")["main"].gpus == (card,)
    result = shares(world)
    assert [result["kept"][key] for key in ("gpu", "requestPercent", "limitPercent", "memoryLimitMiB")] == [card, 70, 80, 2048]
    assert [result["beside"][key] for key in ("gpu", "requestPercent", "limitPercent")] == [card, 30, 100]

    world.run(pods, "trusted", memory="1Gi")  # the node's default is none
    assert world.assigned("trusted")["main"].gpus != (card,)
    assert set(shares(world)) == {"kept", "beside"}


def test_an_isolation_that_no_node_offers_keeps_the_pod_pending(world: World, pods: Pods) -> None:
    world.create(pods, "by-mps", memory="1Gi", annotations={ISOLATION: "mps"})
    assert Missing.NO_ISOLATION.shown in world.await_refused("by-mps")
