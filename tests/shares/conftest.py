"""The library as containers have it, compiled here, and a site for each test."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.needs import need
from tests.logs import LOGS
from tests.shares.card import KIT, choose_card, make_library
from tests.shares.site import Site


@pytest.fixture(scope="session")
def driver_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(bool(os.environ.get(KIT) or shutil.which("cc")), "a C compiler")
    return choose_card().driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="session")
def library(driver_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_library(driver_folder, tmp_path_factory.mktemp("library"))


@pytest.fixture
def site(library: Path, pytestconfig: pytest.Config) -> Iterator[Site]:
    """pytest's own folders are too long for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="lading-") as folder, Site(Path(folder), library) as site:
        logs = pytestconfig.stash.setdefault(LOGS, [])
        logs.extend(site.logs)
        yield site
        for log in site.logs:
            logs.remove(log)
