"""Run checks: all at the same time, each with a deadline, each independent of the others.

Take checks, and the node that they read. Return their findings, in the order of the checks. A check that exceeds its deadline
has failed, because an administrator must learn of a driver or runtime that hangs. On a slow node, deadlines are longer
(lading.slowness). A check without permission to read its input is skipped, and its finding says so. An internal error in one
check is a failed finding, and the other checks continue.
"""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from doctor.model import Check, Finding, Verdict, failed, skipped
from doctor.reading import ElsewhereError
from lading.errors import LadingError
from lading.slowness import describe_slowness, is_slow

H = TypeVar("H")


async def run_checks(checks: Sequence[Check[H]], host: H, *, deadline_s: float, slowness: float = 1.0) -> tuple[Finding, ...]:
    """Run the checks, each for at most `deadline_s` seconds. Messages mention the node's `slowness`, a factor."""
    found = await asyncio.gather(*(_look_at(check, host, deadline_s, slowness) for check in checks))
    findings = (
        Finding(check=check.name, group=check.group, state=v.state, what=v.what, why=check.why, mend=v.mend)
        for check, verdicts in zip(checks, found, strict=True)
        for v in verdicts
    )
    return tuple(dict.fromkeys(findings))  # both daemons may have equal findings, such as about the runtime


async def _look_at(check: Check[H], host: H, deadline_s: float, slowness: float) -> Sequence[Verdict]:
    try:
        async with asyncio.timeout(deadline_s):
            return tuple(await check.look(host))
    except TimeoutError:
        return (
            failed(
                f"no answer within {deadline_s:.3g} s{describe_slowness(slowness)}",
                mend="find what hangs: dmesg | tail; ps -eo pid,stat,wchan,args | grep ' D'"
                + ("; or find what makes the node slow (top), or wait longer: --deadline 300" if is_slow(slowness) else ""),
            ),
        )
    except ElsewhereError as e:
        return (skipped(f"what it needs could not be read: see `{e}`"),)
    except (LadingError, OSError) as e:
        if denied := _denied(e):
            return (skipped(f"not allowed: {denied}", mend="run this as root"),)
        message, hint = (e.message, e.hint) if isinstance(e, LadingError) else (_in_words(e), "")
        return (failed(message, mend=hint or f"docs/doctor.md, {check.name}"),)
    except Exception as e:  # noqa: BLE001  a bug in one check must not stop the others
        return (failed(f"the check failed: {type(e).__name__}: {e}", mend="report this as a bug"),)


def _denied(error: BaseException | None) -> str:
    """Return a text about the PermissionError that caused this error; empty if none did."""
    while error is not None:
        if isinstance(error, PermissionError):
            return _in_words(error)
        error = error.__cause__
    return ""


def _in_words(error: OSError) -> str:
    return f"cannot read {error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
