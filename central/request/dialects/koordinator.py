"""Read requests to Koordinator: `koordinator.sh/gpu` and its parts, `koordinator.sh/rdma`, and the hints in annotations.

100 is a card or a NIC. Without `gpu.shared` an amount is up to 100 or a multiple of 100; with `gpu.shared: n` all amounts are
divided by n. Koordinator up to 1.5 added up the containers of a pod; here each container has its own devices.

Source: koordinator-sh/koordinator v1.8.0, apis/extension/device_share.go, pkg/scheduler/plugins/deviceshare.

Tests: tests/golden/test_dialects.py
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from central.request.amounts import MIB, Resource, shown
from central.request.check import MAX_DEVICES, Keys
from central.request.dialects.dialect import ClaimedKeys, choose, decode, has_shares, read_pod, refuse
from central.request.dialects.nvidia import NVIDIA_GPU, WHOLE
from central.request.dialects.options import DialectName, DialectOptions
from central.request.model import (
    ContainerRequest,
    DeviceRequest,
    PartitionPolicy,
    RdmaPolicy,
    Scope,
    Share,
)
from central.request.pod import Container, Pod
from lading.devices.assignment import MAX_MEMORY_MIB
from lading.devices.isolation import IsolationName

_GPU: Final = "koordinator.sh/gpu"
_CORE: Final = "koordinator.sh/gpu-core"
_MEMORY: Final = "koordinator.sh/gpu-memory"
_RATIO: Final = "koordinator.sh/gpu-memory-ratio"
_SHARED: Final = "koordinator.sh/gpu.shared"
_RDMA: Final = "koordinator.sh/rdma"
_CARD: Final = 100
_HUNDREDS: Final = Resource("1 to 100, or a multiple of 100 for whole devices", _CARD * MAX_DEVICES)
_KNOWN: Final = {
    NVIDIA_GPU: WHOLE,
    _GPU: _HUNDREDS,
    _CORE: _HUNDREDS,
    _MEMORY: Resource("an amount of memory with its unit, 1Mi or more", MAX_MEMORY_MIB, MIB),
    _RATIO: _HUNDREDS,
    _SHARED: WHOLE,
    _RDMA: _HUNDREDS,
}
_COMBINATIONS: Final = (
    {NVIDIA_GPU},
    {_GPU},
    {_MEMORY},
    {_RATIO},
    {_CORE, _MEMORY},
    {_CORE, _RATIO},
    {_SHARED, _MEMORY},
    {_SHARED, _RATIO},
    {_SHARED, _CORE, _MEMORY},
    {_SHARED, _CORE, _RATIO},
)
_HINT: Final = "scheduling.koordinator.sh/device-allocate-hint"
_JOINT: Final = "scheduling.koordinator.sh/device-joint-allocate"
_PARTITION: Final = "scheduling.koordinator.sh/gpu-partition-spec"
_PROVIDER: Final = "koordinator.sh/gpu-isolation-provider"
_SCOPES: Final = {"Device": Scope.ANY, "PCIe": Scope.SWITCH, "NUMANode": Scope.NUMA, "Node": Scope.ANY}
_KEYS: Final = Keys(
    gpus=_GPU, share=_MEMORY, vfs=_RDMA, rdma_policy=_HINT, scope=_HINT, partition=_PARTITION, isolation=_PROVIDER
)


class _Hint(msgspec.Struct, frozen=True, rename="camel"):
    selector: dict[str, Any] | None = None
    vf_selector: dict[str, Any] | None = None
    allocate_strategy: str = ""
    required_topology_scope: str = ""
    exclusive_policy: str = ""


class _Joint(msgspec.Struct, frozen=True, rename="camel"):
    device_types: tuple[str, ...] = ()
    required_scope: str = ""


class _PartitionSpec(msgspec.Struct, frozen=True, rename="camel"):
    allocate_policy: str = "BestEffort"


class Koordinator:
    name: Final = DialectName.KOORDINATOR
    claims: Final = ClaimedKeys(
        resources=_KNOWN,
        prefixes=("koordinator.sh/gpu", "koordinator.sh/rdma", "koordinator.sh/fpga"),
        annotations=("scheduling.koordinator.sh/",),
    )

    def __init__(self, options: DialectOptions) -> None:
        self._gives_vf = options.koordinator_vf

    def parse(self, pod: Pod) -> DeviceRequest | None:
        annotations, labels = pod.metadata.annotations, pod.metadata.labels
        hints: dict[str, _Hint] = {}

        def read(container: Container, amounts: Mapping[str, int]) -> ContainerRequest:
            if not hints:
                hints.update({"rdma": _Hint(), "gpu": _Hint()} | (decode(annotations, _HINT, dict[str, _Hint]) or {}))
            vfs = self._vfs(amounts.get(_RDMA, 0), hints["rdma"], container.name)
            gpu = {name: amount for name, amount in amounts.items() if name != _RDMA}
            return replace(_read_gpu(container.name, gpu), vfs=vfs)

        def refine(request: DeviceRequest) -> DeviceRequest:
            return _refine(request, annotations, labels, hints)

        return read_pod(pod, _KNOWN, self.claims, read, refine, _KEYS)

    def _vfs(self, amount: int, hint: _Hint, container: str) -> int:
        where = f"{_RDMA} of container {container}"
        if not amount:
            return 0
        if hint.vf_selector is None and not self._gives_vf:
            instead = "add vfSelector: {} to the hint for a VF, or set koordinator_vf in central.toml"
            raise refuse(where, "without vfSelector it is the PF itself, which central does not give", instead)
        if amount > _CARD and amount % _CARD:
            raise refuse(where, f"it is {amount}", f"write {_HUNDREDS.right}")
        return amount if hint.allocate_strategy == "RequestsAsCount" and amount <= _CARD else max(1, amount // _CARD)


def _read_gpu(container: str, amounts: Mapping[str, int]) -> ContainerRequest:
    """Return the cards of a container. Raise BadRequestError for a combination that Koordinator refuses too."""
    if not amounts:
        return ContainerRequest(name=container)
    first = min(amounts)
    if amounts.keys() not in _COMBINATIONS:
        ways = f"{_GPU}, {_MEMORY} or {_RATIO}, each of these two with {_CORE} or {_SHARED} or both"
        raise refuse(f"{' with '.join(sorted(amounts))} of container {container}", "no valid combination", f"write {ways}")
    if NVIDIA_GPU in amounts:
        return ContainerRequest(name=container, gpus=amounts[NVIDIA_GPU])
    core, ratio = (amounts.get(name, amounts.get(_GPU, 0)) for name in (_CORE, _RATIO))
    mib, cards = amounts.get(_MEMORY, 0), amounts.get(_SHARED, 0)
    if not cards:
        for name, amount in amounts.items():
            if name != _MEMORY and amount > _CARD and amount % _CARD:
                raise refuse(f"{name} of container {container}", f"it is {amount}", f"write {_HUNDREDS.right}")
        cards = max(1, (ratio or core) // _CARD)
    for name in (_CORE, _RATIO):
        amount = core if name == _CORE else ratio
        if amount % cards or amount // cards > _CARD:
            reason = f"{amount} is not up to {_CARD} of each of {cards} cards"
            raise refuse(
                f"{name if name in amounts else first} of container {container}", reason, f"write up to {_CARD} of each"
            )
    core, ratio, mib = core // cards, ratio // cards, mib // cards
    if ratio == _CARD and core in {0, _CARD}:
        return ContainerRequest(name=container, gpus=cards)
    percent = ratio if ratio and ratio != core else None
    share = Share(memory_mib=mib or None, memory_percent=percent, core_percent=core or None, cards=cards)
    return ContainerRequest(name=container, share=share)


def _refine(
    request: DeviceRequest, annotations: Mapping[str, str], labels: Mapping[str, str], hints: Mapping[str, _Hint]
) -> DeviceRequest:
    rdma, gpu = hints["rdma"], hints["gpu"]
    has_vfs = any(one.vfs for one in request.containers)
    if gpu.selector or (has_vfs and (rdma.selector or rdma.vf_selector)):
        raise refuse(
            _HINT, "central does not choose devices by their labels", "remove the selector (an empty vfSelector may stay)"
        )
    if has_vfs and rdma.exclusive_policy == "PCIeLevel":
        raise refuse(
            _HINT, "exclusivePolicy 'PCIeLevel' keeps other pods off a switch", "remove it; request all GPUs of a switch"
        )
    strategies = {"": RdmaPolicy.NEAREST, "ApplyForAll": RdmaPolicy.PER_PF, "RequestsAsCount": RdmaPolicy.COUNT}
    scopes = {"": Scope.ANY, **_SCOPES}
    policy = choose({_HINT: rdma.allocate_strategy}, _HINT, strategies) if has_vfs else None
    joint = decode(annotations, _JOINT, _Joint) or _Joint()
    if joint.required_scope not in {"", "SamePCIe"}:
        raise refuse(_JOINT, f"requiredScope is {shown(joint.required_scope)}", "write SamePCIe, or remove it")
    partition = decode(annotations, _PARTITION, _PartitionSpec)
    policies = {"Restricted": PartitionPolicy.HONOR, "BestEffort": PartitionPolicy.PREFER}
    wanted = choose({_PARTITION: partition.allocate_policy}, _PARTITION, policies) if partition else None
    isolation = choose(labels, _PROVIDER, {"HAMi-core": IsolationName.HAMI_CORE})
    return replace(
        request,
        rdma_policy=policy or RdmaPolicy.NEAREST,
        scope=choose({_HINT: gpu.required_topology_scope}, _HINT, scopes) or Scope.ANY,
        partition=wanted if any(one.gpus for one in request.containers) else None,
        isolation=isolation if has_shares(request) else None,
    )
