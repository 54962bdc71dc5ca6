"""Hold the ledger's data, and add up what each pod holds of each node: from pods, nodes and central's own claims.

A claim is a reason to hold devices. All claims of one pod on one node describe the same devices, so the largest claim of each
device counts, once; the holds of several pods add up. Only `settle` changes a hold, and its cost grows with the pod's devices.

Two writers change the books: `Facts` (objects of the API server) and `Claims` (central's own claims).

Tests: tests/unit/central/ledger/test_ledger.py
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from central.assignment.model import Taken
from central.assignment.sharing import AffinityGroup
from central.ledger.capacity import gained
from central.ledger.changes import Changes
from central.ledger.groups import CardOf, Groups
from central.ledger.load import Loads
from central.ledger.model import NO_NODE, ONE_EACH, Claim, Held, Holder, NodeCapacity, NodeFacts, Obstacle, OwnClaim, PodRecord
from central.ledger.node import LedgerNode
from central.ledger.other_systems import OtherClaims
from central.ledger.parts import containers_on_cards, merge, taken_by_grants
from central.ledger.usage import Hold
from central.ledger.views import held_by
from central.request.model import CpuMemory
from lading.vocabulary import PodUid

MOST_DELETED: Final = 65_536  # remembered objects: 3.5 minutes at 300 pods per second, about 10 MB
NO_CLAIMS: Final[Mapping[Claim, OwnClaim]] = MappingProxyType({})

K = TypeVar("K")


class Deleted(Generic[K]):
    """Remember the versions of deleted objects, so that a late event does not bring a deleted object back. A quorum read, a
    relist or a second watch can be ahead of a watch. An event that comes more than MOST_DELETED removals late is not recognised
    as late; the next relist corrects the ledger."""

    def __init__(self) -> None:
        self._versions: dict[K, int] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._versions

    def put(self, key: K, version: int = 0) -> None:
        version = max(version, self._versions.pop(key, 0))
        self._versions[key] = version
        if len(self._versions) > MOST_DELETED:
            del self._versions[next(iter(self._versions))]

    def outdates(self, key: K, version: int) -> bool:
        """Return whether an object of this version existed before the removal."""
        return version <= self._versions.get(key, -1)


class OwnClaims:
    """Store central's own claims: predictions, nominations, plans and reservations, at most one of each kind for each pod."""

    def __init__(self) -> None:
        self._by_pod: dict[PodUid, dict[Claim, OwnClaim]] = {}

    def of(self, uid: PodUid) -> Mapping[Claim, OwnClaim]:
        return self._by_pod.get(uid, NO_CLAIMS)

    def all(self) -> Mapping[PodUid, Mapping[Claim, OwnClaim]]:
        return self._by_pod

    def of_kind(self, kind: Claim) -> Iterator[OwnClaim]:
        return (claims[kind] for claims in self._by_pod.values() if kind in claims)

    def put(self, kind: Claim, claim: OwnClaim) -> OwnClaim | None:
        """Store the claim. Return the claim that it replaces."""
        claims = self._by_pod.setdefault(claim.holder.pod, {})
        former = claims.get(kind)
        claims[kind] = claim
        return former

    def confirm(self, uid: PodUid) -> bool:
        """Confirm the reservation. Return False if there is none."""
        claims = self._by_pod.get(uid, {})
        if Claim.RESERVED not in claims:
            return False
        claims[Claim.RESERVED] = replace(claims[Claim.RESERVED], confirmed=True)
        return True

    def drop(self, uid: PodUid, kinds: Iterable[Claim]) -> list[OwnClaim]:
        """Drop the claims. Return those that existed."""
        claims = self._by_pod.get(uid)
        if claims is None:  # nearly every pod has no claims
            return []
        dropped = [claims.pop(kind) for kind in kinds if kind in claims]
        if not claims:
            del self._by_pod[uid]
        return dropped

    def expired(self, now: float) -> list[tuple[PodUid, Claim]]:
        """Return expired predictions and nominations only: a reservation ends by its outcome."""
        return [(uid, kind) for uid, claims in self._by_pod.items() for kind, claim in claims.items() if claim.until <= now]


