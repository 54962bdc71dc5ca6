"""Test shares by HAMi-core: a fake of its library in real containers, in front of a fake libcuda."""

import fcntl

import pytest

from lading.reasons import Reason
from simnode.cri import Container, Pod
from simnode.cuda import CudaDriver, compile_fake_hami
from simnode.daemons import LadingNode
from tests.node.conftest import StartLading
from tests.node.site import Site, eventually

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("driver")]

LIMITED = "0:memory=2Gi,isolation=hami-core"


@pytest.fixture(scope="module")
def running(share_lading: StartLading) -> LadingNode:
    running = share_lading()
    running.reconfigure_hooks(
        isolations=["hami-core", "none"],
        hami_library=str(compile_fake_hami(running.folder)),
        hami_dir=str(running.folder / "shm"),
        driver_root=str(running.node.root),
    )
    return running


def sharing(site: Site, driver: CudaDriver, name: str, **env: str) -> tuple[Pod, Container]:
    pod = site.kubelet.run_pod(name, annotations={"lading.dev/gpus.main": LIMITED})
    options = driver.container()
    options["env"] = {**options["env"], **env}
    return pod, pod.run_container(**options)


def folders(site: Site) -> list[str]:
    return [path.name for path in (site.lading.folder / "shm").iterdir() if path.is_dir()]


def test_an_allocation_beyond_the_share_is_refused(site: Site, driver: CudaDriver) -> None:
    pod, container = sharing(site, driver, "memory")
    assert container.sh("gpu-work memory 1024 1025 500").splitlines()[:3] == ["1024 MiB: 0", "1025 MiB: 2", "500 MiB: 0"]
    assert folders(site) == [f"{pod.spec.uid}_main"]
    pod.remove()
    eventually(lambda: _is_empty(folders(site)))


def test_a_container_that_is_made_again_begins_with_nothing_in_use(site: Site, driver: CudaDriver) -> None:
    pod, container = sharing(site, driver, "again")
    container.sh("gpu-work memory 2048")
    container.remove()
    again = pod.run_container(**driver.container())
    assert again.sh("gpu-work memory 2048").splitlines()[0] == "2048 MiB: 0"


def test_a_container_that_keeps_the_lock_stops_no_other(site: Site, driver: CudaDriver) -> None:
    pod, hostile = sharing(site, driver, "hostile")
    hostile.sh("touch /tmp/vgpulock/lock")
    with (site.lading.folder / "shm" / f"{pod.spec.uid}_main" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a process of the container may do this
        _, other = sharing(site, driver, "other")
        assert other.sh("gpu-work memory 1024").splitlines()[0] == "1024 MiB: 0"


def test_the_pods_own_limit_does_not_count(site: Site, driver: CudaDriver) -> None:
    forged = {"CUDA_DEVICE_MEMORY_LIMIT": "99g", "CUDA_DEVICE_MEMORY_LIMIT_0": "99g", "CUDA_DISABLE_CONTROL": "true"}
    _, container = sharing(site, driver, "forged", **forged)
    assert container.sh("gpu-work memory 2049").splitlines()[0] == "2049 MiB: 2"


def test_two_containers_have_no_share_together(site: Site, driver: CudaDriver) -> None:
    pod = site.kubelet.run_pod("together", annotations={"lading.dev/gpus": LIMITED})
    refused = site.refused(pod, **driver.container())
    assert refused.reason is Reason.ISOLATION_UNAVAILABLE
    assert "lading.dev/gpus.main" in refused.message


def _is_empty(names: list[str]) -> None:
    assert not names
