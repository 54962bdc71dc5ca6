"""Print findings for people and for programs, and return an exit status for scripts.

Take findings. Print text, with the worst state first in the summary and the findings by group, or JSON; return an exit status.
Control characters are escaped, because a finding may quote a file or a process of the node.
"""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from doctor.model import WORST_FIRST, Check, Finding, State
from lading.log import printable

PASSED: Final = 0  # exit status without failures; warnings are allowed unless --strict
FAILED: Final = 1

_STYLES: Final = {State.FAILED: "bold red", State.WARNING: "yellow", State.SKIPPED: "dim", State.OK: "green"}
_INDENT: Final = 11  # indentation of the lines "why" and "mend" below a finding, in columns


def exit_status(findings: Sequence[Finding], *, strict: bool) -> int:
    bad = {State.FAILED, State.WARNING} if strict else {State.FAILED}
    return FAILED if any(finding.state in bad for finding in findings) else PASSED


def summary(findings: Sequence[Finding]) -> str:
    """Return the number of findings by state, the worst state first: `2 failed, 1 warning, 20 ok`."""
    counts = Counter(finding.state for finding in findings)
    said = (
        f"{counts[state]} {state}{'s' * (state is State.WARNING and counts[state] > 1)}"
        for state in WORST_FIRST
        if counts[state]
    )
    return ", ".join(said) or "no check was run"


def as_json(findings: Sequence[Finding], *, program: str, version: str) -> dict[str, Any]:
    counts = Counter(finding.state for finding in findings)
    return {
        "program": program,
        "version": version,
        "counts": {state.value: counts[state] for state in WORST_FIRST},
        "findings": [
            {"check": f.check, "group": f.group, "state": f.state.value, "what": f.what, "why": f.why, "mend": f.mend}
            for f in findings
        ],
    }


def print_json(findings: Sequence[Finding], *, program: str, version: str) -> None:
    print(json.dumps(as_json(findings, program=program, version=version), indent=2))


def print_text(findings: Sequence[Finding], console: Console) -> None:
    """Print the findings. Lines are not wrapped, so that a command can be copied."""
    worst = next((state for state in WORST_FIRST if any(f.state is state for f in findings)), State.OK)
    _print(console, Text(summary(findings), _STYLES[worst]))
    width = max((len(finding.check) for finding in findings), default=0)
    for group, members in groupby(findings, key=lambda finding: finding.group):
        _print(console, Text(f"\n{group}", "bold"))
        for finding in members:
            _print_finding(console, finding, width)


def print_list(checks: Sequence[Check[Any]], console: Console) -> None:
    width = max(len(check.name) for check in checks)
    for name, what in dict.fromkeys((check.name, check.what) for check in checks):
        _print(console, Text.assemble((f"{name:<{width}}", "bold"), f"  {what}"))


def _print_finding(console: Console, finding: Finding, width: int) -> None:
    shown = finding.state.upper() if finding.state is State.FAILED else finding.state.value
    head = (f"  {shown:<9}", _STYLES[finding.state])
    _print(console, Text.assemble(head, f"{finding.check:<{width}}  {printable(finding.what)}"))
    if finding.state in (State.FAILED, State.WARNING):
        _print(console, Text.assemble(" " * _INDENT, ("why   ", "dim"), finding.why))
    if finding.mend and finding.state is not State.OK:
        _print(console, Text.assemble(" " * _INDENT, ("mend  ", "dim"), printable(finding.mend)))


def _print(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True, highlight=False)
