"""What a pod asks for: its `resources.limits` and annotations into one Ask.

None where it asks for nothing of ours. BadAsk where what stands there has no meaning, in words for the person who wrote it:
amounts that are none, a request that differs from its limit, a whole card and a share of one in one container, a resource
below `lading.dev/` that does not exist (a typo must not mean "nothing"), annotations that refine nothing or that this version
does not understand, and annotations that the node would refuse beside an assignment. The first problem is told. Zero counts as
absent.

Source: docs/reference.md, "What a pod asks for".
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final, TypeVar

from central.ask.model import Ask, ContainerAsk, Policy, RdmaPolicy, Role, Scope, Share
from central.ask.pod import Amount, Container, Pod
from central.ask.quantity import parse_quantity
from lading.vocabulary import (
    GPU_MODEL,
    GRANT,
    MANUAL_GPUS,
    MANUAL_VFS,
    POLICY,
    PREFIX,
    RDMA_POLICY,
    REQUEST_ANNOTATIONS,
    RESOURCE_GPU,
    RESOURCE_GPU_CORE,
    RESOURCE_GPU_MEMORY,
    RESOURCE_RDMA,
    TOPOLOGY,
)

MAX_DEVICES: Final = 1024  # of one container; more than any node has
MAX_MEMORY_MIB: Final = 2**31 - 1  # what an assignment can say
_MIB: Final = 2**20
_SHOWN: Final = 60  # characters of a value that a message repeats: kube-scheduler shows it for each node

_RIGHT: Final = {
    RESOURCE_GPU: f"a whole number of cards, 1 to {MAX_DEVICES}",
    RESOURCE_GPU_MEMORY: "an amount of one card's memory with its unit, 1Mi or more: 8Gi, 8138Mi",
    RESOURCE_GPU_CORE: f"a whole number of percent of one card, 1 to 100; {RESOURCE_GPU} is for whole cards",
    RESOURCE_RDMA: f"a whole number of VFs, 1 to {MAX_DEVICES}",
}
_MOST: Final = {
    RESOURCE_GPU: MAX_DEVICES,
    RESOURCE_GPU_MEMORY: MAX_MEMORY_MIB,
    RESOURCE_GPU_CORE: 100,
    RESOURCE_RDMA: MAX_DEVICES,
}
_RDMA_POLICIES: Final = (RdmaPolicy.NEAREST, RdmaPolicy.COUNT)  # that this version can do
_SCOPES: Final = (Scope.ANY,)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadAsk:
    message: str


class _BadAskError(Exception):
    """Ends the parse from any depth; `parse_ask` makes it a value."""


def parse_ask(pod: Pod) -> Ask | BadAsk | None:
    """Two pods of one template ask the same thing: nothing of the pod's identity is in it."""
    try:
        asks = tuple(_container(container, role) for container, role in _starting_order(pod))
        return _ask(tuple(ask for ask in asks if not ask.empty), pod.metadata.annotations)
    except _BadAskError as e:
        return BadAsk(message=str(e))


def roles_of(pod: Pod) -> tuple[tuple[str, Role], ...]:
    """Every container of the pod, in the order in which kubelet starts them."""
    return tuple((container.name, role) for container, role in _starting_order(pod))


def _starting_order(pod: Pod) -> Iterator[tuple[Container, Role]]:
    for container in pod.spec.init_containers:
        yield container, Role.SIDECAR if container.restart_policy == "Always" else Role.INIT
    for container in pod.spec.containers:
        yield container, Role.APP


# What a container asks for


def _container(container: Container, role: Role) -> ContainerAsk:
    limits, requests = container.resources.limits, container.resources.requests
    ours = [resource for resource in {**limits, **requests} if resource.startswith(PREFIX)]
    if not ours:
        return ContainerAsk(name=container.name, role=role)
    asked = {resource: _amount(container.name, resource, limits, requests) for resource in ours}
    gpus, memory, core = (asked.get(resource, 0) for resource in (RESOURCE_GPU, RESOURCE_GPU_MEMORY, RESOURCE_GPU_CORE))
    if gpus and (memory or core):
        share = RESOURCE_GPU_MEMORY if memory else RESOURCE_GPU_CORE
        raise _BadAskError(
            f"cannot use {RESOURCE_GPU} with {share} in container {container.name}: a card is given whole or in part; keep one"
        )
    share_asked = Share(memory_mib=memory or None, core_percent=core or None) if memory or core else None
    return ContainerAsk(name=container.name, role=role, gpus=gpus, share=share_asked, vfs=asked.get(RESOURCE_RDMA, 0))


