"""Test GPUs in a container, in the injection modes `devices` and `nvidia-runtime`: the container has exactly the granted
ones."""

from pathlib import Path

import pytest

from lading.reasons import Reason
from tests.node.conftest import StartSite
from tests.node.site import Site, granted_in

pytestmark = pytest.mark.node

CONTROL = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
GPU = "lading.dev/gpus"


@pytest.mark.parametrize(
    ("written", "indexes"),
    [
        pytest.param("0", [0], id="one"),
        pytest.param("1,6", [1, 6], id="several"),
        pytest.param("all", range(8), id="all"),
        pytest.param("GPU-00000004-4c61-6469-6e67-000000007bc9", [3], id="uuid"),
        pytest.param("0000:9c:00.0", [4], id="pci-address"),
    ],
)
def test_whole_cards_are_given_by_number_uuid_or_pci_address(site: Site, written: str, indexes: list[int]) -> None:
    with site.kubelet.pod("whole", annotations={GPU: written}) as pod:
        container = pod.run_container()
        sight = site.see(container)
        assert sight.nodes == CONTROL | {site.card(index) for index in indexes}
        assert sight.gpus == tuple(site.gpu(index) for index in indexes)
        assert granted_in(container) == (sight.gpus, ())
        assert sight.env["NVIDIA_VISIBLE_DEVICES"] == "void"
        assert "LADING_GPU_MEMORY_MIB" not in sight.env


def test_a_share_is_the_card_and_its_amounts_in_the_environment(site: Site) -> None:
    with site.kubelet.pod("share", annotations={GPU: "2:memory=8Gi,core=30"}) as pod:
        sight = site.see(pod.run_container(env={"LADING_GPU_MEMORY_MIB": "999999"}))
        assert sight.gpus == (site.gpu(2),)
        assert sight.env["LADING_GPU_MEMORY_MIB"] == "8192"
        assert sight.env["LADING_GPU_CORE_PERCENT"] == "30"


def test_shares_of_one_card_add_up_to_what_it_has(site: Site) -> None:
    cards = [site.kubelet.run_pod(f"share-{part}", annotations={GPU: f"0:core={part}"}) for part in (60, 40)]
    for pod in cards:
        assert site.see(pod.run_container()).gpus == (site.gpu(0),)
    assert site.refused_at_once({GPU: "0:core=1"}).reason is Reason.CAPACITY_EXCEEDED
    assert site.refused_at_once({GPU: "0"}).reason is Reason.DEVICE_HELD  # the whole of a card that is shared
    by_memory = site.kubelet.run_pod("by-memory", annotations={GPU: "0:memory=79Gi"})
    assert site.see(by_memory.run_container()).gpus == (site.gpu(0),)
    assert site.refused_at_once({GPU: "0:memory=2Gi"}).reason is Reason.CAPACITY_EXCEEDED


def test_a_share_of_a_pod_counts_once_for_all_its_containers(site: Site) -> None:
    with site.kubelet.pod("two", annotations={GPU: "0:core=60"}) as pod:
        assert [site.see(pod.run_container(name)).gpus for name in ("a", "b")] == [(site.gpu(0),)] * 2
        assert site.see(site.kubelet.run_pod("rest", annotations={GPU: "0:core=40"}).run_container()).gpus == (site.gpu(0),)


def test_mig_instances_are_card_and_capability_nodes(start_site: StartSite) -> None:
    site = start_site("mig")
    first, second = "MIG-00000051-4c61-5d69-8e67-0000000a0001", "MIG-00000052-4c61-5d69-8e67-0000000a0002"
    with site.kubelet.pod("mig", annotations={GPU: first}) as pod:
        container = pod.run_container()
        caps = {"/dev/nvidia-caps/nvidia-cap147", "/dev/nvidia-caps/nvidia-cap148"}
        assert site.see(container).nodes == CONTROL | {"/dev/nvidia1"} | caps
        assert granted_in(container) == ((first,), ())
        assert site.refused_at_once({GPU: first}).reason is Reason.DEVICE_HELD
        assert site.refused_at_once({GPU: "0"}).reason is Reason.DEVICE_UNKNOWN  # a card in MIG mode is not given whole
        with site.kubelet.pod("other-instance", annotations={GPU: second}) as other:
            caps = {"/dev/nvidia-caps/nvidia-cap183", "/dev/nvidia-caps/nvidia-cap184"}
            assert site.see(other.run_container()).nodes == CONTROL | {"/dev/nvidia1"} | caps


def test_the_drivers_libraries_are_found_without_a_setting(start_site: StartSite) -> None:
    site = start_site("workstation")
    with site.kubelet.pod("with", annotations={GPU: "0"}) as pod:
        container = pod.run_container()
        libraries = container.sh("cd /usr/lib/x86_64-linux-gnu; cat libcuda.so.1; cat libnvidia-ml.so.550.127.05; nvidia-smi")
        assert libraries.split("\n") == ["simulated libcuda", "simulated libnvidia-ml", "simulated nvidia-smi", ""]
        assert container.exec("sh", "-c", "echo >>/usr/lib/x86_64-linux-gnu/libcuda.so.1").exit != 0  # read-only
        assert site.see(container).gpus == (site.gpu(0),)


def test_a_driver_root_without_the_drivers_files_is_a_refusal(start_site: StartSite, tmp_path: Path) -> None:
    site = start_site("workstation", hooks={"driver_root": str(tmp_path)})
    assert site.refused_at_once({GPU: "0"}).reason is Reason.DRIVER_FILES_MISSING


def test_with_nvidias_runtime_a_container_has_uuids_and_no_device_nodes_of_lading(start_site: StartSite) -> None:
    site = start_site(hooks={"gpu_mode": "nvidia-runtime"})
    with site.kubelet.pod("by-runtime", annotations={GPU: "7,0:core=50"}) as pod:
        sight = site.see(pod.run_container(env={"NVIDIA_VISIBLE_DEVICES": "all"}))
        assert sight.env["NVIDIA_VISIBLE_DEVICES"] == f"{site.gpu(0)},{site.gpu(7)}"
        assert sight.env["LADING_GPU_CORE_PERCENT"] == "50,100"
        assert sight.nodes == frozenset()
