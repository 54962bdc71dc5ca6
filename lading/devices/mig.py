"""Positions for MIG instances on a card that Lading divides: where an instance of each profile can be made, and which of them
take the same memory.

An instance has another UUID each time it is made, and none before. So it is named by its position, which stays the same:
`MIG-<the card's UUID>/<profile>@<first memory slice>`.

Source: NVML API reference, nvmlDeviceGetGpuInstancePossiblePlacements; NVIDIA MIG user guide, "MIG Device Placement".
"""

from typing import NamedTuple

from lading.vocabulary import GpuUuid


class Span(NamedTuple):
    """Consecutive memory slices of a card, mostly eighths of it."""

    start: int
    size: int

    def overlaps(self, other: "Span") -> bool:
        return self.start < other.start + other.size and other.start < self.start + self.size


def position_name(card: GpuUuid, profile: str, start: int) -> str:
    return f"MIG-{card}/{profile}@{start}"
