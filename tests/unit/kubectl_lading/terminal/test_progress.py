"""Test the output of commands that take long: their progress, and the service that they wait for."""

import asyncio

import pytest

from kubectl_lading.terminal.progress import ON_A_PIPE_S, SILENT_S, Patience, Progress
from tests.fakes.simulated_time import run_simulated


def said(capsys: pytest.CaptureFixture[str], *, lasts_s: float, pods: int = 7) -> list[str]:
    async def story() -> None:
        with Progress("reading") as progress:
            if pods:
                progress.show_count("pods", pods)
            await asyncio.sleep(lasts_s)
        await asyncio.sleep(1000)

    run_simulated(story())
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_what_is_quick_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, lasts_s=ON_A_PIPE_S - 1) == []


def test_what_lasts_says_how_far_it_is_and_again_whenever_the_time_has_doubled(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, lasts_s=4 * ON_A_PIPE_S + 1) == ["reading: 7 pods"] * 3


def test_without_anything_to_count_nothing_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, lasts_s=100, pods=0) == []


SERVER = "https://10.0.0.1:6443"


async def lasting(patience: Patience, call: str, seconds: float) -> None:
    with patience.around(call):
        await asyncio.sleep(seconds)


def told(*calls: tuple[str, float]) -> list[str]:
    """Make calls that begin at the same time and last so long."""
    text: list[str] = []

    async def story() -> None:
        patience = Patience(SERVER, announce=text.append)
        await asyncio.gather(*(lasting(patience, call, seconds) for call, seconds in calls))
        await asyncio.sleep(100)  # nothing is waited for

    run_simulated(story())
    return text


def test_who_answers_is_not_spoken_of() -> None:
    assert told(("get /a", SILENT_S - 0.1), ("get /b", 0)) == []
    assert told(*((f"get /{n}", n * (SILENT_S - 0.1)) for n in range(9))) == []  # an answer now and then


def test_a_silence_is_reported_and_again_whenever_it_has_doubled() -> None:
    text = told(("get /a", 25.0), ("get /b", 25.0))
    assert len(text) == 4  # after 3, 6, 12 and 24 s
    assert all(SERVER in message and "get /a" in message for message in text)
    assert "12 s" in text[2]


def test_what_is_named_is_still_waited_for() -> None:
    (text,) = told(("get /a", 1.0), ("get /b", 1.0 + SILENT_S + 0.5))
    assert "/b" in text
    assert "/a" not in text


def test_a_call_that_fails_is_over() -> None:
    text: list[str] = []

    async def story() -> None:
        patience = Patience(SERVER, announce=text.append)
        with pytest.raises(OSError, match="broken"), patience.around("get /a"):
            raise OSError("broken")
        await asyncio.sleep(100)

    run_simulated(story())
    assert text == []
