"""Add up claims. Claims of *one* pod on a device describe the same use, so the largest claim counts; claims of different pods
are different uses, so they add up (usage.py).

Grants come per container. They are counted as the node counts them when it refuses (`lading.devices.share`); init containers
take turns, and their grants stay listed until the pod ends.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from central.assignment.model import Part, PlacedContainer, Taken
from central.assignment.sharing import union
from central.ledger.model import ONE_EACH
from lading.devices.isolation import IsolationName, isolation_word
from lading.devices.share import taken_by_pod
from lading.nodedevices import Grant, GrantedGpu
from lading.vocabulary import GpuUuid


def largest(a: Part, b: Part) -> Part:
    """Return the larger part, or a new part that covers both. A part that covers the other is returned itself, which saves
    memory."""
    if covers_part(a, b):
        return a
    if covers_part(b, a):
        return b
    if a.whole != b.whole:
        return (a if a.whole else b)._replace(sharing=union(a.sharing, b.sharing), isolation=union(a.isolation, b.isolation))
    return Part(
        max(a.memory_mib, b.memory_mib),
        max(a.core_percent, b.core_percent),
        whole=a.whole or b.whole,
        mig=a.mig | b.mig,
        sharing=union(a.sharing, b.sharing),
        isolation=union(a.isolation, b.isolation),
    )


def covers_part(a: Part, b: Part) -> bool:
    """Return whether `a` covers `b`, labels and isolation included: a pod that loses one of its labels lets others in."""
    if b.sharing and union(a.sharing, b.sharing) != a.sharing:
        return False
    if b.isolation and union(a.isolation, b.isolation) != a.isolation:
        return False
    if a.whole != b.whole:
        return a.whole
    return a.memory_mib >= b.memory_mib and a.core_percent >= b.core_percent and a.mig >= b.mig


def covers(a: Taken, b: Taken) -> bool:
    """Return whether a pod that has `a` also has `b`."""
    if a is b:
        return True
    return a.vfs >= b.vfs and all(uuid in a.gpus and covers_part(a.gpus[uuid], part) for uuid, part in b.gpus.items())


def merge(claims: Sequence[Taken]) -> Taken:
    """Return the devices that a pod holds by all of its claims on one node."""
    merged = claims[0]
    for taken in claims[1:]:
        if covers(merged, taken):
            continue
        gpus = dict(merged.gpus)
        for uuid, part in taken.gpus.items():
            gpus[uuid] = largest(gpus[uuid], part) if uuid in gpus else part
        merged = Taken(gpus=gpus, vfs=merged.vfs | taken.vfs)
    return merged


def taken_by_grants(grants: Collection[Grant]) -> Taken:
    """Return the devices that one pod holds by the grants of its containers."""
    by_card: dict[GpuUuid, list[tuple[str, GrantedGpu]]] = {}
    for grant in grants:
        for gpu in grant.gpus:
            by_card.setdefault(gpu.uuid, []).append((grant.container, gpu))
    return Taken(
        gpus={uuid: _granted_part(granted) for uuid, granted in by_card.items()},
        vfs=frozenset(vf for grant in grants for vf in grant.vfs),
    )


def containers_on_cards(grants: Iterable[Grant]) -> dict[GpuUuid, int]:
    counts: dict[GpuUuid, int] = {}
    for grant in grants:
        for uuid in {gpu.uuid for gpu in grant.gpus}:
            counts[uuid] = counts.get(uuid, 0) + 1
    return counts


def containers_placed(placed: Mapping[str, PlacedContainer]) -> Mapping[GpuUuid, int]:
    """Count the containers on each card that has several."""
    counts = Counter(gpu.uuid for container in placed.values() for gpu in container.gpus)
    return {uuid: count for uuid, count in counts.items() if count > 1} or ONE_EACH


def _granted_part(granted: Sequence[tuple[str, GrantedGpu]]) -> Part:
    return Part(
        *taken_by_pod(granted),
        whole=any(gpu.whole for _, gpu in granted),
        mig=frozenset(gpu.mig_uuid for _, gpu in granted if gpu.mig_uuid),
        isolation=tuple(sorted({isolation_word(gpu.isolation) for _, gpu in granted} - {IsolationName.NONE})),
    )
