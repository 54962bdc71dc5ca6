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
from typing import Final, TypeVar

from central.request.amounts import MIB, BadRequestError, Resource, list_resources, read_amounts, shown
from central.request.check import MAX_DEVICES, Keys, check_profile, check_request
from central.request.dialects.dialect import ClaimedKeys
from central.request.model import (
    ContainerRequest,
    DeviceRequest,
    PartitionPolicy,
    Policy,
    RdmaPolicy,
    Role,
    Scope,
    Share,
    Sharing,
)
from central.request.pod import Container, Pod, starting_order
from lading.annotations import describe_reserved, find_unknown, nearest_key
from lading.devices.assignment import LABEL, MAX_MEMORY_MIB
from lading.devices.isolation import IsolationName
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
    RESOURCE_GPU_MEMORY_PERCENT,
    RESOURCE_RDMA,
    SHARE_AFFINITY,
    SHARE_ANTI_AFFINITY,
    SHARE_EXCLUSION,
    TOPOLOGY,
    is_manual,
    is_request_annotation,
)

_RESOURCES: Final = {
    RESOURCE_GPU: Resource(f"a whole number of cards, 1 to {MAX_DEVICES}", MAX_DEVICES),
    RESOURCE_GPU_MEMORY: Resource(
        "an amount of one card's memory with its unit, 1Mi or more: 8Gi, 8138Mi", MAX_MEMORY_MIB, MIB
    ),
    RESOURCE_GPU_MEMORY_PERCENT: Resource("a whole number of percent of one card's memory, 1 to 100", 100),
    RESOURCE_GPU_CORE: Resource(f"a whole number of percent of one card, 1 to 100; {RESOURCE_GPU} is for whole cards", 100),
    RESOURCE_RDMA: Resource(f"a whole number of VFs, 1 to {MAX_DEVICES}", MAX_DEVICES),
    RESOURCE_GANG_MEMBER: Resource("1, in a pod without devices that starts with its gang", 1),
}
_SHARING: Final = (SHARE_AFFINITY, SHARE_ANTI_AFFINITY, SHARE_EXCLUSION)
_LABEL: Final = re.compile(LABEL)
_SHARE: Final = f"{RESOURCE_GPU_MEMORY} or {RESOURCE_GPU_CORE}"
_KEYS: Final = Keys(
    gpus=RESOURCE_GPU,
    share=_SHARE,
    vfs=RESOURCE_RDMA,
    models=GPU_MODEL,
    mig_profile=MIG_PROFILE,
    rdma_policy=RDMA_POLICY,
    scope=TOPOLOGY,
    partition=NVSWITCH_PARTITION,
    sharing=_SHARING,
    isolation=ISOLATION,
)
_PERCENT: Final = re.compile(r"[1-9][0-9]?|100")


class Own:
    """Read Lading's own dialect."""

    name: Final = "lading"
    claims: Final = ClaimedKeys(resources=_RESOURCES, prefixes=(PREFIX,))

    def parse(self, pod: Pod) -> DeviceRequest | None:
        """Return the pod's device request. Pods of one template get equal requests: of a pod's identity, a request has only the
        namespace of the sharing labels."""
        asks = tuple(_container(container, role) for container, role in starting_order(pod))
        return _request(asks, pod.metadata.annotations, pod.metadata.namespace)


# ---- requests of containers


def _container(container: Container, role: Role) -> ContainerRequest:
    requested = read_amounts(container, _RESOURCES, (PREFIX,))
    gpus, memory, percent, core, vfs, member = (requested.get(resource, 0) for resource in _RESOURCES)
    if memory and percent:
        where = f"{RESOURCE_GPU_MEMORY_PERCENT} of container {container.name}"
        raise BadRequestError(f"cannot use {where}: it has {RESOURCE_GPU_MEMORY} too; keep one of the two")
    if not memory and not percent and not core:
        return ContainerRequest(name=container.name, role=role, gpus=gpus, vfs=vfs, gang_member=member > 0)
    share = Share(memory_mib=memory or None, memory_percent=percent or None, core_percent=core or None, cards=gpus or 1)
    return ContainerRequest(name=container.name, role=role, share=share, vfs=vfs)


# ---- annotations that refine the requests


