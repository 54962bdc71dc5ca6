"""The plugin is killed again and again while the runtime asks it: no container starts without its devices.

Half of the rounds kill it while it certainly is asked, because it stands still; the others at some moment of a CreateContainer,
before, while or after it is asked. LADING_KILL_ROUNDS makes it long.
"""

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest

from lading.reasons import Reason
from simnode.containerd import PrivateContainerd
from simnode.cri import Container
from simnode.daemons import LadingNode
from tests.node.conftest import StartLading
from tests.node.site import Refused, Site, eventually, open_site
from tests.node.test_nri import GPU, await_asked, bare

pytestmark = [pytest.mark.node, pytest.mark.timeout(1800)]

ROUNDS: Final = int(os.environ.get("LADING_KILL_ROUNDS", "6"))
_CREATES_S: Final = 0.04  # what a CreateContainer takes


@pytest.fixture(scope="module")
def running(share_lading: StartLading, newer: PrivateContainerd) -> LadingNode:
    return share_lading(runtime=newer, nri=True)


@pytest.fixture
def site(running: LadingNode, newer: PrivateContainerd) -> Iterator[Site]:
    with open_site(running, newer) as site:
        await_asked(site)
        yield site
    eventually(site.check_nothing_granted)


def test_a_plugin_that_is_killed_leaves_no_bare_container(site: Site) -> None:
    chance = random.Random(18)  # noqa: S311
    outcomes: Counter[str] = Counter()
    for number in range(ROUNDS):
        outcomes[play(site, number, chance)] += 1
        assert bare(site) == []
    print(f"{site.runtime.version}: {ROUNDS} rounds: {dict(outcomes)}")
    assert outcomes["asked, then killed: refused"] == (ROUNDS + 1) // 2


def play(site: Site, number: int, chance: random.Random) -> str:
    """One round, in words: how it was killed, and what became of the container."""
    gpu = number % 8
    stands_still = number % 2 == 0
    with site.kubelet.pod(f"round-{number}", annotations={GPU: str(gpu)}) as pod:
        answers: list[Container | Refused] = []
        if stands_still:
            os.kill(site.lading.hooks.pid, signal.SIGSTOP)
        asking = threading.Thread(target=lambda: answers.append(site.create(pod)))
        asking.start()
        asking.join(0.3 if stands_still else chance.uniform(0, _CREATES_S))
        assert asking.is_alive() or not stands_still, "it was answered by a process that stands still"
        site.lading.hooks.kill()
        asking.join()
        answer = answers[0]
        if isinstance(answer, Refused):
            assert answer.reason is Reason.UNGRANTED
        site.lading.hooks.start()
        container = answer if isinstance(answer, Container) else eventually(pod.create_container)
        container.start()
        assert container.try_open(site.card(gpu)) == ["ENXIO"]  # it has the node, behind which is no driver
        assert [grant.devices.names for grant in site.grants() if grant.pod == pod.spec.uid] == [[site.gpu(gpu)]]
        how = "asked, then killed" if stands_still else "killed at some moment"
        return f"{how}: {'refused' if isinstance(answer, Refused) else 'granted'}"
