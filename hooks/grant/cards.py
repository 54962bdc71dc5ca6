"""Inject granted cards into a container: find them in the inventory, and ask their vendor and isolation for the adjustment.

A grant names cards by UUID. Their device nodes are looked up when a container is created, because minor numbers may have
changed. A card that is missing or unhealthy is refused, and a card that its vendor refuses.

An environment variable by which a pod would circumvent its isolation is replaced by an empty variable. This also overrides the
image, because the CRI request's environment wins. The proxy logs the names (`env.replaced`). A library that the pod preloads
(an allocator, a profiler) may come before the isolation's library: the variable is kept, and is reported. The hook server
receives the names of the pod's own variables only. The image's variables matter only if the isolation sets them too.

Tests: tests/unit/hooks/vendors/nvidia/test_inject.py
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from hooks.model.assignment import GrantedDevices, Refusal
from hooks.model.container import Adjustment, Container, EnvVar, Sandbox, merge
from hooks.model.inventory import Inventory
from hooks.ports import Card, Enforced, Isolation, Vendor
from lading.devices.identity import pci_order
from lading.devices.isolation import IsolationName
from lading.reasons import Reason

# Variables by which a pod would circumvent its isolation: they switch it off, or set other amounts.
_PREFIXES: Final = ("CUDA_DEVICE_MEMORY_", "CUDA_MPS_", "LADING_GPU_")
_NAMES: Final = frozenset({"CUDA_DISABLE_CONTROL", "CUDA_REDIRECT"})  # HAMi-core's
_PRELOADS: Final = ("LD_PRELOAD", "LD_AUDIT")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnassignedPolicy:
    """Hold the node's configuration for containers without a card. Only a namespace can be exempt from hiding cards: a pod
    cannot exempt itself."""

    hide: bool = True
    exempt_namespaces: frozenset[str] = frozenset()
    coexist: bool = False  # a device plugin serves this node too


def find_cards(devices: GrantedDevices, inventory: Inventory) -> list[Card] | Refusal:
    """Return the granted cards with their current device nodes. Sort cards by PCI address, and MIG instances in the order of
    their card: programs in the container number devices in this order."""
    by_uuid = {gpu.uuid: gpu for gpu in inventory.gpus}
    cards = []
    for one in devices.gpus:
        gpu = by_uuid.get(one.uuid)
        if gpu is None:
            return _missing_card(one.uuid)
        if gpu.unhealthy or gpu.node is None:
            reason = gpu.unhealthy or "it has no device node"
            return Refusal(
                reason=Reason.DEVICE_UNHEALTHY,
                message=f"cannot give GPU {gpu.index} ({gpu.uuid}): it is not healthy: {reason}",
            )
        mig = next((instance for instance in gpu.mig if instance.uuid == one.mig_uuid), None)
        if one.mig_uuid and mig is None:
            return _missing_card(one.mig_uuid)
        cards.append(Card(granted=one, gpu=gpu, node=gpu.node, mig=mig))
    return sorted(cards, key=_order)


def _order(card: Card) -> tuple[tuple[int, str], int]:
    return pci_order(card.gpu.bdf), card.gpu.mig.index(card.mig) if card.mig else -1


def adjust_cards(
    cards: Sequence[Card],
    inventory: Inventory,
    sandbox: Sandbox,
    container: Container,
    *,
    vendors: Sequence[Vendor],
    isolations: Sequence[Isolation],
    cdi_refusal: str,
) -> Enforced | Refusal:
    """Return the adjustment for these cards; empty if there are none."""
    if not cards:
        return Enforced(adjustment=Adjustment())
    parts = []
    for vendor in vendors:
        if own := [card for card in cards if card.gpu.vendor == vendor.name]:
            parts.append(vendor.inject(own, inventory, cdi_refusal=cdi_refusal))
    if refusal := next((part for part in parts if isinstance(part, Refusal)), None):
        return refusal
    given = merge(part for part in parts if isinstance(part, Adjustment))
    isolation = _isolation_of(cards, isolations)
    if isinstance(isolation, Refusal):
        return isolation
    enforced = isolation.enforce(cards, sandbox, container, given)
    if isinstance(enforced, Refusal) or isolation.name is IsolationName.NONE:
        return enforced
    adjustment = merge((enforced.adjustment, overrule(container, enforced.adjustment)))
    return replace(enforced, adjustment=adjustment, preloads=find_preloads(container))


def _isolation_of(cards: Sequence[Card], isolations: Sequence[Isolation]) -> Isolation | Refusal:
    """Return the isolation of a container's shares. All shares of a container have the same isolation, by `choose`."""
    name = next((card.granted.isolation for card in cards if card.granted.shared), IsolationName.NONE)
    result = next((isolation for isolation in isolations if isolation.name is name), None)
    return result or Refusal(
        reason=Reason.ISOLATION_UNAVAILABLE,
        message=f"cannot give the share again: it was granted with isolation {name}, which this node does not offer any more",
    )


def hide_cards(
    sandbox: Sandbox,
    container: Container,
    inventory: Inventory,
    devices: GrantedDevices,
    vendors: Sequence[Vendor],
    policy: UnassignedPolicy,
) -> Adjustment:
    """Return the adjustment that hides the cards of each vendor of which the container was granted no card."""
    if not policy.hide or sandbox.namespace in policy.exempt_namespaces:
        return Adjustment()
    given = {gpu.uuid for gpu in devices.gpus}
    of = {gpu.vendor for gpu in inventory.gpus if gpu.uuid in given}
    return merge(vendor.hide(container, coexist=policy.coexist) for vendor in vendors if vendor.name not in of)


def _missing_card(name: str) -> Refusal:
    return Refusal(
        reason=Reason.DEVICE_UNKNOWN,
        message=f"cannot give {name}: this container was granted it, and the node does not have it any more; recreate the pod",
    )


def overrule(container: Container, given: Adjustment) -> Adjustment:
    """Return the container's variables that would circumvent its isolation, empty, unless `given` sets them."""
    kept = {env.name for env in given.env}
    names = dict.fromkeys(env.name for env in container.env if env.name.startswith(_PREFIXES) or env.name in _NAMES)
    return Adjustment(env=tuple(EnvVar(name) for name in names if name not in kept))


def find_preloads(container: Container) -> tuple[str, ...]:
    names = {env.name for env in container.env}
    return tuple(name for name in _PRELOADS if name in names)
