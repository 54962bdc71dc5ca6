"""Test VFs on a node with an older kernel, and RDMA devices in exclusive mode: each belongs to one network namespace.

These tests are in a separate module, because two daemons on one runtime would take over each other's containers.
"""

from collections.abc import Iterator

import pytest

from simnode.containerd import PrivateContainerd
from tests.node.conftest import StartVfs
from tests.node.test_vfs import clash
from tests.node.vf_site import SETTINGS, VfNode, VfSite, netns_of, open_vf_site

pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
def odd(share_vfs: StartVfs) -> VfNode:
    """Start an older kernel, which does not report to whom a network device belongs, with RDMA devices that are in one
    namespace each."""
    return share_vfs(pfs=1, vfs=2, exclusive=True, old_kernel=True)


@pytest.fixture
def site(odd: VfNode, containerd: PrivateContainerd) -> Iterator[VfSite]:
    with open_vf_site(odd, containerd) as site:
        yield site


def test_a_name_that_the_pod_has_already_is_refused_and_all_is_undone(site: VfSite) -> None:
    clash(site)


def test_the_rdma_device_goes_along_where_namespaces_have_their_own(site: VfSite) -> None:
    vf, other = site.vfs
    (ibdev,) = site.ibdevs(vf)
    pod = site.run_vf_pod("exclusive", {"main": [site.entry(vf, **SETTINGS)]})
    first = pod.run_container()
    assert site.ibdevs(vf) == []
    assert site.rig.rdma_away() == {ibdev: str(netns_of(site, pod))}
    first.stop()
    again = pod.run_container(attempt=1)  # the node knows what it gave, though sysfs does not show it
    assert again.env()["NCCL_IB_HCA"] == f"={ibdev}"
    bystander = site.run_vf_pod("bystander", {"main": [site.entry(other)]})
    bystander.run_container()
    pod.stop()
    assert site.ibdevs(vf) == [ibdev]
    bystander.stop()
    site.check_as_before()
