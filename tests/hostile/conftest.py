"""Provide fixtures for hostile tests: the twelve cases of docs/security.md, with real daemons where that is fast enough.

The session has three nodes: they accept manual assignments, central's assignments, and central's signed assignments. Each has
both daemons in front of a runtime in memory. Where the kernel or the runtime decides, a test uses the real `containerd`. Each
module names the naive implementations that its tests detect. `make test-long` uses larger numbers (tests/depth.py).
"""

from collections.abc import Callable, Iterator, Mapping

import pytest

from simnode.containerd import PrivateContainerd
from tests.hostile.front import PUBLIC_KEY, Front
from tests.hostile.runtime import InMemoryRuntime
from tests.node.site import Site, open_site
from tests.started import Started

StartFront = Callable[[Mapping[str, object]], Front]


@pytest.fixture(scope="session")
def start_front(device_nodes: None, pytestconfig: pytest.Config) -> Iterator[StartFront]:
    """Yield a function that starts both daemons. It takes settings of lading-hooks."""
    with Started(pytestconfig) as started:

        def start(hooks: Mapping[str, object]) -> Front:
            folder = started.folder()
            runtime = started.enter_context(InMemoryRuntime(folder / "runtime.sock"))
            return started.enter_context(Front(started.lading(runtime, folder=folder, hooks=hooks), runtime))

        yield start


@pytest.fixture(scope="session")
def by_hand(start_front: StartFront) -> Front:
    return start_front({})


@pytest.fixture(scope="session")
def by_central(start_front: StartFront) -> Front:
    return start_front({"assignments": ["unsigned"]})


@pytest.fixture(scope="session")
def keys_toml(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, object]:
    """Return the settings of a node that accepts assignments signed by `front.PRIVATE_KEY`, key id k1."""
    pem = tmp_path_factory.mktemp("keys") / "k1.pem"
    pem.write_bytes(PUBLIC_KEY)
    return {"assignments": ["signed"], "keys.k1": str(pem)}


@pytest.fixture(scope="session")
def signed(start_front: StartFront, keys_toml: Mapping[str, object]) -> Front:
    return start_front(keys_toml)


@pytest.fixture(scope="session")
def real(
    device_nodes: None, containerd: PrivateContainerd, keys_toml: Mapping[str, object], pytestconfig: pytest.Config
) -> Iterator[Site]:
    """Start a node for signed assignments in front of the real containerd and runc."""
    with Started(pytestconfig) as started, open_site(started.lading(containerd, hooks=keys_toml), containerd) as site:
        yield site
