from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from doctor import main
from doctor.checks import NodeCheck
from doctor.config import ConfigReading
from doctor.host import Host
from lading.checks.model import Finding, Verdict
from lading.errors import ConfigError
from lading.sockets import Access


def check(name: str, verdict: Verdict) -> NodeCheck:
    async def read(_: Host) -> list[Finding]:
        return [Finding(verdict=verdict, what="found")]

    return NodeCheck(name=name, group="g", what="what", why="why", read=read, decide=list, of="")


CHECKS = (check("good", Verdict.OK), check("bad", Verdict.FAILED), check("so-so", Verdict.WARNING))


@pytest.fixture
def status(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    def run(*argv: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main.main(argv)
        assert isinstance(ended.value.code, int)
        return ended.value.code

    monkeypatch.setattr(main, "CHECKS", CHECKS)
    return run


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], 1),
        (["--only", "good"], 0),
        (["--only", "good,so-so"], 0),
        (["--only", "good", "--only", "so-so", "--strict"], 1),
        (["--list"], 0),
        (["--only", "gooood"], 2),
        (["--deadline", "0"], 2),
        (["--deadline", "nan"], 2),
        (["--deadline", "soon"], 2),
    ],
)
def test_exit_status(status: Callable[..., int], argv: list[str], expected: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(*argv) == expected
    capsys.readouterr()


@pytest.mark.parametrize(
    ("verdicts", "strict", "expected"),
    [
        ([Verdict.OK, Verdict.SKIPPED], True, 0),
        ([Verdict.WARNING], False, 0),
        ([Verdict.WARNING], True, 1),
        ([Verdict.OK, Verdict.FAILED], False, 1),
    ],
)
def test_exit_status_of_findings(verdicts: list[Verdict], strict: bool, expected: int) -> None:
    assert main.exit_status([Finding(verdict=one, what="found") for one in verdicts], strict=strict) == expected


def test_the_list_names_every_check(status: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    status("--list")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["good", "bad", "so-so"]


def test_a_check_that_there_is_not_is_named() -> None:
    with pytest.raises(ConfigError, match="gooood") as refused:
        main.select(CHECKS, ["good,gooood"])
    assert "so-so" in refused.value.hint


@pytest.mark.parametrize(
    ("given", "mend", "repeated"),
    [
        ({}, "lading-doctor --only a; lading-hooks registration > f", "lading-doctor --only a; lading-hooks registration > f"),
        (
            {"hooks_config": Path("/a b"), "proxy_config": Path("/p")},
            "lading-doctor --only a; lading-hooks registration > f; systemctl restart lading-hooks",
            "lading-doctor --hooks-config '/a b' --proxy-config /p --only a; lading-hooks registration --config '/a b' > f; "
            "systemctl restart lading-hooks",
        ),
        ({"host_root": Path("/n")}, "lading-hooks ledger", "lading-hooks ledger --host-root /n"),
    ],
)
def test_printed_commands_repeat_the_flags_that_say_what_to_check(given: dict[str, Path], mend: str, repeated: str) -> None:
    args = Namespace(**{"hooks_config": None, "proxy_config": None, "host_root": None, **given})
    assert main.repeat_flags(mend, args) == repeated


def test_a_daemon_is_installed_where_its_configuration_or_its_unit_is(tmp_path: Path) -> None:
    reading = ConfigReading(daemon="lading-hooks", path=tmp_path / "hooks.toml", problem=ConfigError("node_name is empty"))
    assert not main.is_installed(reading, tmp_path)
    assert main.is_installed(replace(reading, access=Access(0, 0, 0o644)), tmp_path)
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    (units / "lading-hooks.service").touch()
    assert main.is_installed(reading, tmp_path)
