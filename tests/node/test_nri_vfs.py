"""Test VFs by NRI: attached in the background after the sandbox is created, and returned before its network is removed."""

from collections.abc import Iterator

import grpc
import pytest

from hooks.model.attachment import Step
from lading.log import Event
from lading.reasons import Reason
from simnode.containerd import PrivateContainerd
from simnode.cri import Container, Pod
from tests.node.conftest import StartVfs
from tests.node.site import eventually
from tests.node.vf_site import CONFIGURED, HEALED_S, INSIDE, MAC, SETTINGS, VfNode, VfSite, end_sandbox, open_vf_site

pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
def node(share_vfs: StartVfs, newer: PrivateContainerd) -> VfNode:
    return share_vfs(runtime=newer, nri=True)


@pytest.fixture
def site(node: VfNode, newer: PrivateContainerd) -> Iterator[VfSite]:
    with open_vf_site(node, newer) as site:
        await_asked(site)
        yield site


def await_asked(site: VfSite) -> None:
    def check() -> None:
        assert site.lading.guard.guards
        assert site.refused_at_once({"lading.dev/vfs": "1"}).reason is Reason.FORM_NOT_ACCEPTED

    eventually(check)


def run(pod: Pod, attempt: int = 0) -> Container:
    """Create the container again until it is not refused, as kubelet does, and start it."""
    container = eventually(lambda: pod.create_container(attempt=attempt), within_s=HEALED_S)
    container.start()
    return container


def attached(site: VfSite, vf: str) -> None:
    row = site.row(vf)
    assert row is not None
    assert (row.step, row.failure) == (Step.ATTACHED, "")


def test_a_vf_is_in_its_pod_before_a_container_is_created_and_back_when_the_pod_is_stopped(site: VfSite) -> None:
    vf = site.vfs[0]
    pod = site.run_vf_pod("train", {"main": [site.entry(vf, **SETTINGS)]})
    eventually(lambda: attached(site, vf))
    container = pod.create_container()  # this call waits for nothing
    container.start()
    assert site.inside(container, "rdma5") == INSIDE
    assert site.see(container).vfs == (vf,)
    assert site.pf_state(vf) == CONFIGURED
    pod.stop()
    eventually(site.check_as_before, within_s=HEALED_S)


def test_a_container_whose_vf_takes_long_is_refused_at_once_and_others_are_not_held_up(site: VfSite) -> None:
    vf = site.vfs[0]
    lost = site.logged(site.lading.hooks, Event.NRI_LOST)
    with site.rig.folder.locked():  # the daemon's kernel does nothing
        pod = site.run_vf_pod("slow", {"main": [site.entry(vf, **SETTINGS)]})
        refused = site.refused(pod)
        with site.kubelet.pod("plain") as other:
            other.run_container()
    assert (refused.reason, refused.code) == (Reason.NOT_PREPARED, grpc.StatusCode.UNAVAILABLE)
    assert site.logged(site.lading.hooks, Event.NRI_LOST) == lost  # the runtime drops a plugin that is late
    assert site.inside(run(pod), "rdma5") == INSIDE
    assert len(site.logged(site.lading.hooks, Event.VF_ATTACHED, pod.spec.uid)) == 1


def test_a_sandbox_that_is_made_again_takes_its_vf_along_and_the_late_stop_of_the_old_one_leaves_it(site: VfSite) -> None:
    vf = site.vfs[0]
    old = site.run_vf_pod("phoenix", {"main": [site.entry(vf, **SETTINGS)]})
    first = run(old)
    end_sandbox(site, old)
    first.stop()
    new = site.again(old)
    container = run(new, attempt=1)
    assert site.inside(container, "rdma5") == INSIDE
    old.stop()
    old.remove()
    assert site.inside(container, "rdma5") == INSIDE
    assert site.pf_state(vf).mac == MAC


def test_a_lost_plugin_finds_its_vfs_again(site: VfSite) -> None:
    vf = site.vfs[0]
    pod = site.run_vf_pod("kept", {"main": [site.entry(vf, **SETTINGS)]})
    container = run(pod)
    site.lading.hooks.stop()
    site.lading.hooks.start()
    container.stop()
    assert site.inside(run(pod, attempt=1), "rdma5") == INSIDE


def test_a_vf_of_a_pod_from_before_a_restart_of_the_runtime_comes_back(site: VfSite, newer: PrivateContainerd) -> None:
    """Check a pod whose end the runtime reports only by the removal of its containers."""
    vf = site.vfs[0]
    pod = site.run_vf_pod("old", {"main": [site.entry(vf, **SETTINGS)]})
    run(pod)
    newer.restart()
    site.reconnect()
    await_asked(site)
    site.kubelet.remove_sandbox(pod.id)
    eventually(site.check_as_before, within_s=HEALED_S)
    eventually(site.check_nothing_granted, within_s=HEALED_S)


def test_a_pod_of_the_hosts_network_gets_none(site: VfSite) -> None:
    pod = site.run_vf_pod("host", {"main": [site.entry(site.vfs[0], **SETTINGS)]}, host_network=True)
    assert site.refused(pod).reason is Reason.HOST_NETWORK
