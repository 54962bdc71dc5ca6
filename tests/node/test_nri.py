"""Test devices by NRI on real runtimes, whose clients use the runtime's own socket, also while the plugin is not running.

As with the proxy, a container's devices are what it can open; grants are read from the ledger.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Unpack

import grpc
import pytest

from lading.log import Event
from lading.reasons import Reason
from protos.cri.runtime.v1 import api_pb2 as cri
from simnode.containerd import PrivateContainerd
from simnode.cri import Container, CriError, Pod
from simnode.daemons import LadingNode
from simnode.kubelet import ContainerOptions, Device
from tests.node.conftest import StartLading
from tests.node.referee import Referee
from tests.node.site import Site, eventually, open_site

pytestmark = pytest.mark.node

GPU: Final = "lading.dev/gpus"
VFS: Final = "lading.dev/vfs"
ALL: Final = {"NVIDIA_VISIBLE_DEVICES": "all"}


@pytest.fixture(scope="module")
def running(share_lading: StartLading, newer: PrivateContainerd) -> LadingNode:
    lading = share_lading(runtime=newer, nri=True)
    with open_site(lading, newer) as site:
        await_asked(site)
    return lading


@pytest.fixture
def site(running: LadingNode, newer: PrivateContainerd) -> Iterator[Site]:
    """Yield the module's node. Processes that a test ended are started again, and registered, before the next test."""
    before = pids(running, newer)
    with open_site(running, newer) as site:
        yield site
        for daemon in (running.hooks, running.guard):
            if not daemon.running:
                daemon.start()
        if pids(running, newer) != before:
            await_asked(site)
    eventually(site.check_nothing_granted)


def pids(lading: LadingNode, runtime: PrivateContainerd) -> list[int]:
    return [process.pid for process in (lading.hooks, lading.guard, runtime)]


def await_asked(site: Site) -> None:
    """Wait until the runtime asks the guard and the plugin, and the plugin has compared its ledger with the runtime."""

    eventually(lambda: check_guards(site, True))
    await_plugin(site)


def check_guards(site: Site, guards: bool) -> None:
    assert site.lading.guard.guards is guards


def await_plugin(site: Site) -> None:
    def check() -> None:
        assert site.refused_at_once({GPU: "99"}).reason is Reason.DEVICE_UNKNOWN

    eventually(check)


def restart(site: Site, runtime: PrivateContainerd) -> None:
    """Restart containerd, as an upgrade does. Nothing is removed before the plugins are back: containerd 2.1.9 can come
    to a standstill where one registers while it removes a sandbox that still has containers (its handlers lock recursively)."""
    runtime.restart()
    site.reconnect()
    await_asked(site)


def create_within(pod: Pod, s: float = 15.0, **options: Unpack[ContainerOptions]) -> Container:
    """Create it again and again, as kubelet does, until it is not refused."""
    return eventually(lambda: pod.create_container(**options), within_s=s)


def create_bare(pod: Pod) -> Container:
    """Create a container without protection while no plugin is connected. containerd 2.2 and newer notice only by the first
    container that the plugin which validates has disconnected, and reject that container."""
    return create_within(pod)


# ---- with the plugin


def test_by_nri_a_container_opens_its_assigned_devices_and_no_other(site: Site) -> None:
    with site.kubelet.pod("train", annotations={GPU: "0,2", VFS: "1"}) as pod:
        container = pod.run_container()
        sight = site.see(container)
        (grant,) = site.grants()
        assert sight.gpus == tuple(gpu.uuid for gpu in grant.devices.gpus) == (site.gpu(0), site.gpu(2))
        assert sight.vfs == tuple(vf.bdf for vf in grant.devices.vfs)
        assert len(sight.vfs) == 1
        assert sight.env["NVIDIA_VISIBLE_DEVICES"] == "void"
        assert sight.env["PCIDEVICE_LADING_DEV_RDMA"] == sight.vfs[0]


def test_the_limit_of_locked_memory_is_lifted_for_vfs(site: Site) -> None:
    """Check the limit in the container's configuration only: to start the container, the runtime needs a capability that it may
    not have here."""
    site.lading.reconfigure_hooks(rdma_memlock=True)
    with site.kubelet.pod("locks", annotations={VFS: "1"}) as pod:
        request = cri.ContainerStatusRequest(container_id=create_within(pod).id, verbose=True)
        info = json.loads(site.direct.call("ContainerStatus", request, cri.ContainerStatusResponse).info["info"])
        limits = {limit["type"]: (limit["soft"], limit["hard"]) for limit in info["runtimeSpec"]["process"]["rlimits"]}
        assert limits["RLIMIT_MEMLOCK"] == (2**64 - 1, 2**64 - 1)
    site.lading.reconfigure_hooks(rdma_memlock=False)


