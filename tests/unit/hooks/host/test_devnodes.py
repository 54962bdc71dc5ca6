"""Test hostile case 5: device nodes that are links, files, FIFOs, or another device."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from hooks.host.devnodes import Cause, DeviceNodeError, read_char_device
from hooks.model.inventory import CharDevice

PATH = "/dev/infiniband/uverbs0"
NUMBER = (231, 192)


@pytest.fixture
def root(device_nodes: None, tmp_path: Path) -> Path:
    make_node(tmp_path / PATH[1:])
    return tmp_path


def make_node(path: Path, number: tuple[int, int] = NUMBER, kind: int = stat.S_IFCHR) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, kind | 0o600, os.makedev(*number))


def cause_of(root: Path, path: str = PATH, number: tuple[int | None, int | None] = NUMBER) -> Cause:
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are enough
    with pytest.raises(DeviceNodeError) as caught:
        read_char_device(root, path, major=number[0], minor=number[1])
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert caught.value.path == path
    return caught.value.cause


def test_a_node_with_the_kernels_number(root: Path) -> None:
    expected = CharDevice(path=PATH, host_path=f"{root}{PATH}", major=231, minor=192)
    assert read_char_device(root, PATH, major=231, minor=192) == expected
    assert read_char_device(root, PATH, major=None, minor=None) == expected


@pytest.mark.parametrize("number", [(231, 193), (230, 192), (None, 0), (0, None)])
def test_another_number_than_the_kernels(root: Path, number: tuple[int | None, int | None]) -> None:
    assert cause_of(root, number=number) is Cause.WRONG_NUMBER


def a_link(node: Path) -> None:
    make_node(node.parent / "real")
    node.symlink_to("real")


def a_dangling_link(node: Path) -> None:
    node.symlink_to("none")


def an_absolute_link(node: Path) -> None:
    node.symlink_to("/dev/null")


def a_file(node: Path) -> None:
    node.write_text("")


def a_folder(node: Path) -> None:
    node.mkdir()


def a_fifo(node: Path) -> None:
    os.mkfifo(node)  # opening it for reading would block for ever


def a_block_device(node: Path) -> None:
    make_node(node, kind=stat.S_IFBLK)


@pytest.mark.parametrize(
    ("plant", "cause"),
    [
        (a_link, Cause.LINK),
        (a_dangling_link, Cause.LINK),
        (an_absolute_link, Cause.LINK),
        (a_file, Cause.NOT_A_CHAR_DEVICE),
        (a_folder, Cause.NOT_A_CHAR_DEVICE),
        (a_fifo, Cause.NOT_A_CHAR_DEVICE),
        (a_block_device, Cause.NOT_A_CHAR_DEVICE),
    ],
)
def test_what_stands_in_a_nodes_place(root: Path, plant: Callable[[Path], None], cause: Cause) -> None:
    node = root / PATH[1:]
    node.unlink()
    plant(node)
    assert cause_of(root) is cause


@pytest.mark.parametrize("folder", ["dev", "dev/infiniband"])
def test_a_folder_swapped_for_a_link_to_a_perfect_copy(root: Path, folder: str) -> None:
    (root / folder).rename(root / "elsewhere")
    (root / folder).symlink_to(root / "elsewhere")
    assert (root / PATH[1:]).is_char_device()  # a follower would be content
    assert cause_of(root) is Cause.LINK


def test_a_folder_swapped_for_a_file(root: Path) -> None:
    (root / PATH[1:]).unlink()
    (root / "dev/infiniband").rmdir()
    (root / "dev/infiniband").write_text("")
    assert cause_of(root) is Cause.NOT_A_FOLDER


def test_the_host_root_itself_may_be_a_link(root: Path) -> None:
    (root / "link").symlink_to(root)
    assert read_char_device(root / "link", PATH, major=231, minor=192).minor == 192


@pytest.mark.parametrize("path", ["/dev/none", "/none/uverbs0"])
def test_missing(root: Path, path: str) -> None:
    assert cause_of(root, path) is Cause.MISSING


@pytest.mark.parametrize("path", ["", "/", "dev/null", "/dev/../dev/infiniband/uverbs0", "/dev/./x", "/dev//x", "/dev/x/"])
def test_paths_that_are_not_plain(root: Path, path: str) -> None:
    assert cause_of(root, path) is Cause.PATH
