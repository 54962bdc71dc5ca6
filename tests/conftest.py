"""Fixtures for every test: simulated nodes, and the fake NVML under the real pynvml; and what a test that fails shows.

A process loads one NVML for good (the loader knows it by its SONAME), so it is compiled once a session, and a test changes what
it says through its state file.
"""

import contextlib
import os
import shutil
import signal
import stat
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import settings

from simnode import leftovers
from simnode.build import SimNode, build
from simnode.child import tail
from simnode.nvml import compile_fake_nvml
from tests.fakes.needs import need
from tests.logs import LOGS

BuildNode = Callable[[str | dict[str, Any]], SimNode]

# What takes longer than usual on a busy machine has not failed. The rest stays as it is here, or in CI.
settings.register_profile("untimed", settings(deadline=None))
settings.load_profile("untimed")


# Fixtures that build: pip and a C compiler take minutes on a slow machine. The test that needs one first has their time too.
BUILDS: Final = frozenset({"wheel", "wheels", "built_versions", "image"})
BUILD_TIMEOUT_S: Final = 900


# Tests that start daemons run in three lanes with `--dist=loadgroup`, by folder: these two, and all others.
TESTS: Final = Path(__file__).parent
LANES: Final = {"install": "1", "node": "2"}


class FailuresAtOnce:
    """Print each failure when it happens: a run that is ended early has told what failed."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            reporter.write_line(f"\nFAILED {report.nodeid} ({report.when})")
            reporter.write_line(report.longreprtext)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(FailuresAtOnce(config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        item.add_marker(pytest.mark.xdist_group(LANES.get(folder, "3")))
        if BUILDS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.timeout(BUILD_TIMEOUT_S))


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """End what tests started below their folders and did not end, and fail because of it."""
    yield
    folder = tmp_path_factory.getbasetemp()
    left = leftovers.below(folder)
    for pid in leftovers.processes_given(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert left == []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for log in item.config.stash.get(LOGS, []):
            report.sections.append((f"the end of {log}", tail(log)))
    return report


@pytest.fixture(scope="session")
def device_nodes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """mknod(2) works here: root, and not in a container that took CAP_MKNOD away."""
    probe = tmp_path_factory.mktemp("mknod") / "null"
    try:
        os.mknod(probe, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        need(False, "root, to make device nodes")


@pytest.fixture(scope="session")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(bool(os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")), "a C compiler")
    return compile_fake_nvml(tmp_path_factory.mktemp("fake-nvml"))


@pytest.fixture
def build_node(device_nodes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuildNode:
    """Builds a profile (a name, or what a profile's file decodes to) and has the fake NVML speak for it."""

    def build_one(profile: str | dict[str, Any]) -> SimNode:
        node = build(profile, tmp_path / "node")
        monkeypatch.setenv("FAKE_NVML_STATE", str(node.nvml_state))
        return node

    return build_one
