"""A pod that uses its devices throughout an upgrade of both daemons and back: it does not notice.

A process in the container opens its card and its VF every 50 ms, from before the first restart until after the last; what each
attempt gave is in the container's log. Meanwhile kubelet makes and ends other pods as soon as the proxy is there again.
"""

from collections import Counter
from functools import partial
from typing import Final

import pytest

from lading.vocabulary import MANUAL_GPUS, MANUAL_VFS
from simnode.cri import Container
from simnode.daemons import Daemon
from tests.faults.conftest import StartOnContainerd
from tests.node.site import Site, eventually

pytestmark = pytest.mark.node

# `try-open` prints an errno for each path: 6 (ENXIO) and 19 (ENODEV) are what a granted device without a driver says.
_LOOP: Final = "while true; do try-open {paths} | tr '\\n' ' '; echo; usleep 50000; done"
GRANTED: Final = {"0", "6", "19"}


def replaced(daemon: Daemon) -> None:
    """As a package manager does it: the new one starts when the old one has ended."""
    daemon.restart()


def crashed(daemon: Daemon) -> None:
    daemon.kill()
    daemon.start()


def opened(container: Container) -> Counter[tuple[str, ...]]:
    return Counter(tuple(line.split()) for line in container.logs().splitlines())


def test_a_pod_uses_its_devices_throughout_an_upgrade_and_back(start_on_containerd: StartOnContainerd) -> None:
    site = start_on_containerd()
    lading = site.lading
    pod = site.kubelet.run_pod("throughout", annotations={MANUAL_GPUS: "0", MANUAL_VFS: "1"})
    paths = (site.card(0), "/dev/infiniband/uverbs*")
    container = pod.run_container(command=["sh", "-c", _LOOP.format(paths=" ".join(paths))])

    def used(before: int) -> None:
        assert sum(opened(container).values()) >= before + 10

    eventually(lambda: used(0))
    held = site.grants()
    there = ((replaced, lading.hooks), (replaced, lading.proxy))
    back = ((crashed, lading.proxy), (crashed, lading.hooks))
    for end, daemon in (*there, *back):
        before = sum(opened(container).values())
        end(daemon)
        site.reconnect()
        eventually(partial(used, before))
        assert site.grants() == held
        assert site.see(container).gpus == (site.gpu(0),)
        eventually(lambda: created_and_removed(site))
    outcomes = opened(container)
    print(f"measured: {sum(outcomes.values())} rounds of opening {len(next(iter(outcomes)))} devices: {dict(outcomes)}")
    assert len(outcomes) == 1
    (outcome,) = outcomes
    assert len(outcome) == len(paths)
    assert set(outcome) <= GRANTED


def created_and_removed(site: Site) -> None:
    """Another pod gets a card meanwhile, and never that one."""
    with site.kubelet.pod("meanwhile", annotations={MANUAL_GPUS: "1"}) as pod:
        assert site.see(pod.run_container()).gpus == (site.gpu(1),)
