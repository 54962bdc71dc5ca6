"""Decide by a container's cards whether its libcuda may be newer than the node's driver.

On cards of data centres CUDA works with such a libcuda of the image; on others it ends with error 804. A container with cards
of both kinds gets the node's libcuda, as each process may use any of its cards.

Source: NVIDIA, CUDA Compatibility, "Forward Compatibility" and "Frequently Asked Questions" (error 804).

Tests: tests/unit/hooks/vendors/nvidia/test_inject.py
"""

from collections.abc import Iterable
from typing import Final

from hooks.host.ldcache import without_compat
from hooks.model.cdi import Hook
from hooks.model.inventory import Gpu

_WITHOUT: Final = ("GeForce", "TITAN")  # in the names of models


def takes_newer(gpu: Gpu) -> bool:
    """Return whether the card works with a libcuda that is newer than the driver."""
    return not any(name in gpu.model for name in _WITHOUT)


def choose_hooks(hooks: tuple[Hook, ...], gpus: Iterable[Gpu]) -> tuple[Hook, ...]:
    """Return the hooks of a container with these cards: one card that needs the node's libcuda is enough."""
    return hooks if all(map(takes_newer, gpus)) else without_compat(hooks)


def hooks_of_card(hooks: tuple[Hook, ...], gpu: Gpu) -> tuple[Hook, ...]:
    """Return the hooks that this card adds to those of all cards. They run later, and hide what was listed before."""
    return () if takes_newer(gpu) else tuple(hook for hook in without_compat(hooks) if hook not in hooks)
