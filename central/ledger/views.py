"""Read the ledger: the holders with their claims, the conflicts between pods, and the whole content as one value.

Tests: tests/properties/test_central_ledger.py
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import NamedTuple

from central.assignment.model import Part, Taken
from central.ledger.capacity import ReportedDevices
from central.ledger.model import Claim, Clash, Held, Holder, NodeFacts, OwnClaim, PodRecord
from central.ledger.node import LedgerNode
from central.ledger.parts import largest, merge
from central.ledger.usage import UNUSED, CardUse
from central.request.model import CpuMemory
from lading.vocabulary import GpuUuid, PciAddress, PodUid

FACTS = (Claim.BOUND, Claim.GRANTED)  # claims that can clash; a plan ends by itself


def held_by(
    uid: PodUid, node: LedgerNode, claims: Mapping[Claim, Taken], record: PodRecord | None, own: Iterable[OwnClaim]
) -> Held:
    return Held(
        holder=_holder(uid, node, record, own),
        claims=claims,
        taken=merge(list(claims.values())),
        record=record,
    )


def _holder(uid: PodUid, node: LedgerNode, record: PodRecord | None, own: Iterable[OwnClaim]) -> Holder:
    if record is not None:
        return record.holder
    for claim in own:
        if claim.holder.name:
            return claim.holder
    for grant in node.grants.get(uid, ()):
        if grant.pod_name:
            return Holder(pod=uid, namespace=grant.namespace, name=grant.pod_name)
    return Holder(pod=uid)


def has(taken: Taken, device: str) -> bool:
    return device in taken.gpus or device in taken.vfs


def clashes(node: LedgerNode, holders: Iterable[Held]) -> Iterator[Clash]:
    cards: dict[GpuUuid, dict[PodUid, Part]] = {}
    vfs: dict[PciAddress, set[PodUid]] = {}
    ages: dict[PodUid, tuple[bool, bool, int, PodUid]] = {}
    for held in holders:
        uid = held.holder.pod
        # A pod with a grant comes first, because it has the device.
        ages[uid] = held.record is not None, Claim.GRANTED not in held.claims, held.since, uid
        for taken in (held.claims[claim] for claim in FACTS if claim in held.claims):
            for uuid, part in taken.gpus.items():
                parts = cards.setdefault(uuid, {})
                parts[uid] = largest(parts[uid], part) if uid in parts else part
            for vf in taken.vfs:
                vfs.setdefault(vf, set()).add(uid)
    usable = {gpu.uuid: gpu.usable_mib for gpu in node.inventory.gpus}
    for uuid, parts in cards.items():
        kind = reduce(lambda use, part: use.plus(part, 1), parts.values(), UNUSED).clash(usable.get(uuid))
        if kind is not None:
            yield Clash(node=node.name, device=uuid, pods=tuple(sorted(parts, key=ages.__getitem__)), exclusive=kind)
    for vf, uids in vfs.items():
        if len(uids) > 1:
            yield Clash(node=node.name, device=vf, pods=tuple(sorted(uids, key=ages.__getitem__)), exclusive=True)


class NodeSnapshot(NamedTuple):
    inventory: ReportedDevices
    reachable: bool
    claims: Mapping[PodUid, Mapping[Claim, Taken]]
    cards: Mapping[GpuUuid, CardUse]
    vfs: Mapping[PciAddress, int]


class Snapshot(NamedTuple):
    """Hold the content of a ledger without versions and removals: ledgers with the same facts are equal, whatever their
    history."""

    pods: Mapping[PodUid, PodRecord]
    own: Mapping[PodUid, Mapping[Claim, OwnClaim]]
    nodes: Mapping[str, NodeSnapshot]
    facts: Mapping[str, NodeFacts]
    requested: Mapping[str, CpuMemory]
