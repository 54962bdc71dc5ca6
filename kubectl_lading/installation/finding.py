"""What a check finds: a part, what is wrong with it, why that matters, the command that fixes it.

A check is a small pure function over the installation; a table names each. What could not be read is `unknown`, never
well, and a command that found something unknown and nothing worse cannot tell.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from kubectl_lading.installation.installed import Installation
from kubectl_lading.terminal.words import count, listed


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


class Check(NamedTuple):
    code: str
    part: Part
    decide: Callable[[Installation], Iterable[Said]]


def checks(part: Part, *decide: Callable[[Installation], Iterable[Said]]) -> tuple[Check, ...]:
    """Return a check for each function, with its name as code."""
    return tuple(Check(one.__name__.replace("_", "-"), part, one) for one in decide)


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    part: Part
    check: str  # its code
    level: Level
    what: str
    why: str = ""
    mend: str = ""


def find(checks: Iterable[Check], now: Installation) -> tuple[Finding, ...]:
    """Return the findings, the worst first, and within a level in the order of the table."""
    found = [
        Finding(part=check.part, check=check.code, level=said.level, what=said.what, why=said.why, mend=said.mend)
        for check in checks
        for said in check.decide(now)
    ]
    return tuple(sorted(found, key=lambda one: -_ORDER.index(one.level)))


def worst(levels: Iterable[Level]) -> Level:
    return max(levels, key=_ORDER.index, default=Level.OK)


def degraded(what: str, *, mend: str, why: str = "") -> Said:
    return Said(Level.DEGRADED, what, mend, why)


def note(what: str, *, mend: str = "", why: str = "") -> Said:
    return Said(Level.NOTE, what, mend, why)


def several(
    names: Sequence[str], one: str, many: str, what: str, *, mend: str = "", why: str = "", say: Callable[..., Said] = degraded
) -> list[Said]:
    """Return one finding about all of these; none about none. `{0}` in `mend` is the first of them."""
    if not names:
        return []
    return [say(f"{count(len(names), one, many)} {what}: {listed(names)}", mend=mend.format(*names), why=why)]


def unknown(what: str, why: str) -> Said:
    mend = "an administrator can bind you the rights of deploy/rbac/reader.yaml"
    return Said(Level.UNKNOWN, f"cannot read {what}", mend, why)
