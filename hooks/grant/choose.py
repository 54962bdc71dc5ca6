"""Choose the devices of a container: its request, the node's devices and their holders → devices, or the one reason why not.

Names are resolved here, at the moment of use: an index, PCI address or ibdev becomes the UUID or PCI address that the grant
keeps. One bad entry refuses the whole request. The rules of holding:

- A card or a MIG instance that a pod holds whole is not given to another pod. Containers of one pod may share. (VFs: `vfs`.)
- Shares of one card never add up to more than its usable memory or 100 percent of its cores, over every container that holds
  one; a share that an unsuffixed annotation gives to a pod (`pod_wide`) counts once, however many of its containers use it.
  Where central says what a pod takes of a card at one time (`pod_memory_mib`, `pod_core_percent`: its init containers and the
  containers after them take turns), that counts, once, instead of the pod's shares.
- A card that a pod uses without a grant (`unmanaged`) counts as held, because it is not known how much of it is in use.

Pure, and deterministic: the same arguments give the same devices. An existing grant is not decided again; the caller checks for
one first.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hooks.grant.dirty import Cleanness, find_dirt
from hooks.grant.vfs import choose_vfs
from hooks.model.assignment import ContainerRequest, GpuRequest, GrantedDevices, GrantedGpu, Refusal
from hooks.model.grant import Holding, listed
from hooks.model.inventory import Gpu, Inventory, MigInstance
from lading.amounts import format_mib
from lading.devices.isolation import IsolationName, most_containers
from lading.devices.share import FULL_CORE, Amounts, Share, left_of_card, taken_by_pod
from lading.reasons import Reason
from lading.vocabulary import GpuUuid, PodUid

_INDEX: Final = re.compile(r"[0-9]+")


_ANY: Final = Cleanness()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """Represent one entry of the request, with what was found in the inventory."""

    request: GpuRequest
    gpu: Gpu
    mig: MigInstance | None


def choose(
    request: ContainerRequest,
    inventory: Inventory,
    *,
    pod: PodUid,
    held: Sequence[Holding],
    unmanaged: Mapping[GpuUuid, str],
    cleanness: Cleanness = _ANY,
) -> GrantedDevices | Refusal:
    """Return the devices for one container of `pod`. `held` is every live grant of the node but this container's own."""
    wanted = _find_gpus(request.gpus, inventory)
    if isinstance(wanted, Refusal):
        return wanted
    shares = any(not one.request.whole for one in wanted)  # otherwise this pod's own holdings are no obstacle
    holders = _holders([holding for holding in held if shares or holding.pod != pod])
    for one in wanted:
        holders_of = holders.get(one.gpu.uuid, ())
        refusal = (
            _check_gpu(one, pod, holders_of, unmanaged)
            or _check_position(one, wanted, held)
            or _check_isolation(one, holders_of, inventory.isolations)
            or _check_number(one, holders_of, inventory)
        )
        if refusal is not None:
            return refusal
    refusal = _check_clean(wanted, held, cleanness)
    if refusal is not None:
        return refusal
    vfs = choose_vfs(request, inventory, pod, held, kept=())
    if isinstance(vfs, Refusal):
        return vfs
    gpus = tuple(_granted(one, inventory.isolations[0]) for one in wanted)
    if len(mixed := {gpu.isolation for gpu in gpus if gpu.shared}) > 1:
        return Refusal(
            reason=Reason.ISOLATION_CONFLICT,
            message=f"cannot give shares with the isolations {listed(sorted(mixed))} to one container; write one of them",
        )
    return GrantedDevices(gpus=gpus, vfs=vfs)


def _granted(one: _Wanted, default: IsolationName) -> GrantedGpu:
    return GrantedGpu(
        uuid=one.gpu.uuid,
        mig_uuid=one.mig.uuid if one.mig else "",
        memory_mib=one.request.memory_mib,
        core_percent=one.request.core_percent,
        core_limit_percent=one.request.core_limit_percent,
        isolation=IsolationName.NONE if one.request.whole else one.request.isolation or default,
        pod_wide=one.request.pod_wide,
        pod_memory_mib=one.request.pod_memory_mib,
        pod_core_percent=one.request.pod_core_percent,
    )


def _find_gpus(requests: Sequence[GpuRequest], inventory: Inventory) -> list[_Wanted] | Refusal:
    wanteds: dict[str, _Wanted] = {}
    for request in requests:
        matches = _find_gpu(request, inventory)
        if isinstance(matches, Refusal):
            return matches
        for one in matches:
            identity = one.mig.uuid if one.mig else one.gpu.uuid
            if identity in wanteds:
                return Refusal(
                    reason=Reason.ANNOTATION_MALFORMED,
                    message=f"cannot give {_describe(one.gpu, one.mig)} twice to one container: named as "
                    f"{wanteds[identity].request.name} and as {request.name}",
                )
            wanteds[identity] = one
    return list(wanteds.values())


