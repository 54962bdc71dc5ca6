"""Test the folders of share grants: written before a container is created, removed when no grant holds them."""

import asyncio
import socket
import stat
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from hooks.attach.share_folders import ShareFolders, make_hami_folder, write_grant
from hooks.isolation.hami_core import LIBRARY
from hooks.model.assignment import GrantedDevices, GrantedGpu, Refusal
from hooks.model.container import Adjustment, Answer, Sandbox
from hooks.model.grant import Grant
from lading.devices.isolation import IsolationName
from lading.errors import HostError
from lading.reasons import Reason
from lading.selinux import FOR_CONTAINERS, make_label, read_label
from lading.sharegrant import FILE, SOCKET, ShareGrant, parse_grant
from tests.fakes import holders
from tests.fakes.compared import seen
from tests.fakes.selinux import enable_selinux
from tests.fakes.share_rig import share, shared

SANDBOX = Sandbox(id="s1", uid="pod-1")


def tokens(root: Path) -> ShareFolders:
    fill_folder = partial(write_grant, label=make_label(root / "host"))
    return ShareFolders(root=root, isolations=frozenset({IsolationName.TOKENS, IsolationName.MPS}), fill=fill_folder)


def hami(root: Path) -> ShareFolders:
    fill_folder = partial(make_hami_folder, label=make_label(root / "host"))
    return ShareFolders(root=root, isolations=frozenset({IsolationName.HAMI_CORE}), fill=fill_folder, renewed=True)


def prepare(folders: ShareFolders, given: ShareGrant) -> Adjustment | Refusal:
    grant = granted(given.container, pod_wide=not given.container)
    return fill(folders, Answer(adjustment=Adjustment(), grant=grant, share=given))


def fill(folders: ShareFolders, answer: Answer) -> Adjustment | Refusal:
    assert folders.wants(answer)
    return asyncio.run(folders.prepare(SANDBOX, answer))


def granted(container: str = "train", *, pod_wide: bool = False, isolation: IsolationName = IsolationName.TOKENS) -> Grant:
    one = GrantedGpu(uuid=holders.gpu_uuid(0), memory_mib=1000, isolation=isolation, pod_wide=pod_wide)
    return holders.grant("pod-1", container, GrantedDevices(gpus=(one,)))


def reconcile(folders: ShareFolders, grants: Iterable[Grant]) -> None:
    asyncio.run(folders.reconcile(seen(grants), frozenset()))


def test_a_share_by_mps_has_a_folder_only_if_the_share_server_keeps_its_memory(tmp_path: Path) -> None:
    grant, folders = granted(isolation=IsolationName.MPS), tokens(tmp_path)
    assert fill(folders, Answer(adjustment=Adjustment(), grant=grant)) == Adjustment()
    assert [*tmp_path.iterdir()] == []
    fill(folders, Answer(adjustment=Adjustment(), grant=grant, share=share("train", pod="pod-1")))
    reconcile(folders, [grant])
    assert (tmp_path / "pod-1_train" / FILE).exists()
    reconcile(folders, [])
    assert [*tmp_path.iterdir()] == []


def test_a_grant_is_written_for_the_server(tmp_path: Path) -> None:
    given = share("train", pod="pod-1")
    assert prepare(tokens(tmp_path / "shares"), given) == Adjustment()
    folder = tmp_path / "shares" / "pod-1_train"
    assert parse_grant((folder / FILE).read_bytes()) == given
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o644


def test_the_same_grant_is_not_written_again_and_another_replaces_it(tmp_path: Path) -> None:
    folders, path = tokens(tmp_path), tmp_path / "pod-1_train" / FILE
    prepare(folders, share("train", pod="pod-1"))
    inode = path.stat().st_ino
    prepare(folders, share("train", pod="pod-1"))
    assert path.stat().st_ino == inode
    other = share("train", shared(mib=1), pod="pod-1")
    prepare(folders, other)
    assert parse_grant(path.read_bytes()) == other


def test_on_a_host_with_selinux_a_container_may_use_its_folder_its_grant_and_the_socket(tmp_path: Path) -> None:
    folders, folder = tokens(tmp_path), tmp_path / "pod-1_train"
    prepare(folders, share("train", pod="pod-1"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / SOCKET))  # made by a server of a version that set no labels
        assert read_label(folder) == ""
        enable_selinux(tmp_path / "host")
        prepare(folders, share("train", pod="pod-1"))
        assert [read_label(path) for path in (folder, folder / FILE, folder / SOCKET)] == [FOR_CONTAINERS] * 3


