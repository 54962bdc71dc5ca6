"""Test the check `selinux` with a made selinuxfs and /proc of a host, and real labels on files, folders and sockets."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from doctor.selinux import SelinuxReading, decide_selinux, read_selinux
from lading.checks.model import Finding, Verdict
from lading.selinux import FOR_CONTAINERS, SelinuxMode
from lading.sharegrant import SOCKET
from tests.fakes.selinux import enable_selinux
from tests.unit.doctor.verdicts import only

SERVICE = "system_u:system_r:unconfined_service_t:s0"
SPC = "system_u:system_r:spc_t:s0"


def label(path: Path, text: str) -> None:
    os.setxattr(path, "security.selinux", text.encode() + b"\0", follow_symlinks=False)


@dataclass(slots=True)
class Node:
    """Have the folders of a node with a share, as lading-hooks and lading-shares make them on a host with SELinux."""

    root: Path
    sockets: ExitStack
    server: Path = field(init=False)

    def __post_init__(self) -> None:
        self.server = self.listen(self.root / "shares.sock")
        (self.root / "libraries").mkdir()
        library, folder = self.root / "libraries/libcuda.so.1", self.root / "shares/pod-1_train"
        library.touch()
        folder.mkdir(parents=True)
        for path in (library, folder, self.listen(folder / SOCKET)):
            label(path, FOR_CONTAINERS)
        self.set_domain(SPC)

    def listen(self, path: Path) -> Path:
        listener = self.sockets.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        listener.listen()
        return path

    def set_domain(self, text: str) -> None:
        current = self.root / f"proc/{os.getpid()}/attr/current"
        current.parent.mkdir(parents=True, exist_ok=True)
        current.write_text(f"{text}\0")

    def read(self, *, confines: bool | None = True, shares: bool = True) -> SelinuxReading:
        return read_selinux(
            self.root,
            self.root / "host",
            confines=confines,
            libraries=self.root / "libraries",
            shares=self.root / "shares",
            server=self.server if shares else None,
            answer_s=5.0,
        )

    def check(self, *, confines: bool | None = True, shares: bool = True) -> Finding:
        return only(decide_selinux(self.read(confines=confines, shares=shares)))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with ExitStack() as sockets:
        yield Node(tmp_path, sockets)


@pytest.mark.parametrize("enforcing", [True, False])
def test_a_node_as_lading_makes_it_has_no_finding(node: Node, enforcing: bool) -> None:
    enable_selinux(node.root, enforcing=enforcing)
    assert node.check().verdict is Verdict.OK
    assert len(node.read().labels) == 3


def test_without_selinux_no_label_is_needed(node: Node) -> None:
    assert node.read() == SelinuxReading(mode=SelinuxMode.OFF)
    assert node.check().verdict is Verdict.OK


def test_in_a_container_selinux_is_that_of_the_mounted_host(node: Node) -> None:
    enable_selinux(node.root / "host", use_devices=False)
    assert node.check().verdict is Verdict.WARNING


@pytest.mark.parametrize("path", ["libraries/libcuda.so.1", "shares/pod-1_train", f"shares/pod-1_train/{SOCKET}"])
@pytest.mark.parametrize("wrong", ["system_u:object_r:var_lib_t:s0", f"{FOR_CONTAINERS}:c1,c2"])
def test_a_label_that_containers_may_not_use_is_found_and_the_fix_names_the_file(node: Node, path: str, wrong: str) -> None:
    enable_selinux(node.root)
    label(node.root / path, wrong)
    finding = node.check()
    assert finding.verdict is Verdict.WARNING
    assert finding.mend == f"chcon {FOR_CONTAINERS} {node.root / path}"


def test_a_library_below_opt_may_keep_its_label_and_a_socket_may_not(node: Node) -> None:
    enable_selinux(node.root)
    label(node.root / "libraries/libcuda.so.1", "system_u:object_r:lib_t:s0")
    assert node.check().verdict is Verdict.OK
    label(node.root / "shares/pod-1_train" / SOCKET, "system_u:object_r:lib_t:s0")
    assert node.check().verdict is Verdict.WARNING


@pytest.mark.parametrize("domain", [SERVICE, ""])
def test_a_server_in_another_domain_is_found(node: Node, domain: str) -> None:
    enable_selinux(node.root)
    node.set_domain(domain)
    finding = node.check()
    assert finding.verdict is Verdict.WARNING
    assert "lading.cil" in finding.mend


def test_a_server_that_does_not_run_is_found(node: Node) -> None:
    enable_selinux(node.root)
    node.server.unlink()
    assert node.check().verdict is Verdict.WARNING
    assert node.check(shares=False).verdict is Verdict.OK


def test_what_enforcing_would_deny_is_shown_while_permissive(node: Node) -> None:
    enable_selinux(node.root, enforcing=False, use_devices=False)
    node.set_domain(SERVICE)
    finding = node.check()
    assert finding.verdict is Verdict.OK
    assert "container_use_devices" in finding.what
    assert SERVICE in finding.what


def test_a_runtime_that_gives_containers_no_domain_needs_no_labels(node: Node) -> None:
    enable_selinux(node.root)
    node.set_domain(SERVICE)
    assert node.check(confines=False).verdict is Verdict.OK
    assert node.check(confines=None).verdict is Verdict.WARNING
