"""Convert the requests and the held devices of pods to amounts of the quotas' resources, as integers.

    lading.dev/gpu           thousandths of cards. A whole card is 1000; a share the larger of its parts of the card's memory
                             and compute; a MIG instance the larger of its sevenths of the compute and its eighths of the memory
    gpu.lading.dev/<model>   the same, for cards of one model; characters that a resource name cannot have become a dash
    lading.dev/rdma          VFs, beside the cards
    cpu, memory              thousandths of cores, MiB

A waiting pod may get one of several models: it counts on each of them, and a share as the largest part that it can become. So a
pod that a quota admitted never turns out to be too large. Parts are rounded down, so that all parts of a card are no more than
the card, but each part is at least 1. Other resources are not counted.
"""

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Final

from central.assignment.model import Part, Taken
from central.quota.model import Amounts
from central.request.cpu_memory import CPU, MEMORY
from central.request.model import ContainerRequest, CpuMemory, DeviceRequest, at_one_time
from central.request.pod import Amount
from central.request.quantity import parse_quantity
from lading.amounts import format_mib
from lading.devices.share import FULL_CORE
from lading.nodedevices import Gpu
from lading.vocabulary import RESOURCE_GPU, RESOURCE_RDMA, GpuUuid

MODEL_PREFIX: Final = "gpu.lading.dev/"
CARD: Final = 1000  # amount of a whole card, in thousandths
MOST: Final = 2**60  # Koordinator writes 2**63/5 for "no limit"
_MIB: Final = 2**20
_LONGEST_NAME: Final = 63
_PROFILE: Final = re.compile(r"([0-9]+)g\.([0-9]+)gb")