def _find_gpu(request: GpuRequest, inventory: Inventory) -> list[_Wanted] | Refusal:
    """Return the card or instance with that name; for "all", every healthy card."""
    if request.name == "all":
        healthy = [_Wanted(request=request, gpu=gpu, mig=None) for gpu in inventory.gpus if not gpu.unhealthy]
        return healthy or _unknown_gpu(request.name, inventory, "no healthy GPU")
    for gpu in inventory.gpus:
        mig = next((instance for instance in gpu.mig if instance.uuid == request.name), None)
        if mig is None and not _is_named(gpu, request.name):
            continue
        if request.bdf is not None and request.bdf != gpu.bdf:
            return _unknown_gpu(request.name, inventory, f"no such GPU at {request.bdf}; it is at {gpu.bdf}")
        return [_Wanted(request=request, gpu=gpu, mig=mig)]
    return _unknown_gpu(request.name, inventory, "no such GPU")


def _is_named(gpu: Gpu, name: str) -> bool:
    if _INDEX.fullmatch(name):
        return gpu.index == int(name)
    return name in {gpu.uuid, gpu.bdf}


def _unknown_gpu(name: str, inventory: Inventory, cause: str) -> Refusal:
    """Refuse, with a list of the node's GPUs in the form of name that the person used."""
    if name.startswith("MIG-"):
        has = [f"{instance.uuid} on GPU {gpu.index}" for gpu in inventory.gpus for instance in gpu.mig]
    elif _INDEX.fullmatch(name) or name == "all":
        has = [str(gpu.index) for gpu in inventory.gpus if gpu.index >= 0]
    elif ":" in name:
        has = [gpu.bdf for gpu in inventory.gpus]
    else:
        has = [gpu.uuid for gpu in inventory.gpus]
    return Refusal(reason=Reason.DEVICE_UNKNOWN, message=f"cannot find GPU {name}: {cause}; this node has {listed(has)}")


_MOST_SHARERS: Final[Mapping[IsolationName, str]] = {
    IsolationName.TOKENS: "the most that take turns",
    IsolationName.MPS: "the most clients of an MPS server",  # each has one process at least
}

_Holders = Sequence[tuple[Holding, GrantedGpu]]  # holders of one card


def _check_gpu(one: _Wanted, pod: PodUid, holders: _Holders, unmanaged: Mapping[GpuUuid, str]) -> Refusal | None:
    gpu, text = one.gpu, _describe(one.gpu, one.mig)
    if gpu.unhealthy:
        return Refusal(reason=Reason.DEVICE_UNHEALTHY, message=f"cannot give {text}: it is not healthy: {gpu.unhealthy}")
    if gpu.mig_enabled and one.mig is None:
        has = listed([instance.uuid for instance in gpu.mig])
        return Refusal(
            reason=Reason.DEVICE_UNKNOWN,
            message=f"cannot give {text}: it is in MIG mode, where only its instances can be given; it has {has}",
        )
    if gpu.uuid in unmanaged:
        return Refusal(reason=Reason.DEVICE_HELD, message=f"cannot give {text}: it is used by {unmanaged[gpu.uuid]}")
    own = _granted(one, IsolationName.NONE)
    for holding, granted in holders:
        if holding.pod != pod and own.excludes(granted):
            return Refusal(reason=Reason.DEVICE_HELD, message=f"cannot give {text}: {_holder(holding, granted)}")
    return None if one.request.whole else _check_capacity(one, pod, holders)


def _check_position(one: _Wanted, wanted: Sequence[_Wanted], held: Sequence[Holding]) -> Refusal | None:
    """Refuse a position for a MIG instance whose memory another instance takes, also one of the same pod."""
    if one.mig is None or one.mig.span is None:
        return None
    of_card = {mig.uuid: mig for mig in one.gpu.mig}
    taken = [(holding, of_card.get(gpu.mig_uuid)) for holding in held for gpu in holding.devices.gpus]
    for holding, other in taken:
        if other is not None and other.uuid != one.mig.uuid and one.mig.overlaps(other):
            return Refusal(
                reason=Reason.DEVICE_HELD,
                message=f"cannot give {_describe(one.gpu, one.mig)}: {holding.holds(other.uuid)}, which takes the same memory",
            )
    for another in wanted:
        if another.mig is not None and another.mig.uuid != one.mig.uuid and one.mig.overlaps(another.mig):
            return Refusal(
                reason=Reason.ANNOTATION_MALFORMED,
                message=f"cannot give {one.mig.uuid} and {another.mig.uuid} to one container: they take the same memory",
            )
    return None


