"""Parse a pod's device request in any dialect.

Tests: tests/ports/test_central.py
"""

from collections.abc import Sequence
from typing import Protocol

from central.request.gang import parse_membership
from central.request.model import DeviceRequest, MalformedRequest
from central.request.own import Own
from central.request.pod import Pod
from lading.vocabulary import GANG, RESOURCE_GANG_MEMBER


class Dialect(Protocol):
    """Represent a dialect: a way to request devices by resources and annotations."""

    @property
    def resources(self) -> frozenset[str]:
        """Return the dialect's resources. kube-scheduler calls the extender for pods that request such a resource, and does not
        count the resource itself: `managedResources` in deploy/scheduler/config.yaml."""
        ...

    @property
    def prefix(self) -> str:
        """Return the prefix of the dialect's resources. Unknown resources with this prefix belong to the dialect too: a typo
        must not mean "nothing"."""
        ...

    def parse(self, pod: Pod) -> DeviceRequest | MalformedRequest | None:
        """Return the pod's request in this dialect; None if the pod requests nothing. Pure."""
        ...


# Every dialect, one line for each.
DIALECTS: Sequence[Dialect] = (Own(),)


def parse_request(pod: Pod) -> DeviceRequest | MalformedRequest | None:
    """Return the pod's device request; None if the pod requests no device. A pod with requests in two dialects is refused,
    because they may or may not mean the same devices. A pod with unreadable gang keys is refused too."""
    result = [(dialect, request) for dialect in DIALECTS if (request := dialect.parse(pod)) is not None]
    if len(result) > 1:
        first, second = (min(dialect.resources & _named(pod)) for dialect, _ in result[:2])
        return MalformedRequest(message=f"cannot use {first} with {second}: two ways to ask for devices; keep one")
    return _with_gang(pod, result[0][1]) if result else None


def _with_gang(pod: Pod, request: DeviceRequest | MalformedRequest) -> DeviceRequest | MalformedRequest:
    if isinstance(request, MalformedRequest):
        return request
    gang = parse_membership(pod)
    if gang is None and not request.containers:
        return MalformedRequest(
            message=f"cannot use {RESOURCE_GANG_MEMBER}: the pod names no gang; add {GANG}, or ask for devices"
        )
    return gang if isinstance(gang, MalformedRequest) else request


def managed_resources() -> frozenset[str]:
    return frozenset().union(*(dialect.resources for dialect in DIALECTS))


def mentions_devices(pod: Pod) -> bool:
    """Return whether the pod names a resource of a dialect, valid or not."""
    prefixes = tuple(dialect.prefix for dialect in DIALECTS)
    return any(resource.startswith(prefixes) for resource in _named(pod))


def _named(pod: Pod) -> set[str]:
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    return {name for one in containers for name in (*one.resources.limits, *one.resources.requests)}
