"""Describe a device request in words, for tables, the page and explanations.

Tests: tests/unit/central/decide/test_why_pod.py
"""

from collections.abc import Iterator
from typing import Final

from central.request.model import ContainerRequest, DeviceRequest, RdmaPolicy, Scope, Sharing
from lading.amounts import format_mib
from lading.vocabulary import (
    GPU_MODEL,
    ISOLATION,
    NVSWITCH_PARTITION,
    POLICY,
    PREFIX,
    SHARE_AFFINITY,
    SHARE_ANTI_AFFINITY,
    SHARE_EXCLUSION,
    TOPOLOGY,
)

_WHERE: Final = {
    RdmaPolicy.NEAREST: "",
    RdmaPolicy.COUNT: " wherever they are (rdma-policy count)",
    RdmaPolicy.PER_SWITCH: " on each switch of its GPUs (rdma-policy per-switch)",
    RdmaPolicy.PER_PF: " of each PF (rdma-policy per-pf)",
}


def describe_request(request: DeviceRequest) -> str:
    """Return in words the devices of each container, then the annotations that refine all of them. Unset annotations are left
    out."""
    devices = [f"{container.name}: {', '.join(_devices_as_text(container, request))}" for container in request.containers]
    bound_to = (
        (GPU_MODEL, " or ".join(request.gpu_models)),
        (TOPOLOGY, "" if request.scope is Scope.ANY else request.scope),
        (NVSWITCH_PARTITION, request.partition or ""),
        (POLICY, request.policy or ""),
        (ISOLATION, request.isolation or ""),
    )
    together = ["all shares on one GPU"] if request.same_card else []
    return "; ".join(
        [
            *devices,
            *together,
            *(f"{_word(key)} {value}" for key, value in bound_to if value),
            *_sharing_as_text(request.sharing),
        ]
    )


def _devices_as_text(container: ContainerRequest, request: DeviceRequest) -> Iterator[str]:
    if container.gpus:
        kind = (
            f"MIG instance{_s(container.gpus)} {request.mig_profile}"
            if request.mig_profile
            else f"whole GPU{_s(container.gpus)}"
        )
        yield f"{container.gpus} {kind}"
    if share := container.share:
        amounts = [format_mib(share.memory_mib)] if share.memory_mib else []
        amounts += [f"{share.memory_percent}% of the memory"] if share.memory_percent else []
        amounts += [f"{share.core_percent}%"] if share.core_percent else []
        limit = f", limited to {share.core_limit_percent}% of the compute" if share.core_limit_percent else ""
        each = f" of each of {share.cards} GPUs" if share.cards > 1 else ""
        yield f"a GPU share of {' and '.join(amounts)}{each}{limit}"
    if container.vfs:
        yield f"{container.vfs} RDMA VF{_s(container.vfs)}{_WHERE[request.rdma_policy]}"


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _word(key: str) -> str:
    return key.removeprefix(PREFIX)


def _sharing_as_text(sharing: Sharing | None) -> list[str]:
    if sharing is None:
        return []
    rules = (
        (SHARE_AFFINITY, sharing.affinity),
        (SHARE_ANTI_AFFINITY, sharing.anti_affinity),
        (SHARE_EXCLUSION, sharing.exclusion),
    )
    return [f"{_word(key)} {label}" for key, label in rules if label]
