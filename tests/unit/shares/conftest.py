import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.share_rig import ShareRig, ShareServer


@pytest.fixture
def sockets() -> Iterator[Path]:
    """pytest's own folders are too long for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="lading-") as folder:
        yield Path(folder)


@pytest.fixture
def rig(sockets: Path) -> Iterator[ShareRig]:
    with ShareRig(sockets) as rig:
        yield rig


@pytest.fixture
def server(rig: ShareRig) -> ShareServer:
    return rig.serve()