@lru_cache(maxsize=1024)
def model_key(model: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", model)[:_LONGEST_NAME].strip("-._")
    return MODEL_PREFIX + (name or "unknown")


def is_cards(key: str) -> bool:
    return key == RESOURCE_GPU or key.startswith(MODEL_PREFIX)


def unit_of(key: str) -> int:
    """Return the unit in which the resource is divided if all amounts are multiples of it."""
    return CARD if is_cards(key) else 1


def is_counted(key: str) -> bool:
    return is_cards(key) or key in {RESOURCE_RDMA, CPU, MEMORY}


# ---- amounts as text


def parse_amounts(written: Mapping[str, Amount]) -> tuple[dict[str, int], tuple[str, ...]] | str:
    """Return the amounts, rounded down, and the uncounted resources; or a text that describes the error."""
    amounts = {}
    for key, value in written.items():
        quantity = Fraction(str(value)) if isinstance(value, float) else parse_quantity(value)
        if quantity is None or quantity < 0:
            return f"{key} is {str(value)[:40]!r}; write a quantity, 0 or more"
        if is_counted(key):
            amounts[key] = min(int(quantity * _scale(key)), MOST)
    return amounts, tuple(sorted(key for key in written if not is_counted(key)))


def render_amounts(amounts: Amounts) -> dict[str, str]:
    """Return the amounts as Kubernetes quantities."""
    return {key: _render(key, amount) for key, amount in sorted(amounts.items())}


def _render(key: str, amount: int) -> str:
    if key == MEMORY:
        return f"{amount}Mi"
    if key == RESOURCE_RDMA:
        return str(amount)
    return str(amount // CARD) if amount % CARD == 0 else f"{amount}m"


def as_text(key: str, amount: int) -> str:
    """Return the amount with its unit."""
    if key == MEMORY:
        return format_mib(amount)
    if key == RESOURCE_RDMA:
        return f"{amount} VFs"
    unit = unit_as_text(key)
    return f"{bare(key, amount)} {unit if amount != CARD else unit.replace('GPUs', 'GPU').replace('cores', 'core')}"


def bare(key: str, amount: int) -> str:
    """Return the amount without its unit."""
    if key == MEMORY:
        return format_mib(amount)
    if key == RESOURCE_RDMA:
        return str(amount)
    return f"{amount // CARD}.{amount % CARD:03}".rstrip("0").rstrip(".")


def unit_as_text(key: str) -> str:
    if key == MEMORY:
        return "of memory"
    if key == RESOURCE_RDMA:
        return "VFs"
    return "cores" if key == CPU else "GPUs" if key == RESOURCE_GPU else f"GPUs {key.removeprefix(MODEL_PREFIX)}"


def _scale(key: str) -> Fraction:
    return Fraction(1, _MIB) if key == MEMORY else Fraction(1) if key == RESOURCE_RDMA else Fraction(CARD)


# ---- requests and held devices of pods


def requested(request: DeviceRequest, cpu_memory: CpuMemory, models: Mapping[str, int]) -> dict[str, int]:
    """Return the requested amounts of a waiting pod. `models` has the cluster's models, each with the least usable memory of
    its cards, in MiB."""
    by_model = {model: _on(request, models.get(model)) for model in request.gpu_models or models}
    possible = {model: milli for model, milli in by_model.items() if milli is not None}
    cards = max(possible.values(), default=requested_milli(request))
    amounts = {RESOURCE_GPU: cards} | {model_key(model): milli for model, milli in possible.items()}
    amounts[RESOURCE_RDMA] = at_one_time(request.containers, lambda one: one.vfs)
    return _with_cpu_memory(amounts, cpu_memory)


def _on(request: DeviceRequest, usable_mib: int | None) -> int | None:
    """Return the request in thousandths of cards of that memory; None if a share is too large for such a card. If the memory is
    unknown, a share counts by its compute, or else as a whole card."""
    shares = [one.share for one in request.containers if one.share is not None]
    if usable_mib is not None and any((share.memory_mib or 0) > usable_mib for share in shares):
        return None
    card_mib = usable_mib or max((share.memory_mib or 0 for share in shares), default=0)
    return at_one_time(request.containers, lambda one: _of_container(one, request.mig_profile, card_mib))


def _of_container(one: ContainerRequest, profile: str, card_mib: int) -> int:
    if one.share is not None:
        return one.share.cards * _part(one.share.memory_mib or 0, one.share.percent, card_mib)
    return one.gpus * (_of_instance(profile, card_mib) if profile else CARD)


def requested_milli(request: DeviceRequest) -> int:
    """Return a waiting pod's request in thousandths of cards, for cards of unknown memory."""
    return _on(request, None) or 0


def held_milli(taken: Taken, cards: Mapping[GpuUuid, Gpu]) -> int:
    """Return the thousandths of cards that a pod holds on a node with these cards."""
    return sum(_of_part(part, cards.get(uuid)) for uuid, part in taken.gpus.items())


def held(taken: Taken, cpu_memory: CpuMemory, cards: Mapping[GpuUuid, Gpu]) -> dict[str, int]:
    """Return the amounts that a pod holds on a node with these cards. A part of a card that the node does not report counts by
    its compute."""
    amounts: dict[str, int] = {RESOURCE_GPU: 0, RESOURCE_RDMA: len(taken.vfs)}
    for uuid, part in taken.gpus.items():
        gpu = cards.get(uuid)
        milli = _of_part(part, gpu)
        amounts[RESOURCE_GPU] += milli
        if gpu is not None:
            amounts[model_key(gpu.model)] = amounts.get(model_key(gpu.model), 0) + milli
    return _with_cpu_memory(amounts, cpu_memory)


def _of_part(part: Part, gpu: Gpu | None) -> int:
    if part.whole:
        return CARD
    card_mib = gpu.usable_mib if gpu is not None else 0
    instances = [one for one in gpu.mig if one.uuid in part.mig] if gpu is not None and part.mig else ()
    mig = sum(_of_instance(one.profile, card_mib) or _part(one.memory_mib, 0, card_mib) for one in instances)
    share = _part(part.memory_mib, part.core_percent, card_mib) if part.memory_mib or part.core_percent else 0
    return min(CARD, mig + share)


def _part(memory_mib: int, core_percent: int, card_mib: int) -> int:
    of_memory = memory_mib * CARD // card_mib if card_mib > 0 else 0
    return min(CARD, max(1, of_memory, core_percent * CARD // FULL_CORE))


@lru_cache(maxsize=256)
def _of_instance(profile: str, card_mib: int) -> int:
    """Return the part of a card, in thousandths, of an instance of that profile; 0 for an unknown profile name. Memory counts
    in eighths of the card."""
    match = _PROFILE.search(profile)
    if match is None:
        return 0
    slices, gigabytes = int(match[1]), int(match[2])
    eighths = round(gigabytes * 1024 * 8 / card_mib) if card_mib > 0 else 0
    return min(CARD, max(slices * CARD // 7, eighths * CARD // 8))


def _with_cpu_memory(amounts: dict[str, int], cpu_memory: CpuMemory) -> dict[str, int]:
    amounts[CPU], amounts[MEMORY] = cpu_memory
    return {key: amount for key, amount in amounts.items() if amount}


def add(total: dict[str, int], more: Amounts, times: int = 1) -> None:
    """Add amounts to a total in place, and remove resources that become 0."""
    for key, amount in more.items():
        now = total.get(key, 0) + times * amount
        if now:
            total[key] = now
        else:
            total.pop(key, None)


def total_of(several: Iterable[Amounts]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in several:
        add(total, one)
    return total
