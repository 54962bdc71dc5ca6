"""Keep the ledger: which pods hold which devices, and why. One writer, in memory, rebuilt from the API server's objects.

It takes what the API server says (facts.py), and central's own predictions, nominations and reservations. It returns a
NodeCapacity for each node, which of them changed, which got free capacity, and which pods hold what. It refuses a claim on what
is not free.

- BOUND ends when the pod is terminal or gone, not at its deletionTimestamp. GRANTED ends when the node's report does not name
  it any more. A device is free when both are over.
- A pod that is force-deleted on a reachable node which has never reported a grant for it may be running all the same: the
  report may be under way. What it had stays as LINGERING until the node's next report, or for UNREPORTED_S where none comes.
- **Nothing is freed on a node that has a report and is not reachable.** What ends there meanwhile stays as LINGERING, until the
  node is reachable and *then* a newer, reconciled report comes that does not name the pod. A report that came before proves
  nothing, whichever of the two watches was late, and counts as not heard. But a node whose grants did not change has nothing to
  report: when it was reachable for LINGER_S, `expire` ends what lingers too. Nor does it outlive the report object: without
  one nothing is given there, and a new one says what is. (A restart of central forgets what lingers: it is nowhere written.)
- RESERVED ends by its outcome only: the watch shows the pod bound (BOUND follows in the same step), the pod ends, or
  `release`, which does nothing once the Binding is known to have succeeded. Plans (predictions, nominations) end with the pod's
  binding or end, or in time. An affinity group has one card: of two claims of one pod for two cards of it the newer counts, and
  the older, if it is a plan, ends.

No await between reading a node's free capacity and the reservation.
"""

from collections.abc import Iterator

from central.assignment.model import Taken
from central.assignment.sharing import AffinityGroup
from central.ledger.books import Books
from central.ledger.claims import Claims
from central.ledger.facts import Facts
from central.ledger.groups import CardOf
from central.ledger.load import Turnover
from central.ledger.model import Claim, Clash, Held, Holder, NodeCapacity, NodeFacts, Obstacle, OwnClaim, PodLoad, PodRecord
from central.ledger.overlay import EmptyNodes, Overlay
from central.ledger.views import NodeSnapshot, Snapshot, clashes
from central.request.model import CpuMemory
from lading.vocabulary import PodUid


