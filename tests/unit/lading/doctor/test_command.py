import argparse

import pytest

from lading.doctor.command import add_doctor_flags, repeat_flags, run_doctor, select
from lading.doctor.model import Check, State, Verdict
from lading.errors import ConfigError


def check(name: str, state: State) -> Check[None]:
    async def looks(_: None) -> list[Verdict]:
        return [Verdict(state=state, what="found")]

    return Check(name=name, group="g", what="what", why="why", look=looks)


CHECKS = (check("good", State.OK), check("bad", State.FAILED), check("so-so", State.WARNING))


def status(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    add_doctor_flags(parser)
    with pytest.raises(SystemExit) as ended:
        run_doctor(CHECKS, lambda: None, parser.parse_args(argv), program="p")
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], 1),
        (["--only", "good"], 0),
        (["--only", "good,so-so"], 0),
        (["--only", "good", "--only", "so-so", "--strict"], 1),
        (["--list"], 0),
        (["--deadline", "0"], 2),
        (["--deadline", "nan"], 2),
        (["--deadline", "soon"], 2),
    ],
)
def test_exit_status(argv: list[str], expected: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(*argv) == expected
    capsys.readouterr()


def test_the_list_names_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    status("--list")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["good", "bad", "so-so"]


def test_a_check_that_there_is_not_is_named() -> None:
    with pytest.raises(ConfigError, match="gooood") as refused:
        select(CHECKS, ["good,gooood"])
    assert "so-so" in refused.value.hint


@pytest.mark.parametrize(
    ("argv", "mend", "repeated"),
    [
        ([], "p doctor --only a; p registration > f", "p doctor --only a; p registration > f"),
        (
            ["--only", "x", "-o", "json", "--config", "/a b", "--other-config=/o", "--deadline", "2"],
            "p doctor --only a; p registration > f; systemctl restart p",
            "p doctor --config '/a b' --other-config=/o --only a; p registration --config '/a b' > f; systemctl restart p",
        ),
    ],
)
def test_printed_commands_repeat_the_flags_that_say_what_to_look_at(argv: list[str], mend: str, repeated: str) -> None:
    assert repeat_flags(mend, argv, program="p", neighbour="--other-config") == repeated
