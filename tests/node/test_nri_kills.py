"""The plugin is killed again and again while the runtime asks it: no container starts without its devices.

Half of the rounds kill it while it certainly is asked, because it stands still; the others at some moment of a CreateContainer,
before, while or after it is asked. All of them with one of the guards alone. LADING_KILL_ROUNDS makes it long.
"""

import contextlib
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from hooks.frontends.nri.launched.program import install, remove
from lading.reasons import Reason
from simnode.containerd import PrivateContainerd
from simnode.cri import Container
from simnode.daemons import LadingNode
from tests.node.conftest import StartLading
from tests.node.site import Refused, Site, eventually, open_site
from tests.node.test_nri import GPU, await_asked, await_plugin, bare, restart

pytestmark = [pytest.mark.node, pytest.mark.timeout(1800)]

ROUNDS: Final = int(os.environ.get("LADING_KILL_ROUNDS", "6"))
_CREATES_S: Final = 0.04  # what a CreateContainer takes


@pytest.fixture(scope="module")
def running(share_lading: StartLading, newer: PrivateContainerd) -> LadingNode:
    return share_lading(runtime=newer, nri=True)


@pytest.fixture(params=["guard", "launched guard"])
def site(running: LadingNode, newer: PrivateContainerd, launched_guard: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    with open_site(running, newer) as site, contextlib.ExitStack() as ends:
        await_asked(site)
        if request.param == "launched guard":
            ends.enter_context(launched_alone(site, newer, launched_guard))
        yield site
    eventually(site.check_nothing_granted)


@contextlib.contextmanager
def launched_alone(site: Site, runtime: PrivateContainerd, program: Path) -> Iterator[None]:
    """The guard that containerd launched, and no other."""
    install(program, runtime.layout.nri / "plugins")
    restart(site, runtime)
    site.lading.guard.stop()
    try:
        yield
    finally:
        remove(runtime.layout.nri / "plugins")
        runtime.restart()
        site.reconnect()
        site.lading.guard.start()


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
        await_plugin(site)  # else it does not hear of the pod's end
        container = answer if isinstance(answer, Container) else eventually(pod.create_container)
        container.start()
        assert container.try_open(site.card(gpu)) == ["ENXIO"]  # it has the node, behind which is no driver
        assert [grant.devices.names for grant in site.grants() if grant.pod == pod.spec.uid] == [[site.gpu(gpu)]]
        how = "asked, then killed" if stands_still else "killed at some moment"
        return f"{how}: {'refused' if isinstance(answer, Refused) else 'granted'}"
