"""Convert a DeviceRequest to a Demand: the cards and VFs that each container wants, and in which *phases* of the pod.

A phase is a moment of the pod's life that must fit. There is one for each init container beside the sidecars started before it,
and a last one for the app containers with all sidecars. Two containers with a common phase share no whole card and no VF, and
their shares add up. Two containers without a common phase may have the same devices.

Take a DeviceRequest, and the rules by which a whole card is divided (`Limits`). Return a Demand, which is cached: equal
requests get the same object.

Source: KEP-753; facts on over-commit by count: the virtual devices of the Redis design, seed 002.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from central.request.model import ContainerRequest, DeviceRequest, PartitionPolicy, Policy, RdmaPolicy, Role, Scope
from lading.devices.isolation import IsolationName


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Hold the bounds of a cluster, from central's settings."""

    # Number N of containers that share a card, to over-commit by count under the policy spread. A container that requests
    # `lading.dev/gpu: n` gets 1/N of the memory and compute of each of n cards. 0 and 1: containers get whole cards.
    spread_containers_per_card: int = 0
    # Maximum tried choices of cards on one node for one pod, before the pod counts as not fitting. Random pods of up to eight
    # different shares on random nodes need 230 at most, half of them less than 10. The bound protects central's single thread
    # against pods that are built to keep it busy: 300 choices take some 8 ms.
    search_steps: int = 300
    partition: PartitionPolicy = PartitionPolicy.PREFER  # default for pods without a setting


DEFAULT_LIMITS: Final = Limits()

Sizes = TypeVar("Sizes", int, NDArray[np.int64])  # MiB of one card, or of many


