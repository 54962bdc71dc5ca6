"""Provide fixtures for fault tests: real daemons are killed, starved, cut off and lied to. Tests with a real runtime have the
mark `node`."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from simnode.containerd import PrivateContainerd
from simnode.daemons import LadingNode, Runtime
from tests.fakes.needs import need
from tests.hostile.runtime import InMemoryRuntime
from tests.node.site import Site, open_site
from tests.started import Started


class StartLading(Protocol):
    def __call__(self, **hooks: object) -> LadingNode:
        """Start both daemons on a simulated node in front of the runtime in memory. `hooks`: settings of lading-hooks."""


def _starter(runtime: Runtime, folder: Path, pytestconfig: pytest.Config) -> Iterator[StartLading]:
    with Started(pytestconfig) as started:
        yield lambda **hooks: started.lading(runtime, folder=folder, hooks=hooks)


@pytest.fixture
def start_lading(
    device_nodes: None, runtime: InMemoryRuntime, short_folder: Path, pytestconfig: pytest.Config
) -> Iterator[StartLading]:
    yield from _starter(runtime, short_folder, pytestconfig)


@pytest.fixture
def runtime(short_folder: Path) -> Iterator[InMemoryRuntime]:
    with InMemoryRuntime(short_folder / "runtime.sock") as runtime:
        yield runtime


class StartOnContainerd(Protocol):
    def __call__(self, **hooks: object) -> Site:
        """Return a function that starts both daemons in front of the session's containerd."""


@pytest.fixture
def _start_before_containerd(
    device_nodes: None, containerd: PrivateContainerd, short_folder: Path, pytestconfig: pytest.Config
) -> Iterator[StartLading]:
    yield from _starter(containerd, short_folder, pytestconfig)


@pytest.fixture
def start_on_containerd(_start_before_containerd: StartLading, containerd: PrivateContainerd) -> Iterator[StartOnContainerd]:
    with contextlib.ExitStack() as stack:
        yield lambda **hooks: stack.enter_context(open_site(_start_before_containerd(**hooks), containerd))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a tmpfs of 512 KiB."""
    need(os.geteuid() == 0, "root, to mount a tmpfs")
    mounted = tmp_path / "small"
    mounted.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", mounted], check=True)
    yield mounted
    subprocess.run(["umount", "--lazy", mounted], check=True)
