"""Test the network device of a VF in its pod: it has the requested settings, and is back on the node unchanged afterwards.

Containerd, runc, the proxy and the pods' network namespaces are real. The state of a pod is read from inside it.
"""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from hooks.model.attachment import Step
from lading.log import Event
from lading.reasons import Reason
from simnode.containerd import PrivateContainerd
from simnode.cri import Pod
from tests.node.conftest import StartVfs
from tests.node.site import eventually, granted_in
from tests.node.vf_site import (
    CONFIGURED,
    HEALED_S,
    INSIDE,
    MAC,
    SETTINGS,
    Inside,
    VfNode,
    VfSite,
    end_sandbox,
    netns_of,
    open_vf_site,
)

pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
def node(share_vfs: StartVfs) -> VfNode:
    return share_vfs()


@pytest.fixture
def site(node: VfNode, containerd: PrivateContainerd) -> Iterator[VfSite]:
    with open_vf_site(node, containerd) as site:
        yield site


def attached(site: VfSite, vf: str) -> int:
    """Return the generation of a complete attachment."""
    row = site.row(vf)
    assert row is not None
    assert row.step is Step.ATTACHED
    assert row.failure == ""
    return row.generation


def test_the_network_device_is_in_the_pod_as_asked_and_back_as_it_was(site: VfSite) -> None:
    vf, other, *_ = site.vfs
    pod = site.run_vf_pod("train", {"main": [site.entry(vf, **SETTINGS)]})
    container = pod.run_container()
    assert site.inside(container, "rdma5") == INSIDE
    assert site.see(container).vfs == (vf,)
    assert site.pf_state(vf) == CONFIGURED
    assert site.pf_state(other) == site.pf_before[other]
    where = site.where(vf)
    assert where is not None
    assert not where.at_home
    pod.stop()
    site.check_as_before()  # before the stop was answered
    assert list(site.logged(site.lading.hooks, Event.VF_RELEASED, vf))


def test_names_are_given_in_order_and_a_pod_may_do_without(site: VfSite) -> None:
    first, second, third, _ = site.vfs
    pod = site.run_vf_pod("plain", {"main": [site.entry(first), site.entry(second), site.entry(third, netdev=False)]})
    container = pod.run_container()
    for name, vf in (("rdma0", first), ("rdma1", second)):
        stand_in = site.rig.stand_ins[vf]
        assert site.inside(container, name) == Inside(mac=stand_in.mac, mtu=stand_in.mtu, up=True, addresses=(), routes=())
    assert site.see(container).vfs == (first, second, third)
    assert site.row(third) is None
    where = site.where(third)
    assert where is not None
    assert where.at_home


def test_a_restarted_container_finds_what_it_had(site: VfSite) -> None:
    vf = site.vfs[0]
    pod = site.run_vf_pod("train", {"main": [site.entry(vf, **SETTINGS)]})
    first = pod.run_container()
    generation = attached(site, vf)
    first.stop()
    second = pod.run_container(attempt=1)
    assert site.inside(second, "rdma5") == INSIDE
    assert granted_in(second) == granted_in(first)
    assert attached(site, vf) == generation


def test_two_containers_of_one_pod_share_a_vf(site: VfSite) -> None:
    vf = site.vfs[1]
    pod = site.run_vf_pod("pair", {name: [site.entry(vf, **SETTINGS)] for name in ("one", "two")})
    one, two = (pod.run_container(name) for name in ("one", "two"))
    assert site.inside(one, "rdma5") == site.inside(two, "rdma5") == INSIDE
    assert len(site.rows()) == 1
    one.stop()
    one.remove()
    assert site.inside(two, "rdma5") == INSIDE


def test_a_sandbox_that_is_made_again_takes_its_vf_along_and_the_late_stop_of_the_old_one_leaves_it(site: VfSite) -> None:
    vf = site.vfs[0]
    old = site.run_vf_pod("phoenix", {"main": [site.entry(vf, **SETTINGS)]})
    first = old.run_container()
    generation = attached(site, vf)
    end_sandbox(site, old)
    first.stop()  # while it lives, the VF is not another sandbox's
    new = site.again(old)
    container = eventually(lambda: new.create_container(attempt=1), within_s=HEALED_S)
    container.start()
    assert site.inside(container, "rdma5") == INSIDE
    assert attached(site, vf) > generation
    old.stop()
    old.remove()
    assert site.inside(container, "rdma5") == INSIDE
    assert site.pf_state(vf).mac == MAC
    assert attached(site, vf) > generation


