"""Read requests for virtual GPUs: HAMi, and Volcano vGPU, which has the same form under other names.

Amounts are for each card. Without an amount of memory, a container takes all of it, whatever it takes of the compute. So a
number alone is whole cards: from HAMi 2.7 on, the webhook adds 100 % of the compute to such a container.

Source: Project-HAMi/HAMi v2.10.0, pkg/device/nvidia, pkg/scheduler/webhook.go; Volcano, api/devices/nvidia/vgpu.

Tests: tests/golden/test_dialects.py
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from central.request.amounts import Resource
from central.request.check import MAX_DEVICES, Keys
from central.request.dialects.dialect import ClaimedKeys, choose, has_shares, read_pod, refuse
from central.request.dialects.nvidia import NVIDIA_GPU
from central.request.dialects.options import DialectName
from central.request.model import ContainerRequest, DeviceRequest, Policy, Scope, Share
from central.request.pod import Container, Pod
from lading.devices.isolation import IsolationName
from lading.vocabulary import GPU_MODEL, ISOLATION, MIG_PROFILE

_MOST_MIB: Final = 2**31 - 1  # HAMi's own limit
_ALL: Final = 100
# Go's strconv.ParseBool
_BOOLEANS: Final = dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), Scope.NUMA) | dict.fromkeys(
    ("0", "f", "F", "false", "FALSE", "False"), Scope.ANY
)
_POLICIES: Final = {"binpack": Policy.BINPACK, "spread": Policy.SPREAD}
_CARD_FILTERS: Final = {
    "use-gputype": f"write {GPU_MODEL} with the model as the node reports it",
    "nouse-gputype": f"write {GPU_MODEL} with the models that the pod may have",
    "use-gpuuuid": "central chooses the card; remove it",
    "nouse-gpuuuid": "central chooses the card; remove it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VgpuNames:
    """Hold the names of one system."""

    system: DialectName
    count: str
    memory: str
    percentage: str
    cores: str
    prefixes: tuple[str, ...]
    mode: str  # annotation
    alone: tuple[str, ...]  # resources that request one card without `count`
    others: tuple[str, ...] = ()  # resources without an effect on which card the pod gets
    filters: Mapping[str, str]  # annotations that choose among cards, and what to write instead
    annotations: tuple[str, ...]


HAMI: Final = VgpuNames(
    system=DialectName.HAMI,
    count=NVIDIA_GPU,
    memory="nvidia.com/gpumem",
    percentage="nvidia.com/gpumem-percentage",
    cores="nvidia.com/gpucores",
    prefixes=(NVIDIA_GPU,),
    mode="nvidia.com/vgpu-mode",
    alone=("nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"),
    others=("nvidia.com/priority",),
    filters={f"nvidia.com/{key}": instead for key, instead in _CARD_FILTERS.items()},
    annotations=("nvidia.com/", "hami.io/"),
)
VOLCANO: Final = VgpuNames(
    system=DialectName.VOLCANO,
    count="volcano.sh/vgpu-number",
    memory="volcano.sh/vgpu-memory",
    percentage="volcano.sh/vgpu-memory-percentage",
    cores="volcano.sh/vgpu-cores",
    prefixes=("volcano.sh/vgpu", "volcano.sh/gpu"),
    mode="volcano.sh/vgpu-mode",
    alone=("volcano.sh/vgpu-memory",),
    filters={
        "volcano.sh/vgpu-use-gpuuuid": _CARD_FILTERS["use-gpuuuid"],
        "volcano.sh/vgpu-nouse-gpuuuid": _CARD_FILTERS["nouse-gpuuuid"],
        "nvidia.com/use-gputype": _CARD_FILTERS["use-gputype"],
        "nvidia.com/nouse-gputype": _CARD_FILTERS["nouse-gputype"],
    },
    annotations=("volcano.sh/vgpu-", "nvidia.com/"),
)
_POLICY: Final = "hami.io/gpu-scheduler-policy"
_NUMA: Final = "nvidia.com/numa-bind"


class Vgpu:
    def __init__(self, names: VgpuNames) -> None:
        self._names = names
        self.name = names.system
        any_number = 2**31 - 1  # more than 100 is 100, and a priority decides nothing here
        self._known = {
            names.count: Resource(f"a whole number of cards, 1 to {MAX_DEVICES}", MAX_DEVICES),
            names.memory: Resource("a whole number of MiB of each card, without a unit", _MOST_MIB),
            names.percentage: Resource("a whole number of percent of each card's memory, 1 to 100", _ALL),
            names.cores: Resource("a whole number of percent of each card's compute, 1 to 100", any_number),
            **dict.fromkeys(names.others, Resource("a whole number", any_number)),
        }
        self.claims = ClaimedKeys(resources=self._known, prefixes=names.prefixes, annotations=names.annotations)

    def parse(self, pod: Pod) -> DeviceRequest | None:
        names, annotations = self._names, pod.metadata.annotations
        keys = Keys(gpus=names.count, share=f"{names.memory} or {names.percentage}", scope=_NUMA, isolation=names.mode)
        return read_pod(pod, self._known, self.claims, self._read, lambda request: _refine(request, annotations, names), keys)

    def _read(self, container: Container, amounts: Mapping[str, int]) -> ContainerRequest:
        names = self._names
        wanted = {name: amount for name, amount in amounts.items() if name not in names.others}
        if names.count not in wanted and not wanted.keys() & set(names.alone):
            missing = f"{names.count} or {names.memory}"
            raise refuse(
                f"{min(amounts)} of container {container.name}", f"it is without {missing} and gives no card", f"add {missing}"
            )
        if container.privileged and names is HAMI:
            reason = f"container {container.name} is privileged, and reaches all cards of its node"
            raise refuse(min(wanted), reason, "remove one of the two")
        cards = wanted.get(names.count, 1)
        cores = min(wanted.get(names.cores, 0), _ALL)
        if mib := wanted.get(names.memory, 0):
            return ContainerRequest(name=container.name, share=Share(memory_mib=mib, core_percent=cores or None, cards=cards))
        percent = wanted.get(names.percentage, _ALL)
        if percent == _ALL and cores in {0, _ALL}:
            return ContainerRequest(name=container.name, gpus=cards)
        share = Share(memory_percent=percent, core_percent=cores or None, cards=cards)
        return ContainerRequest(name=container.name, share=share)


def _refine(request: DeviceRequest, annotations: Mapping[str, str], names: VgpuNames) -> DeviceRequest:
    for key, instead in names.filters.items():
        if annotations.get(key, "").strip(", "):
            raise refuse(key, "central does not choose cards by it", instead)
    modes = {"hami-core": IsolationName.HAMI_CORE, "mps": IsolationName.MPS, "mig": IsolationName.MIG}
    isolation = choose(annotations, names.mode, modes)
    if isolation is IsolationName.MIG:
        instead = f"write {MIG_PROFILE}, or {ISOLATION}: {IsolationName.MIG}, with lading.dev/ resources"
        raise refuse(names.mode, "'mig' names no profile", instead)
    if names is not HAMI:
        return replace(request, isolation=isolation if has_shares(request) else None)
    written = [one.strip() for one in annotations.get(_POLICY, "").split(",", 8)]
    if "mutex" in written:
        raise refuse(_POLICY, "'mutex' asks for unused cards", f"write {names.count} alone, for whole cards")
    return replace(
        request,
        isolation=isolation if has_shares(request) else None,
        scope=choose(annotations, _NUMA, _BOOLEANS) or Scope.ANY,
        policy=next((_POLICIES[one] for one in written if one in _POLICIES), None),
    )
