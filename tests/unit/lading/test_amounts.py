"""Test amounts as their authors wrote them, and sums as the page rounds them."""

import pytest

from lading.amounts import divide, format_gib, format_mib


@pytest.mark.parametrize(("mib", "said"), [(200 * 1024, "200Gi"), (8138, "8138Mi"), (512, "512Mi"), (0, "0Gi")])
def test_what_was_asked_for_is_exact(mib: int, said: str) -> None:
    assert format_mib(mib) == said


@pytest.mark.parametrize(("mib", "said"), [(256, "0.3Gi"), (768, "0.8Gi"), (100 * 1024 - 1, "100Gi"), (648_064, "633Gi")])
def test_a_sum_is_rounded_half_up(mib: int, said: str) -> None:
    assert format_gib(mib) == said


def test_half_goes_up() -> None:
    assert [divide(number, 2) for number in (1, 3, 5)] == [1, 2, 3]