def test_a_plain_container_sees_no_card_whatever_its_environment_says(site: Site) -> None:
    with site.kubelet.pod("plain") as pod:
        sight = site.see(pod.run_container(env=ALL))
        assert (sight.nodes, sight.env["NVIDIA_VISIBLE_DEVICES"]) == (frozenset(), "void")


def test_a_refusal_is_in_the_runtimes_answer_and_leaves_nothing(site: Site) -> None:
    refused = site.refused_at_once({GPU: "99"})
    assert (refused.reason, refused.code) == (Reason.DEVICE_UNKNOWN, grpc.StatusCode.FAILED_PRECONDITION)
    assert site.grants() == ()


def test_a_privileged_container_is_refused(site: Site) -> None:
    pod = site.kubelet.run_pod("privileged", privileged=True, annotations={GPU: "0"})
    assert site.refused(pod, privileged=True).reason is Reason.PRIVILEGED


def test_a_container_with_a_card_of_a_device_plugin_is_refused(site: Site) -> None:
    pod = site.kubelet.run_pod("both", annotations={GPU: "0"})
    refused = site.refused(pod, devices=[Device(host_path=site.supplied(site.card(1)).host_path, container_path=site.card(1))])
    assert refused.reason is Reason.DEVICE_PLUGIN_CONFLICT


def test_a_pod_that_forges_a_grant_is_refused(site: Site) -> None:
    assert site.refused_at_once({GPU: "0", "lading.dev/grant": "{}"}).reason is Reason.ANNOTATION_RESERVED


def test_by_nri_a_restarted_container_has_its_devices_again(site: Site) -> None:
    with site.kubelet.pod("again", annotations={GPU: "1"}) as pod:
        first = pod.run_container()
        first.stop()
        again = pod.run_container(attempt=1)
        assert site.see(again).gpus == (site.gpu(1),)
        assert [grant.devices.names for grant in site.grants()] == [[site.gpu(1)]]


def test_the_node_is_not_guarded_while_the_runtime_is_killed_and_is_again_after_its_start(
    site: Site, newer: PrivateContainerd
) -> None:
    newer.kill()
    eventually(lambda: check_guards(site, False))
    assert site.lading.guard.running
    newer.start()
    site.reconnect()
    await_asked(site)
    assert len(site.logged(site.lading.guard, Event.NRI_CONNECTED)) > 1


def test_sandboxes_of_refused_containers_keep_the_runtime_able_to_start_again(site: Site, newer: PrivateContainerd) -> None:
    """Check the refused container of a good sandbox: containerd 2.1 leaks a sandbox that a plugin refuses, and then cannot
    start, so Lading refuses none."""
    pods = [site.kubelet.run_pod(f"leak-{i}", annotations={GPU: "99"}) for i in range(3)]
    for pod in pods:
        assert site.refused(pod).reason is Reason.DEVICE_UNKNOWN
    restart(site, newer)
    assert {pod.id for pod in pods} <= {pod.id for pod in site.direct.list_pods()}


def test_a_restarted_runtime_asks_again_and_no_grant_is_lost(site: Site, newer: PrivateContainerd) -> None:
    with site.kubelet.pod("kept", annotations={GPU: "3"}) as pod:
        pod.run_container()
        before = [(grant.key, grant.devices) for grant in site.grants()]
        restart(site, newer)
        with site.kubelet.pod("next", annotations={GPU: "4"}) as other:
            assert site.see(start(create_within(other))).gpus == (site.gpu(4),)
            kept = [(grant.key, grant.devices) for grant in site.grants() if grant.pod == pod.spec.uid]
            assert kept == before


def start(container: Container) -> Container:
    container.start()
    return container


def test_by_nri_a_lost_ledger_is_rebuilt_from_the_containers(site: Site) -> None:
    """Check that the ledger is rebuilt from the configurations of containers: the runtime's list has no annotations of
    plugins."""
    with site.kubelet.pod("held", annotations={GPU: "5"}) as pod:
        pod.run_container()
        before = [(grant.key, grant.devices) for grant in site.grants()]
        site.lading.hooks.stop()
        site.delete_ledger()
        site.lading.hooks.start()
        site.await_log(site.lading.hooks, Event.GRANT_ADOPTED, pod.spec.uid)
        assert [(grant.key, grant.devices) for grant in site.grants()] == before

        def refused() -> None:
            assert site.refused_at_once({GPU: "5"}).reason is Reason.DEVICE_HELD

        eventually(refused)
        assert site.logged(site.lading.hooks, Event.CONTAINER_BYPASSED, pod.spec.uid) == []


