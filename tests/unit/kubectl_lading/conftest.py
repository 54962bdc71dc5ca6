"""Run the command line with a small API server. A module with another cluster has a fixture `cluster` of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.kube_server import FakeKubeServer
from tests.fakes.kubectl_lading import Cli, served
from tests.fakes.small_cluster import SmallCluster


@pytest.fixture
def server() -> FakeKubeServer:
    return FakeKubeServer()


@pytest.fixture
def cluster() -> SmallCluster:
    return SmallCluster()


@pytest.fixture
def cli(server: FakeKubeServer, cluster: SmallCluster, tmp_path: Path) -> Iterator[Cli]:
    with served(cluster, tmp_path, server=server) as cli:
        yield cli
