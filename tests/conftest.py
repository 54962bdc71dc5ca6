"""Provide fixtures for all tests: simulated nodes, and a fake NVML under the real pynvml. Print logs after a failed test.

A process loads NVML only once (the loader finds it by its SONAME). So the fake is compiled once a session, and a test changes
the fake's answers by its state file.
"""

import contextlib
import gc
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import is_hypothesis_test, settings
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from simnode import leftovers
from simnode.build import SimNode, build
from simnode.containerd import Binaries, PrivateContainerd, find_containerd
from simnode.install import missing_packages
from simnode.nvml import compile_fake_nvml
from simnode.patience import tail
from tests import coroutines, started
from tests.depth import PARTS, choose, repeats
from tests.fakes.needs import need
from tests.logs import LOGS

BuildNode = Callable[[str | dict[str, Any]], SimNode]
Runtimes = Callable[[Binaries], PrivateContainerd]

# A test that takes longer on a busy machine has not failed. The other settings are the same here and in CI.
settings.register_profile("untimed", settings(deadline=None, max_examples=repeats(20, long=100)))
settings.load_profile("untimed")


# Fixtures that build: pip and a C compiler take minutes on a slow machine. The test that needs one first has their time too.
BUILDS: Final = frozenset({"wheel", "wheels", "built_versions", "image"})
BUILD_TIMEOUT_S: Final = 900
# Hypothesis searches up to five minutes for a small failing example before it reports a failure.
SHRINK_TIMEOUT_S: Final = 900


# pytest-xdist sends all tests of a file to one worker, and also all files of each of these folders, which share slow fixtures.
TESTS: Final = Path(__file__).parent
TOGETHER: Final = frozenset({"page", "peers", "vm"})


# The exit status of a run in which something was left behind, which `make test` does not try again.
LEFT_BEHIND: Final = 10


class FailuresAtOnce:
    """Print each failure when it happens: a run that is ended early has told what failed."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._left_behind = False

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            self._left_behind |= report.when == "teardown"
            reporter.write_line(f"\nFAILED {report.nodeid} ({report.when})")
            reporter.write_line(report.longreprtext)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._left_behind:
            session.exitstatus = LEFT_BEHIND


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(FailuresAtOnce(config))
    config.pluginmanager.register(coroutines)


class ByFixtures(LoadFileScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        folder = Path(file).relative_to(TESTS.name).parts[0]
        return folder if folder in TOGETHER else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFixtures:
    return ByFixtures(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=PARTS, help="run what `make test` runs, or the rest (tests/depth.py)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if part := config.getoption("--part"):
        chosen = choose(items, part)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]
    for item in items:
        if BUILDS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.timeout(BUILD_TIMEOUT_S))
        if is_hypothesis_test(getattr(item, "obj", None)) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SHRINK_TIMEOUT_S))


def pytest_collection_finish() -> None:
    """Keep the collected tests and all modules, which live as long as the process, out of Python's garbage collections."""
    gc.collect()
    gc.freeze()


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
    """Skip the test unless mknod(2) works, which needs root and CAP_MKNOD."""
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
    """Return a function that builds the node of a profile (its name, or its decoded file), and lets the fake NVML report it."""

    def build_one(profile: str | dict[str, Any]) -> SimNode:
        node = build(profile, tmp_path / "node")
        monkeypatch.setenv("FAKE_NVML_STATE", str(node.nvml_state))
        return node

    return build_one


@pytest.fixture
def short_folder() -> Iterator[Path]:
    with started.short_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    need(os.geteuid() == 0, "root")
    packages = missing_packages()
    need(not packages, f"{', '.join(packages)} (run: python -m simnode.install)")
    result = find_containerd()
    assert result is not None
    return result


@pytest.fixture(scope="session")
def runtimes(pytestconfig: pytest.Config) -> Iterator[Runtimes]:
    """Yield a function that returns a private containerd of a version. Each version is started once, at its first use."""
    logs, started = pytestconfig.stash.setdefault(LOGS, []), dict[Binaries, PrivateContainerd]()
    with contextlib.ExitStack() as ends:

        def runtime_of(binaries: Binaries) -> PrivateContainerd:
            if binaries not in started:
                folder = Path(tempfile.mkdtemp(prefix="lading-node-"))
                ends.callback(_check_nothing_left, folder)
                started[binaries] = PrivateContainerd(folder, binaries)
                logs.append(started[binaries].log)
                ends.enter_context(started[binaries])
            return started[binaries]

        yield runtime_of


def _check_nothing_left(folder: Path) -> None:
    left = leftovers.below(folder)
    leftovers.remove_tree(folder)
    assert left == []


@pytest.fixture(scope="session")
def containerd(binaries: Binaries, runtimes: Runtimes) -> PrivateContainerd:
    """Start the machine's containerd as a private instance. Tests that kill or restart a containerd start their own."""
    return runtimes(binaries)
