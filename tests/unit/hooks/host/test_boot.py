from pathlib import Path

import pytest

from hooks.host.boot import read_boot_id
from lading.errors import HostError


def write(host_root: Path, content: bytes) -> None:
    path = host_root / "proc/sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)


def test_boot_id_is_read_below_the_host_root(tmp_path: Path) -> None:
    write(tmp_path, b"a1b2c3d4-0000-4000-8000-0123456789ab\n")
    assert read_boot_id(tmp_path) == "a1b2c3d4-0000-4000-8000-0123456789ab"


def test_this_machine_has_one() -> None:
    assert read_boot_id(Path("/")) == read_boot_id(Path("/"))


@pytest.mark.parametrize("content", [b"", b"\n", b"not-an-id", b"\xff" * 36])
def test_what_is_no_boot_id(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, content)
    with pytest.raises(HostError, match="boot_id"):
        read_boot_id(tmp_path)


def test_a_missing_one(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="boot_id"):
        read_boot_id(tmp_path)
