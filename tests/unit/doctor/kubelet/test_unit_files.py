"""The command line that systemd would start, word by word, with the file that each is from."""

import pytest

from doctor.kubelet.unit_files import Unit, UnitFile, Word, plan_command

UNIT, DROP_IN, LATER, DEFAULT = "/usr/kubelet.service", "/etc/10-a.conf", "/etc/20-b.conf", "/etc/default/kubelet"


def plan(*files: tuple[str, str], environment: dict[str, str] | None = None) -> list[tuple[str, str]]:
    unit = Unit(files=tuple(UnitFile(path, text) for path, text in files), environment=environment or {})
    return [(word.text, word.file) for word in plan_command(unit)]


@pytest.mark.parametrize(
    ("files", "environment", "expected"),
    [
        ([], {}, []),
        ([(UNIT, "[Service]\nExecStart=/bin/kubelet --a --b=c")], {}, [("/bin/kubelet", UNIT), ("--a", UNIT), ("--b=c", UNIT)]),
        ([(UNIT, "ExecStart=k --a"), (DROP_IN, "ExecStart=\nExecStart=k --b")], {}, [("k", DROP_IN), ("--b", DROP_IN)]),
        ([(UNIT, "ExecStart=k \\\n  --a")], {}, [("k", UNIT), ("--a", UNIT)]),
        ([(UNIT, "# ExecStart=x\n; ExecStart=y\nExecStart = k")], {}, [("k", UNIT)]),
        # a variable, of the unit, of a drop-in, of none
        (
            [(UNIT, "ExecStart=k $A"), (DROP_IN, 'Environment="A=--x --y"')],
            {},
            [("k", UNIT), ("--x", DROP_IN), ("--y", DROP_IN)],
        ),
        ([(UNIT, "ExecStart=k ${A}"), (DROP_IN, 'Environment="A=--x --y"')], {}, [("k", UNIT), ("--x --y", DROP_IN)]),
        ([(UNIT, "ExecStart=k --x=${A}"), (DROP_IN, "Environment=A=1 B=2")], {}, [("k", UNIT), ("--x=1", DROP_IN)]),
        ([(UNIT, "ExecStart=k $A")], {}, [("k", UNIT)]),
        ([(DROP_IN, "Environment=A=1"), (LATER, "Environment=A=2\nExecStart=k $A")], {}, [("k", LATER), ("2", LATER)]),
        # an environment file wins, whatever comes first
        (
            [(UNIT, f"EnvironmentFile=-{DEFAULT}\nExecStart=k $A"), (DROP_IN, "Environment=A=1")],
            {DEFAULT: "# A=9\nA='--x --y'\n"},
            [("k", UNIT), ("--x", DEFAULT), ("--y", DEFAULT)],
        ),
        (
            [(UNIT, f"EnvironmentFile=-{DEFAULT}\nExecStart=k $A"), (DROP_IN, "EnvironmentFile=")],
            {DEFAULT: "A=1"},
            [("k", UNIT)],
        ),
        ([(UNIT, 'ExecStart=k --x="')], {}, [("k", UNIT), ('--x="', UNIT)]),  # not closed
    ],
)
def test_the_words_of_a_unit(
    files: list[tuple[str, str]], environment: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    assert plan(*files, environment=environment) == expected


def test_a_word_knows_its_file() -> None:
    assert plan_command(Unit(files=(UnitFile(UNIT, "ExecStart=k"),))) == (Word("k", UNIT),)
