"""Parse a pod's device request in Lading's own dialect: its `resources.limits` and annotations become one DeviceRequest.

The result is None if the pod requests no device of Lading. MalformedRequest, with a message for the pod's author, reports:

    an invalid amount, or a request that differs from its limit
    shares of more cards than a node can give
    an unknown resource or annotation below `lading.dev/` (a typo must not mean "nothing")
    annotations that refine nothing, have an unknown value, or contradict one another
    annotations that the node refuses beside an assignment

Only the first problem is reported. Zero counts as absent.

Source: docs/reference.md, "What a pod asks for".
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from fractions import Fraction
from typing import Final, TypeVar

from central.request.model import (
    ContainerRequest,
    DeviceRequest,
    MalformedRequest,
    PartitionPolicy,
    Policy,
    RdmaPolicy,
    Role,
    Scope,
    Share,
    Sharing,
)
from central.request.pod import Amount, Container, Pod, starting_order
from central.request.quantity import parse_quantity
from lading.annotations import describe_reserved, find_unknown, nearest_key
from lading.devices.assignment import LABEL, MAX_MEMORY_MIB
from lading.devices.identity import MIG_PROFILE_SHAPE
from lading.devices.isolation import IsolationName
from lading.sharegrant import MAX_GPUS
from lading.vocabulary import (
    GPU_CORE_LIMIT,
    GPU_MODEL,
    ISOLATION,
    MIG_PROFILE,
    NVSWITCH_PARTITION,
    POLICY,
    PREFIX,
    RDMA_POLICY,
    RESOURCE_GANG_MEMBER,
    RESOURCE_GPU,
    RESOURCE_GPU_CORE,
    RESOURCE_GPU_MEMORY,
    RESOURCE_RDMA,
    SHARE_AFFINITY,
    SHARE_ANTI_AFFINITY,
    SHARE_EXCLUSION,
    TOPOLOGY,
    is_manual,
    is_request_annotation,
)

MAX_DEVICES: Final = 1024  # maximum devices of one container; no node has more
MAX_SHARED: Final = MAX_GPUS  # maximum cards of which one container has a share
MAX_CONTAINERS: Final = 32  # maximum containers of a pod that request devices: twice a node's number of cards
MAX_INIT_CONTAINERS: Final = 16  # maximum init containers among these: a fit checks every card in each one's phase
_MIB: Final = 2**20
_SHOWN: Final = 60  # maximum characters of a value in a message, because kube-scheduler repeats the message for each node

_RIGHT: Final = {
    RESOURCE_GPU: f"a whole number of cards, 1 to {MAX_DEVICES}",
    RESOURCE_GPU_MEMORY: "an amount of one card's memory with its unit, 1Mi or more: 8Gi, 8138Mi",
    RESOURCE_GPU_CORE: f"a whole number of percent of one card, 1 to 100; {RESOURCE_GPU} is for whole cards",
    RESOURCE_RDMA: f"a whole number of VFs, 1 to {MAX_DEVICES}",
    RESOURCE_GANG_MEMBER: "1, in a pod without devices that starts with its gang",
}
_MOST: Final = {
    RESOURCE_GPU: MAX_DEVICES,
    RESOURCE_GPU_MEMORY: MAX_MEMORY_MIB,
    RESOURCE_GPU_CORE: 100,
    RESOURCE_RDMA: MAX_DEVICES,
    RESOURCE_GANG_MEMBER: 1,
}
_SHARING: Final = (SHARE_AFFINITY, SHARE_ANTI_AFFINITY, SHARE_EXCLUSION)
_MIG_PROFILE: Final = re.compile(MIG_PROFILE_SHAPE)  # the profile as the node reports it
_LABEL: Final = re.compile(LABEL)
_SHARE: Final = f"{RESOURCE_GPU_MEMORY} or {RESOURCE_GPU_CORE}"
_PERCENT: Final = re.compile(r"[1-9][0-9]?|100")


class _MalformedRequestError(Exception):
    """End the parse from any depth; `Own.parse` returns it as a value."""


class Own:
    """Read Lading's own dialect."""

    resources: Final = frozenset(_RIGHT)
    prefix: Final = PREFIX

    def parse(self, pod: Pod) -> DeviceRequest | MalformedRequest | None:
        """Return the pod's device request. Pods of one template get equal requests: of a pod's identity, a request has only the
        namespace of the sharing labels."""
        try:
            asks = tuple(_container(container, role) for container, role in starting_order(pod))
            return _request(asks, pod.metadata.annotations, pod.metadata.namespace)
        except _MalformedRequestError as e:
            return MalformedRequest(message=str(e))


