"""Compute the amounts that a pod takes on a node: the peak use of its containers at one time, device by device.

Take the containers in starting order with their roles, and the devices of each container. Return a Taken. Init containers run
one after the other, each beside the sidecars that started before it; app containers run together with all sidecars. An amount
is the maximum over these phases. Kubernetes has the same rule for a pod's effective request, but here the rule applies to each
card. Example: an init container and an app container on two cards take a part of both.

A whole card, a MIG instance or a VF is a device with an identity. The pod takes every such device of any of its containers.

Source: KEP-753 (sidecar containers), "Resources calculation for scheduling and pod admission".
"""

from collections.abc import Iterable, Mapping, Sequence

from central.assignment.model import Part, PlacedContainer, Taken
from central.request.model import Role, Sharing
from lading.devices.isolation import IsolationName
from lading.devices.share import Amounts
from lading.vocabulary import GpuUuid

_NOTHING = Amounts()


def take(roles: Sequence[tuple[str, Role]], placed: Mapping[str, PlacedContainer], sharing: Sharing | None = None) -> Taken:
    """Return the devices that the pod takes. `roles` may name containers without devices. A container with devices and no role
    counts as an app. `sharing` applies to each card of which the pod has a share."""
    labels = () if sharing is None else (sharing,)
    # Most pods have one container with devices. Its role makes no difference, and the plain sum takes a third of the time.
    most = _most_at_one_time(roles, placed) if len(placed) > 1 else add_up(placed.values())
    whole: set[GpuUuid] = set()
    mig: dict[GpuUuid, set[str]] = {}
    isolations: dict[GpuUuid, set[str]] = {}
    for container in placed.values():
        for gpu in container.gpus:
            if gpu.whole:
                whole.add(gpu.uuid)
            elif gpu.mig_uuid:
                mig.setdefault(gpu.uuid, set()).add(gpu.mig_uuid)
            elif gpu.isolation not in {None, IsolationName.NONE}:
                isolations.setdefault(gpu.uuid, set()).add(str(gpu.isolation))
    gpus = {
        uuid: Part(
            *most.get(uuid, _NOTHING),
            whole=uuid in whole,
            mig=frozenset(mig.get(uuid, ())),
            sharing=labels if uuid in most else (),
            isolation=tuple(sorted(isolations[uuid])) if uuid in isolations else (),
        )
        for uuid in {**most, **dict.fromkeys(whole), **mig}
    }
    return Taken(gpus=gpus, vfs=frozenset(vf.bdf for container in placed.values() for vf in container.vfs))


def add_up(containers: Iterable[PlacedContainer]) -> dict[GpuUuid, Amounts]:
    """Return by card the sum of the shares of containers that run at the same time."""
    return _beside({}, containers)


def _most_at_one_time(roles: Sequence[tuple[str, Role]], placed: Mapping[str, PlacedContainer]) -> dict[GpuUuid, Amounts]:
    role_of = dict(roles)
    apps = [container for name, container in placed.items() if role_of.get(name, Role.APP) is Role.APP]
    sidecars: dict[GpuUuid, Amounts] = {}
    most: dict[GpuUuid, Amounts] = {}
    for name, role in roles:
        if name not in placed:
            continue
        if role is Role.SIDECAR:
            sidecars = _beside(sidecars, [placed[name]])
        elif role is Role.INIT:
            _raise(most, _beside(sidecars, [placed[name]]))
    _raise(most, _beside(sidecars, apps))
    return most


def _beside(running: Mapping[GpuUuid, Amounts], started: Iterable[PlacedContainer]) -> dict[GpuUuid, Amounts]:
    sums = dict(running)
    for container in started:
        for gpu in container.gpus:
            if gpu.memory_mib or gpu.core_percent:
                memory_mib, core_percent = sums.get(gpu.uuid, _NOTHING)
                sums[gpu.uuid] = Amounts(memory_mib + (gpu.memory_mib or 0), core_percent + (gpu.core_percent or 0))
    return sums


def _raise(most: dict[GpuUuid, Amounts], now: Mapping[GpuUuid, Amounts]) -> None:
    """Raise the peaks of memory and compute separately, because they may occur at different times."""
    for uuid, amounts in now.items():
        before = most.get(uuid, _NOTHING)
        most[uuid] = Amounts(max(before.memory_mib, amounts.memory_mib), max(before.core_percent, amounts.core_percent))