def _request(asks: tuple[ContainerRequest, ...], annotations: Mapping[str, str], namespace: str) -> DeviceRequest | None:
    refining = sorted(filter(is_request_annotation, annotations))
    containers = tuple(request for request in asks if not request.empty)
    if not containers:
        if refining:
            raise BadRequestError(f"cannot use {refining[0]}: the pod asks for no device; {list_resources(_RESOURCES)}")
        return DeviceRequest(containers=()) if any(request.gang_member for request in asks) else None
    _check_given_by_central_alone(annotations)
    if unknown := find_unknown(annotations):
        raise BadRequestError(
            f"cannot use {shown(unknown)}: no such annotation; write {nearest_key(unknown)}, or remove it (a key of another "
            "system: foreign_annotations in central.toml and hooks.toml)"
        )
    rdma_policy = _choice(annotations, RDMA_POLICY, RdmaPolicy)
    if rdma_policy is not None and not any(request.vfs for request in containers):
        raise BadRequestError(f"cannot use {RDMA_POLICY}: the pod asks for no VF; add {RESOURCE_RDMA}, or remove it")
    request = DeviceRequest(
        containers=_limited(containers, asks, [key for key in refining if key.startswith(GPU_CORE_LIMIT)], annotations),
        policy=_choice(annotations, POLICY, Policy),
        gpu_models=_models(annotations.get(GPU_MODEL)),
        mig_profile=_mig_profile(annotations.get(MIG_PROFILE)),
        rdma_policy=rdma_policy or RdmaPolicy.NEAREST,
        scope=_choice(annotations, TOPOLOGY, Scope) or Scope.ANY,
        partition=_choice(annotations, NVSWITCH_PARTITION, PartitionPolicy),
        sharing=_sharing(annotations, namespace),
        isolation=_choice(annotations, ISOLATION, IsolationName),
    )
    return check_request(request, _KEYS)


def _models(written: str | None) -> tuple[str, ...]:
    """Return the allowed models, which `|` or commas separate, sorted: equal sets give equal requests."""
    if written is None:
        return ()
    models = [model.strip() for model in re.split(r"[|,]", written)]
    if not all(models):
        at = "it is empty" if not any(models) else f"{shown(written)} has an empty name at position {models.index('') + 1}"
        raise BadRequestError(
            f"cannot use {GPU_MODEL}: {at}; write the model as the node reports it, several as A|B, or remove it"
        )
    return tuple(sorted(set(models)))


def _mig_profile(written: str | None) -> str:
    if written is None:
        return ""
    check_profile(MIG_PROFILE, written.strip(), written)
    return written.strip()


def _sharing(annotations: Mapping[str, str], namespace: str) -> Sharing | None:
    for key in (written := [key for key in _SHARING if key in annotations]):
        if not _LABEL.fullmatch(annotations[key]):
            is_now = "empty" if not annotations[key] else shown(annotations[key])
            raise BadRequestError(
                f"cannot use {key}: it is {is_now}; write 1 to 63 letters, digits, dashes, underscores and dots, a letter or "
                "digit first and last, or remove it"
            )
    affinity, anti_affinity, exclusion = (annotations.get(key, "") for key in _SHARING)
    return (
        Sharing(namespace=namespace, affinity=affinity, anti_affinity=anti_affinity, exclusion=exclusion) if written else None
    )


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
        if not any(request.share for request in containers):
            raise BadRequestError(f"cannot use {key}: the pod asks for no share of a GPU; add {_SHARE}, or remove it")
        name = key.removeprefix(GPU_CORE_LIMIT).removeprefix(".")
        if key != GPU_CORE_LIMIT and name not in by_name:
            raise BadRequestError(f"cannot use {shown(key)}: the pod has no container {shown(name)}; name one, or remove it")
        if key != GPU_CORE_LIMIT and by_name[name].share is None:
            raise BadRequestError(f"cannot use {key}: the container asks for no share of a GPU; add {_SHARE}, or remove it")
        if not _PERCENT.fullmatch(annotations[key]):
            right = "the percent of one card's compute that a share may use while others leave it, 1 to 100"
            raise BadRequestError(f"cannot use {key}: it is {shown(annotations[key])}; write {right}")
    return tuple(_with_limit(request, annotations) for request in containers)


def _with_limit(request: ContainerRequest, annotations: Mapping[str, str]) -> ContainerRequest:
    own = f"{GPU_CORE_LIMIT}.{request.name}"
    key = own if own in annotations else GPU_CORE_LIMIT
    if request.share is None or key not in annotations:
        return request
    limit, core = int(annotations[key]), request.share.core_percent or 0
    if limit < core:
        raise BadRequestError(
            f"cannot use {key}: it is {limit}, less than {RESOURCE_GPU_CORE} of container {request.name}, which is {core}; "
            f"write {core} or more"
        )
    return replace(request, share=replace(request.share, core_limit_percent=limit))


def _check_given_by_central_alone(annotations: Mapping[str, str]) -> None:
    """Refuse annotations that the node refuses on a pod with an assignment, before the pod holds devices there."""
    if reserved := describe_reserved(annotations):
        raise BadRequestError(reserved)
    for key in annotations:
        if is_manual(key):
            raise BadRequestError(f"cannot use {shown(key)}: the pod asks for devices in resources.limits; keep one of the two")


E = TypeVar("E", bound=StrEnum)


def _choice(annotations: Mapping[str, str], key: str, kind: type[E]) -> E | None:
    value = annotations.get(key)
    if value is None:
        return None
    for choice in kind:
        if value == choice:
            return choice
    allowed = " or ".join(kind)
    raise BadRequestError(f"cannot use {key}: it is {shown(value)}; write {allowed}, or remove it")
