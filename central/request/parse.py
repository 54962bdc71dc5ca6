"""Parse what a pod asks for, in whichever dialect it asks."""

from collections.abc import Sequence
from typing import Protocol

from central.request.gang import parse_membership
from central.request.model import DeviceRequest, MalformedRequest
from central.request.own import Own
from central.request.pod import Pod
from lading.vocabulary import GANG, RESOURCE_GANG_MEMBER


class Dialect(Protocol):
    """Read one way to request devices."""

    @property
    def resources(self) -> frozenset[str]:
        """Return its resources. kube-scheduler asks the extender about pods with one of them, and counts none itself:
        `managedResources` in deploy/scheduler/config.yaml."""
        ...

    @property
    def prefix(self) -> str:
        """Return how all of its resources begin, also those that do not exist: a typo must not mean "nothing"."""
        ...

    def parse(self, pod: Pod) -> DeviceRequest | MalformedRequest | None:
        """Return what the pod asks for in this dialect; None if nothing. Pure."""
        ...


# Every dialect, one line for each.
DIALECTS: Sequence[Dialect] = (Own(),)


def parse_request(pod: Pod) -> DeviceRequest | MalformedRequest | None:
    """Return what the pod asks for; None if it asks for no device. A pod that asks in two dialects is refused: it is not
    known whether it means the same devices. So is one whose words about its gang cannot be read."""
    found = [(dialect, request) for dialect in DIALECTS if (request := dialect.parse(pod)) is not None]
    if len(found) > 1:
        first, second = (min(dialect.resources & _named(pod)) for dialect, _ in found[:2])
        return MalformedRequest(message=f"cannot use {first} with {second}: two ways to ask for devices; keep one")
    return _with_gang(pod, found[0][1]) if found else None


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
