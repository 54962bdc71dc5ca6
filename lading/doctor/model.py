"""A check and what it finds, as values.

A check looks at one thing of a node and answers verdicts: what there is, how that is, and the command that mends it. Why it
matters is the check's own, and the same whatever was found. docs/doctor.md has a row for each.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

H = TypeVar("H")
T = TypeVar("T")


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works, and will not for ever, or not for everybody
    FAILED = "failed"
    SKIPPED = "skipped"  # could not be looked at, or there is nothing to look at


WORST_FIRST: Final = (State.FAILED, State.WARNING, State.SKIPPED, State.OK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    state: State
    what: str  # was found
    mend: str = ""  # a command or a line of configuration; empty where there is nothing to mend


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
    """`look` reads a node of type H. It may raise: LadingError is a failed finding, PermissionError a skipped one. `inside`
    says what the daemon itself can not reach of that: where it finds something, nothing is well."""

    name: str
    group: str
    what: str  # is looked at
    why: str  # it matters
    look: Look[H]
    inside: Look[H] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str
    group: str
    state: State
    what: str
    why: str
    mend: str = ""


def then(read: Callable[[H], Awaitable[T]], decide: Callable[[T], Iterable[Verdict]]) -> Look[H]:
    """A check as what is read and what is decided of it."""

    async def look(host: H) -> Iterable[Verdict]:
        return decide(await read(host))

    return look
