"""The library as containers have it, compiled here, and a site for each test."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lading.compiling import find_compiler
from shares.library.build import CUDA, build
from simnode.cuda import compile_fake_cuda
from tests.fakes.needs import need
from tests.logs import LOGS
from tests.shares.site import SOCKET, Site

_NICE = -10  # nice value of sched(7): ten times the CPU time of a process with the default 0


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(shutil.which("cc") is not None, "a C compiler")
    folder = tmp_path_factory.mktemp("library")
    out = folder / "shown" / CUDA
    build(out, find_compiler(), real=compile_fake_cuda(folder / "real"), socket=SOCKET)
    return out


@pytest.fixture(scope="module", autouse=True)
def first_on_the_cpu() -> Iterator[None]:
    """Give the processes of a test the CPU before other processes of the machine, if the kernel permits it.

    A program that waits for a CPU does not request its next turn on the card, so it would get less than its share.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    yield
    os.setpriority(os.PRIO_PROCESS, 0, before)


@pytest.fixture
def site(library: Path, pytestconfig: pytest.Config) -> Iterator[Site]:
    """pytest's own folders are too long for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="lading-") as folder, Site(Path(folder), library) as site:
        logs = pytestconfig.stash.setdefault(LOGS, [])
        logs.extend(site.logs)
        yield site
        for log in site.logs:
            logs.remove(log)
