"""Provide fixtures for hostile tests: the twelve cases of docs/security.md, with real daemons where that is fast enough.

The session has three nodes: they accept manual assignments, central's assignments, and central's signed assignments. Each has
both daemons in front of a runtime in memory. Where the kernel or the runtime decides, a test uses the real `containerd`. Each
module names the naive implementations that its tests detect. `make test-long` uses larger numbers (tests/depth.py).
"""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest

from simnode import leftovers
from simnode.build import build
from simnode.containerd import PrivateContainerd
from simnode.daemons import LadingNode
from tests.hostile.front import PUBLIC_KEY, Front, RuntimeAt
from tests.hostile.runtime import KeepingRuntime
from tests.logs import LOGS
from tests.node.site import Site, open_site


class StartFront(Protocol):
    def __call__(self, *, hooks: Mapping[str, object] | None = None, proxy: Mapping[str, object] | None = None) -> Front:
        """Start both daemons with these additional settings."""


def _starter(device_nodes: None, pytestconfig: pytest.Config) -> Iterator[StartFront]:
    with contextlib.ExitStack() as stack:

        def start(*, hooks: Mapping[str, object] | None = None, proxy: Mapping[str, object] | None = None) -> Front:
            folder = Path(tempfile.mkdtemp(prefix="lading-"))
            stack.callback(leftovers.remove_tree, folder)
            runtime = stack.enter_context(KeepingRuntime(folder / "runtime.sock"))
            lading = LadingNode(
                folder,
                node=build("demo-8gpu", folder / "node"),
                runtime=RuntimeAt(runtime.path),
                hooks_settings={"metrics": "", **(hooks or {})},
                proxy_settings={"metrics": "", **(proxy or {})},
            )
            logs = pytestconfig.stash.setdefault(LOGS, [])
            for log in lading.logs:
                logs.append(log)
                stack.callback(logs.remove, log)
            return stack.enter_context(Front(stack.enter_context(lading), runtime))

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
    folder = Path(tempfile.mkdtemp(prefix="lading-"))
    lading = LadingNode(folder, node=build("demo-8gpu", folder / "node"), runtime=containerd, hooks_settings=keys_toml)
    pytestconfig.stash[LOGS] += lading.logs
    with lading, open_site(lading, containerd) as site:
        yield site
    leftovers.remove_tree(folder)
