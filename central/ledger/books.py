"""Keep what the ledger knows, and add it up: from pods, nodes and central's own claims to one hold for each pod and node.

A claim is a reason to hold. All claims of one pod on one node are words about one fact, so that of each device the largest
counts, once; what pods hold adds up. `settle` is the only way by which a hold changes, and costs what the pod is large.
"""

from collections.abc import Collection, Sequence

from central.assignment.model import Taken
from central.assignment.sharing import Group
from central.ledger.changes import Changes
from central.ledger.groups import CardOf, Groups
from central.ledger.load import Loads
from central.ledger.model import NO_NODE, ONE_EACH, Claim, NodeFacts, NodeRoom, PodRecord
from central.ledger.node import LedgerNode
from central.ledger.other_systems import OtherClaims
from central.ledger.own import OwnClaims
from central.ledger.parts import containers_on_cards, merge, taken_by_grants
from central.ledger.room import gained
from central.ledger.usage import Hold
from central.request.model import CpuMemory
from lading.vocabulary import PodUid


class Books:
    def __init__(self) -> None:
        self._pods: dict[PodUid, PodRecord] = {}
        self._nodes: dict[str, LedgerNode] = {}  # those that have a report or holders
        self._node_facts: dict[str, tuple[NodeFacts, int]] = {}  # of Node objects, with the version of each
        self._own = OwnClaims()
        self._changes = Changes()
        self._claimed = Changes()  # who holds what and why, beside what is left: for those who show it
        self._groups = Groups()
        self._loads = Loads()
        self._other_claims = OtherClaims()

    def room_as_if(self, name: str, gone: Collection[PodUid], put: Sequence[tuple[Hold, CpuMemory]] = ()) -> NodeRoom:
        """Return the room as if some pods held nothing there, and others held this in addition."""
        node = self._nodes.get(name)
        if node is None:
            reachable = self.facts_of(name).ready
            return NodeRoom(name=name, version=0, cards=(), vfs=(), reported=False, reconciled=False, reachable=reachable)
        return node.room_as_if(gone, put)

    def facts_of(self, name: str) -> NodeFacts:
        """Return what the Node object says; NO_NODE if there is none."""
        facts, _ = self._node_facts.get(name, (NO_NODE, 0))
        return facts

    def holders_on(self, name: str) -> Collection[PodUid]:
        """Return the pods that hold something of this node, by any claim."""
        node = self._nodes.get(name)
        return node.holds.keys() if node is not None else ()

    def group_cards(self, group: Group, without: Collection[PodUid] = ()) -> frozenset[CardOf]:
        """Return the cards of an affinity group, as if these pods held nothing. Empty: any card may become the group's."""
        return self._groups.cards(group, without)

    def _claims(self, uid: PodUid, node: LedgerNode) -> dict[Claim, Taken]:
        claims = {kind: claim.taken for kind, claim in self._own.of(uid).items() if claim.node == node.name}
        record = self._pods.get(uid)
        if record is not None and record.holds is not None and record.node == node.name:
            claims[Claim.BOUND] = record.holds
        if uid in node.grants:
            claims[Claim.GRANTED] = taken_by_grants(node.grants[uid])
        if uid in node.lingering:
            claims[Claim.LINGERING] = node.lingering[uid]
        return claims

    def _settle(self, uid: PodUid, name: str) -> None:
        """Bring what this pod holds on this node in line with its claims."""
        node = self._node(name)
        self._claimed.mark(name)
        planned = (claim.cpu_memory for claim in self._own.of(uid).values() if claim.node == name)
        self._loads.plan(uid, name, max(planned, default=None))
        claims = self._claims(uid, node)
        hold = None
        if claims:
            # The assignment's comes first: where it covers the others, its value is shared.
            taken = merge([claims[claim] for claim in (Claim.BOUND, *claims) if claim in claims])
            containers = ONE_EACH
            if Claim.BOUND in claims:
                containers = self._pods[uid].containers
            elif Claim.GRANTED in claims:
                containers = containers_on_cards(node.grants[uid])
            hold = Hold(taken, containers)
        former = node.holds.get(uid)
        changed, freed = node.put(uid, hold)
        if changed:
            self._groups.move(uid, name, former and former.taken, hold and hold.taken)
            self._mark(node)
        if freed and node.serving:
            self._changes.free(name)
        self._discard_if_empty(node)

    def _mark(self, node: LedgerNode) -> None:
        node.touch(self._changes.mark(node.name))

    def _mark_gain(self, node: LedgerNode, before: NodeRoom) -> None:
        """Record that what the node has, or reports, changed."""
        self._claimed.mark(node.name)
        self._mark(node)
        if gained(before, node.room()):
            self._changes.free(node.name)

    def _discard_if_empty(self, node: LedgerNode) -> None:
        if node.empty:
            self._nodes.pop(node.name, None)

    def _node(self, name: str) -> LedgerNode:
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = LedgerNode(name, self._loads, self._other_claims, self.facts_of(name))
        return node
