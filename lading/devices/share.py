"""The arithmetic of shares: what the containers of a pod take of one card, and what is left of it. The node, which grants them,
and central, which reads the node's grants, use the same."""

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

FULL_CORE: Final = 100  # percent of a card's compute


class Amounts(NamedTuple):
    """A part of one card."""

    memory_mib: int = 0
    core_percent: int = 0


class Share(Protocol):
    """The part of a card that one container has."""

    @property
    def memory_mib(self) -> int | None: ...

    @property
    def core_percent(self) -> int | None: ...

    @property
    def pod_wide(self) -> bool:
        """Return whether an equal share of another container of the pod is this one, counted once."""
        ...

    @property
    def pod_memory_mib(self) -> int | None:
        """Return what the whole pod takes at one time, where its containers take turns; None: its containers' sum."""
        ...

    @property
    def pod_core_percent(self) -> int | None: ...


def taken_by_pod(shares: Iterable[tuple[str, Share]]) -> Amounts:
    """Return what the containers of one pod take of a card at one time. `shares`: containers, by name, with what each has."""
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
    """Add up pairs of a container's amount and of what its pod takes at one time, which counts once instead."""
    amounts = list(amounts)
    at_once = max((of_pod for _, of_pod in amounts if of_pod is not None), default=0)
    return at_once + sum(amount for amount, of_pod in amounts if of_pod is None)


def left_of_card(usable_mib: int, taken: Amounts) -> Amounts:
    """Return what is free of a card whose pods take that much; never less than nothing."""
    return Amounts(max(0, usable_mib - taken.memory_mib), max(0, FULL_CORE - taken.core_percent))
