import itertools
import os
import signal
import stat
import time
from pathlib import Path

import pytest

from hooks.host.cdi_files import read_cdi_names, remove_specs, spec_path, write_specs
from hooks.host.cdi_spec import make_spec, nodes_of, parse_spec
from hooks.model.cdi import GPU_KIND, KINDS, VF_KIND, CdiDevice, Edits, Spec
from tests.unit.hooks.inventories import node

KILLS = 50


def a_spec(*names: str, kind: str = GPU_KIND, path: str = "/dev/nvidia0") -> Spec:
    edits = Edits(device_nodes=nodes_of((node(path),)))
    spec, _ = make_spec(kind, Edits(), (CdiDevice(name=name, container_edits=edits) for name in names))
    assert spec is not None
    return spec


def test_each_kind_has_a_file_that_every_user_can_read(tmp_path: Path) -> None:
    folder = tmp_path / "run/cdi"
    before = os.umask(0o077)
    try:
        names, problems = write_specs(folder, [a_spec("a", "b"), a_spec("0000:3b:00.2", kind=VF_KIND)])
    finally:
        os.umask(before)
    assert names == {"lading.dev/gpu=a", "lading.dev/gpu=b", "lading.dev/vf=0000:3b:00.2"}
    assert problems == ()
    assert sorted(path.name for path in folder.iterdir()) == ["lading.dev-gpu.json", "lading.dev-vf.json"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o644}


def test_a_file_changes_by_a_rename_and_only_when_its_content_does(tmp_path: Path) -> None:
    path = spec_path(tmp_path, GPU_KIND)
    write_specs(tmp_path, [a_spec("a")])
    first = path.stat()
    write_specs(tmp_path, [a_spec("a")])
    assert path.stat() == first
    with path.open("rb") as old:
        write_specs(tmp_path, [a_spec("b")])
        assert [one.name for one in parse_spec(old.read()).devices] == ["a"]
    assert read_cdi_names([tmp_path]) == {"lading.dev/gpu=b"}


@pytest.mark.parametrize("damage", [b"", b"{", b'{"kind": "lading.dev/gpu", "devices": [{"name": "other"}]}'])
def test_what_another_program_wrote_or_removed_is_put_right(tmp_path: Path, damage: bytes) -> None:
    path = spec_path(tmp_path, GPU_KIND)
    write_specs(tmp_path, [a_spec("a")])
    right = path.read_bytes()
    path.write_bytes(damage)
    write_specs(tmp_path, [a_spec("a")])
    assert path.read_bytes() == right
    path.unlink()
    assert write_specs(tmp_path, [a_spec("a")])[0] == {"lading.dev/gpu=a"}
    assert path.read_bytes() == right
    away = path.rename(tmp_path / "elsewhere")
    path.symlink_to(away)
    write_specs(tmp_path, [a_spec("a")])
    assert not path.is_symlink()


def test_a_kind_without_a_device_has_no_file(tmp_path: Path) -> None:
    """Check that no file is written: a runtime takes a spec without devices for an error."""
    write_specs(tmp_path, [a_spec("a"), a_spec("v", kind=VF_KIND)])
    (tmp_path / "nvidia.yaml").write_text("kind: nvidia.com/gpu\ndevices:\n- name: x\n")
    assert write_specs(tmp_path, [a_spec("a")]) == (frozenset({"lading.dev/gpu=a"}), ())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lading.dev-gpu.json", "nvidia.yaml"]
    assert remove_specs(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["nvidia.yaml"]
    assert remove_specs(tmp_path / "absent") == []


def test_a_device_that_another_file_defines_too_has_no_name(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("kind: lading.dev/gpu\ndevices:\n- name: a\n")
    names, problems = write_specs(tmp_path, [a_spec("a", "b")])
    assert names == {"lading.dev/gpu=b"}
    assert "lading.dev/gpu=a" in problems[0]


def test_a_spec_that_is_not_valid_leaves_none_of_an_older_state(tmp_path: Path) -> None:
    write_specs(tmp_path, [a_spec("a")])
    names, problems = write_specs(tmp_path, [a_spec("a", path="/etc/shadow")])
    assert names == frozenset()
    assert "/etc/shadow" in problems[0]
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_has_no_name_and_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "file"
    folder.write_text("")
    names, problems = write_specs(folder, [a_spec("a")])
    assert names == frozenset()
    assert str(folder) in problems[0]


def test_a_writer_that_is_killed_before_the_rename_leaves_the_old_spec(tmp_path: Path) -> None:
    write_specs(tmp_path, [a_spec("a")])
    child = os.fork()
    if child == 0:
        Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign,assignment]
        write_specs(tmp_path, [a_spec("b")])
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".lading.dev-gpu.json.new", "lading.dev-gpu.json"]
    assert read_cdi_names([tmp_path]) == {"lading.dev/gpu=a"}
    assert write_specs(tmp_path, [a_spec("b")]) == (frozenset({"lading.dev/gpu=b"}), ())
    assert [path.name for path in tmp_path.iterdir()] == ["lading.dev-gpu.json"]


def test_a_writer_that_is_killed_at_any_moment_leaves_a_whole_spec(tmp_path: Path) -> None:
    both = [[a_spec("a")], [a_spec("a", "b")]]
    write_specs(tmp_path, both[0])
    for number in range(KILLS):
        child = os.fork()
        if child == 0:
            for turn in itertools.count():
                write_specs(tmp_path, both[turn % 2])
        time.sleep(0.005 + number * 0.0003)  # the moment of the death is what varies
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert parse_spec(spec_path(tmp_path, GPU_KIND).read_bytes()) in (both[0][0], both[1][0])
    write_specs(tmp_path, both[0])
    write_specs(tmp_path, both[1])
    assert [path.name for path in tmp_path.iterdir()] == ["lading.dev-gpu.json"]


def test_the_files_of_a_killed_writer_are_removed_with_the_others(tmp_path: Path) -> None:
    for kind in KINDS:
        path = spec_path(tmp_path, kind)
        path.with_name(f".{path.name}.new").touch()
    assert remove_specs(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
