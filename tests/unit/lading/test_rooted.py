from pathlib import Path

import pytest

from lading.rooted import resolve_below


def link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def test_links_are_followed_below_the_root(tmp_path: Path) -> None:
    file = tmp_path / "nix/store/abc/lib/libcuda.so.1.2"
    file.parent.mkdir(parents=True)
    file.touch()
    link(file.with_name("libcuda.so.1"), "libcuda.so.1.2")
    link(tmp_path / "run/opengl-driver", "/nix/store/abc")
    link(tmp_path / "etc/alternatives/cuda", "../../run/opengl-driver/lib/libcuda.so.1")
    link(tmp_path / "usr/lib64/libcuda.so", "/etc/alternatives/cuda")
    assert resolve_below(tmp_path, "usr/lib64/libcuda.so") == file
    assert resolve_below(tmp_path, "/run/opengl-driver//./lib") == file.parent
    assert resolve_below(tmp_path, "libcuda.so.1", start=file.parent) == file
    assert resolve_below(tmp_path, "/run/opengl-driver/lib", start=file.parent) == file.parent
    assert resolve_below(tmp_path, "") == tmp_path


@pytest.mark.parametrize("target", ["/../../outside", "../../../outside", "/../outside"])
def test_no_path_leads_out_of_the_root(tmp_path: Path, target: str) -> None:
    root = tmp_path / "a/root"
    link(root / "lib/away", target)
    (tmp_path / "outside").touch()
    (tmp_path / "a/outside").touch()
    assert resolve_below(root, "lib/away") is None
    assert resolve_below(root, "../outside") is None
    (root / "outside").touch()
    assert resolve_below(root, "lib/away") == root / "outside"


def test_what_is_missing_or_circular_is_nothing(tmp_path: Path) -> None:
    link(tmp_path / "one", "two")
    link(tmp_path / "two", "/one")
    link(tmp_path / "broken", "nowhere")
    link(tmp_path / "deep", "deep/deep")
    (tmp_path / "file").touch()
    for path in ("one", "broken", "deep", "absent", "file/below"):
        assert resolve_below(tmp_path, path) is None


def test_the_real_root_is_resolved_as_the_kernel_does() -> None:
    for path in ("/bin/sh", "/proc/self/exe", "/usr/bin/../bin"):
        assert resolve_below(Path("/"), path) == Path(path).resolve()
