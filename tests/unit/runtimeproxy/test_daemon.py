from pathlib import Path
from typing import Any

import pytest

from runtimeproxy.daemon import decide_ready, lost_file, read_lost, write_lost

READY: dict[str, Any] = {
    "runtime": "",
    "socket": "",
    "stopping": False,
    "hooks_dir": "/etc/lading/hooks.d",
    "hooks_dir_problems": (),
    "hook_silences": {"50-lading.json": ""},
    "guarded_prefixes": ("lading.dev/",),
}


def failed(**changed: Any) -> dict[str, str]:
    return {c.name: c.why for c in decide_ready(**{**READY, **changed}) if not c.ok}


def test_ready() -> None:
    assert failed() == {}
    assert [c.name for c in decide_ready(**READY)] == ["runtime", "socket", "hooks-dir", "files", "hook 50-lading.json"]


@pytest.mark.parametrize(
    ("changed", "name", "named"),
    [
        ({"runtime": "no /x.sock"}, "runtime", "/x.sock"),
        ({"socket": "/y.sock is gone"}, "socket", "/y.sock"),
        ({"stopping": True}, "socket", ""),
        ({"hooks_dir_problems": ("10.json: not JSON",)}, "hooks-dir", "10.json"),
        ({"denied": ["/x.sock (runtime_endpoint)"]}, "files", "/x.sock"),
        ({"hook_silences": {}}, "hooks-dir", "lading.dev/"),
        ({"hook_silences": {"10.json": "", "20.json": "hangs"}}, "hook 20.json", "hangs"),
    ],
)
def test_one_thing_is_wrong(changed: dict[str, Any], name: str, named: str) -> None:
    problems = failed(**changed)
    assert list(problems) == [name]
    assert named in problems[name]


def test_without_guarded_prefixes_nothing_needs_a_registration() -> None:
    assert failed(hook_silences={}, guarded_prefixes=()) == {}


def test_the_number_outlives_the_process(tmp_path: Path) -> None:
    path = lost_file(tmp_path / "cri.sock")
    assert read_lost(path) == 0
    write_lost(path, 12)
    assert read_lost(path) == 12


@pytest.mark.parametrize("content", [b"", b"x", b"-1", b"\xff\xfe", b"1 2", b"9" * 100_000])
def test_a_damaged_file_counts_at_most_as_a_number(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "cri.sock.lost-calls"
    path.write_bytes(content)
    assert 0 <= read_lost(path) < 10**20


def test_a_folder_that_cannot_be_written_stops_no_one(tmp_path: Path) -> None:
    write_lost(tmp_path / "gone" / "cri.sock.lost-calls", 1)
    assert read_lost(tmp_path) == 0
