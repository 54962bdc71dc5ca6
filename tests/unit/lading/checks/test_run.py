"""Test running checks: the finding of a check that fails, hangs, or may not read what it needs."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import pytest

from lading.checks.model import Check, Finding, Verdict, note, ok, worst, worst_first
from lading.checks.run import ElsewhereError, Readings, decide_all, read_shared, run_checks
from lading.errors import ConfigError, HostError

Read = Callable[[None], Awaitable[Iterable[Finding]]]


def check(name: str, read: Read) -> Check[None]:
    return Check(name=name, group="g", what="what", why="why", read=read, decide=tuple)


def raising(error: BaseException) -> Read:
    async def read(_: None) -> Iterable[Finding]:
        raise error

    return read


async def well(_: None) -> Iterable[Finding]:
    return [ok("fine")]


async def hangs(_: None) -> Iterable[Finding]:
    await asyncio.Event().wait()
    raise AssertionError


def found(*checks: Check[None]) -> tuple[Finding, ...]:
    return asyncio.run(run_checks(checks, None, deadline_s=0.05))


def denied() -> ConfigError:
    error = ConfigError("cannot read x")
    error.__cause__ = PermissionError(13, "denied", "x")
    return error


@pytest.mark.parametrize(
    ("error", "state", "mend"),
    [
        (HostError("cannot read x: gone", hint="look there"), Verdict.FAILED, "look there"),
        (OSError(5, "Input/output error"), Verdict.FAILED, "docs/doctor.md, one"),
        (PermissionError(13, "Permission denied"), Verdict.SKIPPED, "run this as root"),
        (denied(), Verdict.SKIPPED, "run this as root"),
        (ElsewhereError("runtime"), Verdict.SKIPPED, ""),
        (ZeroDivisionError(), Verdict.FAILED, "report this as a bug"),
    ],
)
def test_what_a_check_raises(error: Exception, state: Verdict, mend: str) -> None:
    (finding,) = found(check("one", raising(error)))
    assert (finding.verdict, finding.mend) == (state, mend)


def test_a_bug_of_a_decision_is_a_finding_that_names_its_check() -> None:
    def divide(_: None) -> list[Finding]:
        raise ZeroDivisionError

    (finding,) = found(Check(name="one", group="g", decide=divide))
    assert (finding.check, finding.verdict, finding.mend) == ("one", Verdict.FAILED, "report this as a bug")


def test_a_subject_that_was_read_as_a_whole() -> None:
    def decide(text: str) -> list[Finding]:
        return [ok(text), note(text, reason="its own")]

    checks: list[Check[str]] = [Check(name="one", group="g", why="of the check", decide=decide)]
    one, other = decide_all(checks, "fine")
    assert one == Finding(check="one", group="g", verdict=Verdict.OK, what="fine", why="of the check")
    assert (other.verdict, other.why) == (Verdict.NOTE, "its own")
    assert worst([one, other]) is Verdict.NOTE
    assert worst_first([one, other]) == (other, one)


def test_one_that_hangs_has_failed_and_holds_no_one_up() -> None:
    hung, fine = found(check("hangs", hangs), check("well", well))
    assert (hung.check, hung.verdict) == ("hangs", Verdict.FAILED)
    assert fine == Finding(check="well", group="g", verdict=Verdict.OK, what="fine", why="why")


async def test_a_slow_node_is_reported_from_one_on_which_something_hangs() -> None:
    (hung,) = await run_checks([check("hangs", hangs)], None, deadline_s=0.05, slowness=4.2)
    assert hung.verdict is Verdict.FAILED
    assert "4.2 times" in hung.what
    assert "--deadline" in hung.mend


async def test_a_reading_is_made_once_also_where_the_first_who_asked_gave_up() -> None:
    made = []
    readings, there = Readings(), asyncio.Event()

    async def read() -> int:
        made.append(1)
        await there.wait()
        return 7

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(readings.once("x", read), 0)
    later = asyncio.create_task(readings.once("x", read))
    there.set()
    assert await later == 7
    assert made == [1]


@pytest.mark.parametrize("error", [HostError("x"), PermissionError(13, "Permission denied"), IsADirectoryError(21, "no file")])
async def test_a_failure_is_reported_by_one_check(error: Exception) -> None:
    async def broken() -> int:
        raise error

    with pytest.raises(ElsewhereError, match="runtime"):
        await read_shared("runtime", broken())
