"""Test labels on a real file system: without SELinux in the kernel, root may set and read them as any other attribute."""

import os
import socket
from pathlib import Path

import pytest

from lading.selinux import FOR_CONTAINERS, SelinuxMode, has_categories, make_label, read_domain, read_label, read_mode, type_of
from tests.fakes.selinux import enable_selinux


@pytest.mark.parametrize(("enforcing", "mode"), [(True, SelinuxMode.ENFORCING), (False, SelinuxMode.PERMISSIVE)])
def test_the_mode_is_that_of_the_first_root_with_selinux(tmp_path: Path, enforcing: bool, mode: SelinuxMode) -> None:
    enable_selinux(tmp_path / "host", enforcing=enforcing)
    assert read_mode([tmp_path, tmp_path / "host"]) is mode
    assert read_mode([tmp_path]) is SelinuxMode.OFF


def test_a_folder_and_a_socket_are_labelled_where_selinux_is_enabled(tmp_path: Path) -> None:
    enable_selinux(tmp_path / "host", enforcing=False)
    label, path = make_label(Path("/nonexistent"), tmp_path / "host"), tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        for one in (tmp_path, path):
            label(one)
            assert read_label(one) == FOR_CONTAINERS
    assert os.getxattr(path, "security.selinux", follow_symlinks=False).endswith(b"\0")  # libselinux writes labels so too


def test_nothing_is_labelled_without_selinux(tmp_path: Path) -> None:
    make_label(tmp_path)(tmp_path)
    assert read_label(tmp_path) == ""


def test_a_label_that_cannot_be_set_is_no_error(tmp_path: Path) -> None:
    enable_selinux(tmp_path)
    label = make_label(tmp_path)
    label(tmp_path / "absent")
    label(Path("/proc/self/status"))  # procfs keeps no attributes
    with pytest.raises(FileNotFoundError):
        read_label(tmp_path / "absent")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """A label of the file behind a link would open a file of the host to containers."""
    enable_selinux(tmp_path)
    target, link = tmp_path / "secret", tmp_path / "link"
    target.touch()
    link.symlink_to(target)
    make_label(tmp_path)(link)
    assert read_label(target) == ""


def test_the_domain_of_a_process_is_read_from_the_hosts_proc(tmp_path: Path) -> None:
    current = tmp_path / "7/attr/current"
    current.parent.mkdir(parents=True)
    current.write_bytes(b"system_u:system_r:spc_t:s0\0")
    assert read_domain(tmp_path, 7) == "system_u:system_r:spc_t:s0"
    assert read_domain(tmp_path, 8) == ""


@pytest.mark.parametrize(
    ("label", "type_name", "categories"),
    [
        (FOR_CONTAINERS, "container_file_t", False),
        ("system_u:object_r:container_file_t:s0:c12,c900", "container_file_t", True),
        ("system_u:system_r:spc_t:s0-s0:c0.c1023", "spc_t", True),
        ("system_u:object_r:var_lib_t", "var_lib_t", False),
        ("unconfined", "", False),
        ("", "", False),
    ],
)
def test_type_and_categories_of_a_label(label: str, type_name: str, categories: bool) -> None:
    assert (type_of(label), has_categories(label)) == (type_name, categories)