def _amount(container: str, resource: str, limits: Mapping[str, Amount], requests: Mapping[str, Amount]) -> int:
    """In the resource's own unit (MiB for memory); 0 is nothing asked."""
    where = f"{resource} of container {container}"
    if resource not in _RIGHT:
        raise _BadAskError(f"cannot use {_shown(resource)} of container {container}: no such resource; {_listed(_RIGHT)}")
    limit, request = (_quantity(of.get(resource, 0), where, _RIGHT[resource]) for of in (limits, requests))
    if resource in requests and request != limit:
        written = f"the limit is {_shown(limits[resource])}" if resource in limits else "there is no limit"
        raise _BadAskError(
            f"cannot use {where}: the request is {_shown(requests[resource])} and {written}; write the limit alone"
        )
    if resource == RESOURCE_GPU_MEMORY:
        # Bytes without a unit are most often meant as MiB. Taken at its word, the share would be of no use.
        amount = -(-limit // _MIB) if limit == 0 or limit >= _MIB else None
    else:
        amount = limit.numerator if limit.denominator == 1 else None
    if amount is None or not 0 <= amount <= _MOST[resource]:
        raise _BadAskError(f"cannot use {where}: it is {_shown(limits[resource])}; write {_RIGHT[resource]}")
    return amount


def _quantity(value: Amount, where: str, right: str) -> Fraction:
    quantity = None if isinstance(value, float) else parse_quantity(value)
    if quantity is None:
        raise _BadAskError(f"cannot use {where}: {_shown(value)} is no quantity; write {right}")
    return quantity


# What annotations say to it


def _ask(containers: tuple[ContainerAsk, ...], annotations: Mapping[str, str]) -> Ask | None:
    refining = sorted(REQUEST_ANNOTATIONS & annotations.keys())
    if not containers:
        if refining:
            raise _BadAskError(f"cannot use {refining[0]}: the pod asks for no device; {_listed(_RIGHT)}")
        return None
    _check_nobody_else_gives(annotations)
    policy = _choice(annotations, POLICY, tuple(Policy), Policy)
    rdma_policy = _choice(annotations, RDMA_POLICY, _RDMA_POLICIES, RdmaPolicy)
    scope = _choice(annotations, TOPOLOGY, _SCOPES, Scope)
    model = annotations.get(GPU_MODEL)
    if model is not None and not model.strip():
        raise _BadAskError(f"cannot use {GPU_MODEL}: it is empty; write the model as the node reports it, or remove it")
    if model is not None and not any(ask.gpus or ask.share for ask in containers):
        raise _BadAskError(f"cannot use {GPU_MODEL}: the pod asks for no GPU; add {RESOURCE_GPU}, or remove it")
    if rdma_policy is not None and not any(ask.vfs for ask in containers):
        raise _BadAskError(f"cannot use {RDMA_POLICY}: the pod asks for no VF; add {RESOURCE_RDMA}, or remove it")
    return Ask(
        containers=containers,
        policy=policy,
        gpu_model=model.strip() if model else "",
        rdma_policy=rdma_policy or RdmaPolicy.NEAREST,
        scope=scope or Scope.ANY,
    )


def _check_nobody_else_gives(annotations: Mapping[str, str]) -> None:
    """What the node refuses on a pod with an assignment is said before the pod holds devices there."""
    for key in annotations:
        if key == GRANT or key in {MANUAL_GPUS, MANUAL_VFS} or key.startswith((f"{MANUAL_GPUS}.", f"{MANUAL_VFS}.")):
            raise _BadAskError(f"cannot use {_shown(key)}: the pod asks for devices in resources.limits; keep one of the two")


E = TypeVar("E", bound=StrEnum)


def _choice(annotations: Mapping[str, str], key: str, available: tuple[E, ...], kind: type[E]) -> E | None:
    value = annotations.get(key)
    if value is None:
        return None
    for choice in available:
        if value == choice:
            return choice
    allowed = " or ".join(available)
    if value in list(kind):
        raise _BadAskError(f"cannot use {key}: {_shown(value)} is not available in this version; write {allowed}, or remove it")
    raise _BadAskError(f"cannot use {key}: it is {_shown(value)}; write {allowed}, or remove it")


def _listed(resources: Mapping[str, str]) -> str:
    return f"what can be asked for in resources.limits is {', '.join(resources)}"


def _shown(value: Amount) -> str:
    """Quoted, on one line, and bounded."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
