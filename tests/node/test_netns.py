"""Check the path of a sandbox's network namespace that containerd reports: the machine's version, and the unpacked versions."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hooks.attach.netlink import HostKernel
from hooks.host.netns import HOST, netns_path
from protos.cri.runtime.v1 import api_pb2 as cri_pb
from simnode.containerd import Binaries, PrivateContainerd, find_containerd, find_unpacked
from simnode.cri import Cri, Pod
from simnode.images import default_cache
from tests.started import Started

pytestmark = pytest.mark.node

_FOUND = [find_containerd(), *(find_unpacked(prefix, default_cache()) for prefix in ("1.7.", "2."))]


@pytest.fixture(params=[each for each in _FOUND if each], ids=lambda each: each.version)
def client(request: pytest.FixtureRequest, binaries: Binaries, pytestconfig: pytest.Config) -> Iterator[Cri]:
    """Start a runtime client. The fixture `binaries` checks for root and runc."""
    with Started(pytestconfig) as started:
        runtime = PrivateContainerd(started.folder("lading-node-"), request.param)
        started.show(runtime.log)
        with runtime, runtime.client() as client:
            yield client


def test_the_namespace_is_where_the_runtime_says(client: Cri) -> None:
    kernel = HostKernel(Path("/"))
    with client.pod("with-network") as pod:
        path = netns_path(verbose_status(client, pod))
        assert path
        result = kernel.netns_id(path)
        assert result is not None
        container = pod.run_container("main")
        assert container.sh("readlink /proc/self/ns/net").strip() == f"net:[{result.inode}]"
        pod.stop()
        assert netns_path(verbose_status(client, pod)) is None
        assert kernel.netns_id(path) is None


def test_a_pod_of_the_hosts_network_has_none(client: Cri) -> None:
    with client.pod("without-network", host_network=True) as pod:
        status = verbose_status(client, pod)
        assert netns_path(status) == HOST
        status.status.ClearField("linux")  # the runtime's own words agree
        assert netns_path(status) == HOST


def verbose_status(client: Cri, pod: Pod) -> cri_pb.PodSandboxStatusResponse:
    request = cri_pb.PodSandboxStatusRequest(pod_sandbox_id=pod.id, verbose=True)
    return client.call("PodSandboxStatus", request, cri_pb.PodSandboxStatusResponse)
