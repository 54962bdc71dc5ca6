"""Mark cards that other systems gave to pods as used, so that nothing of them is free here.

It takes a node's cards, the resources that the node offers, the claims of its pods by other systems, and the cards that
Lading's own pods hold. It returns the same cards, some of them with `used_by`. A claim counts only for resources in the Node's
`allocatable`: for these kubelet itself admits no more than there is, while it ignores a resource that the node does not offer,
which any user may write into a pod. A card that the system's annotation names is marked. For a claim that names none, as many
cards are marked as it counts, less those that the node saw the pod use: first cards that are free here, from the last PCI
address on.

Tests: tests/unit/central/request/test_other_systems.py
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from central.request.other_systems import NamedCards, OtherClaim
from lading.nodedevices import Gpu
from lading.vocabulary import GpuUuid, PodUid

_NO_CLAIMS: Final[Mapping[PodUid, OtherClaim]] = {}


class OtherClaims:
    """Keep the claims of pods by other systems, by node, and the resources that each node offers."""

    def __init__(self) -> None:
        self._by_node: dict[str, dict[PodUid, OtherClaim]] = {}
        self._node_of: dict[PodUid, str] = {}
        self._offered: dict[str, frozenset[str]] = {}

    def uids(self) -> Collection[PodUid]:
        return self._node_of.keys()

    def offer(self, node: str, resources: frozenset[str]) -> bool:
        """Set the resources that the node offers. Return whether they changed."""
        if self._offered.get(node, frozenset()) == resources:
            return False
        self._offered[node] = resources
        return True

    def put(self, uid: PodUid, claim: OtherClaim | None) -> set[str]:
        """Set or end a pod's claim. Return the nodes whose claims changed."""
        before = self._node_of.get(uid, "")
        if before and claim is not None and self._by_node[before][uid] == claim:
            return set()
        if before:
            del self._by_node[before][uid], self._node_of[uid]
        if claim is not None:
            self._node_of[uid] = claim.node
            self._by_node.setdefault(claim.node, {})[uid] = claim
        return {name for name in (before, claim.node if claim is not None else "") if name}

    def mark(self, node: str, gpus: tuple[Gpu, ...], held: Collection[GpuUuid]) -> tuple[Gpu, ...]:
        """Return the node's cards, with `used_by` where another system has one. `held` are cards that Lading gave away."""
        claims, offered = self._by_node.get(node, _NO_CLAIMS), self._offered.get(node, frozenset())
        counts = {uid: count for uid in sorted(claims) if (count := claims[uid].count_cards(offered))}
        if not counts or not gpus:
            return gpus
        ordered = sorted(gpus, key=lambda gpu: gpu.bdf)
        used = {gpu.uuid: gpu.used_by for gpu in gpus if gpu.used_by}
        named = {uid: _find(ordered, claims[uid].named, most=count) for uid, count in counts.items()}
        for uid, cards in named.items():
            for uuid in cards:
                used.setdefault(uuid, f"pod {claims[uid].pod}, by another system")
        for uid, count in counts.items():
            observed = {*named[uid], *(gpu.uuid for gpu in gpus if uid in gpu.used_by)}
            for uuid in _left(ordered, used, held)[: max(0, count - len(observed))]:
                used[uuid] = f"pod {claims[uid].pod}, by another system that names no card"
        return tuple(_with_user(gpu, used.get(gpu.uuid, "")) for gpu in gpus)


def _with_user(gpu: Gpu, user: str) -> Gpu:
    return gpu if gpu.used_by == user else msgspec.structs.replace(gpu, used_by=user)


def _find(ordered: Sequence[Gpu], named: NamedCards, *, most: int) -> list[GpuUuid]:
    """Return the named cards; none if the annotation names more than the pod's resources count."""
    if named.number > most:
        return []
    return [gpu.uuid for at, gpu in enumerate(ordered) if gpu.uuid in named.uuids or at in named.positions]


def _left(ordered: Sequence[Gpu], used: Mapping[GpuUuid, str], held: Collection[GpuUuid]) -> list[GpuUuid]:
    """Return the unmarked cards, the free cards first."""
    left = [gpu.uuid for gpu in reversed(ordered) if gpu.uuid not in used]
    return sorted(left, key=lambda uuid: uuid in held)
