"""Compute a pod's effective requests for cpu (milli) and memory (MiB), both rounded up, by Kubernetes' rule.

    the larger of  the sum over all app containers and sidecars
              and  each init container with the sidecars that started before it
    or, if the pod as a whole has an amount, that amount instead
    plus the overhead of the pod's runtime class

During a resize of a container or pod, the amount is the largest of the spec's, the actual and the node-allocated one. The
spec's amount does not count if the resize is infeasible on the node: an infeasible resize from 1 to 200 CPUs counts 1.

An invalid quantity counts as 0, because kube-scheduler and the API server judge quantities, not central.

Source: k8s.io/component-helpers/resource, PodRequests; KEP-753 (sidecars), KEP-2837 (resources of a pod), KEP-688 (overhead),
KEP-1287 (resize: determineEffectiveRequests, as in 1.36).
"""

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Final

from central.request.model import CpuMemory, Role, most_at_one_time
from central.request.pod import Amount, Container, Pod, Resources, starting_order
from central.request.quantity import parse_quantity

CPU: Final = "cpu"
MEMORY: Final = "memory"
_MIB: Final = 2**20
# A pod's milli cpu and MiB are capped: no node has as much, and sums of capped amounts fit into 64 bits.
MOST: Final = 2**40
_LARGEST: Final = 2**60


def cpu_memory_of(pod: Pod) -> CpuMemory:
    return _rounded_up(_of_pod(pod, CPU), _of_pod(pod, MEMORY))


@lru_cache(maxsize=8192)  # 100,000 pods of a few templates share a few values
def _rounded_up(cpu: int, memory: int) -> CpuMemory:
    return CpuMemory(min(-(-cpu // 1000), MOST), min(-(-memory // _MIB), MOST))


def allocatable_of(amounts: dict[str, Amount]) -> CpuMemory | None:
    """Return the allocatable cpu and memory of a Node's status, rounded down; None if it has neither."""
    if CPU not in amounts or MEMORY not in amounts:
        return None
    return CpuMemory(_micros(amounts[CPU], CPU) // 1000, _micros(amounts[MEMORY], MEMORY) // _MIB)


def _of_pod(pod: Pod, resource: str) -> int:
    """Return the pod's request: cpu in millionths of a core, memory in bytes."""
    spec, status = pod.spec, pod.status
    total = most_at_one_time((_of_container(pod, one, role, resource), role) for one, role in starting_order(pod))
    if spec.resources is not None and resource in spec.resources.requests:
        wanted = _micros(spec.resources.requests[resource], resource)
        total = _while_resized(pod, wanted, status.resources, status.allocated_resources, resource)
    if resource in spec.overhead:
        total += _micros(spec.overhead[resource], resource)
    return total


def _of_container(pod: Pod, container: Container, role: Role, resource: str) -> int:
    """Return the container's request. A limit alone counts as a request, because the API server fills it in."""
    amounts: Resources = container.resources
    wanted = next((_micros(text[resource], resource) for text in (amounts.requests, amounts.limits) if resource in text), 0)
    actual = pod.status.actual(container.name) if role is not Role.INIT else None
    return wanted if actual is None else _while_resized(pod, wanted, actual.resources, actual.allocated_resources, resource)


def _while_resized(
    pod: Pod, wanted: int, actual: Resources | None, allocated: Mapping[str, Amount] | None, resource: str
) -> int:
    """Return the amount that counts for a container or pod that may be in a resize."""
    if actual is None:
        return wanted
    there = [_micros(text[resource], resource) for text in (actual.requests, allocated or {}) if resource in text]
    return max(there, default=0) if pod.status.resize_infeasible else max(wanted, *there) if there else wanted


@lru_cache(maxsize=8192)
def _micros(amount: Amount, resource: str) -> int:
    quantity = Fraction(amount) if isinstance(amount, float) else parse_quantity(amount)
    if quantity is None or quantity < 0:
        return 0
    scaled = min(quantity, Fraction(_LARGEST)) * (1_000_000 if resource == CPU else 1)
    return -(-scaled.numerator // scaled.denominator)
