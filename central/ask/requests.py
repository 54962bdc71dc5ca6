"""Compute what a pod requests of its node besides devices: cpu in milli, memory in MiB, both rounded up, by Kubernetes' rule.

    the larger of  all app containers and sidecars together
              and  each init container with the sidecars that started before it
    or, if the pod as a whole has an amount, that one instead
    and the overhead of its runtime class

It takes any pod. An invalid quantity counts as nothing: kube-scheduler and the API server judge it, not central.

Source: k8s.io/component-helpers/resource, PodRequests; KEP-753 (sidecars), KEP-2837 (resources of a pod), KEP-688 (overhead).
"""

from fractions import Fraction
from functools import lru_cache
from typing import Final

from central.ask.at_one_time import most_at_one_time
from central.ask.model import Requests
from central.ask.pod import Amount, Container, Pod, Resources, starting_order
from central.ask.quantity import parse_quantity

CPU: Final = "cpu"
MEMORY: Final = "memory"
_MIB: Final = 2**20
# Of one pod, milli of cpu or MiB: more than any node has, and sums of these stay far from the end of 64 bits.
MOST: Final = 2**40
_LARGEST: Final = 2**60


def requests_of(pod: Pod) -> Requests:
    return _rounded_up(_of_pod(pod, CPU), _of_pod(pod, MEMORY))


@lru_cache(maxsize=8192)  # so that a hundred thousand pods of some templates share some values
def _rounded_up(cpu: int, memory: int) -> Requests:
    return Requests(min(-(-cpu // 1000), MOST), min(-(-memory // _MIB), MOST))


def allocatable_of(amounts: dict[str, Amount]) -> Requests | None:
    """Return the allocatable cpu and memory of a Node's status, rounded down; None if it has neither."""
    if CPU not in amounts or MEMORY not in amounts:
        return None
    return Requests(_micros(amounts[CPU], CPU) // 1000, _micros(amounts[MEMORY], MEMORY) // _MIB)


def _of_pod(pod: Pod, resource: str) -> int:
    """Return millionths of a core, or bytes."""
    spec = pod.spec
    total = most_at_one_time((_of_container(container, resource), role) for container, role in starting_order(pod))
    if spec.resources is not None and resource in spec.resources.requests:
        total = _micros(spec.resources.requests[resource], resource)
    if resource in spec.overhead:
        total += _micros(spec.overhead[resource], resource)
    return total


def _of_container(container: Container, resource: str) -> int:
    """Return the container's request. A limit alone is a request too: the API server fills it in."""
    amounts: Resources = container.resources
    for said in (amounts.requests, amounts.limits):
        if resource in said:
            return _micros(said[resource], resource)
    return 0


@lru_cache(maxsize=8192)
def _micros(amount: Amount, resource: str) -> int:
    quantity = Fraction(amount) if isinstance(amount, float) else parse_quantity(amount)
    if quantity is None or quantity < 0:
        return 0
    scaled = min(quantity, Fraction(_LARGEST)) * (1_000_000 if resource == CPU else 1)
    return -(-scaled.numerator // scaled.denominator)