def test_grants_stay_when_a_node_changes_its_front_end(site: Site) -> None:
    """Check that grants remain without the ledger too, because each front end finds the annotations that the other wrote into
    containers."""
    with site.kubelet.pod("stays", annotations={GPU: "6"}) as pod:
        pod.run_container()
        before = [(grant.key, grant.devices) for grant in site.grants()]
        site.lading.hooks.stop()
        site.delete_ledger()
        site.lading.reconfigure_hooks(front_end="cri-hook")
        site.await_log(site.lading.hooks, Event.GRANT_ADOPTED, pod.spec.uid)
        assert [(grant.key, grant.devices) for grant in site.grants()] == before
        assert site.logged(site.lading.hooks, Event.CONTAINER_BYPASSED, pod.spec.uid) == []
        site.lading.reconfigure_hooks(front_end="nri")
        await_asked(site)


def test_a_second_instance_does_not_start(site: Site, short_folder: Path) -> None:
    """Check that a second instance refuses to start: both would write the grant of every container, and the runtime would
    refuse all of them."""
    other = short_folder / "hooks.toml"
    text = (site.lading.folder / "hooks.toml").read_text()
    other.write_text(text.replace(str(site.lading.folder / "state"), str(short_folder / "state")))
    listen = f"--listen={short_folder}/hooks.sock"
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lading-hooks")), "--config", str(other), listen],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 1
    assert f"another lading-hooks is, process {site.lading.hooks.pid}" in done.stderr
    with site.kubelet.pod("plain") as pod:
        pod.run_container()


# ---- without it


def test_while_the_plugin_is_away_no_guarded_container_starts_and_plain_ones_do(site: Site) -> None:
    with site.kubelet.pod("waits", annotations={GPU: "0"}) as pod:
        site.lading.hooks.kill()
        assert site.refused(pod).reason is Reason.UNGRANTED
        with site.kubelet.pod("plain") as other:
            assert site.see(other.run_container(env=ALL)).env["NVIDIA_VISIBLE_DEVICES"] == "void"
        site.lading.hooks.start()
        assert site.see(start(create_within(pod))).gpus == (site.gpu(0),)


def test_a_plugin_that_hangs_is_dropped_and_the_container_refused(site: Site) -> None:
    with site.kubelet.pod("hangs", annotations={GPU: "0"}) as pod, site.kubelet.pod("plain") as other:
        signal_hooks(site, signal.SIGSTOP)
        try:
            assert site.refused(pod).reason is Reason.UNGRANTED
            other.run_container()
        finally:
            signal_hooks(site, signal.SIGCONT)
        assert site.see(start(create_within(pod))).gpus == (site.gpu(0),)
        assert Referee(site).judge().ungranted == []


def test_a_container_created_while_plugin_and_guard_were_away_does_not_start_and_is_shown(site: Site) -> None:
    with site.kubelet.pod("bare", annotations={GPU: "0"}) as pod:
        site.lading.guard.kill()
        site.lading.hooks.kill()
        container = create_bare(pod)
        assert Referee(site).judge().ungranted == [container.id]
        site.lading.hooks.start()
        site.await_log(site.lading.hooks, Event.CONTAINER_BYPASSED, pod.spec.uid)
        with pytest.raises(CriError, match=Reason.UNGRANTED):
            container.start()  # refused by the plugin alone
        container.remove()
        site.lading.guard.start()
        assert site.see(start(eventually(lambda: pod.create_container(attempt=1)))).gpus == (site.gpu(0),)


def test_a_container_that_was_started_bare_is_stopped_and_the_next_one_has_the_devices(site: Site) -> None:
    with site.kubelet.pod("bare", annotations={GPU: "0"}) as pod:
        site.lading.guard.kill()
        site.lading.hooks.kill()
        container = start(create_bare(pod))
        assert site.see(container).gpus == ()
        with site.kubelet.pod("plain") as other:
            plain = other.run_container()
            site.lading.hooks.start()
            site.await_log(site.lading.hooks, Event.CONTAINER_STOPPED, pod.spec.uid)
            assert container.status().state == cri.CONTAINER_EXITED
            assert plain.status().state == cri.CONTAINER_RUNNING
        site.lading.guard.start()
        await_asked(site)
        assert site.see(start(create_within(pod, attempt=1))).gpus == (site.gpu(0),)


def signal_hooks(site: Site, number: signal.Signals) -> None:
    os.kill(site.lading.hooks.pid, number)
