import io
import json

import pytest
from rich.console import Console

from doctor.model import Finding, State
from doctor.show import FAILED, PASSED, as_json, exit_status, print_text, summary


def finding(state: State, check: str = "one", group: str = "g", what: str = "found") -> Finding:
    return Finding(check=check, group=group, state=state, what=what, why="matters", mend="mend it")


@pytest.mark.parametrize(
    ("states", "strict", "status"),
    [
        ([State.OK, State.SKIPPED], True, PASSED),
        ([State.WARNING], False, PASSED),
        ([State.WARNING], True, FAILED),
        ([State.OK, State.FAILED], False, FAILED),
    ],
)
def test_exit_status(states: list[State], strict: bool, status: int) -> None:
    assert exit_status([finding(state) for state in states], strict=strict) == status


def test_the_summary_says_the_worst_first() -> None:
    findings = [finding(state) for state in (State.OK, State.WARNING, State.FAILED, State.WARNING)]
    assert summary(findings) == "1 failed, 2 warnings, 1 ok"


def test_json_has_every_field() -> None:
    answer = json.loads(json.dumps(as_json([finding(State.FAILED)], program="p", version="v")))
    assert answer["counts"] == {"failed": 1, "warning": 0, "skipped": 0, "ok": 0}
    expected = {"check": "one", "group": "g", "state": "failed", "what": "found", "why": "matters", "mend": "mend it"}
    assert answer["findings"] == [expected]


def shown(*findings: Finding, terminal: bool = False) -> str:
    out = io.StringIO()
    print_text(findings, Console(file=out, width=40, force_terminal=terminal, color_system="standard" if terminal else None))
    return out.getvalue()


def test_a_finding_is_one_line_and_so_is_its_mend_however_narrow_the_terminal() -> None:
    text = shown(finding(State.FAILED, what="w" * 100), finding(State.OK, check="two"))
    lines = text.splitlines()
    assert lines[0] == "1 failed, 1 ok"
    assert [line for line in lines if "w" * 100 in line]
    assert [line.split(maxsplit=1) for line in lines if "mend it" in line] == [["mend", "mend it"]]


def test_nothing_to_mend_is_shown_of_what_is_well() -> None:
    assert "mend it" not in shown(finding(State.OK))


def test_colour_is_for_terminals_and_control_characters_for_no_one() -> None:
    odd = finding(State.FAILED, what="\x1b[31mred[/bold]")
    assert "\x1b" not in shown(odd)
    assert "[/bold]" in shown(odd)
    assert "\x1b" in shown(finding(State.OK), terminal=True)