# ---- requests of containers


def _container(container: Container, role: Role) -> ContainerRequest:
    limits, requests = container.resources.limits, container.resources.requests
    ours = [resource for resource in {**limits, **requests} if resource.startswith(PREFIX)]
    if not ours:
        return ContainerRequest(name=container.name, role=role)
    requested = {resource: _amount(container.name, resource, limits, requests) for resource in ours}
    gpus, memory, core, vfs, member = (requested.get(resource, 0) for resource in _RIGHT)
    if not memory and not core:
        return ContainerRequest(name=container.name, role=role, gpus=gpus, vfs=vfs, gang_member=member > 0)
    if gpus > MAX_SHARED:
        raise _MalformedRequestError(
            f"cannot use {RESOURCE_GPU} of container {container.name}: it is {gpus}, and the container asks for a share of "
            f"each of so many cards; write 1 to {MAX_SHARED}, or remove {RESOURCE_GPU_MEMORY} and {RESOURCE_GPU_CORE}"
        )
    share = Share(memory_mib=memory or None, core_percent=core or None, cards=gpus or 1)
    return ContainerRequest(name=container.name, role=role, share=share, vfs=vfs)


def _amount(container: str, resource: str, limits: Mapping[str, Amount], requests: Mapping[str, Amount]) -> int:
    """Return the amount in the resource's own unit (MiB for memory); 0: not requested."""
    where = f"{resource} of container {container}"
    if resource not in _RIGHT:
        raise _MalformedRequestError(
            f"cannot use {_shown(resource)} of container {container}: no such resource; {_listed(_RIGHT)}"
        )
    limit, request = (_quantity(of.get(resource, 0), where, _RIGHT[resource]) for of in (limits, requests))
    if resource in requests and request != limit:
        written = f"the limit is {_shown(limits[resource])}" if resource in limits else "there is no limit"
        raise _MalformedRequestError(
            f"cannot use {where}: the request is {_shown(requests[resource])} and {written}; write the limit alone"
        )
    if resource == RESOURCE_GPU_MEMORY:
        # Authors who write a number without a unit mostly mean MiB. A share below 1 MiB would be useless.
        amount = -(-limit // _MIB) if limit == 0 or limit >= _MIB else None
    else:
        amount = limit.numerator if limit.denominator == 1 else None
    if amount is None or not 0 <= amount <= _MOST[resource]:
        raise _MalformedRequestError(f"cannot use {where}: it is {_shown(limits[resource])}; write {_RIGHT[resource]}")
    return amount


def _quantity(value: Amount, where: str, right: str) -> Fraction:
    quantity = None if isinstance(value, float) else parse_quantity(value)
    if quantity is None:
        raise _MalformedRequestError(f"cannot use {where}: {_shown(value)} is no quantity; write {right}")
    return quantity


# ---- annotations that refine the requests


def _request(asks: tuple[ContainerRequest, ...], annotations: Mapping[str, str], namespace: str) -> DeviceRequest | None:
    refining = sorted(filter(is_request_annotation, annotations))
    containers = tuple(request for request in asks if not request.empty)
    if not containers:
        if refining:
            raise _MalformedRequestError(f"cannot use {refining[0]}: the pod asks for no device; {_listed(_RIGHT)}")
        return DeviceRequest(containers=()) if any(request.gang_member for request in asks) else None
    _check_number(containers)
    _check_given_by_central_alone(annotations)
    if unknown := find_unknown(annotations):
        raise _MalformedRequestError(
            f"cannot use {_shown(unknown)}: no such annotation; write {nearest_key(unknown)}, or remove it (a key of another "
            "system: foreign_annotations in central.toml and hooks.toml)"
        )
    policy = _choice(annotations, POLICY, Policy)
    rdma_policy = _choice(annotations, RDMA_POLICY, RdmaPolicy)
    scope = _choice(annotations, TOPOLOGY, Scope)
    partition = _choice(annotations, NVSWITCH_PARTITION, PartitionPolicy)
    models = _models(annotations.get(GPU_MODEL))
    if models and not any(request.gpus or request.share for request in containers):
        raise _MalformedRequestError(f"cannot use {GPU_MODEL}: the pod asks for no GPU; add {RESOURCE_GPU}, or remove it")
    if rdma_policy is not None and not any(request.vfs for request in containers):
        raise _MalformedRequestError(f"cannot use {RDMA_POLICY}: the pod asks for no VF; add {RESOURCE_RDMA}, or remove it")
    _check_places(containers, rdma_policy, scope)
    if partition is not None and (MIG_PROFILE in annotations or not any(request.gpus for request in containers)):
        raise _MalformedRequestError(
            f"cannot use {NVSWITCH_PARTITION}: the pod asks for no whole GPU; add {RESOURCE_GPU}, or remove it"
        )
    return DeviceRequest(
        containers=_limited(containers, asks, [key for key in refining if key.startswith(GPU_CORE_LIMIT)], annotations),
        policy=policy,
        gpu_models=models,
        mig_profile=_mig_profile(containers, annotations.get(MIG_PROFILE)),
        rdma_policy=rdma_policy or RdmaPolicy.NEAREST,
        scope=scope or Scope.ANY,
        partition=partition,
        sharing=_sharing(containers, annotations, namespace),
        isolation=_isolation(containers, annotations),
    )


def _check_number(containers: tuple[ContainerRequest, ...]) -> None:
    inits = sum(request.role is Role.INIT for request in containers)
    limits = (len(containers), MAX_CONTAINERS, "containers"), (inits, MAX_INIT_CONTAINERS, "init containers")
    for number, most, what in limits:
        if number > most:
            raise _MalformedRequestError(f"cannot place {number} {what} that ask for devices; {most} is the most in one pod")


def _check_places(containers: tuple[ContainerRequest, ...], rdma_policy: RdmaPolicy | None, scope: Scope | None) -> None:
    if rdma_policy is RdmaPolicy.PER_SWITCH:
        without = next(
            (request.name for request in containers if request.vfs and not request.gpus and request.share is None), ""
        )
        if without:
            raise _MalformedRequestError(
                f"cannot use {RDMA_POLICY}: {_shown(rdma_policy.value)} counts the switches of a container's GPUs, and "
                f"container {without} asks for none; add {RESOURCE_GPU} there, or write {RdmaPolicy.COUNT}"
            )
    if rdma_policy is RdmaPolicy.PER_PF and scope not in {None, Scope.ANY}:
        raise _MalformedRequestError(
            f"cannot use {TOPOLOGY}: it is {_shown(str(scope))}, and {RDMA_POLICY} {_shown(rdma_policy.value)} takes VFs of "
            "every PF of the node, wherever it sits; remove one of the two"
        )


def _models(written: str | None) -> tuple[str, ...]:
    """Return the allowed models, which `|` or commas separate, sorted: equal sets give equal requests."""
    if written is None:
        return ()
    models = [model.strip() for model in re.split(r"[|,]", written)]
    if not all(models):
        at = "it is empty" if not any(models) else f"{_shown(written)} has an empty name at position {models.index('') + 1}"
        raise _MalformedRequestError(
            f"cannot use {GPU_MODEL}: {at}; write the model as the node reports it, several as A|B, or remove it"
        )
    return tuple(sorted(set(models)))


def _mig_profile(containers: tuple[ContainerRequest, ...], written: str | None) -> str:
    if written is None:
        return ""
    profile = written.strip()
    if not _MIG_PROFILE.fullmatch(profile):
        raise _MalformedRequestError(
            f"cannot use {MIG_PROFILE}: it is {_shown(written)}; write the profile as the driver names it (1g.10gb, 3g.40gb), "
            "or remove it"
        )
    if sharing := next((request.name for request in containers if request.share), ""):
        raise _MalformedRequestError(
            f"cannot use {MIG_PROFILE}: container {_shown(sharing)} asks for a share of a GPU, and a MIG instance is given "
            f"whole; write {RESOURCE_GPU} there, or remove it"
        )
    if not any(request.gpus for request in containers):
        raise _MalformedRequestError(f"cannot use {MIG_PROFILE}: the pod asks for no GPU; add {RESOURCE_GPU}, or remove it")
    return profile


def _sharing(containers: tuple[ContainerRequest, ...], annotations: Mapping[str, str], namespace: str) -> Sharing | None:
    written = [key for key in _SHARING if key in annotations]
    if not written:
        return None
    _check_share(containers, written[0])
    for key in written:
        if not _LABEL.fullmatch(annotations[key]):
            is_now = "empty" if not annotations[key] else _shown(annotations[key])
            raise _MalformedRequestError(
                f"cannot use {key}: it is {is_now}; write 1 to 63 letters, digits, dashes, underscores and dots, a letter or "
                "digit first and last, or remove it"
            )
    if several := _with_several(containers):
        _check_affinity(several, annotations)
    affinity, anti_affinity, exclusion = (annotations.get(key, "") for key in _SHARING)
    return Sharing(namespace=namespace, affinity=affinity, anti_affinity=anti_affinity, exclusion=exclusion)


def _with_several(containers: tuple[ContainerRequest, ...]) -> str:
    """Return the name of a container that requests shares of several cards; empty if none does."""
    return next((request.name for request in containers if request.share and request.share.cards > 1), "")


def _check_affinity(several: str, annotations: Mapping[str, str]) -> None:
    if SHARE_AFFINITY in annotations:
        raise _MalformedRequestError(
            f"cannot use {SHARE_AFFINITY}: it puts all shares of the pod on one card, and container {several} asks for shares "
            f"of several; write {RESOURCE_GPU}: 1 there, or remove it"
        )


def _isolation(containers: tuple[ContainerRequest, ...], annotations: Mapping[str, str]) -> IsolationName | None:
    """Return the requested isolation. Each node decides whether it offers that isolation."""
    isolation = _choice(annotations, ISOLATION, IsolationName)
    if isolation is not None:
        _check_share(containers, ISOLATION)
    if isolation is IsolationName.MPS and (several := _with_several(containers)):
        raise _MalformedRequestError(
            f"cannot use {ISOLATION}: by mps a container reaches one card, and container {several} asks for shares of several; "
            f"write {RESOURCE_GPU}: 1 there, or {IsolationName.TOKENS}"
        )
    return isolation


def _check_share(containers: tuple[ContainerRequest, ...], key: str) -> None:
    if not any(request.share for request in containers):
        raise _MalformedRequestError(f"cannot use {key}: the pod asks for no share of a GPU; add {_SHARE}, or remove it")


def _limited(
    containers: tuple[ContainerRequest, ...],
    every: Sequence[ContainerRequest],
    keys: Sequence[str],
    annotations: Mapping[str, str],
) -> tuple[ContainerRequest, ...]:
    """Return the containers with the limits of their shares. `every`: all containers of the pod, also without devices."""
    if not keys:
        return containers
    by_name = {request.name: request for request in every}
    for key in keys:
        _check_share(containers, key)
        name = key.removeprefix(GPU_CORE_LIMIT).removeprefix(".")
        if key != GPU_CORE_LIMIT and name not in by_name:
            raise _MalformedRequestError(
                f"cannot use {_shown(key)}: the pod has no container {_shown(name)}; name one, or remove it"
            )
        if key != GPU_CORE_LIMIT and by_name[name].share is None:
            raise _MalformedRequestError(
                f"cannot use {key}: the container asks for no share of a GPU; add {_SHARE}, or remove it"
            )
        if not _PERCENT.fullmatch(annotations[key]):
            right = "the percent of one card's compute that a share may use while others leave it, 1 to 100"
            raise _MalformedRequestError(f"cannot use {key}: it is {_shown(annotations[key])}; write {right}")
    return tuple(_with_limit(request, annotations) for request in containers)


def _with_limit(request: ContainerRequest, annotations: Mapping[str, str]) -> ContainerRequest:
    own = f"{GPU_CORE_LIMIT}.{request.name}"
    key = own if own in annotations else GPU_CORE_LIMIT
    if request.share is None or key not in annotations:
        return request
    limit, core = int(annotations[key]), request.share.core_percent or 0
    if limit < core:
        raise _MalformedRequestError(
            f"cannot use {key}: it is {limit}, less than {RESOURCE_GPU_CORE} of container {request.name}, which is {core}; "
            f"write {core} or more"
        )
    return replace(request, share=replace(request.share, core_limit_percent=limit))


def _check_given_by_central_alone(annotations: Mapping[str, str]) -> None:
    """Refuse annotations that the node refuses on a pod with an assignment, before the pod holds devices there."""
    if reserved := describe_reserved(annotations):
        raise _MalformedRequestError(reserved)
    for key in annotations:
        if is_manual(key):
            raise _MalformedRequestError(
                f"cannot use {_shown(key)}: the pod asks for devices in resources.limits; keep one of the two"
            )


E = TypeVar("E", bound=StrEnum)


def _choice(annotations: Mapping[str, str], key: str, kind: type[E]) -> E | None:
    value = annotations.get(key)
    if value is None:
        return None
    for choice in kind:
        if value == choice:
            return choice
    allowed = " or ".join(kind)
    raise _MalformedRequestError(f"cannot use {key}: it is {_shown(value)}; write {allowed}, or remove it")


def _listed(resources: Mapping[str, str]) -> str:
    return f"what can be asked for in resources.limits is {', '.join(resources)}"


def _shown(value: Amount) -> str:
    """Return the value in quotes, on one line, with at most _SHOWN characters and an ellipsis."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
