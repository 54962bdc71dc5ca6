"""The library as containers have it, compiled here, and a site for each test."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lading.compiling import find_compiler
from shares.library.build import CUDA, NVML, build
from simnode.cuda import compile_fake_cuda
from simnode.nvml import compile_fake_nvml
from tests.fakes.needs import need
from tests.logs import LOGS
from tests.shares.site import SOCKET, Site


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(shutil.which("cc") is not None, "a C compiler")
    folder = tmp_path_factory.mktemp("library")
    out = folder / "shown" / CUDA
    build(out, find_compiler(), real=compile_fake_cuda(folder / "real"), socket=SOCKET)
    build(out.with_name(NVML), find_compiler(), real=compile_fake_nvml(folder / "real"), socket=SOCKET)
    return out


@pytest.fixture
def site(library: Path, pytestconfig: pytest.Config) -> Iterator[Site]:
    """pytest's own folders are too long for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="lading-") as folder, Site(Path(folder), library) as site:
        logs = pytestconfig.stash.setdefault(LOGS, [])
        logs.extend(site.logs)
        yield site
        for log in site.logs:
            logs.remove(log)
