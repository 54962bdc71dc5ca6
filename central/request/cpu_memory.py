"""Compute what a pod requests of its node besides devices: cpu in milli, memory in MiB, both rounded up, by Kubernetes' rule.

    the larger of  all app containers and sidecars together
              and  each init container with the sidecars that started before it
    or, if the pod as a whole has an amount, that one instead
    and the overhead of its runtime class

While a container, or the pod, is being resized, its amount is the largest of what the spec wants, what it has, and what its
node allocated. What the spec wants does not count if the resize is infeasible on that node: from 1 to 200 CPUs counts 1.

It takes any pod. An invalid quantity counts as nothing: kube-scheduler and the API server judge it, not central.

Source: k8s.io/component-helpers/resource, PodRequests; KEP-753 (sidecars), KEP-2837 (resources of a pod), KEP-688 (overhead),
KEP-1287 (resize: determineContainerReqs).
"""

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Final

from central.request.at_one_time import most_at_one_time
from central.request.model import CpuMemory, Role
from central.request.pod import Amount, Container, Pod, Resources, starting_order
from central.request.quantity import parse_quantity

CPU: Final = "cpu"
MEMORY: Final = "memory"
_MIB: Final = 2**20
# Of one pod, milli of cpu or MiB: more than any node has, and sums of these stay far from the end of 64 bits.
MOST: Final = 2**40
_LARGEST: Final = 2**60


def cpu_memory_of(pod: Pod) -> CpuMemory:
    return _rounded_up(_of_pod(pod, CPU), _of_pod(pod, MEMORY))


@lru_cache(maxsize=8192)  # so that a hundred thousand pods of some templates share some values
def _rounded_up(cpu: int, memory: int) -> CpuMemory:
    return CpuMemory(min(-(-cpu // 1000), MOST), min(-(-memory // _MIB), MOST))


def allocatable_of(amounts: dict[str, Amount]) -> CpuMemory | None:
    """Return the allocatable cpu and memory of a Node's status, rounded down; None if it has neither."""
    if CPU not in amounts or MEMORY not in amounts:
        return None
    return CpuMemory(_micros(amounts[CPU], CPU) // 1000, _micros(amounts[MEMORY], MEMORY) // _MIB)


def _of_pod(pod: Pod, resource: str) -> int:
    """Return millionths of a core, or bytes."""
    spec, status = pod.spec, pod.status
    total = most_at_one_time((_of_container(pod, one, role, resource), role) for one, role in starting_order(pod))
    if spec.resources is not None and resource in spec.resources.requests:
        wanted = _micros(spec.resources.requests[resource], resource)
        total = _while_resized(pod, wanted, status.resources, status.allocated_resources, resource)
    if resource in spec.overhead:
        total += _micros(spec.overhead[resource], resource)
    return total


def _of_container(pod: Pod, container: Container, role: Role, resource: str) -> int:
    """Return the container's request. A limit alone is a request too: the API server fills it in."""
    amounts: Resources = container.resources
    wanted = next((_micros(said[resource], resource) for said in (amounts.requests, amounts.limits) if resource in said), 0)
    actual = pod.status.actual(container.name) if role is not Role.INIT else None
    return wanted if actual is None else _while_resized(pod, wanted, actual.resources, actual.allocated_resources, resource)


def _while_resized(
    pod: Pod, wanted: int, actual: Resources | None, allocated: Mapping[str, Amount] | None, resource: str
) -> int:
    """Return what counts of an amount that may be about to change."""
    if actual is None:
        return wanted
    there = [_micros(said[resource], resource) for said in (actual.requests, allocated or {}) if resource in said]
    return max(there, default=0) if pod.status.resize_infeasible else max(wanted, *there) if there else wanted


@lru_cache(maxsize=8192)
def _micros(amount: Amount, resource: str) -> int:
    quantity = Fraction(amount) if isinstance(amount, float) else parse_quantity(amount)
    if quantity is None or quantity < 0:
        return 0
    scaled = min(quantity, Fraction(_LARGEST)) * (1_000_000 if resource == CPU else 1)
    return -(-scaled.numerator // scaled.denominator)
