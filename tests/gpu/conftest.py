"""The card of the machine, and nodes with it: a private containerd for the session, and daemons for each gpu_mode."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lading.compiling import find_compiler
from shares.library.build import SOURCES, build
from simnode.containerd import PrivateContainerd, search_path
from simnode.containerd_config import has_cdi
from tests.conftest import Runtimes
from tests.fakes.needs import need
from tests.gpu.kit import find_newest
from tests.gpu.node import GpuNode
from tests.shares.card import CHOICE, KIT, MACHINE, MachineCard, choose_card
from tests.shares.conftest import driver_folder, library
from tests.shares.site import Site, new_site
from tests.started import Started

__all__ = ["driver_folder", "library"]
CONTEXT_MIB = 514  # a context takes so much of a simulated node that is taken for the machine; a card takes what it takes


@pytest.fixture(scope="session", autouse=True)
def card() -> MachineCard:
    if os.environ.get(CHOICE) != MACHINE:
        pytest.skip("runs by: make test-gpu")
    card = choose_card()
    assert isinstance(card, MachineCard)
    return card


@pytest.fixture
def site(card: MachineCard, library: Path, pytestconfig: pytest.Config) -> Iterator[Site]:
    """Yield a site where contexts count, as they do on a node."""
    with Started(pytestconfig) as started, new_site(library, context_mib=CONTEXT_MIB) as site:
        started.show(*site.logs)
        yield site


@pytest.fixture(scope="session")
def gpu_containerd(card: MachineCard, runtimes: Runtimes) -> PrivateContainerd:
    need(os.geteuid() == 0, "root")
    need(shutil.which("runc", path=search_path()) is not None, "runc")
    found = find_newest()
    need(found is not None, "containerd")
    assert found is not None
    return runtimes(found)


@pytest.fixture(scope="module")
def start_node(
    card: MachineCard, gpu_containerd: PrivateContainerd, pytestconfig: pytest.Config
) -> Iterator[Callable[[str], GpuNode]]:
    """Yield a function that starts the daemons on this machine, with a gpu_mode."""
    with Started(pytestconfig) as started:

        def start(mode: str) -> GpuNode:
            folder = started.folder()
            node = GpuNode(folder, card, gpu_containerd, libraries=make_libraries(folder / "libraries"), mode=mode)
            started.show(*node.logs)
            return started.enter_context(node)

        yield start


def make_libraries(folder: Path) -> Path:
    """Return the folder with the libraries of the isolation tokens: of the kit, or compiled now."""
    if kit := os.environ.get(KIT):
        return Path(kit) / "libraries"
    for soname in SOURCES:
        build(folder / soname, find_compiler())
    return folder


@pytest.fixture(scope="module")
def node(start_node: Callable[[str], GpuNode]) -> GpuNode:
    """Start a node in mode `devices`, which offers the isolation tokens."""
    return start_node("devices")


@pytest.fixture(scope="module")
def cdi_node(start_node: Callable[[str], GpuNode], gpu_containerd: PrivateContainerd) -> GpuNode:
    need(has_cdi(gpu_containerd.version), "containerd 1.7 or newer, for CDI names")
    return start_node("cdi")
