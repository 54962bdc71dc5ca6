"""What a check finds: a part, what is wrong with it, why that matters, the command that fixes it.

A check is a small pure function over a value that was read once; a table names each. What could not be read is `unknown`, never
well, and a command that found something unknown and nothing worse cannot tell.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

V = TypeVar("V")
V_contra = TypeVar("V_contra", contravariant=True)

_NAMED: Final = 5  # of a list; a screen is to hold all findings


class Part(StrEnum):
    """A part of an installation, in order of dependency; before an upgrade also its versions as a whole."""

    VERSIONS = "versions"
    API_SERVER = "API server"
    RESOURCE = "NodeDevices"
    ADMISSION = "admission"
    CENTRAL = "central"
    SCHEDULER = "scheduler"
    NODES = "nodes"
    PODS = "pods"


class Level(StrEnum):
    """A severity, in rising order."""

    OK = "ok"
    NOTE = "note"  # informative; no action is needed
    UNKNOWN = "unknown"  # could not be read
    DEGRADED = "degraded"


_ORDER: Final = tuple(Level)


class Said(NamedTuple):
    """The result of one check. A check that finds nothing yields nothing."""

    level: Level
    what: str
    mend: str = ""  # a command, or what to do
    why: str = ""  # it matters


class Check(NamedTuple, Generic[V]):
    code: str
    part: Part
    decide: Callable[[V], Iterator[Said]]


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    part: Part
    check: str  # its code
    level: Level
    what: str
    why: str = ""
    mend: str = ""


def find(checks: Iterable[Check[V]], value: V) -> tuple[Finding, ...]:
    """Return the findings, the worst first, and within a level in the order of the table."""
    found = [
        Finding(part=check.part, check=check.code, level=said.level, what=said.what, why=said.why, mend=said.mend)
        for check in checks
        for said in check.decide(value)
    ]
    return tuple(sorted(found, key=lambda one: -_ORDER.index(one.level)))


def worst(levels: Iterable[Level]) -> Level:
    return max(levels, key=_ORDER.index, default=Level.OK)


def degraded(what: str, *, mend: str, why: str = "") -> Said:
    return Said(Level.DEGRADED, what, mend, why)


def note(what: str, *, mend: str = "", why: str = "") -> Said:
    return Said(Level.NOTE, what, mend, why)


def unknown(what: str, why: str) -> Said:
    return Said(
        Level.UNKNOWN,
        f"cannot read {what}",
        "an administrator can bind you the rights of deploy/rbac/reader.yaml",
        why,
    )


def listed(names: Sequence[str]) -> str:
    """Return the first few of them as text, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def counted(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"
