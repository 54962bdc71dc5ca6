"""Test many pods whose list is large: plugin and guards read the whole list, and no container of a guarded pod starts bare.

containerd 1.7 sends the list in one message, whose size any user of the cluster decides.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import pytest

from lading.log import Event
from lading.reasons import Reason
from simnode.containerd import PrivateContainerd
from tests.node.conftest import StartLading
from tests.node.referee import Referee
from tests.node.site import Site, eventually, open_site
from tests.node.test_nri import GPU, await_asked, restart
from tests.node.test_nri_launched import direct, launched, launching

pytestmark = [pytest.mark.node, pytest.mark.long]
__all__ = ["direct", "launching"]

PODS: Final = 24
LARGE: Final = {"example.com/large": "x" * (250 << 10)}  # the API server allows 256 KiB


@pytest.fixture
def site(launching: PrivateContainerd, start_lading: StartLading) -> Iterator[Site]:
    lading = start_lading(runtime=launching, nri=True)
    with open_site(lading, launching) as site:
        yield site


def test_a_node_full_of_large_pods_keeps_plugin_and_guards(site: Site, launching: PrivateContainerd) -> None:
    await_asked(site)
    with ExitStack() as pods:
        for number in range(PODS):
            pods.enter_context(site.kubelet.pod(f"large-{number}", annotations=LARGE)).run_container()
        site.lading.hooks.stop()
        site.lading.guard.kill()
        site.lading.guard.start()
        with site.kubelet.pod("waits", annotations={GPU: "0"}) as waits:
            assert site.refused(waits).reason is Reason.UNGRANTED
        site.lading.hooks.start()
        await_asked(site)
        restart(site, launching)
        assert len(launched(launching)) == 1
        with site.kubelet.pod("train", annotations={GPU: "0"}) as train:
            assert site.see(eventually(train.run_container)).gpus == (site.gpu(0),)
        assert Referee(site).judge().ungranted == []
    lost = [*site.logged(site.lading.hooks, Event.NRI_LOST), *site.logged(site.lading.guard, Event.NRI_LOST)]
    assert [line for line in lost if "cannot read" in line] == []
