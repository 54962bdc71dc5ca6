"""Kill and restart daemons, and lose the ledger: pods continue, and keep their devices."""

import json
import subprocess

import pytest

from hooks.ledger.reconcile import GRACE_S
from lading.log import Event
from lading.reasons import Reason
from protos.cri.runtime.v1 import api_pb2 as cri
from simnode.cri import Container, Pod
from simnode.daemons import LadingNode
from simnode.nvml import NvmlState
from tests.node.conftest import StartLading, StartSite
from tests.node.site import Site, eventually, granted_in

pytestmark = pytest.mark.node

GPU = "lading.dev/gpus"
VFS = "lading.dev/vfs"


@pytest.fixture(scope="module")
def running(share_lading: StartLading) -> LadingNode:
    """Share the daemons and a ledger among tests that leave both daemons running."""
    return share_lading(hooks={"unsupported_handlers": ["runc"]})


def restarted(pod: Pod, attempt: int) -> Container:
    container = eventually(lambda: pod.create_container(attempt=attempt))
    container.start()
    return container


def rebuild_ledger(lading: LadingNode) -> subprocess.CompletedProcess[str]:
    command = [lading.hooks.argv[0], "rebuild-ledger", "--config", str(lading.hooks.config)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_grants_survive_hooks_that_are_killed(site: Site) -> None:
    deleted = site.kubelet.run_pod("gone", annotations={VFS: "1"})
    deleted.run_container()
    pod = site.kubelet.run_pod("survivor", annotations={GPU: "2", VFS: "1"})
    first = pod.run_container()
    had = granted_in(first)
    assert had == ((site.gpu(2),), (site.vfs[1],))
    site.lading.hooks.kill()
    deleted.remove()  # while no one listens: what it held is found to be free by comparing with the runtime
    site.lading.hooks.start()
    assert site.see(first).gpus == (site.gpu(2),)
    first.stop()
    second = restarted(pod, 1)
    assert granted_in(second) == had
    assert site.see(second).vfs == (site.vfs[1],)
    assert site.refused_at_once({GPU: "2"}).reason is Reason.DEVICE_HELD
    # At once where the proxy could repeat what it observed; else when the grant is old enough to be compared with the lists.
    eventually(lambda: _holds_nothing(site, deleted), within_s=GRACE_S + 30)


def _holds_nothing(site: Site, pod: Pod) -> None:
    assert pod.spec.uid not in {grant.pod for grant in site.grants()}


def test_pods_go_on_when_the_proxy_is_killed_and_it_learns_them_again(site: Site) -> None:
    pod = site.kubelet.run_pod("survivor", annotations={GPU: "3"})
    elsewhere = site.kubelet.run_pod("elsewhere", annotations={GPU: "4"}, runtime_handler="runc")
    container = pod.run_container(command=["sh", "-c", "while :; do sleep 1; done"])
    pid = container.sh("cat /proc/1/stat").split()[21]  # when it started
    site.lading.proxy.kill()
    site.lading.proxy.start()
    site.reconnect()
    assert container.sh("cat /proc/1/stat").split()[21] == pid
    assert site.see(container).gpus == (site.gpu(3),)
    assert site.see(pod.run_container("late")).gpus == (site.gpu(3),)
    # CreateContainer does not say the runtime handler of its sandbox, and the sandbox was made before the restart.
    assert site.refused(elsewhere).reason is Reason.RUNTIME_HANDLER
    assert site.logged(site.lading.proxy, Event.PODS_KNOWN, "sandboxes=2")
    # Teardown carries an id only: the hooks learn of a sandbox that was made before the restart.
    pod.remove()
    other = site.kubelet.run_pod("other", annotations={GPU: "3"})
    eventually(other.create_container)


@pytest.mark.parametrize("rebuilt", [True, False], ids=["rebuilt-by-hand", "adopted"])
def test_a_ledger_that_is_lost_is_made_again_from_the_containers(site: Site, rebuilt: bool) -> None:
    lading = site.lading
    pod = site.kubelet.run_pod("holder", annotations={GPU: "5:core=70", VFS: "2"})
    first = pod.run_container()
    lading.hooks.stop()
    before = {grant.key: (grant.devices, grant.request, grant.form) for grant in site.grants()}
    site.delete_ledger()
    if rebuilt:
        done = rebuild_ledger(lading)
        assert done.returncode == 0, done.stderr
        assert {grant.key: (grant.devices, grant.request, grant.form) for grant in site.grants()} == before
    lading.hooks.start()
    refused = site.refused_once_reconciled({GPU: "5"})
    assert refused.reason is Reason.DEVICE_HELD
    assert "default/holder" in refused.message
    assert site.refused_at_once({GPU: "5:core=31"}).reason is Reason.CAPACITY_EXCEEDED
    assert bool(site.logged(lading.hooks, Event.GRANT_ADOPTED, pod.spec.uid)) is not rebuilt
    first.stop()
    assert granted_in(restarted(pod, 1)) == granted_in(first)


def test_the_ledger_is_not_rebuilt_under_a_daemon_that_runs(site: Site) -> None:
    done = rebuild_ledger(site.lading)
    assert done.returncode == 1
    assert "lading-hooks" in done.stderr


def test_cards_that_were_in_use_before_lading_came_are_held(start_site: StartSite) -> None:
    """Check that the processes that NVML lists are traced to pods by their cgroups. The pod and its cgroup are real; its use of
    a card is simulated."""
    site = start_site("mig", hooks={"inventory_interval": 1})
    before = site.direct.run_pod("before-lading", namespace="ml")
    user = before.run_container(devices=[site.supplied("/dev/nvidia0")])
    verbose = cri.ContainerStatusRequest(container_id=user.id, verbose=True)
    answer = site.direct.call("ContainerStatus", verbose, cri.ContainerStatusResponse)
    pid = int(json.loads(answer.info["info"])["pid"])
    shown = site.node.root / f"proc/{pid}/cgroup"
    shown.parent.mkdir()
    with open(f"/proc/{pid}/cgroup") as cgroup:
        shown.write_text(cgroup.read())
    NvmlState(profile=site.node.profile, processes={1: (pid,)}).write(site.node.nvml_state)
    site.await_log(site.lading.hooks, Event.HOLDER_FOREIGN, before.spec.uid)

    pod = site.kubelet.run_pod("after", annotations={GPU: "1"})
    for asked in ("1", "1:core=10"):  # no one knows how much of it is used
        pod.config.annotations[GPU] = asked
        refused = site.refused(pod)
        assert refused.reason is Reason.DEVICE_HELD
        assert before.spec.uid in refused.message
    user.stop()
    shown.unlink()  # the kernel does this when a process exits
    container = pod.run_container()
    assert granted_in(container)[0] == (site.gpu(1),)


def test_sigterm_ends_both_daemons_in_order(start_site: StartSite) -> None:
    site = start_site("workstation")
    site.kubelet.version()
    for daemon in (site.lading.proxy, site.lading.hooks):
        assert daemon.stop() == 0
        assert site.logged(daemon, Event.DAEMON_STOPPED)
