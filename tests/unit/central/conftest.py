"""Provide a cluster that central leads, and its kube-scheduler, in simulated time."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from central.daemon.daemon import Replica
from tests.coroutines import LoopFactory
from tests.fakes.kube_scheduler import KubeScheduler
from tests.fakes.led import Led, led
from tests.fakes.simulated_time import SimulatedLoop


@pytest.fixture
def loop_factory() -> LoopFactory:
    return SimulatedLoop


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Led]:
    """Lead a cluster with one node and one card. The mark `central` gives central's settings."""
    settings = request.node.get_closest_marker("central")
    async with led(tmp_path, **(settings.kwargs if settings else {})) as cluster:
        yield cluster


class Lease:
    """Grant and take a lease by the test, in place of an election."""

    def __init__(self) -> None:
        self.held = True

    def is_leader(self) -> bool:
        return self.held


@pytest.fixture
def lease() -> Lease:
    return Lease()


@pytest.fixture
async def replica(cluster: Led, lease: Lease) -> AsyncIterator[Replica]:
    """Lead the cluster by a replica of central that holds the lease and has read nothing yet."""
    await cluster.leadership.end()
    replica = Replica(cluster.make_leadership, cluster.records.log, clock=asyncio.get_running_loop().time)
    replica.election = lease  # type: ignore[assignment]
    replica.gained()
    assert replica.leadership is not None
    cluster.leadership = replica.leadership
    yield replica
    await replica.close()


@pytest.fixture
async def scheduler(cluster: Led) -> AsyncIterator[KubeScheduler]:
    scheduler = KubeScheduler(cluster)
    yield scheduler
    await scheduler.end()
