"""Node tests: one private containerd for the session, pods through a real CRI client, and nothing left behind at the end.

They need root, containerd and runc (`tests.fakes.needs`: without them they are skipped, in CI they fail). A test that fails
shows the ends of the logs that its fixtures named in `LOGS`.
"""

import os
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from simnode import leftovers
from simnode.child import tail
from simnode.containerd import Binaries, PrivateContainerd, find_containerd
from simnode.cri import Cri
from simnode.install import missing_packages
from tests.fakes.needs import need

LOGS = pytest.StashKey[list[Path]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for log in item.config.stash.get(LOGS, []):
            report.sections.append((f"the end of {log}", tail(log)))
    return report


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Like `tmp_path`, with a short name: a Unix socket's path has at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="lading-"))
    yield folder
    leftovers.remove_tree(folder)


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    need(os.geteuid() == 0, "root")
    packages = missing_packages()
    need(not packages, f"{', '.join(packages)} (run: python -m simnode.install)")
    found = find_containerd()
    assert found is not None
    return found


@pytest.fixture(scope="session")
def containerd(binaries: Binaries, pytestconfig: pytest.Config) -> Iterator[PrivateContainerd]:
    """The machine's containerd as a private instance. Tests that kill or restart it start one of their own."""
    folder = Path(tempfile.mkdtemp(prefix="lading-node-"))
    runtime = PrivateContainerd(folder, binaries)
    pytestconfig.stash.setdefault(LOGS, []).append(runtime.log)
    with runtime:
        yield runtime
    left = leftovers.below(folder)
    leftovers.remove_tree(folder)
    assert left == []


@pytest.fixture
def cri(containerd: PrivateContainerd) -> Iterator[Cri]:
    """A client that talks to containerd directly; what it made is gone after the test."""
    with containerd.client() as client:
        yield client
