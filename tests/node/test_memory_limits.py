"""Test memory limits of shares by the driver, for cgroups: real containers and containerd, and a simulated driver.

The driver's cgroups are simulated below the node's host root."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from lading.reasons import Reason
from lading.sharegrant import FILE, parse_grant
from simnode.cri import Pod
from simnode.cuda import CudaDriver, install_fake_cuda
from simnode.nvml import NvmlState
from tests.node.conftest import StartSite
from tests.node.site import Site, eventually, find_cgroups

pytestmark = pytest.mark.node

GPU = "lading.dev/gpus"
MIB = 1 << 20


class Limited:
    """Start a node whose driver can limit memory by cgroup."""

    def __init__(self, site: Site) -> None:
        self.site, self.lading = site, site.lading
        self.driver: CudaDriver = install_fake_cuda(site.node)
        self.cgroups = site.node.root / "sys/fs/cgroup"
        self.cgroups.mkdir(parents=True)
        (self.cgroups / "cgroup.controllers").write_text("cpu memory dmem\n")

    def says(self, limits: Mapping[int, int]) -> None:
        """Have the driver limit these cards, and lading-hooks learn that."""
        NvmlState(profile=self.lading.node.profile, memory_limits=limits).write(self.lading.node.nvml_state)
        self.lading.hooks.restart()

    def pod(self, name: str, share: str) -> Pod:
        """Run a pod whose cgroup the simulated kernel has too."""
        pod = self.site.kubelet.run_pod(name, annotations={f"{GPU}.{one}": f"0:{share},isolation=tokens" for one in ("a", "b")})
        folder = self.cgroup(pod)
        folder.mkdir(parents=True)
        (folder / "cgroup.events").write_text("populated 1\nfrozen 0\n")
        return pod

    def cgroup(self, pod: Pod) -> Path:
        return self.cgroups / str(pod.config.linux.cgroup_parent).lstrip("/")

    def limits(self, pod: Pod) -> list[str]:
        return (self.cgroup(pod) / "dmem.max").read_text().splitlines()

    def informs(self, pod: Pod, container: str) -> bool:
        grant = parse_grant((self.lading.folder / "shares" / f"{pod.spec.uid}_{container}" / FILE).read_bytes())
        return grant.gpus[0].driver_limits


@pytest.fixture
def limited(start_site: StartSite) -> Limited:
    return Limited(start_site(tokens=True))


def test_the_pods_limit_is_there_before_a_container_runs(limited: Limited) -> None:
    limited.says({0: 0})
    pod = limited.pod("limited", "memory=8Gi,core=10")
    region = f"nvidia/{limited.lading.node.profile.gpus[0][0]}/vidmem"
    container = eventually(lambda: pod.create_container("a", **limited.driver.container()))
    assert limited.limits(pod) == [f"{region} {8192 * MIB}"]
    assert find_cgroups(container.id) == []  # only the pod's cgroup is there
    container.start()
    assert find_cgroups(container.id)
    assert limited.informs(pod, "a")
    assert container.sh("gpu-work memory 9000").startswith("9000 MiB: 0")  # this CUDA has no limit
    second = pod.run_container("b", **limited.driver.container())
    assert limited.limits(pod) == [f"{region} {2 * 8192 * MIB}"]
    eventually(lambda: _is_refused(second.sh("gpu-work memory 9000")))  # each within its own share of the pod's


def _is_refused(text: str) -> None:
    assert text.startswith("9000 MiB: 2")


@pytest.mark.long
def test_a_limit_that_reads_back_as_another_refuses_the_container(limited: Limited) -> None:
    limited.says({0: 0})
    pod = limited.pod("differs", "memory=8Gi")
    eventually(lambda: pod.create_container("a", **limited.driver.container()))
    NvmlState(profile=limited.lading.node.profile, memory_limits={0: 4096}).write(limited.lading.node.nvml_state)
    refused = limited.site.refused(pod, "b", **limited.driver.container())
    assert refused.reason is Reason.ISOLATION_UNAVAILABLE
    assert "given a limit of" in refused.message


def test_without_such_a_driver_the_library_limits(limited: Limited) -> None:
    limited.says({})
    pod = limited.pod("library", "memory=8Gi")
    container = eventually(lambda: pod.run_container("a", **limited.driver.container()))
    assert not (limited.cgroup(pod) / "dmem.max").exists()
    assert not limited.informs(pod, "a")
    assert container.sh("gpu-work memory 9000").startswith("9000 MiB: 2")


@pytest.mark.long
def test_where_limits_by_the_driver_are_asked_for_nothing_else_will_do(limited: Limited) -> None:
    limited.says({})
    limited.lading.reconfigure_hooks(memory_limits="driver")
    pod = limited.pod("strict", "memory=8Gi")

    def check() -> None:
        refused = limited.site.refused(pod, "a", **limited.driver.container())
        assert refused.reason is Reason.ISOLATION_UNAVAILABLE
        assert 'memory_limits = "driver"' in refused.message

    eventually(check)
