"""Checks carried out: what becomes of one that fails, hangs, or may not read what it needs."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import pytest

from doctor.model import Check, Finding, State, Verdict, ok
from doctor.reading import ElsewhereError, Readings, said_by
from doctor.run_checks import run_checks
from lading.errors import ConfigError, HostError

Look = Callable[[None], Awaitable[Iterable[Verdict]]]


def check(name: str, looks: Look) -> Check[None]:
    return Check(name=name, group="g", what="what", why="why", look=looks)


def raising(error: BaseException) -> Look:
    async def looks(_: None) -> Iterable[Verdict]:
        raise error

    return looks


async def well(_: None) -> Iterable[Verdict]:
    return [ok("fine")]


async def hangs(_: None) -> Iterable[Verdict]:
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
        (HostError("cannot read x: gone", hint="look there"), State.FAILED, "look there"),
        (OSError(5, "Input/output error"), State.FAILED, "docs/doctor.md, one"),
        (PermissionError(13, "Permission denied"), State.SKIPPED, "run this as root"),
        (denied(), State.SKIPPED, "run this as root"),
        (ElsewhereError("runtime"), State.SKIPPED, ""),
        (ZeroDivisionError(), State.FAILED, "report this as a bug"),
    ],
)
def test_what_a_check_raises(error: Exception, state: State, mend: str) -> None:
    (finding,) = found(check("one", raising(error)))
    assert (finding.state, finding.mend) == (state, mend)


def test_one_that_hangs_has_failed_and_holds_no_one_up() -> None:
    hung, fine = found(check("hangs", hangs), check("well", well))
    assert (hung.check, hung.state) == ("hangs", State.FAILED)
    assert fine == Finding(check="well", group="g", state=State.OK, what="fine", why="why")


def test_a_slow_node_is_told_from_one_on_which_something_hangs() -> None:
    (hung,) = asyncio.run(run_checks([check("hangs", hangs)], None, deadline_s=0.05, slowness=4.2))
    assert hung.state is State.FAILED
    assert "4.2 times" in hung.what
    assert "--deadline" in hung.mend


def test_a_reading_is_made_once_also_where_the_first_who_asked_gave_up() -> None:
    made = []

    async def scenario() -> None:
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

    asyncio.run(scenario())
    assert made == [1]


@pytest.mark.parametrize("error", [HostError("x"), PermissionError(13, "Permission denied"), IsADirectoryError(21, "no file")])
def test_a_failure_is_said_by_one_check(error: Exception) -> None:
    async def broken() -> int:
        raise error

    with pytest.raises(ElsewhereError, match="runtime"):
        asyncio.run(said_by("runtime", broken()))
