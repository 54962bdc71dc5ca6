"""Compute the most that the containers of a pod have of something at one time: init containers run before those after them.

It takes containers in starting order. Source: KEP-753 (sidecar containers).
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from central.ask.model import ContainerAsk, Role

Amount = TypeVar("Amount", int, float)


def at_one_time(containers: Iterable[ContainerAsk], amount: Callable[[ContainerAsk], Amount]) -> Amount:
    """Return the most that the containers have of something at one time: init containers run before those after them."""
    stay: Amount = 0
    most: Amount = 0
    for one in containers:
        if one.role is Role.INIT:
            most = max(most, stay + amount(one))
        else:
            stay += amount(one)
    return max(most, stay)
