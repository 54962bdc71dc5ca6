"""Divide a card on demand: list the positions where MIG instances can be made, and make and remove instances there.

Only cards named in the node's configuration are divided, and only while they are in MIG mode. A person sets this mode, because
some cards need a reset for it. All instances of such a card belong to Lading, so an instance without a grant is removed. A
profile is offered only if all its positions can have an instance at once. Other profiles (`+me`) have limits that positions do
not show.

Each instance is a GPU instance with one compute instance that fills it.

Source: NVML API reference, "Multi Instance GPU Management". All functions need an open session; `divide` needs root.
"""

import contextlib
import ctypes
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pynvml

from hooks.vendors.nvidia.mig import name_profile
from hooks.vendors.nvidia.session import UNKNOWN
from lading.devices.identity import MemorySpan, position_name
from lading.nvml import ask
from lading.vocabulary import GpuUuid

_NAMED: Final = "MIG "
_MOST: Final = 32  # maximum instances or positions of a profile; cards have 8 memory slices


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    name: str
    profile: str
    profile_id: int
    slices: int  # number of compute slices
    span: MemorySpan
    memory_mib: int


def read_positions(card: Any, uuid: GpuUuid, *, card_mib: int) -> dict[str, Position]:
    """Return the positions of a card by name, whether or not there is an instance. Raise NVMLError."""
    result = {}
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = ask(partial(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, card, number), None, absent=UNKNOWN)
        if info is None:
            continue
        spans = _read_spans(card, info.id)
        if info.instanceCount < len(spans):
            continue
        profile = str(info.name).removeprefix(_NAMED) or name_profile(
            compute_slices=info.sliceCount, gpu_slices=info.sliceCount, memory_mib=info.memorySizeMB, card_mib=card_mib
        )
        for span in spans:
            name = position_name(uuid, profile, span.start)
            result[name] = Position(
                name=name,
                profile=profile,
                profile_id=info.id,
                slices=info.sliceCount,
                span=span,
                memory_mib=info.memorySizeMB,
            )
    return result


def _read_spans(card: Any, profile_id: int) -> list[MemorySpan]:
    positions, count = (pynvml.c_nvmlGpuInstancePlacement_t * _MOST)(), ctypes.c_uint(_MOST)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(card, profile_id, positions, ctypes.byref(count))
    return [MemorySpan(position.start, position.size) for position in positions[: count.value]]


def find_position(card: Any, gpu_instance: int, positions: Mapping[str, Position]) -> Position | None:
    """Return the position of this GPU instance; None if Lading cannot have made the instance. Raise NVMLError."""
    info = pynvml.nvmlGpuInstanceGetInfo(pynvml.nvmlDeviceGetGpuInstanceById(card, gpu_instance))
    return _position_of(info, positions)


def _position_of(info: Any, positions: Mapping[str, Position]) -> Position | None:
    at = (info.profileId, info.placement.start)
    return next((position for position in positions.values() if (position.profile_id, position.span.start) == at), None)


def divide(
    card: Any, positions: Mapping[str, Position], granted: Collection[str]
) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
    """Remove the instances at positions that are not granted, then make the missing instances at granted positions.

    Return the granted instances' numbers (GPU instance, compute instance), and messages about failed steps, both by position.
    An instance that a process uses cannot be removed, and its memory is not free for others. Raise NVMLError.
    """
    there: dict[str, Any] = {}
    numbers: dict[str, tuple[int, int]] = {}
    problems: dict[str, str] = {}
    for handle, info in list(_instances(card, positions.values())):
        position = _position_of(info, positions)
        if position is None:
            continue
        if position.name in granted:
            there[position.name] = handle
            continue
        try:
            _remove(handle)
        except pynvml.NVMLError as e:
            problems[position.name] = f"cannot remove MIG instance {position.name}: NVML: {e}"
    for name in sorted(granted):
        if (wanted := positions.get(name)) is None:
            problems[name] = f"cannot make MIG instance {name}: its card has no such position"
            continue
        try:
            numbers[name] = _make(card, wanted, there.get(name))
        except pynvml.NVMLError as e:
            problems[name] = f"cannot make MIG instance {name}: NVML: {e}"
    return numbers, problems


def _make(card: Any, position: Position, handle: Any | None) -> tuple[int, int]:
    if handle is None:
        at = pynvml.c_nvmlGpuInstancePlacement_t(start=position.span.start, size=position.span.size)
        handle = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(card, position.profile_id, ctypes.byref(at))
    compute = next(_compute_instances(handle), None)  # a killed daemon leaves a GPU instance without a compute instance
    if compute is None:
        compute = pynvml.nvmlGpuInstanceCreateComputeInstance(handle, _whole_profile(handle, position.slices))
    return pynvml.nvmlGpuInstanceGetInfo(handle).id, pynvml.nvmlComputeInstanceGetInfo(compute).id


def _remove(handle: Any) -> None:
    for compute in list(_compute_instances(handle)):
        pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(handle)


def _instances(card: Any, positions: Collection[Position]) -> Iterator[tuple[Any, Any]]:
    """Yield the GPU instances of these positions' profiles, each with NVML's information about it."""
    for profile_id in sorted({position.profile_id for position in positions}):
        handles, count = (pynvml.c_nvmlGpuInstance_t * _MOST)(), ctypes.c_uint(_MOST)
        pynvml.nvmlDeviceGetGpuInstances(card, profile_id, handles, ctypes.byref(count))
        yield from ((handle, pynvml.nvmlGpuInstanceGetInfo(handle)) for handle in handles[: count.value])


def _compute_instances(gpu_instance: Any) -> Iterator[Any]:
    for _, profile_id in _compute_profiles(gpu_instance):
        handles, count = (pynvml.c_nvmlComputeInstance_t * _MOST)(), ctypes.c_uint(_MOST)
        pynvml.nvmlGpuInstanceGetComputeInstances(gpu_instance, profile_id, handles, ctypes.byref(count))
        yield from handles[: count.value]


def _whole_profile(gpu_instance: Any, slices: int) -> int:
    """Return the profile of a compute instance that fills the GPU instance. Raise NVMLError if there is none."""
    for size, profile_id in _compute_profiles(gpu_instance):
        if size == slices:
            return profile_id
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)


def _compute_profiles(gpu_instance: Any) -> Iterator[tuple[int, int]]:
    """Yield the number of slices and the id of each compute instance profile."""
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        with contextlib.suppress(pynvml.NVMLError):
            engines = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gpu_instance, number, engines)
            yield info.sliceCount, info.id
