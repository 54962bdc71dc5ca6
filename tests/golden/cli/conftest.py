"""One small cluster for all golden tests of the command line."""

from collections.abc import Iterator

import pytest

from tests.fakes.kubectl_lading import Cli, served
from tests.fakes.small_cluster import NOW, SmallCluster


@pytest.fixture(scope="session")
def small_cluster() -> SmallCluster:
    return SmallCluster()


@pytest.fixture(scope="session")
def session_cli(small_cluster: SmallCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    with served(small_cluster, tmp_path_factory.mktemp("cli")) as cli:
        yield cli


@pytest.fixture
def cli(session_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """At the moment of the cluster."""
    monkeypatch.setattr("time.time", lambda: NOW)
    return session_cli