class Ledger:
    """Answer what the ledger knows. `facts` and `claims` are its two writers."""

    def __init__(self) -> None:
        self._books = Books()
        self.facts = Facts(self._books)
        self.claims = Claims(self._books)
        self._crowded: set[str] = set()  # nodes where more is claimed than there is, as of `_checked`
        self._checked = 0

    def expire(self, now: float) -> None:
        """End predictions and nominations whose time is over, and lingering claims on nodes that are reachable again and do not
        report them. It must be called about once a second, with the time of the clock of `until`."""
        self.claims.expire(now)
        self.facts.end_lingering(now)

    def facts_of(self, name: str) -> NodeFacts:
        """Return what the Node object says; NO_NODE if there is none."""
        return self._books.facts_of(name)

    def holders(self, name: str) -> tuple[Held, ...]:
        """Return which pods hold something of this node, and by which claims."""
        return self._books.holders(name)

    def group_members(self, group: AffinityGroup, card: CardOf) -> tuple[Holder, ...]:
        """Return the holders on this card that belong to the affinity group."""
        return self._books.group_members(group, card)

    @property
    def version(self) -> int:
        """Return the number of the last change of any node's free capacity."""
        return self._books.changes.version

    def capacity(self, name: str) -> NodeCapacity:
        """Return the free capacity of a node; a node without a report, or an unknown node, has none."""
        return self._books.capacity_as_if(name, ())

    def without(self, *pods: PodUid) -> Overlay:
        """Return the cluster as if these pods held nothing: for a pod's own claims, and for victims."""
        return Overlay(books=self._books, removed=frozenset(pods))

    def empty_nodes(self) -> EmptyNodes:
        """Return the cluster as if no pod held a device, with all devices and nodes in order."""
        return EmptyNodes(books=self._books)

    def nodes(self) -> tuple[str, ...]:
        """Return the nodes that have a report."""
        return tuple(name for name, node in self._books.nodes.items() if node.inventory.reported)

    def capacities(self) -> Iterator[NodeCapacity]:
        return (self.capacity(name) for name in self.nodes())

    def capacities_changed_since(self, version: int) -> tuple[list[tuple[str, NodeCapacity | None]], int]:
        """Return the rooms that changed after that version (-1: all), None for a node that is gone; and the current version."""
        names = self._books.changes.since(version)
        return [
            (name, self._books.nodes[name].capacity() if name in self._books.nodes else None) for name in names
        ], self.version

    def changed_since(self, version: int) -> list[str]:
        """Return only the names of these nodes, and of those that are gone."""
        return self._books.changes.since(version)

    def claims_changed_since(self, version: int) -> tuple[list[str], int]:
        """Return the names of nodes where the free capacity, or what a pod holds, or the reason for it, may have changed after
        that version (-1: all nodes), and the current version. These versions are counted apart from those of rooms. A node may
        be named although nothing changed there."""
        return self._books.claimed.since(version), self._books.claimed.version

    def loads_changed_since(self, version: int) -> tuple[list[tuple[str, int, int, bool]], int]:
        """Return the nodes whose cpu and memory changed after that version (-1: all nodes), and the current version. For each
        node it gives the name, what is left of cpu and memory, and whether that is known. These versions are counted apart from
        those of rooms."""
        changes = self._books.loads.changes
        names = (name for name in changes.since(version) if name in self._books.nodes)
        return [(name, *self._books.loads.left(name)) for name in names], changes.version

    @property
    def turnover(self) -> Turnover:
        return self._books.loads.turnover

    @property
    def loads_version(self) -> int:
        """Return the current version of what `loads_changed_since` returns."""
        return self._books.loads.changes.version

    def take_freed(self) -> tuple[str, ...]:
        """Return nodes that got free capacity since the last call: a release, or a device or node that came (back) into
        service."""
        return self._books.changes.take_freed()

    def take_moved_groups(self) -> frozenset[AffinityGroup]:
        """Return affinity groups that left a card since the last call: their pods may go where they could not before."""
        return self._books.groups.take_moved()

    def pod(self, uid: PodUid) -> PodRecord | None:
        return self._books.pods.get(uid)

    def load_of(self, uid: PodUid) -> PodLoad | None:
        """Return what a bound pod takes of its node's cpu and memory."""
        return self._books.loads.bound_as(uid)

    def expected_on(self, uid: PodUid) -> str:
        """Return the node on which central expects a pod without devices; empty if there is none."""
        return self._books.loads.expected_on(uid)

    def cpu_memory_of(self, uid: PodUid, node: str) -> CpuMemory:
        """Return the cpu and memory that count for this pod there, bound or planned."""
        return self._books.loads.of(uid, node)

    def allocatable(self, node: str) -> CpuMemory | None:
        """Return the allocatable cpu and memory of a node; None if it is not known."""
        return self._books.loads.allocatable(node)

    def has_ended(self, uid: PodUid) -> bool:
        """Return whether the pod is terminal, or gone: nothing is claimed for it any more."""
        return self._books.obstacle(uid) is Obstacle.POD_ENDED

    def is_settled(self, uid: PodUid) -> bool:
        """Tell whether the pod is bound, is being deleted, has ended or is gone."""
        record = self._books.pods.get(uid)
        deleting = record is not None and record.deleting
        return deleting or self._books.obstacle(uid) is not None or self.load_of(uid) is not None

    def exists(self, uid: PodUid) -> bool:
        """Tell whether the API server has the pod, and the pod has not ended."""
        record = self._books.pods.get(uid)
        return self._books.loads.bound_as(uid) is not None if record is None else not record.terminal

    def lowest_priority(self) -> int | None:
        """Return the lowest priority of all pods that hold something by an assignment; None if there are none."""
        return min(self._books.priorities, default=None)

    def bound_on(self, name: str) -> Iterator[PodRecord]:
        """Yield pods that hold something of this node by an assignment. It is cheaper than `holders`."""
        node = self._books.nodes.get(name)
        records = map(self._books.pods.get, node.holds if node is not None else ())
        return (record for record in records if record is not None and record.node == name and record.holds is not None)

    def own_claim(self, uid: PodUid, kind: Claim) -> OwnClaim | None:
        """Return central's prediction, nomination or reservation for this pod."""
        return self._books.own.of(uid).get(kind)

    def reservations(self) -> tuple[OwnClaim, ...]:
        """Return Bindings under way, with an unclear outcome, or confirmed and not yet shown by the watch."""
        return tuple(self._books.own.of_kind(Claim.RESERVED))

    def nominations(self) -> tuple[OwnClaim, ...]:
        """Return the nominations: devices that are kept or freed for pods."""
        return tuple(self._books.own.of_kind(Claim.NOMINATED))

    def holds_on(self, name: str) -> Iterator[tuple[PodUid, Taken]]:
        """Yield what each pod holds of this node, by any claim. It is much cheaper than `holders`."""
        node = self._books.nodes.get(name)
        return ((uid, hold.taken) for uid, hold in (node.holds.items() if node is not None else ()))

    def facts_on(self, name: str) -> Iterator[tuple[PodUid, Taken]]:
        """Yield the same of pods for which central itself claims nothing: what they hold is free when they end."""
        return ((uid, taken) for uid, taken in self.holds_on(name) if not self._books.own.of(uid))

    def conflicts(self) -> tuple[Clash, ...]:
        """Return devices that several pods hold by assignment or grant and cannot all have. Check nodes that changed since the
        last time, and at those that had more claims than devices then."""
        self._crowded.update(self._books.changes.since(self._checked))
        self._checked = self.version
        self._crowded = {name for name in self._crowded if name in self._books.nodes and self._books.nodes[name].crowded()}
        return tuple(clash for name in sorted(self._crowded) for clash in clashes(self._books.nodes[name], self.holders(name)))

    def conflicts_on(self, name: str) -> tuple[Clash, ...]:
        """Return the conflicts on one node: devices that two pods hold and cannot share."""
        node = self._books.nodes.get(name)
        return tuple(clashes(node, self.holders(name))) if node is not None and node.crowded() else ()

    def snapshot(self) -> Snapshot:
        nodes = {
            name: NodeSnapshot(
                inventory=node.inventory,
                reachable=node.reachable,
                claims={uid: self._books.claims_of(uid, node) for uid in node.holds},
                cards=dict(node.usage.cards),
                vfs=dict(node.usage.vfs),
            )
            for name, node in self._books.nodes.items()
        }
        own = {uid: dict(claims) for uid, claims in self._books.own.all().items()}
        return Snapshot(
            pods=dict(self._books.pods),
            own=own,
            nodes=nodes,
            facts={name: facts for name, (facts, _) in self._books.node_facts.items()},
            requested=self._books.loads.requested(),
        )
