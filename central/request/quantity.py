"""Parse Kubernetes quantities exactly: a text such as `8Gi`, `1500m` or `1.5e9` to a fraction, or None if it is not a quantity.

    quantity ::= [+-] number suffix          number ::= digits | digits "." [digits] | "." digits
    suffix   ::= "Ki" … "Ei" | "n" | "u" | "m" | "" | "k" | "M" | "G" | "T" | "P" | "E" | ("e" | "E") [+-] digits

No float is used. Amounts below a nano are not rounded up, and binary amounts are not limited to the largest int64. The API
server applies these two rules of the original before any client reads the value. A number without a digit is refused, although
"." is 0 in the original. A number above 64 characters, or above 3 digits of exponent (`1e999999999`), is refused too, because
it would only take time.

Source: k8s.io/apimachinery, pkg/api/resource/quantity.go.
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

_LONGEST: Final = 64  # maximum characters; the largest quantities of a real cluster have about 20
_SYNTAX: Final = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,3})|([KMGTPE]i|[numkMGTPE]?))")
_SCALE: Final = {
    **{suffix: Fraction(10) ** power for suffix, power in zip(("n", "u", "m", ""), (-9, -6, -3, 0), strict=True)},
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", 1)},
    **{suffix + "i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", 1)},
}


@lru_cache(maxsize=4096)  # 100,000 pods have some dozen different amounts
def parse_quantity(value: str | int) -> Fraction | None:
    """Return the quantity as a fraction; None if it is invalid. An int is YAML's `1` without quotes."""
    if isinstance(value, int):
        return Fraction(value)
    match = _SYNTAX.fullmatch(value) if len(value) <= _LONGEST else None
    if match is None:
        return None
    sign, whole, decimals, exponent, suffix = match.groups()
    digits = whole + (decimals or "")
    if not digits:
        return None
    scale = _SCALE[suffix] if exponent is None else Fraction(10) ** int(exponent)
    number = Fraction(int(digits), 10 ** len(decimals or "")) * scale
    return -number if sign == "-" else number
