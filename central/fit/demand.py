"""An Ask as a fit works with it: cards and VFs wanted by each container, and in which *phases* of the pod.

A phase is a moment of the pod's life that must fit: each init container beside the sidecars that started before it, and at last
the app containers with all sidecars. Two containers that share a phase share no whole card and no VF, and their shares add up;
two that share none may have the same devices.

Enters: an Ask, and how a whole card is cut (`Limits`). Leaves: a Demand, the same for equal asks and remembered.

Source: KEP-753; facts on over-commit by count: the virtual devices of the Redis design, seed 002.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from central.ask.model import Ask, ContainerAsk, Policy, RdmaPolicy, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of a cluster, from central's settings."""

    # Over-commit by count, for asks under the policy spread: a container that asks for `lading.dev/gpu: n` gets a share of each
    # of n cards, 1/N of its memory and compute, so that N such containers share a card. 0 and 1: a whole card is whole.
    spread_containers_per_card: int = 0
    # How many choices of cards are tried on one node for one pod before it counts as not fitting. Random pods of up to eight
    # different shares on random nodes need 230 at most, half of them less than 10. The bound is for pods that are built to keep
    # the one thread of central busy: 300 are some 8 ms.
    search_steps: int = 300


DEFAULT_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class CardsWanted:
    """`count` different cards for one container: whole, or the same share of each."""

    container: str
    phases: tuple[int, ...]
    mask: int  # the same, as bits
    count: int
    whole: bool
    memory_mib: int | None = None  # a share; None: the same percentage of the card's usable memory as of its compute
    core_percent: int | None = None

    def mib_of(self, usable_mib: int) -> int:
        """What a share takes of a card of this size, rounded down to MiB."""
        if self.memory_mib is not None:
            return self.memory_mib
        return usable_mib * (self.core_percent or 0) // 100


@dataclass(frozen=True, slots=True, kw_only=True)
class VfsWanted:
    container: str
    mask: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """`cards` and `vfs` in the order in which they are chosen, made so that later ones can use again what earlier ones have."""

    roles: tuple[tuple[str, Role], ...]
    phases: int
    model: str
    nearest: bool  # VFs close to the container's cards, rather than by count alone
    cards: tuple[CardsWanted, ...]
    needs: tuple[CardsWanted, ...]  # each has to be met for itself: the most whole cards at one time, and every share
    whole_peak: int  # whole cards at one time
    vfs: tuple[VfsWanted, ...]
    vfs_peak: int  # VFs at one time


def policy_of(ask: Ask, default: Policy) -> Policy:
    return default if ask.policy is None else ask.policy


def read_demand(ask: Ask, policy: Policy, limits: Limits = DEFAULT_LIMITS) -> Demand:
    """`policy` is the one that holds for this ask."""
    per_card = limits.spread_containers_per_card if policy is Policy.SPREAD else 0
    return _read_demand(ask, per_card)


@lru_cache(maxsize=1024)  # some dozen templates at a time
def _read_demand(ask: Ask, per_card: int) -> Demand:
    masks = _masks(ask.containers)
    wanted = [_cards_wanted(container, mask, per_card) for container, mask in zip(ask.containers, masks, strict=True)]
    cards = [one for one in wanted if one is not None]
    phases = max(mask.bit_length() for mask in masks) if masks else 1
    vfs = [
        VfsWanted(container=container.name, mask=mask, count=container.vfs)
        for container, mask in zip(ask.containers, masks, strict=True)
        if container.vfs
    ]
    last = 1 << (phases - 1)
    whole_peak, whole = _peak([one for one in cards if one.whole], phases)
    return Demand(
        roles=tuple((container.name, container.role) for container in ask.containers),
        phases=phases,
        model=ask.gpu_model,
        nearest=ask.rdma_policy is not RdmaPolicy.COUNT,
        cards=tuple(sorted(cards, key=lambda one: _order(one, last))),
        needs=(*whole, *{(one.memory_mib, one.core_percent, one.count): one for one in cards if not one.whole}.values()),
        whole_peak=whole_peak,
        vfs=tuple(sorted(vfs, key=lambda one: not one.mask & last)),
        vfs_peak=max((sum(one.count for one in vfs if one.mask >> phase & 1) for phase in range(phases)), default=0),
    )


def _masks(containers: Sequence[ContainerAsk]) -> list[int]:
    """For each container the phases in which it runs: bit n is the n-th init container's, the highest the app containers'."""
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


def _cards_wanted(container: ContainerAsk, mask: int, per_card: int) -> CardsWanted | None:
    phases = tuple(phase for phase in range(mask.bit_length()) if mask >> phase & 1)
    if container.share is not None:
        return CardsWanted(
            container=container.name,
            phases=phases,
            mask=mask,
            count=1,
            whole=False,
            memory_mib=container.share.memory_mib,
            core_percent=container.share.core_percent,
        )
    if not container.gpus:
        return None
    return CardsWanted(
        container=container.name,
        phases=phases,
        mask=mask,
        count=container.gpus,
        whole=per_card <= 1,
        core_percent=100 // per_card if per_card > 1 else None,
    )


def _peak(wholes: Sequence[CardsWanted], phases: int) -> tuple[int, tuple[CardsWanted, ...]]:
    """The most whole cards at one time, and that as one need."""
    peak = max((sum(one.count for one in wholes if one.mask >> phase & 1) for phase in range(phases)), default=0)
    if not peak:
        return 0, ()
    return peak, (CardsWanted(container="", phases=(), mask=0, count=peak, whole=True),)


def _order(wanted: CardsWanted, last: int) -> tuple[bool, bool, float, float, bool]:
    """Whole cards first: shares fit beside more. Of these, those of the last phase first, which keeps the cards of all phases
    together few. Of shares the largest first; a percentage of memory as if it were of an endless card."""
    if wanted.whole:
        return False, not wanted.mask & last, 0, 0, False
    memory_mib = float("inf") if wanted.memory_mib is None else wanted.memory_mib
    return True, False, -memory_mib, -(wanted.core_percent or 0), not wanted.mask & last
