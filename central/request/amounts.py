"""Read the amounts of a container's resources. Messages name the resource, the container, the amount and what would be right.

Tests: tests/unit/central/request/test_own.py
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from central.request.pod import Amount, Container
from central.request.quantity import parse_quantity

MIB: Final = 2**20
_SHOWN: Final = 60  # maximum characters of a value in a message, because kube-scheduler repeats the message for each node


class BadRequestError(Exception):
    """End the parse of a request from any depth, with a message for the pod's author."""


@dataclass(frozen=True, slots=True)
class Resource:
    """Describe the valid amounts of a resource."""

    right: str  # description of a valid amount, for messages
    most: int
    unit: int = 1  # quantity of one unit; an amount is rounded up to whole units, and 0 or one unit at least


def read_amounts(container: Container, known: Mapping[str, Resource], prefixes: tuple[str, ...]) -> dict[str, int]:
    """Return the amount of each resource of the container that is in `known`, in the resource's unit. Raise BadRequestError for
    an invalid amount, and for another resource with one of the prefixes: a typo must not mean "nothing"."""
    limits, requests = container.resources.limits, container.resources.requests
    mine = [resource for resource in {**limits, **requests} if resource in known or resource.startswith(prefixes)]
    return {resource: _amount(container.name, resource, limits, requests, known) for resource in mine}


def is_zero(amount: Amount) -> bool:
    """Return whether the amount is 0, which requests nothing."""
    return amount in {0, "0"} or (isinstance(amount, str) and parse_quantity(amount) == 0)


def list_resources(resources: Iterable[str]) -> str:
    return f"what can be asked for in resources.limits is {', '.join(resources)}"


def shown(value: Amount) -> str:
    """Return the value in quotes, on one line, with at most _SHOWN characters and an ellipsis."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _amount(
    container: str, resource: str, limits: Mapping[str, Amount], requests: Mapping[str, Amount], known: Mapping[str, Resource]
) -> int:
    if resource not in known:
        raise BadRequestError(
            f"cannot use {shown(resource)} of container {container}: no such resource; {list_resources(known)}"
        )
    where, kind = f"{resource} of container {container}", known[resource]
    limit, request = (_quantity(of.get(resource, 0), where, kind.right) for of in (limits, requests))
    if resource in requests and request != limit:
        written = f"the limit is {shown(limits[resource])}" if resource in limits else "there is no limit"
        raise BadRequestError(
            f"cannot use {where}: the request is {shown(requests[resource])} and {written}; write the limit alone"
        )
    if kind.unit > 1:
        # Authors who write bytes without a unit mostly mean MiB. A share below 1 MiB would be useless.
        amount = -(-limit // kind.unit) if limit == 0 or limit >= kind.unit else None
    else:
        amount = limit.numerator if limit.denominator == 1 else None
    if amount is None or not 0 <= amount <= kind.most:
        raise BadRequestError(f"cannot use {where}: it is {shown(limits[resource])}; write {kind.right}")
    return amount


def _quantity(value: Amount, where: str, right: str) -> Fraction:
    quantity = None if isinstance(value, float) else parse_quantity(value)
    if quantity is None:
        raise BadRequestError(f"cannot use {where}: {shown(value)} is no quantity; write {right}")
    return quantity
