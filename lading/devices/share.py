"""Add up shares: the amounts that the containers of a pod take of one card, and the amounts that are left. The node, which
grants shares, and central, which reads the node's grants, use the same arithmetic."""

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

FULL_CORE: Final = 100  # percent of a card's compute


class Amounts(NamedTuple):
    """Represent a part of one card."""

    memory_mib: int = 0
    core_percent: int = 0


class Share(Protocol):
    """Declare the part of a card that one container has."""

    @property
    def memory_mib(self) -> int | None: ...

    @property
    def core_percent(self) -> int | None: ...

    @property
    def pod_wide(self) -> bool:
        """Return whether equal shares of the pod's containers are one share, counted once."""

    @property
    def pod_memory_mib(self) -> int | None:
        """Return the MiB that the pod takes at one time, if its containers take turns; None: its containers' sum."""

    @property
    def pod_core_percent(self) -> int | None: ...


def taken_by_pod(shares: Iterable[tuple[str, Share]]) -> Amounts:
    """Return the amounts that one pod takes of a card at one time. `shares`: each container's name and share."""
    distinct = {
        (
            "" if share.pod_wide else container,
            share.memory_mib or 0,
            share.core_percent or 0,
            share.pod_memory_mib,
            share.pod_core_percent,
        )
        for container, share in shares
    }
    return Amounts(
        _add_up((memory, of_pod) for _, memory, _, of_pod, _ in distinct),
        _add_up((core, of_pod) for _, _, core, _, of_pod in distinct),
    )


def _add_up(amounts: Iterable[tuple[int, int | None]]) -> int:
    """Add up pairs (container's amount, its pod's amount). A pod's amount counts once: (5, None), (2, 3), (2, 3) is 8."""
    amounts = list(amounts)
    at_once = max((of_pod for _, of_pod in amounts if of_pod is not None), default=0)
    return at_once + sum(amount for amount, of_pod in amounts if of_pod is None)


def left_of_card(usable_mib: int, taken: Amounts) -> Amounts:
    """Return the free amounts of a card whose pods take `taken`; never below 0."""
    return Amounts(max(0, usable_mib - taken.memory_mib), max(0, FULL_CORE - taken.core_percent))
