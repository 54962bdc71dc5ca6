"""Test registrations as files of a folder, their servers as sockets, and the proxy's connections."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from doctor.hooks_dir import (
    LoadReading,
    RegistrationReading,
    ServerReading,
    decide_connections,
    decide_folder,
    decide_registration,
    decide_servers,
)
from doctor.host import read_folder
from doctor.processes import Process
from doctor.ready import DaemonReply
from doctor.sockets import SocketReading
from hooks.daemon.registration import render_registration
from hooks.daemon.settings import Settings
from lading.checks.model import Verdict
from lading.sockets import Access
from runtimeproxy.chain.registrations import FailurePolicy, Registration, parse_registration
from tests.unit.doctor.verdicts import only, states

OURS = {
    "remote-endpoint": "/run/lading/hooks.sock",
    "runtime-hooks": ["PreCreateContainer"],
    "annotation-prefixes": ["lading.dev/"],
}
GUARDED = ("lading.dev/",)


@pytest.mark.parametrize(
    ("files", "guarded", "expected", "word"),
    [
        ({"50.json": OURS}, GUARDED, [Verdict.OK], "50.json"),
        ({}, GUARDED, [Verdict.FAILED], "lading.dev/"),
        ({}, (), [Verdict.OK], ""),
        ({"50.json": OURS | {"failure-polcy": "Ignore"}}, GUARDED, [Verdict.FAILED, Verdict.FAILED], "failure-polcy"),
        ({"50.json": OURS, "60.json": OURS}, GUARDED, [Verdict.FAILED], "60.json"),
        ({"50.json": OURS | {"annotation-prefixes": ["other/"]}}, GUARDED, [Verdict.FAILED], "lading.dev/"),
    ],
)
def test_the_folder(
    tmp_path: Path, files: dict[str, object], guarded: tuple[str, ...], expected: list[Verdict], word: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    verdicts = tuple(decide_folder(read_folder(tmp_path, guarded)))
    assert states(verdicts) == expected
    assert word in verdicts[0].what


def test_a_damaged_file_is_named_once_with_its_own_mend(tmp_path: Path) -> None:
    for name in ("50-lading.json", "60-other.json"):
        (tmp_path / name).write_text("{")
    reading = read_folder(tmp_path, ())
    ours, other = decide_folder(reading)
    for verdict, name in ((ours, "50-lading.json"), (other, "60-other.json")):
        assert verdict.what.count(name) == 1
        assert str(tmp_path / name) in verdict.mend
    assert "lading-hooks registration --write" in ours.mend
    assert "lading-hooks registration" not in other.mend  # the command writes Lading's registration only


def test_a_folder_that_others_can_write(tmp_path: Path) -> None:
    (tmp_path / "50.json").write_text(json.dumps(OURS))
    tmp_path.chmod(0o777)
    reading = read_folder(tmp_path, GUARDED)
    assert reading.registrations == ()
    assert Verdict.FAILED in states(decide_folder(reading))


def test_a_folder_that_may_not_be_read_is_not_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(PermissionError):
        read_folder(tmp_path, GUARDED)


def test_no_folder(tmp_path: Path) -> None:
    assert states(decide_folder(read_folder(tmp_path / "none", GUARDED))) == [Verdict.FAILED]


REGISTRATION = Registration(name="50.json", endpoint="/run/x.sock", hooks=frozenset({"PreCreateContainer"}))
WELL = SocketReading(
    path=Path("/run/x.sock"),
    daemon="50.json",
    wanted=Access(0, 0, 0o600),
    access=Access(0, 0, 0o660),
    is_socket=True,
    holder=Process(pid=1, argv=("/sbin/init",)),
)


@pytest.mark.parametrize("policy", list(FailurePolicy))
@pytest.mark.parametrize(
    ("changes", "well"),
    [
        ({}, True),
        ({"access": None}, False),
        ({"is_socket": False}, False),
        ({"access": Access(1000, 0, 0o600)}, False),
        ({"holder": None}, False),
        ({"silence": "no answer"}, False),
    ],
)
def test_servers(changes: dict[str, object], well: bool, policy: FailurePolicy) -> None:
    server = ServerReading(registration=replace(REGISTRATION, policy=policy), socket=replace(WELL, **changes))  # type: ignore[arg-type]
    bad = Verdict.FAILED if policy is FailurePolicy.FAIL else Verdict.WARNING
    assert only(decide_servers([server])).verdict is (Verdict.OK if well else bad)


def test_the_fix_of_another_programs_server_restarts_no_daemon_of_lading() -> None:
    silent = replace(WELL, silence="no answer")
    other = only(decide_servers([ServerReading(registration=REGISTRATION, socket=silent)]))
    ours = only(decide_servers([ServerReading(registration=replace(REGISTRATION, name="50-lading.json"), socket=silent)]))
    assert "restart lading-hooks" in ours.mend
    assert "lading-hooks" not in other.mend


def test_no_server() -> None:
    assert states(decide_servers([])) == [Verdict.SKIPPED]


@pytest.mark.parametrize(
    ("used", "rejected", "state"),
    [(2, 0, Verdict.OK), (2, 1, Verdict.WARNING), (9, 0, Verdict.WARNING), (10, 0, Verdict.FAILED), (None, 0, Verdict.SKIPPED)],
)
def test_connections(used: int | None, rejected: int, state: Verdict) -> None:
    text = f"lading_proxy_connections {used}.0\nlading_proxy_connections_rejected_total {rejected}.0\n"
    reply = DaemonReply(daemon="d", address="x", metrics=None if used is None else text)
    assert only(decide_connections(LoadReading(reply=reply, most=10, socket=Path("/run/x.sock")))).verdict is state


# ---- the registration of lading-hooks

RENDERED = render_registration(Settings())


@pytest.mark.parametrize(
    ("files", "expected", "word"),
    [
        ({"50-lading.json": RENDERED}, [Verdict.OK], ""),
        ({"a.json": RENDERED | {"remote-endpoint": "unix:///run/lading/hooks.sock"}}, [Verdict.OK], ""),
        ({"a.json": RENDERED | {"deadlines": {}}}, [Verdict.WARNING], "deadlines"),
        ({"a.json": RENDERED | {"failure-policy": "Ignore"}}, [Verdict.WARNING], "failure-policy"),
        ({"b.json": {"remote-endpoint": "/run/b", "runtime-hooks": []}}, [Verdict.FAILED], "/run/lading/hooks.sock"),
        ({"a.json": RENDERED, "b.json": "{"}, [Verdict.OK], ""),  # `hooks-dir` reports the other one
        ({"50-lading.json": "{"}, [Verdict.FAILED], "/run/lading/hooks.sock"),
        ({}, [Verdict.FAILED], "/run/lading/hooks.sock"),
    ],
)
def test_registrations(tmp_path: Path, files: dict[str, object], expected: list[Verdict], word: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    reading = RegistrationReading(
        folder=read_folder(tmp_path, ()), expected=parse_registration(json.dumps(RENDERED).encode(), "50-lading.json")
    )
    verdicts = tuple(decide_registration(reading))
    assert states(verdicts) == expected
    assert word in verdicts[0].what
