"""Read the cards that another system gave a bound pod: NVIDIA's device plugin, HAMi, Volcano, gpushare, Koordinator or KAI.

Take any pod. Return its amounts of the other system's resources, and the cards that an annotation of that system names. Whether
such a claim counts depends on the node (`central.ledger.other_systems`), because any user who may create pods can write these
keys. A share of a card counts as the whole card, because two systems that share a card do not know each other's part.

Source: HAMi, pkg/util (vgpu-devices-allocated); Volcano, api/devices/nvidia/vgpu; gpushare-scheduler-extender; Koordinator,
apis/extension (device-allocated); KAI, pkg/binder (a reservation pod has the card of a fraction).
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from central.request.model import most_at_one_time
from central.request.pod import Amount, Pod, starting_order
from central.request.quantity import parse_quantity
from lading.vocabulary import GpuUuid

MAX_CARDS: Final = 1024
MAX_ANNOTATION: Final = 64 << 10
_GPU_UUID: Final = re.compile(r"GPU-[0-9a-fA-F-]{1,64}")
_ONE_EACH: Final = frozenset({"nvidia.com/gpu", "nvidia.com/gpu.shared", "koordinator.sh/gpu.shared", "volcano.sh/vgpu-number"})
_HUNDRED_EACH: Final = frozenset({"koordinator.sh/gpu", "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory-ratio"})
_ONE_CARD: Final = frozenset({"aliyun.com/gpu-mem", "koordinator.sh/gpu-memory", "volcano.sh/vgpu-memory"})  # one card's memory
RESOURCES: Final = _ONE_EACH | _HUNDRED_EACH | _ONE_CARD

HAMI: Final = "hami.io/vgpu-devices-allocated"
VOLCANO: Final = "volcano.sh/vgpu-ids-new"
KAI: Final = "run.ai/reserve_for_gpu_index"  # a UUID, despite its name
KOORDINATOR: Final = "scheduling.koordinator.sh/device-allocated"
GPUSHARE: Final = "scheduler.framework.gpushare.allocation"
GPUSHARE_OLD: Final = "ALIYUN_COM_GPU_MEM_IDX"


class NamedCards(NamedTuple):
    uuids: frozenset[GpuUuid] = frozenset()
    positions: frozenset[int] = frozenset()  # indexes on the node, in the order of PCI addresses, as NVML counts

    @property
    def number(self) -> int:
        return len(self.uuids) + len(self.positions)


class OtherClaim(NamedTuple):
    """Hold a bound pod's claim on its node's cards through another system."""

    node: str
    pod: str  # namespace/name
    amounts: tuple[tuple[str, int], ...]  # pairs of resource and amount, sorted
    named: NamedCards = NamedCards()

    def count_cards(self, offered: Collection[str]) -> int:
        """Return the number of claimed cards. `offered`: the node's resources of other systems. Several resources of one system
        describe the same cards, so the largest number counts."""
        most: dict[str, int] = {}
        for resource, amount in self.amounts:
            if resource in offered:
                system = resource.partition("/")[0]
                most[system] = max(most.get(system, 0), _cards(resource, amount))
        return min(sum(most.values()), MAX_CARDS)


def read_offered(allocatable: Mapping[str, Amount]) -> frozenset[str]:
    """Return the resources of other systems that a node offers with an amount above zero."""
    return frozenset(_amounts(allocatable))


def read_other_claim(pod: Pod) -> OtherClaim | None:
    """Return the pod's claim through other systems; None if the pod is not bound or requests no such resource."""
    amounts = _requested(pod) if pod.spec.node_name else {}
    if not amounts:
        return None
    metadata = pod.metadata
    name = f"{metadata.namespace}/{metadata.name}"
    return OtherClaim(pod.spec.node_name, name, tuple(sorted(amounts.items())), _named(metadata.annotations))


def _requested(pod: Pod) -> dict[str, int]:
    """Return by resource the peak amount of the containers that run at the same time."""
    requested = [(_amounts(container.resources.limits), role) for container, role in starting_order(pod)]
    resources = {resource for amounts, _ in requested for resource in amounts}
    return {
        resource: most_at_one_time((amounts.get(resource, 0), role) for amounts, role in requested) for resource in resources
    }


def _amounts(limits: Mapping[str, Amount]) -> dict[str, int]:
    result = {}
    for resource in RESOURCES & limits.keys():
        amount = limits[resource]
        quantity = None if isinstance(amount, float) else parse_quantity(amount)
        if quantity is not None and quantity > 0:
            result[resource] = -(-quantity.numerator // quantity.denominator)
    return result


def _cards(resource: str, amount: int) -> int:
    if resource in _ONE_EACH:
        return amount
    return -(-amount // 100) if resource in _HUNDRED_EACH else 1


def _named(annotations: Mapping[str, str]) -> NamedCards:
    for key, read in _READERS.items():
        text = annotations.get(key, "")
        if text and len(text) <= MAX_ANNOTATION:
            try:
                return read(text)
            except (msgspec.MsgspecError, ValueError, TypeError, AttributeError, RecursionError):
                continue  # an unreadable annotation names no cards: the pod's cards count by number
    return NamedCards()


def _hami(text: str) -> NamedCards:
    """Parse `GPU-…,NVIDIA,2000,0:` for each device, with `;` after or between containers; `GPU-…[1g.5gb-0]` in MIG mode."""
    return _uuids(device.partition(",")[0].partition("[")[0] for device in re.split("[;:]", text))


def _kai(text: str) -> NamedCards:
    return _uuids([text])


def _uuids(names: Iterable[str]) -> NamedCards:
    return NamedCards(frozenset(GpuUuid(name) for name in names if _GPU_UUID.fullmatch(name)))


def _koordinator(text: str) -> NamedCards:
    """Parse a list of cards with their UUIDs. Before Koordinator 1.6 it has only the numbers of /dev/nvidiaN: they are in the
    order of PCI addresses unless the driver left a number out."""
    allocated: Any = msgspec.json.decode(text)
    cards = allocated.get("gpu", ())
    minors = (one.get("minor") for one in cards if not one.get("id"))
    named = _uuids(str(one.get("id", "")) for one in cards)
    return named._replace(positions=frozenset(minor for minor in minors if isinstance(minor, int)))


def _gpushare(text: str) -> NamedCards:
    allocated: Any = msgspec.json.decode(text)
    return NamedCards(positions=frozenset(int(position) for container in allocated.values() for position in container))


def _gpushare_old(text: str) -> NamedCards:
    return NamedCards(positions=frozenset({int(text)} - {-1}))


_READERS: Final[Mapping[str, Callable[[str], NamedCards]]] = {
    HAMI: _hami,
    VOLCANO: _hami,
    KAI: _kai,
    KOORDINATOR: _koordinator,
    GPUSHARE: _gpushare,
    GPUSHARE_OLD: _gpushare_old,
}
