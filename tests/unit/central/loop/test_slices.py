"""Test long work in slices: when other tasks run, and for how long."""

import asyncio
from collections.abc import Generator

import pytest

from central.loop.slices import Slices, result_in_slices


class Loop:
    """Represent a clock, and other tasks that run for so long at each of their turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, others_s: float) -> None:
        self.now = 0.0
        self.turns: list[float] = []  # for how long it was slept
        self._others_s = others_s
        monkeypatch.setattr("central.loop.slices.asyncio.sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.turns.append(seconds)
        self.now += max(seconds, self._others_s)

    def work(self, **options: float) -> list[float]:
        """Work in three steps of 2 s, each as long as a slice."""

        async def steps() -> None:
            slices = Slices(lambda: self.now, slice_s=2.0, **options)
            for _ in range(3):
                self.now += 2.0
                await slices.pause()

        asyncio.run(steps())
        return self.turns


def test_others_have_a_rest_after_each_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Loop(monkeypatch, others_s=0.0).work(rest_s=5.0) == [5.0, 5.0, 5.0]


def test_for_no_one_there_is_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Loop(monkeypatch, others_s=0.0625).work(rest_s=5.0, quiet_s=0.1) == [0, 0, 0]


def test_for_who_is_at_work_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Loop(monkeypatch, others_s=0.5).work(rest_s=5.0, quiet_s=0.1) == [0, 5.0, 0, 5.0, 0, 5.0]


async def test_no_one_has_a_turn_within_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, others_s=0.0)
    slices = Slices(lambda: loop.now, slice_s=10.0)
    for _ in range(4):
        loop.now += 2.0
        await slices.pause()
    assert loop.turns == []


def test_the_result_of_steps_is_returned_after_pauses_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch, others_s=0.0)

    def steps() -> Generator[None, None, str]:
        for _ in range(3):
            loop.now += 1.0
            yield
        return "found"

    assert asyncio.run(result_in_slices(steps(), lambda: loop.now)) == "found"
    assert loop.turns == [0.0, 0.0, 0.0]