class Books:
    def __init__(self) -> None:
        self.pods: dict[PodUid, PodRecord] = {}
        self.deleted_pods: Deleted[PodUid] = Deleted()
        self.nodes: dict[str, LedgerNode] = {}  # nodes that have a report or holders
        self.node_facts: dict[str, tuple[NodeFacts, int]] = {}  # facts of each Node object, with its version
        self.own = OwnClaims()
        self.changes = Changes()  # changes of free capacity
        self.claimed = Changes()  # changes of holders or of their reasons, for views
        self.priorities: Counter[int] = Counter()  # priority → number of pods that hold something by an assignment
        self.groups = Groups()
        self.loads = Loads()
        self.other_claims = OtherClaims()

    def capacity_as_if(
        self, name: str, removed: Collection[PodUid], put: Sequence[tuple[Hold, CpuMemory]] = ()
    ) -> NodeCapacity:
        """Return the free capacity as if some pods held nothing there, and others held this in addition."""
        node = self.nodes.get(name)
        if node is None:
            reachable = self.facts_of(name).ready
            return NodeCapacity(name=name, version=0, cards=(), vfs=(), reported=False, reconciled=False, reachable=reachable)
        return node.capacity_as_if(removed, put)

    def facts_of(self, name: str) -> NodeFacts:
        """Return what the Node object says; NO_NODE if there is none."""
        facts, _ = self.node_facts.get(name, (NO_NODE, 0))
        return facts

    def holders_on(self, name: str) -> Collection[PodUid]:
        node = self.nodes.get(name)
        return node.holds.keys() if node is not None else ()

    def obstacle(self, uid: PodUid) -> Obstacle | None:
        """Return why nothing can be claimed for this pod: it has ended, or is bound; None if it waits or is unknown."""
        record = self.pods.get(uid)
        if uid in self.deleted_pods or (record is not None and record.terminal):
            return Obstacle.POD_ENDED
        return Obstacle.POD_BOUND if record is not None and record.node else None

    def holders(self, name: str) -> tuple[Held, ...]:
        """Return which pods hold something of this node, and by which claims."""
        node = self.nodes.get(name)
        if node is None:
            return ()
        return tuple(
            held_by(uid, node, self.claims_of(uid, node), self.pods.get(uid), self.own.of(uid).values()) for uid in node.holds
        )

    def group_members(self, group: AffinityGroup, card: CardOf) -> tuple[Holder, ...]:
        uids = self.groups.members(group, card)
        return tuple(held.holder for held in self.holders(card.node) if held.holder.pod in uids)

    def claims_of(self, uid: PodUid, node: LedgerNode) -> dict[Claim, Taken]:
        claims = {kind: claim.taken for kind, claim in self.own.of(uid).items() if claim.node == node.name}
        record = self.pods.get(uid)
        if record is not None and record.holds is not None and record.node == node.name:
            claims[Claim.BOUND] = record.holds
        if uid in node.grants:
            claims[Claim.GRANTED] = taken_by_grants(node.grants[uid])
        if uid in node.lingering:
            claims[Claim.LINGERING] = node.lingering[uid]
        return claims

    def settle(self, uid: PodUid, name: str) -> None:
        """Bring what this pod holds on this node in line with its claims."""
        node = self.node(name)
        self.claimed.mark(name)
        planned = (claim.cpu_memory for claim in self.own.of(uid).values() if claim.node == name)
        self.loads.plan(uid, name, max(planned, default=None))
        claims = self.claims_of(uid, node)
        hold = None
        if claims:
            # The assignment's comes first: where it covers the others, its value is shared.
            taken = merge([claims[claim] for claim in (Claim.BOUND, *claims) if claim in claims])
            containers = ONE_EACH
            if Claim.BOUND in claims:
                containers = self.pods[uid].containers
            elif Claim.GRANTED in claims:
                containers = containers_on_cards(node.grants[uid])
            hold = Hold(taken, containers)
        former = node.holds.get(uid)
        changed, freed = node.put(uid, hold)
        if changed:
            self.groups.move(uid, name, former and former.taken, hold and hold.taken)
            self._mark(node)
        if freed and node.serving:
            self.changes.free(name)
        self.discard_if_empty(node)

    def _mark(self, node: LedgerNode) -> None:
        node.touch(self.changes.mark(node.name))

    def mark_gain(self, node: LedgerNode, before: NodeCapacity) -> None:
        """Record that what the node has, or reports, changed."""
        self.claimed.mark(node.name)
        self._mark(node)
        if gained(before, node.capacity()):
            self.changes.free(node.name)

    def discard_if_empty(self, node: LedgerNode) -> None:
        """Remove a node that has neither a report nor holders."""
        if node.empty:
            self.nodes.pop(node.name, None)

    def node(self, name: str) -> LedgerNode:
        """Return the node; create it if it has no report and no holder yet."""
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = LedgerNode(name, self.loads, self.other_claims, self.facts_of(name))
        return node
