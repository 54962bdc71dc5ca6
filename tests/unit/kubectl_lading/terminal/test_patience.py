"""What is waited for is said after a silence, and not where answers come."""

import asyncio

import pytest

from kubectl_lading.terminal.progress import SILENT_S, Patience
from tests.fakes.simulated_time import run_simulated

SERVER = "https://10.0.0.1:6443"


async def lasting(patience: Patience, call: str, seconds: float) -> None:
    with patience.around(call):
        await asyncio.sleep(seconds)


def told(*calls: tuple[str, float]) -> list[str]:
    """By calls that begin at the same time and last so long."""
    said: list[str] = []

    async def story() -> None:
        patience = Patience(SERVER, tell=said.append)
        await asyncio.gather(*(lasting(patience, call, seconds) for call, seconds in calls))
        await asyncio.sleep(100)  # nothing is waited for

    run_simulated(story())
    return said


def test_who_answers_is_not_spoken_of() -> None:
    assert told(("get /a", SILENT_S - 0.1), ("get /b", 0)) == []
    assert told(*((f"get /{n}", n * (SILENT_S - 0.1)) for n in range(9))) == []  # an answer now and then


def test_a_silence_is_told_and_again_whenever_it_has_doubled() -> None:
    said = told(("get /a", 25.0), ("get /b", 25.0))
    assert len(said) == 4  # after 3, 6, 12 and 24 s
    assert all(SERVER in words and "get /a" in words for words in said)
    assert "12 s" in said[2]


def test_what_is_named_is_still_waited_for() -> None:
    (words,) = told(("get /a", 1.0), ("get /b", 1.0 + SILENT_S + 0.5))
    assert "/b" in words
    assert "/a" not in words


def test_a_call_that_fails_is_over() -> None:
    said: list[str] = []

    async def story() -> None:
        patience = Patience(SERVER, tell=said.append)
        with pytest.raises(OSError, match="broken"), patience.around("get /a"):
            raise OSError("broken")
        await asyncio.sleep(100)

    run_simulated(story())
    assert said == []
