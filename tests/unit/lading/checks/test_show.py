import io
import json

from rich.console import Console

from lading.checks.model import Finding, Verdict
from lading.checks.show import as_json, render_groups, render_problems, summary


def finding(verdict: Verdict, check: str = "one", group: str = "g", what: str = "found") -> Finding:
    return Finding(check=check, group=group, verdict=verdict, what=what, why="matters", mend="mend it")


def test_the_summary_says_the_worst_first() -> None:
    findings = [finding(state) for state in (Verdict.OK, Verdict.WARNING, Verdict.FAILED, Verdict.WARNING)]
    assert summary(findings) == "1 failed, 2 warnings, 1 ok"


def test_json_has_every_field() -> None:
    answer = json.loads(json.dumps(as_json([finding(Verdict.FAILED)])))
    assert answer["counts"] == {"failed": 1, "warning": 0, "skipped": 0, "ok": 0}
    expected = {"check": "one", "group": "g", "state": "failed", "what": "found", "why": "matters", "mend": "mend it"}
    assert answer["findings"] == [expected]


def shown(*findings: Finding, terminal: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=40, force_terminal=terminal, color_system="standard" if terminal else None)
    for line in render_groups(findings):
        console.print(line, soft_wrap=True, highlight=False)
    return out.getvalue()


def test_a_finding_is_one_line_and_so_is_its_mend_however_narrow_the_terminal() -> None:
    text = shown(finding(Verdict.FAILED, what="w" * 100), finding(Verdict.OK, check="two"))
    lines = text.splitlines()
    assert lines[0] == "1 failed, 1 ok"
    assert [line for line in lines if "w" * 100 in line]
    assert [line.split(maxsplit=1) for line in lines if "mend it" in line] == [["mend", "mend it"]]


def test_nothing_to_mend_is_shown_of_what_is_well() -> None:
    assert "mend it" not in shown(finding(Verdict.OK))


def test_colour_is_for_terminals_and_control_characters_for_no_one() -> None:
    odd = finding(Verdict.FAILED, what="\x1b[31mred[/bold]")
    assert "\x1b" not in shown(odd)
    assert "[/bold]" in shown(odd)
    assert "\x1b" in shown(finding(Verdict.OK), terminal=True)


def test_problems_are_shown_with_their_reason_and_fix() -> None:
    out = io.StringIO()
    Console(file=out, width=60).print(render_problems([finding(Verdict.DEGRADED, group="pods", what="\x1b[31mred")]))
    text = out.getvalue()
    assert "\x1b" not in text
    assert [line.split() for line in text.splitlines() if line.strip()] == [
        ["degraded:", "pods:", "\\x1b[31mred"],
        ["why:", "matters"],
        ["do:", "mend", "it"],
    ]
