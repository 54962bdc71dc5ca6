"""The values of the doctor: a check and its findings.

A check reads one thing of a node and returns verdicts: what was found, how it is judged, and the command that fixes it. Why it
matters belongs to the check, and is the same for all findings. docs/doctor.md has a row for each.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

H = TypeVar("H")
T = TypeVar("T")


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works, but not permanently, or not for all
    FAILED = "failed"
    SKIPPED = "skipped"  # could not be checked, or there is nothing to check


WORST_FIRST: Final = (State.FAILED, State.WARNING, State.SKIPPED, State.OK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    state: State
    what: str  # was found
    mend: str = ""  # a command or a line of configuration; empty where there is nothing to fix


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
    """A check. `look` reads a node of type H. It may raise: LadingError is a failed finding, PermissionError a skipped one."""

    name: str
    group: str
    what: str  # is looked at
    why: str  # it matters
    look: Look[H]
    of: str = ""  # the daemon that has to be installed; empty: any
    front_end: str = ""  # that the node has to have; empty: any


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str
    group: str
    state: State
    what: str
    why: str
    mend: str = ""


def then(read: Callable[[H], Awaitable[T]], decide: Callable[[T], Iterable[Verdict]]) -> Look[H]:
    """Combine reading and deciding into a look."""

    async def look(host: H) -> Iterable[Verdict]:
        return decide(await read(host))

    return look
