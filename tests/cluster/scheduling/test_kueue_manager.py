"""A real Kueue, central, kube-scheduler and a real kubelet: jobs are admitted, sent back and preempted. The node has eight GPUs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from simnode import kueue as manager
from simnode.kueue import Kueue
from tests.cluster.pods import Pods
from tests.cluster.scheduling.kueueing import Kueueing
from tests.cluster.scheduling.world import World
from tests.logs import LOGS

pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]

QUOTAS: Final = (64, 8)
PRIORITIES: Final = {"low": 1, "high": 1000}


@pytest.fixture(scope="module")
def installed(whole: World, assets: Path, pytestconfig: pytest.Config) -> Iterator[Kueueing]:
    absent = manager.missing(assets)
    if absent:
        pytest.skip(f"needs {', '.join(absent)} in the folder of the programs: see simnode/kueue.py")
    kueue = Kueue(whole.cluster.control_plane, assets=assets)
    pytestconfig.stash[LOGS].append(kueue.log)
    with kueue:
        kueueing = Kueueing(whole, kueue)
        kueueing.install(QUOTAS, PRIORITIES)
        whole.cluster.eventually(kueueing.has_kind, "an active check", within_s=150)
        yield kueueing
        kueueing.clear()


@pytest.fixture
def jobs(installed: Kueueing, world: World) -> Iterator[Kueueing]:
    yield installed
    installed.clear()


def test_a_job_is_admitted_and_its_pods_get_the_places_that_were_held(jobs: Kueueing, world: World, pods: Pods) -> None:
    jobs.submit("train", 2, 4)
    names = jobs.await_running("train", 2)
    world.check(pods, *names)
