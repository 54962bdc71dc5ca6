from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from central.request.quantity import parse_quantity


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        *(("0", 0), ("0Mi", 0), ("1", 1), ("+1", 1), ("-1", -1), ("007", 7), ("5n", Fraction(5, 10**9))),
        *(("4u", Fraction(4, 10**6)), ("1500m", Fraction(3, 2)), ("8k", 8000), ("7M", 7 * 10**6), ("8G", 8 * 10**9)),
        *(("5T", 5 * 10**12), ("2P", 2 * 10**15), ("1E", 10**18), ("1Ki", 2**10), ("7Mi", 7 * 2**20), ("8Gi", 2**33)),
        *(("5Ti", 5 * 2**40), ("4Pi", 2**52), ("3Ei", 3 * 2**60), ("1e3", 1000), ("1E3", 1000), ("1.3E+6", 1300000)),
        *(("1E-3", Fraction(1, 1000)), ("0.5e-1", Fraction(1, 20)), ("1.", 1), ("1.G", 10**9)),
        (".001", Fraction(1, 1000)),
        ("100.035Ki", Fraction(100035 * 1024, 1000)),
        ("0.05Gi", Fraction(2**30, 20)),
        ("9007199254740993", 2**53 + 1),  # no double
        ("0.1", Fraction(1, 10)),
        (1, 1),
        (0, 0),
        (-3, -3),
    ],
)
def test_quantities(text: str | int, amount: int | Fraction) -> None:
    assert parse_quantity(text) == amount


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ".", "+", "-", "Gi", "1 Gi", " 1", "1\n", "--1", "1.2.3", "1,5", "0x10", "1_000", "NaN", "inf", "\u0661"),
        *("1gi", "1K", "1ki", "1GB", "1Gib", "1mi", "1e", "1e1.5", "1e+", "1Ee3", "1e999999999", "1e-999999999", "9" * 65),
    ],
)
def test_a_malformed_quantity_is_none(text: str) -> None:
    assert parse_quantity(text) is None


@given(st.decimals(allow_nan=False, allow_infinity=False, places=9, min_value=-(10**18), max_value=10**18))
def test_decimals_are_exact(number: Decimal) -> None:
    assert parse_quantity(f"{number:f}") == Fraction(number)


@given(st.text(max_size=70))
def test_any_text_is_a_quantity_or_not(text: str) -> None:
    assert isinstance(parse_quantity(text), Fraction | None)
