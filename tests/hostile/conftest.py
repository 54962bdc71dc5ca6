"""Provide fixtures for hostile tests: the twelve cases of docs/security.md, with real daemons where that is fast enough.

The session has three nodes: they accept manual assignments, central's assignments, and central's signed assignments. Each has
both daemons in front of a runtime in memory. Where the kernel or the runtime decides, a test uses the real `containerd`. Each
module names the naive implementations that its tests detect. `make test-long` uses larger numbers (tests/depth.py).
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

import pytest

from simnode.containerd import PrivateContainerd
from tests.hostile.front import PUBLIC_KEY, Front
from tests.hostile.runtime import InMemoryRuntime
from tests.node.site import Site, open_site
from tests.started import Started


class StartFront(Protocol):
    def __call__(self, *, hooks: Mapping[str, object] | None = None, proxy: Mapping[str, object] | None = None) -> Front:
        """Start both daemons with these additional settings."""


def _starter(device_nodes: None, pytestconfig: pytest.Config) -> Iterator[StartFront]:
    with Started(pytestconfig) as started:

        def start(*, hooks: Mapping[str, object] | None = None, proxy: Mapping[str, object] | None = None) -> Front:
            folder = started.folder()
            runtime = started.enter_context(InMemoryRuntime(folder / "runtime.sock"))
            lading = started.lading(runtime, folder=folder, hooks=hooks, proxy=proxy)
            return started.enter_context(Front(lading, runtime))

        yield start


start_front = pytest.fixture(_starter)
share_front = pytest.fixture(scope="session")(_starter)


@pytest.fixture(scope="session")
def by_hand(share_front: StartFront) -> Front:
    return share_front()


@pytest.fixture(scope="session")
def by_central(share_front: StartFront) -> Front:
    return share_front(hooks={"assignments": ["unsigned"]})


@pytest.fixture(scope="session")
def keys_toml(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, object]:
    """Return the settings of a node that accepts assignments signed by `front.PRIVATE_KEY`, key id k1."""
    pem = tmp_path_factory.mktemp("keys") / "k1.pem"
    pem.write_bytes(PUBLIC_KEY)
    return {"assignments": ["signed"], "keys.k1": str(pem)}


@pytest.fixture(scope="session")
def signed(share_front: StartFront, keys_toml: Mapping[str, object]) -> Front:
    return share_front(hooks=keys_toml)


@pytest.fixture(scope="session")
def real(
    device_nodes: None, containerd: PrivateContainerd, keys_toml: Mapping[str, object], pytestconfig: pytest.Config
) -> Iterator[Site]:
    """Start a node for signed assignments in front of the real containerd and runc."""
    with Started(pytestconfig) as started, open_site(started.lading(containerd, hooks=keys_toml), containerd) as site:
        yield site
