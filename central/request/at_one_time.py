"""Compute the most that the containers of a pod have of something at one time: init containers run before those after them.

It takes containers, or their amounts, in starting order. Source: KEP-753 (sidecar containers).
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from central.request.model import ContainerRequest, Role

Amount = TypeVar("Amount", int, float)


def at_one_time(containers: Iterable[ContainerRequest], amount: Callable[[ContainerRequest], Amount]) -> Amount:
    """Return the most that the containers have of something at one time."""
    return most_at_one_time((amount(one), one.role) for one in containers)


def most_at_one_time(amounts: Iterable[tuple[Amount, Role]]) -> Amount:
    """Return the largest sum of the amounts of the containers that run at one time, each with its container's role."""
    stay: Amount = 0
    most: Amount = 0
    for amount, role in amounts:
        if role is Role.INIT:
            most = max(most, stay + amount)
        else:
            stay += amount
    return max(most, stay)
