"""Compute the peak amount of a pod's containers that run at the same time: init containers end before later ones start.

Take containers, or their amounts, in starting order. Example: an init container with 4 and an app container with 3 peak at 4.
Source: KEP-753 (sidecar containers).

Tests: tests/unit/central/request/test_own.py
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from central.request.model import ContainerRequest, Role

Amount = TypeVar("Amount", int, float)


def at_one_time(containers: Iterable[ContainerRequest], amount: Callable[[ContainerRequest], Amount]) -> Amount:
    """Return the peak sum of `amount` over the containers that run at the same time."""
    return most_at_one_time((amount(one), one.role) for one in containers)


def most_at_one_time(amounts: Iterable[tuple[Amount, Role]]) -> Amount:
    """Return the peak sum of the amounts of containers that run at the same time. Each amount comes with its container's
    role."""
    stay: Amount = 0
    most: Amount = 0
    for amount, role in amounts:
        if role is Role.INIT:
            most = max(most, stay + amount)
        else:
            stay += amount
    return max(most, stay)
