"""Show findings to people and to programs.

Take findings. Return text for a terminal, or values for JSON. People get either all findings by group, the worst
verdict first in the summary (`lading-doctor`), or the problems only (`kubectl lading`). Control characters are escaped, because
a finding may quote a file, a process, or an object of the cluster.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from lading.checks.model import Finding, Verdict, worst
from lading.log import printable

STYLES: Final = {
    Verdict.OK: "green",
    Verdict.NOTE: "bright_black",
    Verdict.SKIPPED: "dim",
    Verdict.WARNING: "yellow",
    Verdict.UNKNOWN: "yellow",
    Verdict.FAILED: "bold red",
    Verdict.DEGRADED: "red",
}
_WORST_FIRST: Final = (Verdict.FAILED, Verdict.WARNING, Verdict.SKIPPED, Verdict.OK)
_INDENT: Final = " " * 11  # indentation of the lines "why" and "mend" below a finding


def summary(findings: Sequence[Finding]) -> str:
    """Return the number of findings by verdict, the worst first: `2 failed, 1 warning, 20 ok`."""
    counts = Counter(finding.verdict for finding in findings)
    shown = (f"{counts[one]} {one}{'s' * (one is Verdict.WARNING and counts[one] > 1)}" for one in _WORST_FIRST if counts[one])
    return ", ".join(shown) or "no check was run"


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return all findings, and their number by verdict."""
    counts = Counter(finding.verdict for finding in findings)
    return {
        "counts": {one.value: counts[one] for one in _WORST_FIRST},
        "findings": [
            {"check": f.check, "group": f.group, "state": f.verdict.value, "what": f.what, "why": f.why, "mend": f.mend}
            for f in findings
        ],
    }


def render_groups(findings: Sequence[Finding]) -> Iterator[Text]:
    """Yield the lines that show all findings by group. Print them without wrapping, so that a command can be copied."""
    yield Text(summary(findings), STYLES[worst(findings)])
    width = max((len(finding.check) for finding in findings), default=0)
    for group, members in groupby(findings, key=lambda finding: finding.group):
        yield Text(f"\n{group}", "bold")
        for one in members:
            shown = one.verdict.upper() if one.verdict is Verdict.FAILED else one.verdict.value
            yield Text.assemble((f"  {shown:<9}", STYLES[one.verdict]), f"{one.check:<{width}}  {printable(one.what)}")
            if one.verdict in (Verdict.FAILED, Verdict.WARNING):
                yield Text.assemble(_INDENT, ("why   ", "dim"), one.why)
            if one.mend and one.verdict is not Verdict.OK:
                yield Text.assemble(_INDENT, ("mend  ", "dim"), printable(one.mend))


def render_problems(findings: Sequence[Finding]) -> Table:
    """Return a grid of the findings. Text that is wider than the terminal continues on the next line."""
    grid = Table.grid(padding=(0, 1))
    for one in findings:
        grid.add_row()
        grid.add_row(Text(f"{one.verdict}:", STYLES[one.verdict]), Text(printable(f"{one.group}: {one.what}")))
        if one.why:
            grid.add_row("  why:", Text(printable(one.why)))
        if one.mend:
            grid.add_row("  do:", Text(printable(one.mend)))
    return grid
