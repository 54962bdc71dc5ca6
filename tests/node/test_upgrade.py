"""Upgrade and downgrade both daemons while a pod uses its devices.

`LADING_OTHER` names another checkout of this project, with its `.venv`: its daemons are the other version. Without it the other
version is this one, so that what is tested is that daemons can be exchanged under a pod, one after the other.

    LADING_OTHER=/path/of/another/checkout .venv/bin/pytest tests/node/test_upgrade.py
"""

import os
import sys
from pathlib import Path

import pytest

from lading.reasons import Reason
from simnode.containerd import PrivateContainerd
from simnode.cri import Container
from simnode.daemons import Daemon
from tests.node.conftest import StartLading
from tests.node.site import eventually, granted_in, open_site

pytestmark = pytest.mark.node

GPU, VFS = "lading.dev/gpus", "lading.dev/vfs"
# Opens the card again and again, and notes how that ended: ENXIO where it was granted (no driver is behind it), else EPERM.
USE = "while :; do (exec 3<$(echo /dev/nvidia[0-9]*)) 2>>/tmp/used; sleep 0.02; done"
GRANTED = {"No such device or address", "No such device"}


def install(daemon: Daemon, bin_dir: Path) -> None:
    """Run another version in place of this version, with the same configuration, sockets and state."""
    daemon.stop()
    daemon.argv[0] = str(bin_dir / Path(daemon.argv[0]).name)
    daemon.start()


def uses(container: Container) -> list[str]:
    """Return how each use since the last call ended."""
    lines = container.sh("cat /tmp/used; : >/tmp/used").splitlines()
    return [line.rpartition(": ")[2] for line in lines]


def test_a_pod_uses_its_devices_throughout(start_lading: StartLading, containerd: PrivateContainerd) -> None:
    ours = Path(sys.executable).parent
    other = Path(os.environ["LADING_OTHER"]) / ".venv/bin" if "LADING_OTHER" in os.environ else ours
    lading = start_lading()
    install(lading.hooks, other)
    install(lading.proxy, other)
    with open_site(lading, containerd) as site:
        pod = site.kubelet.run_pod("user", annotations={GPU: "2", VFS: "1"})
        container = pod.run_container(command=["sh", "-c", USE])
        had = granted_in(container)
        up_and_down = ((ours, other), (ours, ours), (ours, other), (other, other))
        for attempt, (hooks, proxy) in enumerate(up_and_down, start=1):
            install(lading.hooks, hooks)
            install(lading.proxy, proxy)
            eventually(site.kubelet.version)
            observed = uses(container)
            assert observed, "the pod does not run"
            assert set(observed) <= GRANTED
            # The other version keeps what the one granted, refuses it to others, and gives it again.
            refused = site.refused_once_reconciled({GPU: "2"})
            assert refused.reason is Reason.DEVICE_HELD
            again = eventually(lambda number=attempt: pod.create_container("again", attempt=number))  # type: ignore[misc]
            again.remove()
            assert granted_in(container) == had
            free = site.kubelet.run_pod("another", annotations={GPU: "3"})
            assert granted_in(eventually(lambda pod=free: pod.run_container())) == ((site.gpu(3),), ())  # type: ignore[misc]
            free.remove()
        container.stop()
        assert granted_in(pod.run_container(attempt=9)) == had