def test_a_daemon_that_is_killed_in_between_finds_everything_again(site: VfSite) -> None:
    one, other, *_ = site.vfs
    kept = site.run_vf_pod("kept", {"main": [site.entry(one, **SETTINGS)]})
    container = kept.run_container()
    deleted = site.run_vf_pod("gone", {"main": [site.entry(other, **SETTINGS)]})
    deleted.run_container()
    site.lading.hooks.kill()
    deleted.stop()  # no one is there to take the device back: it comes back by itself, as what the pod made of it
    site.rig.await_returned(other)
    assert site.rig.where()[other].name == "rdma5"
    site.rig.pass_time(60)  # lists may be older than an attachment that is younger
    site.lading.hooks.start()

    def restored() -> None:
        assert site.row(other) is None
        assert list(site.rig.lost_home()) == [one]
        assert site.pf_state(other) == site.pf_before[other]

    eventually(restored, within_s=HEALED_S)
    container.stop()
    again = eventually(lambda: kept.create_container(attempt=1))
    again.start()
    assert site.inside(again, "rdma5") == INSIDE
    kept.stop()
    site.check_as_before()


@pytest.mark.parametrize("failing", [("move_out", "set_vf"), ("set_vf",), ("rename",)], ids=",".join)
def test_a_release_that_fails_holds_up_no_one_but_the_next_owner(site: VfSite, failing: tuple[str, ...]) -> None:
    """Let the runtime remove the namespace while the device is still in it. The kernel moves the device back, so a failure of
    move_out alone would last only until then."""
    vf = site.vfs[0]
    pod = site.run_vf_pod("holder", {"main": [site.entry(vf, **SETTINGS)]})
    pod.run_container()
    site.rig.fail(*failing)
    pod.remove()
    row = site.row(vf)
    assert row is not None
    assert row.failure
    assert site.logged(site.lading.hooks, Event.VF_RELEASE_FAILED, vf)
    next_owner = site.run_vf_pod("next", {"main": [site.entry(vf, ifname="rdma7")]})
    assert site.refused(next_owner).reason is Reason.DEVICE_UNHEALTHY
    site.rig.fail()
    container = eventually(next_owner.create_container, within_s=HEALED_S)
    container.start()
    stand_in = site.rig.stand_ins[vf]
    assert site.inside(container, "rdma7") == Inside(mac=stand_in.mac, mtu=stand_in.mtu, up=True, addresses=(), routes=())


def test_a_namespace_that_dies_under_the_pod_gives_its_vf_back(site: VfSite) -> None:
    vf = site.vfs[3]
    pod = site.run_vf_pod("doomed", {"main": [site.entry(vf, **SETTINGS)]})
    pod.run_container().stop()
    netns = netns_of(site, pod)
    end_sandbox(site, pod)
    subprocess.run(["umount", "--no-mtab", str(netns)], check=True)
    netns.unlink()
    site.rig.await_returned(vf)
    pod.stop()
    site.await_as_before()


def test_a_pod_of_the_hosts_network_gets_none(site: VfSite) -> None:
    vf = site.vfs[0]
    pod = site.run_vf_pod("host", {"main": [site.entry(vf)]}, host_network=True)
    assert site.refused(pod).reason is Reason.HOST_NETWORK
    assert site.grants() == ()
    site.check_as_before()
    without = site.run_vf_pod("nodes-only", {"main": [site.entry(vf, netdev=False)]}, host_network=True)
    assert site.see(without.run_container()).vfs == (vf,)


def in_netns(site: VfSite, pod: Pod, text: str) -> None:
    """Run `ip` in a pod's namespace, as a process of the pod may."""
    subprocess.run(["nsenter", f"--net={netns_of(site, pod)}", "ip", *text.split()], check=True, timeout=30)


DIRTY = "promisc on allmulticast on arp off multicast off txqueuelen 7 group 9 gso_max_size 30000 gso_max_segs 100 mtu 1000"


