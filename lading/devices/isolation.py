"""What keeps a container within its share of a card. The names are in the annotation `lading.dev/isolation`, in assignments,
in grants and in NodeDevices."""

from enum import StrEnum


class IsolationName(StrEnum):
    """Name the backends. One card has one of them at a time."""

    NONE = "none"  # the program is told its share, and is trusted to keep to it
    TOKENS = "tokens"  # Lading's own library and share server
    MPS = "mps"  # NVIDIA's Multi-Process Service
    MIG = "mig"  # an instance that is made for the pod
    HAMI_CORE = "hami-core"  # a library that the operator provides: memory alone
