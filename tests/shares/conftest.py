"""The library as containers have it, compiled here, and a site for each test."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.needs import need
from tests.shares.calls import ALL
from tests.shares.card import KIT, choose_card, make_library
from tests.shares.site import MIB, Container, Process, Site, new_site
from tests.started import Started


@pytest.fixture(scope="session")
def driver_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(bool(os.environ.get(KIT) or shutil.which("cc")), "a C compiler")
    return choose_card().driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="session")
def library(driver_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_library(driver_folder, tmp_path_factory.mktemp("library"))


@pytest.fixture
def site(library: Path, pytestconfig: pytest.Config) -> Iterator[Site]:
    with Started(pytestconfig) as started, new_site(library) as site:
        started.show(*site.logs)
        yield site


@pytest.fixture(scope="module")
def module_site(library: Path) -> Iterator[Site]:
    with new_site(library) as site:
        yield site


@pytest.fixture(scope="module")
def container(module_site: Site) -> Container:
    """Grant a share of 100 MiB, which the tests of a module have in common."""
    return module_site.container("a", mib=ALL // MIB)


@pytest.fixture
def process(container: Container) -> Iterator[Process]:
    process = container.start()
    yield process
    process.kill()
