"""Format amounts for people, rounded by one rule: half is rounded up, as the page's JavaScript rounds."""

from collections.abc import Sequence


def first_few(names: Sequence[str], most: int, *, between: str = ", ", rest: str = " and {} more") -> str:
    """Return the first `most` names as text, with the number of the others: `a, b and 3 more`."""
    more = len(names) - most
    return between.join(names[:most]) + (rest.format(more) if more > 0 else "")


def format_mib(mib: int) -> str:
    """Format an amount exactly, as a pod's author does: 200Gi, or 8138Mi if it is not a whole number of Gi."""
    gib, rest = divmod(mib, 1024)
    return f"{mib}Mi" if rest else f"{gib}Gi"


def format_gib(mib: int) -> str:
    """Format a sum, rounded: 79.1Gi, and without a decimal from 100 on: 633Gi."""
    tenths = divide(10 * mib, 1024)
    return f"{tenths / 10:.1f}".removesuffix(".0") + "Gi" if mib < 100 * 1024 else f"{divide(mib, 1024)}Gi"


def divide(number: int, by: int) -> int:
    """Divide, and round to the nearest whole number."""
    return (2 * number + by) // (2 * by)
