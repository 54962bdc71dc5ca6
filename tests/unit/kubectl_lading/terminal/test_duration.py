"""Durations as kubectl has them."""

import click
import pytest

from kubectl_lading.flags import Duration


@pytest.mark.parametrize(("text", "seconds"), [("5m", 300), ("90", 90), ("90s", 90), ("1h30m", 5400), ("0s", 0)])
def test_durations(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "5 m", "-1s", "m", "1d"])
def test_no_durations(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Duration().convert(text, None, None)


def test_what_is_too_short() -> None:
    least = Duration(least=1)
    assert least.convert("1s", None, None) == 1
    with pytest.raises(click.BadParameter):
        least.convert("0", None, None)
