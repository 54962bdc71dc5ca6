from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.share_rig import ShareRig, ShareServer


@pytest.fixture
def rig(short_folder: Path) -> Iterator[ShareRig]:
    with ShareRig(short_folder) as rig:
        yield rig


@pytest.fixture
def server(rig: ShareRig) -> ShareServer:
    return rig.serve()
