"""Describe the expected workload of a cluster: kinds of pods, and how often they arrive.

Take a workload file, or shapes of arrived pods (forecast.py). Return a Workload, whose masses are whole numbers with a sum of
MASS at most.

Shapes that differ only in irrelevant parts (the names of containers, the policy) are one kind. A pod of several containers with
shares counts by its largest share.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from central.request.check import MAX_DEVICES
from central.request.cpu_memory import MOST
from central.request.model import NO_CPU_MEMORY, CpuMemory, Shape, at_one_time
from lading.devices.assignment import MAX_MEMORY_MIB

MASS: Final = 1 << 20
# Maximum number of kinds, the most frequent ones. A cluster has some hundred templates.
MOST_KINDS: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class PodKind:
    """Represent a kind of pods by its request: whole cards, or one share, or no card at all."""

    cpu_memory: CpuMemory = NO_CPU_MEMORY
    gpus: int = 0
    memory_mib: int | None = None  # MiB of a share, as in central.request.model.Share
    core_percent: int | None = None
    models: tuple[str, ...] = ()

    @property
    def cpu_only(self) -> bool:
        return not self.gpus and self.memory_mib is None and self.core_percent is None

    @property
    def cards(self) -> float:
        """Return the cards that such a pod takes; half a card for a share by memory, because cards differ in size."""
        return float(self.gpus) if self.gpus or self.cpu_only else (self.core_percent or 50) / 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedWorkload:
    kinds: tuple[tuple[PodKind, int], ...] = ()  # kinds of pods, each with its mass


def workload_of(weights: Mapping[PodKind, float]) -> ExpectedWorkload:
    """Return the workload of these weights. The order of the weights has no effect."""
    total = sum(weights.values())
    if total <= 0:
        return ExpectedWorkload()
    kept = sorted(weights.items(), key=lambda one: (-one[1], repr(one[0])))[:MOST_KINDS]
    masses = [(kind, int(weight / total * MASS)) for kind, weight in kept]
    return ExpectedWorkload(kinds=tuple((kind, mass) for kind, mass in masses if mass))


def kind_of(shape: Shape) -> PodKind:
    containers = shape.request.containers
    # Pods with MIG instances count as pods without cards, because cards in MIG mode are not scored.
    gpus = 0 if shape.request.mig_profile else at_one_time(containers, lambda one: one.gpus)
    if gpus:
        return PodKind(cpu_memory=shape.cpu_memory, gpus=gpus, models=shape.request.gpu_models)
    shares = [one.share for one in containers if one.share is not None]
    if not shares:
        return PodKind(cpu_memory=shape.cpu_memory)
    largest = max(shares, key=lambda share: (share.memory_mib or 0, share.percent))
    return PodKind(
        cpu_memory=shape.cpu_memory,
        memory_mib=largest.memory_mib,
        core_percent=largest.percent or None,  # a percentage of memory counts as one of compute
        models=shape.request.gpu_models,
    )


# ---- a file


class WrittenPod(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Represent one kind of pods in a workload file."""

    weight: Annotated[float, msgspec.Meta(gt=0, le=1e12)]
    cpu_milli: Annotated[int, msgspec.Meta(ge=0, le=MOST)] = 0
    memory_mib: Annotated[int, msgspec.Meta(ge=0, le=MOST)] = 0
    gpus: Annotated[int, msgspec.Meta(ge=0, le=MAX_DEVICES)] = 0
    gpu_memory_mib: Annotated[int, msgspec.Meta(ge=1, le=MAX_MEMORY_MIB)] | None = None
    gpu_core_percent: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None
    gpu_models: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.gpus and (self.gpu_memory_mib or self.gpu_core_percent):
            raise ValueError("gpus and a share: a pod asks for whole cards or for a part of one")


class WrittenWorkload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pods: Annotated[tuple[WrittenPod, ...], msgspec.Meta(min_length=1)]


def parse_workload(text: bytes) -> dict[PodKind, float]:
    """Return the weights by kind. Raise msgspec.DecodeError for a text that is not a workload."""
    return kinds_written(msgspec.json.decode(text, type=WrittenWorkload).pods)


def kinds_written(pods: Iterable[WrittenPod]) -> dict[PodKind, float]:
    weights: dict[PodKind, float] = {}
    for pod in pods:
        kind = PodKind(
            cpu_memory=CpuMemory(pod.cpu_milli, pod.memory_mib),
            gpus=pod.gpus,
            memory_mib=pod.gpu_memory_mib,
            core_percent=pod.gpu_core_percent,
            models=tuple(sorted(pod.gpu_models)),
        )
        weights[kind] = weights.get(kind, 0.0) + pod.weight
    return weights
