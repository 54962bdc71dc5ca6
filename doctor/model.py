"""Define a check of `lading-doctor`, its verdicts and its findings.

A check reads one part of a node and returns verdicts: a description, a state, and a command that fixes the problem. The reason
why the part matters belongs to the check, and is the same for all its findings. docs/doctor.md has a row for each check.

Tests: tests/unit/doctor/test_run_checks.py
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

H = TypeVar("H")
T = TypeVar("T")


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"  # works now, but not permanently, or not for all pods
    FAILED = "failed"
    SKIPPED = "skipped"  # could not be checked, or there is nothing to check


WORST_FIRST: Final = (State.FAILED, State.WARNING, State.SKIPPED, State.OK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    state: State
    what: str  # description of the result
    mend: str = ""  # command or line of configuration that fixes the problem; empty: there is nothing to fix


def ok(what: str) -> Verdict:
    return Verdict(state=State.OK, what=what)


def warning(what: str, *, mend: str) -> Verdict:
    return Verdict(state=State.WARNING, what=what, mend=mend)


def failed(what: str, *, mend: str) -> Verdict:
    return Verdict(state=State.FAILED, what=what, mend=mend)


def skipped(what: str, *, mend: str = "") -> Verdict:
    return Verdict(state=State.SKIPPED, what=what, mend=mend)


Look = Callable[[H], Awaitable[Iterable[Verdict]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Generic[H]):
    """Define a check. `look` reads a node of type H. A LadingError that it raises is a failed finding, a PermissionError a
    skipped one."""

    name: str
    group: str
    what: str  # description of the checked part of the node
    why: str  # reason why that part matters
    look: Look[H]
    of: str = ""  # daemon that must be installed for this check; empty: none
    front_end: str = ""  # front end that the node must have for this check; empty: any


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str
    group: str
    state: State
    what: str
    why: str
    mend: str = ""


def then(read: Callable[[H], Awaitable[T]], decide: Callable[[T], Iterable[Verdict]]) -> Look[H]:
    """Return a `look` for a check: call `read`, then `decide` with its result."""

    async def look(host: H) -> Iterable[Verdict]:
        return decide(await read(host))

    return look