def test_a_new_folder_has_its_label_before_the_grant_is_in_it(tmp_path: Path) -> None:
    """The share server makes the socket as soon as it finds the grant, and the socket gets the folder's label."""
    labelled: list[tuple[Path, bool]] = []
    folder = tmp_path / "shares/pod-1_train"
    answer = Answer(adjustment=Adjustment(), grant=granted(), share=share("train", pod="pod-1"))
    write_grant(folder, answer, label=lambda path: labelled.append((path, folder.is_dir() and not any(folder.iterdir()))))
    assert labelled[0] == (folder, True)


def test_a_container_without_such_a_share_is_left_alone(tmp_path: Path) -> None:
    folders = tokens(tmp_path / "shares")
    for grant in (None, granted(isolation=IsolationName.HAMI_CORE)):
        assert not folders.wants(Answer(adjustment=Adjustment(), grant=grant))


def test_a_grant_that_cannot_be_written_refuses_the_container(tmp_path: Path) -> None:
    (tmp_path / "shares").write_text("")
    result = prepare(tokens(tmp_path / "shares"), share("train", pod="pod-1"))
    assert isinstance(result, Refusal)
    assert result.reason is Reason.LEDGER_UNAVAILABLE
    assert str(tmp_path / "shares" / "pod-1_train" / FILE) in result.message


def test_folders_go_with_the_last_grant_that_holds_them(tmp_path: Path) -> None:
    folders = tokens(tmp_path)
    for container in ("train", "eval", ""):
        prepare(folders, share(container, pod="pod-1"))
    grants = [granted("train"), granted("eval"), granted("any", pod_wide=True)]
    assert not folders.ending(lambda _: True, grants)
    reconcile(folders, grants)
    assert {path.name for path in tmp_path.iterdir()} == {"pod-1_train", "pod-1_eval", "pod-1_"}
    assert folders.ending(lambda _: True, grants[1:])
    reconcile(folders, grants[1:])
    assert {path.name for path in tmp_path.iterdir()} == {"pod-1_eval", "pod-1_"}
    reconcile(folders, [])
    assert list(tmp_path.iterdir()) == []


def test_a_share_with_another_isolation_holds_no_folder(tmp_path: Path) -> None:
    folders = tokens(tmp_path)
    prepare(folders, share("train", pod="pod-1"))
    reconcile(folders, [granted(isolation=IsolationName.NONE)])
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("")
    (tmp_path / "shares").mkdir()
    (tmp_path / "shares" / "link").symlink_to(tmp_path / "kept")
    reconcile(tokens(tmp_path / "shares"), [])
    assert (tmp_path / "kept" / "file").exists()


def test_before_the_first_share_there_is_no_folder(tmp_path: Path) -> None:
    folders = tokens(tmp_path / "absent")
    assert not folders.ending(lambda _: True, [])
    reconcile(folders, [])


def test_hami_core_gets_an_empty_folder_for_each_container_that_is_created(tmp_path: Path) -> None:
    root = tmp_path / "shm" / "hami"
    folders, answer = hami(root), Answer(adjustment=Adjustment(), grant=granted(isolation=IsolationName.HAMI_CORE))
    assert fill(folders, answer) == Adjustment()
    (root / "pod-1_train" / "region").write_text("amounts of a container that has ended")
    assert fill(folders, answer) == Adjustment()
    assert list((root / "pod-1_train").iterdir()) == []
    assert stat.S_IMODE((root / "pod-1_train").stat().st_mode) == 0o777  # a container writes to it as any user
    assert stat.S_IMODE(root.stat().st_mode) == 0o700  # and other users of the node do not
    assert (root / "ld.so.preload").read_text() == f"{LIBRARY}\n"
    reconcile(folders, [])
    assert [path.name for path in root.iterdir()] == ["ld.so.preload"]


def test_on_a_host_with_selinux_hami_core_may_use_its_folder_and_the_list_of_preloads(tmp_path: Path) -> None:
    enable_selinux(tmp_path / "host")
    fill(hami(tmp_path), Answer(adjustment=Adjustment(), grant=granted(isolation=IsolationName.HAMI_CORE)))
    assert read_label(tmp_path / "pod-1_train") == read_label(tmp_path / "ld.so.preload") == FOR_CONTAINERS


def test_a_folder_that_cannot_be_removed_is_tried_at_each_comparison_and_not_in_between(tmp_path: Path) -> None:
    """Check that a container cannot keep the node busy with the files that it leaves."""
    tried: list[Path] = []

    async def fail(folder: Path) -> None:
        tried.append(folder)
        raise HostError("no systemd")

    folders = hami(tmp_path)
    fill(folders, Answer(adjustment=Adjustment(), grant=granted(isolation=IsolationName.HAMI_CORE)))
    folders.remove = fail
    assert folders.ending(lambda _: True, [])
    for _ in range(2):
        reconcile(folders, [])
        assert not folders.ending(lambda _: True, [])
    assert tried == [tmp_path / "pod-1_train"] * 2
