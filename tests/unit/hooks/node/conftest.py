from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hooks.node.node import Node
from lading.log import Log
from tests.unit.hooks.node.rig import Rig


@pytest.fixture
def rig(tmp_path: Path, log: Log) -> Rig:
    return Rig(tmp_path, log)


@pytest.fixture
async def node(rig: Rig) -> AsyncIterator[Node]:
    """Yield a node whose ledger has been compared with the runtime."""
    async with rig.node() as node:
        yield node
