"""Name the isolations, which keep a container within its share of a card. The names are in the annotation
`lading.dev/isolation`, in assignments, in grants and in NodeDevices.

Tests: tests/unit/central/search/test_isolation.py
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final


class IsolationName(StrEnum):
    """Name the isolations. A card has one isolation at a time."""

    NONE = "none"  # the program receives its share's amounts, and is trusted to keep to them
    TOKENS = "tokens"  # Lading's own library and share server
    MPS = "mps"  # Multi-Process Service
    MIG = "mig"  # an instance that is made for the pod
    HAMI_CORE = "hami-core"  # a library that the operator provides; limits memory only


UNKNOWN: Final = "unknown"  # central's name for all isolations of newer nodes, so that the names are bounded
_NAMES: Final = {isolation.value: isolation for isolation in IsolationName}


def isolation_names(names: Iterable[str]) -> tuple[IsolationName, ...]:
    """Return those of the names that this version knows, in their order."""
    return tuple(_NAMES[name] for name in names if name in _NAMES)


def isolation_word(name: str) -> str:
    """Return the name if this version knows it, `none` for an empty name, and `unknown` for others."""
    return name if name in _NAMES else UNKNOWN if name else IsolationName.NONE


MPS_CLIENTS: Final = 48  # maximum clients of one MPS server, from Volta on (Multi-Process Service, "Limitations")
_MOST_CONTAINERS: Final[Mapping[str, int]] = {
    IsolationName.TOKENS: 16,  # more containers would each wait too long for a turn
    IsolationName.MPS: MPS_CLIENTS,  # each container is at least one client
}


def most_containers(isolation: str, shares_per_gpu: int) -> int:
    """Return how many containers may share a card with this isolation, on a node that allows `shares_per_gpu`."""
    return min(shares_per_gpu, _MOST_CONTAINERS.get(isolation, shares_per_gpu))
