"""Name the positions of MIG instances on a card that Lading divides, and find positions that take the same memory.

An instance gets another UUID each time it is made, and has none before. So an instance is named by its position, which stays
the same: `MIG-<the card's UUID>/<profile>@<first memory slice>`.

Source: NVML API reference, nvmlDeviceGetGpuInstancePossiblePlacements; NVIDIA MIG user guide, "MIG Device Placement".

Tests: tests/unit/hooks/mig/test_instances.py
"""

from typing import NamedTuple

from lading.vocabulary import GpuUuid


class MemorySpan(NamedTuple):
    """Represent consecutive memory slices of a card, which are mostly eighths of its memory."""

    start: int
    size: int

    def overlaps(self, other: "MemorySpan") -> bool:
        return self.start < other.start + other.size and other.start < self.start + self.size


def position_name(card: GpuUuid, profile: str, start: int) -> str:
    return f"MIG-{card}/{profile}@{start}"
