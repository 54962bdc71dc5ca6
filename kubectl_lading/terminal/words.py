"""Counts, lists and distances as text. Pure."""

from collections.abc import Sequence
from typing import Final

from central.fit.topology import Distance

_NAMED: Final = 5  # of a list; a screen is to hold all findings
DISTANCES: Final = {  # as in docs/reference.md
    Distance.SWITCH: "same switch",
    Distance.SWITCHES: "several switches below one root port",
    Distance.BRIDGE: "same host bridge",
    Distance.NUMA: "same NUMA node",
    Distance.SOCKET: "same socket",
    Distance.CROSS: "across",
}


def count(number: int, one: str, many: str = "") -> str:
    """Write a count: 1 GPU, 2 GPUs. `many`: the plural, where it is not made by an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def listed(names: Sequence[str], most: int = _NAMED) -> str:
    """Return the first few of them as text, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
