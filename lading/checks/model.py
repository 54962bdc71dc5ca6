"""Define a check, its verdicts and its findings, for `lading-doctor` and for `kubectl lading status` and `preflight`.

A check is a row of a table: it reads a part of its subject, and a pure function decides what the reading means. The subject is
a node, or an installation. A finding has a verdict, a description, the reason why that matters, and a command that fixes it.
`lading.checks.run` reads and decides, `lading.checks.show` shows.

Tests: tests/unit/lading/checks/test_run.py
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

import msgspec

S = TypeVar("S")


class Verdict(StrEnum):
    """Rate a finding, in order of rising severity. The doctor uses skipped, warning and failed; kubectl note, unknown and
    degraded."""

    OK = "ok"
    NOTE = "note"  # informative; no action is needed
    SKIPPED = "skipped"  # could not be checked, or there is nothing to check
    WARNING = "warning"  # works now, but not permanently, or not for all pods
    UNKNOWN = "unknown"  # could not be read
    FAILED = "failed"
    DEGRADED = "degraded"


_ORDER: Final = tuple(Verdict)


class Finding(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"group": "part", "verdict": "level"}
):  # kubectl's keys in JSON
    """Hold a finding. `decide` leaves out `check` and `group`: they are those of its check."""

    group: str = ""
    check: str = ""  # name of the check
    verdict: Verdict
    what: str  # description of the result
    why: str = ""  # reason why it matters
    mend: str = ""  # command or instruction that fixes the problem; empty: there is nothing to fix


async def read_itself(subject: S) -> S:
    """Return the subject: for a check of a subject that was read as a whole."""
    return subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Generic[S]):
    """Define a check of a subject of type S. A LadingError of `read` is a failed finding, a PermissionError a skipped one."""

    name: str
    group: str
    read: Callable[[S], Awaitable[Any]] = read_itself
    decide: Callable[[Any], Iterable[Finding]]
    what: str = ""  # description of the checked part
    why: str = ""  # reason why that part matters, for findings without a reason of their own

    def complete(self, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        """Return the findings with the name, group and reason of this check."""
        return tuple(
            msgspec.structs.replace(one, check=self.name, group=self.group, why=one.why or self.why) for one in findings
        )


def worst(findings: Iterable[Finding]) -> Verdict:
    return max((one.verdict for one in findings), key=_ORDER.index, default=Verdict.OK)


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings by severity, and within a verdict in the order of the checks."""
    return tuple(sorted(findings, key=lambda one: -_ORDER.index(one.verdict)))


def ok(what: str) -> Finding:
    return Finding(verdict=Verdict.OK, what=what)


def note(what: str, *, mend: str = "", reason: str = "") -> Finding:
    return Finding(verdict=Verdict.NOTE, what=what, mend=mend, why=reason)


def skipped(what: str, *, mend: str = "") -> Finding:
    return Finding(verdict=Verdict.SKIPPED, what=what, mend=mend)


def warning(what: str, *, mend: str) -> Finding:
    return Finding(verdict=Verdict.WARNING, what=what, mend=mend)


def unknown(what: str, *, mend: str = "", reason: str = "") -> Finding:
    return Finding(verdict=Verdict.UNKNOWN, what=what, mend=mend, why=reason)


def failed(what: str, *, mend: str) -> Finding:
    return Finding(verdict=Verdict.FAILED, what=what, mend=mend)


def degraded(what: str, *, mend: str, reason: str = "") -> Finding:
    return Finding(verdict=Verdict.DEGRADED, what=what, mend=mend, why=reason)
