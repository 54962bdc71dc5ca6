from typing import Any

import pytest

from runtimeproxy.readiness import decide_ready

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