def mib_of_share(usable_mib: Sizes, memory_mib: int | None, percent: int | None) -> Sizes | int:
    """Return the MiB that a share takes of cards of this size: its amount of memory, or its percentage, rounded down."""
    return usable_mib * (percent or 0) // 100 if memory_mib is None else memory_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Represent the devices that one container requests: `count` different cards, whole or the same share of each, and VFs."""

    container: str
    phases: tuple[int, ...]
    mask: int  # the phases as a bit mask
    count: int
    whole: bool  # False for shares; True also without cards
    memory_mib: int | None = None  # MiB of a share; None: a percentage of the card's usable memory
    memory_percent: int | None = None  # without its own percentage of memory, a share takes that of its compute
    core_percent: int | None = None
    core_limit_percent: int | None = None  # copied to the assignment; has no effect on whether a pod fits
    vfs: int = 0  # number of VFs, counted by the pod's RDMA policy

    def mib_of(self, usable_mib: int) -> int:
        """Return the MiB that the share takes of a card of this size."""
        return mib_of_share(usable_mib, self.memory_mib, self.memory_percent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Represent a pod's request for the search. `wanted` is in the order in which devices are chosen, so that later containers
    can reuse the devices of earlier ones."""

    roles: tuple[tuple[str, Role], ...]
    phases: int
    models: tuple[str, ...]  # accepted models of cards; empty: any
    mig_profile: str  # profile of the MIG instances that count as whole cards (mig.py); "": real cards
    rdma: RdmaPolicy
    scope: Scope
    partition: PartitionPolicy | None  # None: partitions are ignored
    isolation: IsolationName | None  # isolation of the shares; None: the default of the node
    wanted: tuple[Wanted, ...]
    cards: tuple[Wanted, ...]  # elements of `wanted` that request cards
    needs: tuple[Wanted, ...]  # minimum needs, each met alone: the most whole cards at one time, and every share
    whole_peak: int  # maximum whole cards at one time
    vfs_peak: int  # maximum VFs at one time; per-switch: if all cards are below one switch; per-pf: of each PF

    @property
    def bound(self) -> bool:
        """Return whether the position of a device may decide if the pod can be placed, and not only how well."""
        return (
            self.scope is not Scope.ANY
            or self.partition is PartitionPolicy.HONOR
            or (self.vfs_peak > 0 and self.rdma in (RdmaPolicy.PER_SWITCH, RdmaPolicy.PER_PF))
        )


def is_placed(demand: Demand) -> bool:
    """Return whether the position of a device decides if, or how well, the pod can be placed: for places required by the
    request, or containers with several devices."""
    return demand.bound or any(one.count > 1 or (one.count > 0 and one.vfs > 0) for one in demand.wanted)


def policy_of(request: DeviceRequest, default: Policy) -> Policy:
    return default if request.policy is None else request.policy


def read_demand(request: DeviceRequest, policy: Policy, limits: Limits = DEFAULT_LIMITS) -> Demand:
    """Return the Demand of a request. `policy` is the one that applies to this request.

    The policy spread may divide whole cards into shares. It does not divide MIG instances, nor the cards of a required NVSwitch
    partition. Nor does it divide the cards of a pod with sharing labels, which requests the shares that it wants."""
    kept_whole = request.sharing or request.mig_profile or request.partition is PartitionPolicy.HONOR
    per_card = limits.spread_containers_per_card if policy is Policy.SPREAD and not kept_whole else 0
    return _read_demand(request, per_card, request.partition or limits.partition)


@lru_cache(maxsize=1024)  # a cluster has some dozen templates at a time
def _read_demand(request: DeviceRequest, per_card: int, partition: PartitionPolicy) -> Demand:
    masks = _masks(request.containers)
    wanted = [_wanted(container, mask, per_card) for container, mask in zip(request.containers, masks, strict=True)]
    phases = max(mask.bit_length() for mask in masks) if masks else 1
    last = 1 << (phases - 1)
    has_vfs = any(one.vfs for one in wanted)
    # If there are VFs, containers of the last phase come first, so that the pod needs few VFs in all phases together.
    # If places are required, containers that the fewest places suit come first, because the others have more choices.
    honor = partition is PartitionPolicy.HONOR and not request.mig_profile
    bound = honor or request.scope is not Scope.ANY or (has_vfs and request.rdma_policy is RdmaPolicy.PER_SWITCH)
    wanted.sort(key=lambda one: (has_vfs and not one.mask & last, *_order(one, last, bound=bound)))
    cards = [one for one in wanted if one.count]
    whole_peak, whole = _peak([one for one in cards if one.whole], phases)
    return Demand(
        roles=tuple((container.name, container.role) for container in request.containers),
        phases=phases,
        models=request.gpu_models,
        mig_profile=request.mig_profile,
        rdma=request.rdma_policy,
        scope=request.scope,
        partition=partition if whole and not request.mig_profile else None,
        isolation=request.isolation,
        wanted=tuple(wanted),
        cards=tuple(cards),
        needs=(
            *whole,
            *{
                (one.memory_mib, one.memory_percent, one.core_percent, one.count): one for one in cards if not one.whole
            }.values(),
        ),
        whole_peak=whole_peak,
        vfs_peak=max(sum(one.vfs for one in wanted if one.mask >> phase & 1) for phase in range(phases)),
    )


def _masks(containers: Sequence[ContainerRequest]) -> list[int]:
    """Return, for each container, the phases in which it runs: bit n is set for the n-th init container, and the highest bit
    for the app containers."""
    inits = [number for number, container in enumerate(containers) if container.role is Role.INIT]
    last = 1 << len(inits)
    masks = []
    for number, container in enumerate(containers):
        match container.role:
            case Role.APP:
                masks.append(last)
            case Role.INIT:
                masks.append(1 << inits.index(number))
            case Role.SIDECAR:
                masks.append(last | sum(1 << phase for phase, init in enumerate(inits) if init > number))
    return masks


def _wanted(container: ContainerRequest, mask: int, per_card: int) -> Wanted:
    share = container.share
    cut = share is None and container.gpus > 0 and per_card > 1
    core = share.core_percent if share else 100 // per_card if cut else None
    return Wanted(
        container=container.name,
        phases=tuple(phase for phase in range(mask.bit_length()) if mask >> phase & 1),
        mask=mask,
        count=share.cards if share else container.gpus,
        whole=share is None and not cut,
        memory_mib=share.memory_mib if share else None,
        memory_percent=share.memory_percent if share and share.memory_percent else core,
        core_percent=core,
        core_limit_percent=share.core_limit_percent if share else None,
        vfs=container.vfs,
    )


def _peak(wholes: Sequence[Wanted], phases: int) -> tuple[int, tuple[Wanted, ...]]:
    """Return the highest number of whole cards at one time, and this number as a single need."""
    peak = max((sum(one.count for one in wholes if one.mask >> phase & 1) for phase in range(phases)), default=0)
    if not peak:
        return 0, ()
    return peak, (Wanted(container="", phases=(), mask=0, count=peak, whole=True),)


def _order(wanted: Wanted, last: int, *, bound: bool) -> tuple[bool, bool, float, float, bool]:
    """Return the sort key for the order in which containers get devices.

    Whole cards come first, because shares fit beside more; among them, those of the last phase come first, so that all phases
    together need few cards. Then come shares, the largest first; a percentage of memory counts as if the card were endless. VFs
    without a card come last."""
    if not wanted.count:
        return True, False, 1, 0, not wanted.mask & last
    if wanted.whole:
        hard = (-wanted.vfs, -wanted.count) if bound else (0, 0)
        return False, not wanted.mask & last, *hard, False
    memory_mib = float("inf") if wanted.memory_mib is None else wanted.memory_mib
    return True, False, -memory_mib, -max(wanted.core_percent or 0, wanted.memory_percent or 0), not wanted.mask & last