def _check_clean(wanted: Sequence[_Wanted], held: Sequence[Holding], cleanness: Cleanness) -> Refusal | None:
    """Refuse a card that no grant holds and that is not clean; not its MIG instances, which have neighbours."""
    for one in wanted:
        dirt = "" if one.mig else find_dirt(one.gpu, cleanness)
        if dirt and not any(one.gpu.uuid == gpu.uuid for holding in held for gpu in holding.devices.gpus):
            message = f"cannot give {_describe(one.gpu, None)}: {dirt}"
            return Refusal(reason=Reason.DEVICE_DIRTY, message=message, transient=True)
    return None


_THIS: Final = "*"  # stands for the container that is decided about; no container has such a name


def _check_capacity(one: _Wanted, pod: PodUid, holders: _Holders) -> Refusal | None:
    gpu, own = one.gpu, one.request
    of_pods: dict[PodUid, list[tuple[str, Share]]] = {pod: [(_THIS, own)]}
    for holding, granted in holders:
        of_pods.setdefault(holding.pod, []).append((holding.container, granted))
    each = [taken_by_pod(shares) for shares in of_pods.values()]
    all_mib, all_core = sum(taken.memory_mib for taken in each), sum(taken.core_percent for taken in each)
    if all_mib <= gpu.usable_mib and all_core <= FULL_CORE:
        return None
    own_mib, own_core = own.pod_memory_mib or own.memory_mib or 0, own.pod_core_percent or own.core_percent or 0
    taken_mib, taken_core = all_mib - own_mib, all_core - own_core
    free_mib, free_core = left_of_card(gpu.usable_mib, Amounts(taken_mib, taken_core))
    names = {f"{holding.pod_name}/{holding.container}" for holding, _ in holders}
    by_whom = f" by {listed(sorted(names))}" if names else ""
    return Refusal(
        reason=Reason.CAPACITY_EXCEEDED,
        message=f"cannot give {format_mib(own_mib)} and {own_core}% of {_describe(gpu, None)}: "
        f"{format_mib(free_mib)} of {format_mib(gpu.usable_mib)} and {free_core}% free; "
        f"{format_mib(taken_mib)} and {taken_core}% are held{by_whom}",
    )


def _check_isolation(one: _Wanted, holders: _Holders, offered: Sequence[IsolationName]) -> Refusal | None:
    """Refuse a share with an isolation that the node does not offer, or other than that of the card's shares."""
    if one.request.whole:
        return None
    name = one.request.isolation or offered[0]
    if name not in offered:
        return Refusal(
            reason=Reason.ISOLATION_UNAVAILABLE,
            message=f"cannot give a share of {_describe(one.gpu, None)} with isolation {name}: this node offers "
            f"{listed(offered)} (isolations in hooks.toml)",
        )
    for holding, granted in holders:
        if granted.shared and granted.isolation is not name:
            return Refusal(
                reason=Reason.ISOLATION_CONFLICT,
                message=f"cannot give a share of {_describe(one.gpu, None)} with isolation {name}: "
                f"{holding.holds('a share of it')} with isolation {granted.isolation}, and a card has one at a time",
            )
    return None


def _check_number(one: _Wanted, holders: _Holders, inventory: Inventory) -> Refusal | None:
    """Refuse a share of a card that has enough sharers. Containers that use one share count one by one: each has a context."""
    sharers = {(holding.pod, holding.container) for holding, _ in holders}
    isolation = one.request.isolation or inventory.isolations[0]
    limit = most_containers(isolation, inventory.shares_per_gpu)
    if one.request.whole or len(sharers) < limit:
        return None
    which = _MOST_SHARERS[isolation] if limit < inventory.shares_per_gpu else "shares_per_gpu"
    reason = f"{len(sharers)} containers have one; {which} is {limit}"
    return Refusal(reason=Reason.CAPACITY_EXCEEDED, message=f"cannot give a share of {_describe(one.gpu, None)}: {reason}")


def _holders(held: Sequence[Holding]) -> Mapping[GpuUuid, _Holders]:
    by_card: dict[GpuUuid, list[tuple[Holding, GrantedGpu]]] = {}
    for holding in held:
        for granted in holding.devices.gpus:
            by_card.setdefault(granted.uuid, []).append((holding, granted))
    return by_card


def _holder(holding: Holding, granted: GrantedGpu) -> str:
    what = "it" if granted.whole else granted.mig_uuid or "a share of it"
    return holding.holds(what)


def _describe(gpu: Gpu, mig: MigInstance | None) -> str:
    return f"{mig.uuid} on GPU {gpu.index} ({gpu.uuid})" if mig else f"GPU {gpu.index} ({gpu.uuid})"
