import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hooks.host.memlock import memlock_warning

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max file size             unlimited            unlimited            bytes
Max locked memory         {soft:<20} {hard:<20} bytes
Max address space         unlimited            unlimited            bytes
"""


@pytest.fixture
def runtime(short_folder: Path) -> Iterator[Path]:
    """Listen in this process, so that its limits are read."""
    path = short_folder / "runtime.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield path


def limits(host_root: Path, soft: object, hard: object = "unlimited") -> None:
    path = host_root / "proc" / str(os.getpid()) / "limits"
    path.parent.mkdir(parents=True)
    path.write_text(LIMITS.format(soft=soft, hard=hard))


@pytest.mark.parametrize("soft", [8 << 20, (64 << 30) - 1, 0])
def test_a_small_limit_is_reported_with_the_process_that_has_it(tmp_path: Path, runtime: Path, soft: int) -> None:
    limits(tmp_path, soft)
    warning = memlock_warning(tmp_path, runtime)
    assert f"pid {os.getpid()}" in warning
    assert f"{soft >> 10} KiB" in warning


@pytest.mark.parametrize("soft", ["unlimited", 64 << 30])
def test_enough_is_enough(tmp_path: Path, runtime: Path, soft: object) -> None:
    limits(tmp_path, soft, soft)
    assert memlock_warning(tmp_path, runtime) == ""


def test_a_process_that_is_not_there_says_nothing(tmp_path: Path, runtime: Path) -> None:
    assert memlock_warning(tmp_path, runtime) == ""


def test_nor_does_a_runtime_that_is_not_there(tmp_path: Path, short_folder: Path) -> None:
    limits(tmp_path, 1)
    assert memlock_warning(tmp_path, short_folder / "absent.sock") == ""


def test_a_runtime_with_a_full_backlog_is_not_waited_for(
    tmp_path: Path, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hooks.host.memlock._CONNECT_S", 0.01)
    limits(tmp_path, 1)
    path = short_folder / "runtime.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(path))
        listener.listen(0)
        waiting.connect(str(path))
        assert memlock_warning(tmp_path, path) == ""
