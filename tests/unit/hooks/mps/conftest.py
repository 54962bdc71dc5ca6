import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def programs(short_folder: Path) -> Iterator[Path]:
    """Yield a folder for simulated programs; end the daemons and servers whose programs are in its `bin`."""
    yield short_folder
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"{short_folder}/bin/".encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)
