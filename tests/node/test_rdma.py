"""Test RDMA VFs in a container: verbs nodes and the expected names of the granted VFs, and no node of other VFs."""

import pytest

from lading.reasons import Reason
from simnode.cri import Container
from tests.node.conftest import StartSite
from tests.node.site import Site, granted_in

pytestmark = pytest.mark.node

VFS = "lading.dev/vfs"
RDMA_CM = "/dev/infiniband/rdma_cm"
_CAP_IPC_LOCK = 14  # capabilities(7)


def may_lock_memory(container: Container) -> bool:
    (line,) = (line for line in container.sh("cat /proc/1/status").splitlines() if line.startswith("CapEff:"))
    return bool(int(line.split()[1], 16) & 1 << _CAP_IPC_LOCK)


def test_a_number_of_vfs_is_given_from_the_first_free_vf_on(site: Site) -> None:
    first, second, *_ = site.vfs
    with site.kubelet.pod("one", annotations={VFS: "1"}) as pod:
        container = pod.run_container(env={"PCIDEVICE_LADING_DEV_RDMA": "0000:00:00.0"})
        sight = site.see(container)
        assert sight.nodes == {site.uverbs(first), RDMA_CM}
        assert sight.vfs == (first,)
        assert granted_in(container) == ((), (first,))
        assert sight.env["PCIDEVICE_LADING_DEV_RDMA"] == first  # ours says what was given, whatever the pod wrote
        assert sight.env["NCCL_IB_HCA"] == "=mlx5_8"
        assert sight.env["NVIDIA_VISIBLE_DEVICES"] == "void"  # no GPU of Lading, so none at all
        assert not may_lock_memory(container)
        with site.kubelet.pod("next", annotations={VFS: "1"}) as other:
            assert site.see(other.run_container()).vfs == (second,)


@pytest.mark.parametrize("written", ["0000:3a:00.2,0000:bb:00.3", "mlx5_12,mlx5_23"])
def test_vfs_are_given_by_pci_address_or_ibdev(site: Site, written: str) -> None:
    with site.kubelet.pod("named", annotations={VFS: written, "lading.dev/gpus": "5"}) as pod:
        container = pod.run_container()
        sight = site.see(container)
        assert sight.vfs == ("0000:3a:00.2", "0000:bb:00.3")
        assert sight.gpus == (site.gpu(5),)
        assert granted_in(container) == (sight.gpus, sight.vfs)
        assert sight.env["PCIDEVICE_LADING_DEV_RDMA"] == "0000:3a:00.2,0000:bb:00.3"
        assert sight.env["NCCL_IB_HCA"] == "=mlx5_12,mlx5_23"


def test_nccl_settings_of_the_container_are_kept(site: Site) -> None:
    with site.kubelet.pod("tuned", annotations={VFS: "1"}) as pod:
        sight = site.see(pod.run_container(env={"NCCL_IB_HCA": "mlx5_1", "NCCL_DEBUG": "INFO"}))
        assert sight.env["NCCL_IB_HCA"] == "mlx5_1"
        assert sight.env["NCCL_DEBUG"] == "INFO"
        assert len(sight.vfs) == 1


def test_a_vf_that_is_held_is_not_given_again(site: Site) -> None:
    first, second, *_ = site.vfs
    holder = site.kubelet.run_pod("holder", annotations={VFS: "2"})
    assert site.see(holder.run_container()).vfs == (first, second)
    refused = site.refused_at_once({VFS: second})
    assert refused.reason is Reason.DEVICE_HELD
    assert "default/holder" in refused.message
    assert site.refused_at_once({VFS: "15"}).reason is Reason.CAPACITY_EXCEEDED
    rest = site.kubelet.run_pod("rest", annotations={VFS: "14"})
    assert site.see(rest.run_container()).vfs == tuple(site.vfs[2:])
    assert site.refused_at_once({VFS: "1"}).reason is Reason.CAPACITY_EXCEEDED


def test_mad_nodes_a_resource_name_and_locked_memory_where_configured(start_site: StartSite) -> None:
    site = start_site(hooks={"rdma_mad": True, "rdma_ipc_lock": True, "rdma_resource": "nvidia.com/hca-0"})
    with site.kubelet.pod("mad", annotations={VFS: site.vfs[3]}) as pod:
        container = pod.run_container()
        sight = site.see(container)
        uverbs = site.uverbs(site.vfs[3])
        number = uverbs.removeprefix("/dev/infiniband/uverbs")
        assert sight.nodes == {uverbs, RDMA_CM, f"/dev/infiniband/umad{number}", f"/dev/infiniband/issm{number}"}
        assert sight.env["PCIDEVICE_NVIDIA_COM_HCA_0"] == site.vfs[3]
        assert may_lock_memory(container)
    with site.kubelet.pod("plain") as plain:
        assert not may_lock_memory(plain.run_container())