@pytest.mark.parametrize("ends_by_itself", [False, True])
def test_what_a_pod_set_on_its_device_does_not_reach_the_next_pod(site: VfSite, ends_by_itself: bool) -> None:
    vf = site.vfs[0]
    before = site.where(vf)
    pod = site.run_vf_pod("hostile", {"main": [site.entry(vf, ifname="rdma5")]})
    pod.run_container()
    in_netns(site, pod, f"link set dev rdma5 {DIRTY}")
    netns = netns_of(site, pod)
    if ends_by_itself:
        site.lading.hooks.kill()
        pod.stop()
        site.rig.await_returned(vf)
        back = site.where(vf)
        assert back is not None
        assert "promisc" in back.kept["flags"]
        site.rig.pass_time(60)
        site.lading.hooks.start()
    else:
        subprocess.run(["nsenter", f"--net={netns}", sys.executable, "-m", "tests.fakes.bpf", "rdma5"], check=True, timeout=30)
        pod.stop()
        site.check_as_before()
    site.await_as_before()
    assert site.where(vf) == before


def test_what_a_pod_calls_its_device_besides_keeps_no_other_from_coming_back(site: VfSite) -> None:
    vf, other, *_ = site.vfs
    hostile = site.run_vf_pod("hostile", {"main": [site.entry(vf)]})
    victim = site.run_vf_pod("victim", {"main": [site.entry(other)]})
    hostile.run_container()
    victim.run_container()
    in_netns(site, hostile, f"link property add dev rdma0 altname {site.rig.stand_ins[other].name}")
    hostile.stop()
    assert site.row(vf) is None
    victim.stop()
    site.check_as_before()


def test_a_name_that_another_plugin_gave_before_is_left_to_it(site: VfSite) -> None:
    """Give the name before any container is created, as Multus does."""
    first, second, *_ = site.vfs
    pod = site.run_vf_pod("multus", {"main": [site.entry(first)], "named": [site.entry(second, ifname="net7")]})
    in_netns(site, pod, "link add rdma0 type veth peer name net7")
    container = pod.run_container("main")
    assert site.inside(container, "rdma1").mac == site.rig.stand_ins[first].mac
    refused = site.refused(pod, "named")
    assert refused.reason is Reason.ATTACH_FAILED
    assert all(word in refused.message for word in ("net7", "ifname", "k8s.v1.cni.cncf.io/networks"))
    assert site.row(second) is None
    in_netns(site, pod, "link delete rdma0")
    pod.create_container("named")
    pod.stop()
    site.check_as_before()


def test_a_name_that_the_pod_has_already_is_refused_and_all_is_undone(site: VfSite) -> None:
    clash(site)


def clash(site: VfSite) -> None:
    vf = site.vfs[1]
    pod = site.run_vf_pod("clash", {"main": [site.entry(vf, **SETTINGS)]})
    netns = netns_of(site, pod)
    inside = ["nsenter", f"--net={netns}", "ip", "link"]
    subprocess.run([*inside, "add", "rdma5", "type", "veth", "peer", "name", "theirs"], check=True)
    refused = site.refused(pod)
    assert refused.reason is Reason.ATTACH_FAILED
    assert "rdma5" in refused.message
    site.await_as_before()
    subprocess.run([*inside, "delete", "rdma5"], check=True)
    container = eventually(pod.create_container, within_s=HEALED_S)
    container.start()
    assert site.inside(container, "rdma5") == INSIDE


def test_another_pod_has_it_only_after_it_is_back(site: VfSite) -> None:
    vf = site.vfs[1]
    holder = site.run_vf_pod("holder", {"main": [site.entry(vf, ifname="first0")]})
    holder.run_container()
    waiting = site.run_vf_pod("waiting", {"main": [site.entry(vf, ifname="second0")]})
    refused = site.refused(waiting)
    assert refused.reason is Reason.DEVICE_HELD
    assert "default/holder" in refused.message
    holder.stop()
    container = eventually(waiting.create_container, within_s=HEALED_S)
    container.start()
    assert site.inside(container, "second0").mac == site.rig.stand_ins[vf].mac
