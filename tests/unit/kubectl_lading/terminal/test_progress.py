"""How far it is: on a pipe a line now and then, once there is something to count."""

import asyncio

import pytest

from kubectl_lading.terminal.progress import ON_A_PIPE_S, Progress
from tests.fakes.simulated_time import run_simulated


def said(capsys: pytest.CaptureFixture[str], *, lasts_s: float, pods: int = 7) -> list[str]:
    async def story() -> None:
        with Progress("reading") as progress:
            if pods:
                progress.say("pods", pods)
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


def test_without_anything_to_count_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, lasts_s=100, pods=0) == []
