"""Run checks: all at the same time, each with a deadline, each independent of the others.

Take checks and their subject. Return the findings, in the order of the checks. A check that exceeds its deadline has failed,
because an administrator must learn of a driver or runtime that hangs. On a slow node, deadlines are longer (lading.slowness). A
check without permission to read its input is skipped, and its finding says so. An internal error in one check is a failed
finding, and the other checks continue. `decide_all` is for checks of a subject that was read as a whole. A reading that checks
share is made once, and only one check reports its failure.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from lading.checks.model import Check, Finding, failed, skipped
from lading.errors import LadingError
from lading.slowness import describe_slowness, is_slow

S = TypeVar("S")
T = TypeVar("T")


def decide_all(checks: Iterable[Check[S]], subject: S) -> tuple[Finding, ...]:
    """Return the findings of checks that need no reading but their subject. Pure."""
    return tuple(finding for check in checks for finding in check.complete(check.decide(subject)))


async def run_checks(
    checks: Sequence[Check[S]], subject: S, *, deadline_s: float, slowness: float = 1.0
) -> tuple[Finding, ...]:
    """Run the checks, each for at most `deadline_s` seconds. Messages mention the node's `slowness`, a factor."""
    result = await asyncio.gather(*(_run(check, subject, deadline_s, slowness) for check in checks))
    return tuple(dict.fromkeys(finding for findings in result for finding in findings))  # two daemons may have equal findings


async def _run(check: Check[S], subject: S, deadline_s: float, slowness: float) -> tuple[Finding, ...]:
    try:
        async with asyncio.timeout(deadline_s):
            reading = await check.read(subject)
        return check.complete(check.decide(reading))
    except TimeoutError:
        return check.complete([_describe_timeout(deadline_s, slowness)])
    except Exception as e:  # noqa: BLE001  a bug in one check must not stop the others
        return check.complete([_describe_error(check.name, e)])


def _describe_timeout(deadline_s: float, slowness: float) -> Finding:
    mend = "find what hangs: dmesg | tail; ps -eo pid,stat,wchan,args | grep ' D'"
    slow = "; or find what makes the node slow (top), or wait longer: --deadline 300" if is_slow(slowness) else ""
    return failed(f"no answer within {deadline_s:.3g} s{describe_slowness(slowness)}", mend=mend + slow)


def _describe_error(check: str, error: Exception) -> Finding:
    if isinstance(error, ElsewhereError):
        return skipped(f"what it needs could not be read: see `{error}`")
    if not isinstance(error, (LadingError, OSError)):
        return failed(f"the check failed: {type(error).__name__}: {error}", mend="report this as a bug")
    if denied := _denied(error):
        return skipped(f"not allowed: {denied}", mend="run this as root")
    message, hint = (error.message, error.hint) if isinstance(error, LadingError) else (_as_text(error), "")
    return failed(message, mend=hint or f"docs/doctor.md, {check}")


def _denied(error: BaseException | None) -> str:
    """Return a text about the PermissionError that caused this error; empty if none did."""
    while error is not None:
        if isinstance(error, PermissionError):
            return _as_text(error)
        error = error.__cause__
    return ""


def _as_text(error: OSError) -> str:
    return f"cannot read {error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)


class ElsewhereError(Exception):
    """Report that an input of a check could not be read. The argument names the check that reports why."""


class Readings:
    """Hold the readings of one subject. Create and use an object on one event loop only."""

    def __init__(self) -> None:
        self._begun: dict[str, asyncio.Task[Any]] = {}

    async def once(self, name: str, read: Callable[[], Awaitable[T]]) -> T:
        """Make the reading `name` once, and return its result to every caller. The reading continues after a timeout of the
        first caller, because the others may have more time left."""
        if name not in self._begun:
            self._begun[name] = asyncio.ensure_future(read())
        result: T = await asyncio.shield(self._begun[name])
        return result


async def read_shared(check: str, reading: Awaitable[T]) -> T:
    """Return a reading that several checks need. If it fails, raise ElsewhereError: only `check` reports the cause."""
    try:
        return await reading
    except (LadingError, OSError) as e:
        raise ElsewhereError(check) from e
