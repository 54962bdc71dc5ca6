"""The ledger: which pods hold which devices, and why. One writer, in memory, rebuilt from the API server's objects.

It takes what the API server says (facts.py), and central's own predictions, nominations and reservations. It returns a NodeRoom
for each node, which of them changed, which got room, and which pods hold what. It refuses a claim on what is not free.

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

No await between a look at a room and the reservation.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from central.assignment.model import NOTHING_TAKEN, Taken
from central.assignment.sharing import Group
from central.ledger.facts import Facts
from central.ledger.groups import CardOf, cards_in_groups
from central.ledger.load import Turnover
from central.ledger.model import Claim, Clash, Conflict, Held, Holder, NodeRoom, Obstacle, OwnClaim, PodLoad, PodRecord
from central.ledger.overlay import Overlay
from central.ledger.room import lacking
from central.ledger.views import NodeSnapshot, Snapshot, clashes, has, held_by
from central.request.model import NO_CPU_MEMORY, CpuMemory
from lading.vocabulary import PodUid

# A reporter that has something to say after its node came back has said it by then: kubelet ends what it should not run within
# its grace period, mostly 30 s, and the reporter's longest pause between two attempts is shorter than that.
LINGER_S: Final = 120.0
# A reporter looks twice a second; a second holder that comes too early is refused by the node and tried again.
UNREPORTED_S: Final = 10.0
# How long room is held for a preemptor when its victims are gone: kube-scheduler has to ask again and bind it.
NOMINATION_S: Final = 120.0

_PLANS: Final = (Claim.PREDICTED, Claim.NOMINATED, Claim.PLANNED)


class Ledger(Facts):
    def __init__(self) -> None:
        super().__init__()
        self._crowded: set[str] = set()  # nodes where more is claimed than there is, as of `_looked`
        self._looked = 0

    # ---- central's own claims

    def predict(
        self,
        uid: PodUid,
        node: str,
        taken: Taken,
        until: float,
        holder: Holder | None = None,
        cpu_memory: CpuMemory = NO_CPU_MEMORY,
    ) -> Conflict | None:
        """Hold what a filter found, for a moment. It replaces an earlier prediction for that pod; a refusal changes nothing."""
        conflict = self._check(uid, node, taken)
        if conflict is None:
            who = holder or Holder(pod=uid)
            self._claim(Claim.PREDICTED, OwnClaim(holder=who, node=node, taken=taken, until=until, cpu_memory=cpu_memory))
        return conflict

    def predict_load(self, load: PodLoad, until: float) -> None:
        """Hold the load of a pod that asks for no device: only its cpu and memory count there. It ends when the pod is bound,
        there or elsewhere, when it is gone, or at `until`."""
        if self._obstacle(load.uid) is None:
            self._loads.expect(load, until)

    def nominate(
        self,
        uid: PodUid,
        node: str,
        taken: Taken,
        until: float,
        holder: Holder | None = None,
        *,
        cpu_memory: CpuMemory = NO_CPU_MEMORY,
        victims: frozenset[PodUid] = frozenset(),
        evicts: bool = True,
    ) -> None:
        """Hold what victims still have, beyond what there is. Replaces an earlier nomination for that pod. When the last victim
        holds nothing there any more, the nomination ends after NOMINATION_S; it ends at `until` in any case."""
        if self._obstacle(uid) is None:
            who = holder or Holder(pod=uid)
            claim = OwnClaim(
                holder=who, node=node, taken=taken, until=until, cpu_memory=cpu_memory, victims=victims, evicts=evicts
            )
            self._claim(Claim.NOMINATED, claim)

    def plan(self, claims: Sequence[OwnClaim], *, instead_of: Iterable[PodUid] = ()) -> Conflict | None:
        """Hold what the members of a gang will take, in place of all predictions, nominations and plans for these pods, and for
        those of `instead_of`. A claim ends with the pod's binding or end, or by `forget_plan`. A refusal changes nothing."""
        uids = dict.fromkeys((*(claim.holder.pod for claim in claims), *instead_of))
        former = [(kind, claim) for uid in uids for kind, claim in self._own.of(uid).items() if kind in _PLANS]
        for uid in uids:
            self._drop(uid, _PLANS)
        for number, claim in enumerate(claims):
            conflict = self._check(claim.holder.pod, claim.node, claim.taken)
            if conflict is not None:
                for made in claims[:number]:
                    self.forget_plan(made.holder.pod)
                for kind, before in former:
                    self._claim(kind, before)
                return conflict
            self._claim(Claim.PLANNED, claim)
        return None

    def forget_plan(self, uid: PodUid) -> None:
        self._drop(uid, [Claim.PLANNED])

    def reserve(
        self,
        uid: PodUid,
        node: str,
        taken: Taken,
        gen: int,
        holder: Holder | None = None,
        cpu_memory: CpuMemory = NO_CPU_MEMORY,
    ) -> Conflict | None:
        """Reserve the devices before a Binding is sent. Return None if they are reserved, now or already. What the pod itself
        has on that node does not conflict; its plans stay until it is bound, so that `release` undoes exactly this, except
        those that its affinity group cannot have beside it."""
        wanted = OwnClaim(holder=holder or Holder(pod=uid), node=node, taken=taken, gen=gen, cpu_memory=cpu_memory)
        known = self._own.of(uid).get(Claim.RESERVED)
        if known is not None:
            same = (known.node, known.taken, known.gen) == (node, taken, gen)
            return None if same else Conflict(obstacle=Obstacle.RESERVED, holders=(known.holder,))
        conflict = self._check(uid, node, taken)
        if conflict is None:
            self._claim(Claim.RESERVED, wanted)
        return conflict

    def confirm(self, uid: PodUid) -> None:
        """Confirm the reservation after a successful Binding. Do nothing if the watch was faster, or the pod is gone."""
        if self._own.confirm(uid):
            self._drop(uid, _PLANS)

    def release(self, uid: PodUid) -> None:
        """Release the reservation after a Binding that was certainly refused. Do nothing if a Binding succeeded: the refused
        one was a second."""
        known = self._own.of(uid).get(Claim.RESERVED)
        if known is not None and not known.confirmed:
            self._drop(uid, [Claim.RESERVED])

    def forget_prediction(self, uid: PodUid) -> None:
        self._drop(uid, [Claim.PREDICTED])
        self._loads.forget(uid)

    def forget_nomination(self, uid: PodUid) -> None:
        self._drop(uid, [Claim.NOMINATED])

    def expire(self, now: float) -> None:
        """End predictions and nominations whose time is over, and lingering claims on nodes that are reachable again and do not
        report them. It must be called about once a second, with the time of the clock of `until`."""
        self._follow_victims(now)
        for uid, kind in self._own.expired(now):
            self._drop(uid, [kind])
        self._loads.expire(now)
        for node in [self._nodes[name] for name in self._lingering if name in self._nodes]:
            for uid in node.end_unreported(now, UNREPORTED_S):
                self._settle(uid, node.name)
            if not node.serving:
                node.trusted_from = None
            elif node.trusted_from is None:
                node.trusted_from = now + LINGER_S
            elif now >= node.trusted_from:
                for uid in node.end_lingering(but=node.unreported):
                    self._settle(uid, node.name)
        self._lingering = {name for name in self._lingering if name in self._nodes and self._nodes[name].lingering}

    def _follow_victims(self, now: float) -> None:
        """Count the time of nominations whose victims are gone."""
        for claim in [claim for claim in self.nominations() if claim.victims]:
            node = self._nodes.get(claim.node)
            if node is None or claim.victims.isdisjoint(node.holds):
                until = min(claim.until, now + NOMINATION_S)
                self._own.put(Claim.NOMINATED, replace(claim, victims=frozenset(), until=until))

    def _obstacle(self, uid: PodUid) -> Obstacle | None:
        record = self._pods.get(uid)
        if uid in self._gone_pods or (record is not None and record.terminal):
            return Obstacle.POD_ENDED
        return Obstacle.POD_BOUND if record is not None and record.node else None

    def _check(self, uid: PodUid, name: str, taken: Taken) -> Conflict | None:
        if obstacle := self._obstacle(uid):
            return Conflict(obstacle=obstacle)
        if taken == NOTHING_TAKEN:  # a member of a gang without devices: any node will do
            return None
        node = self._nodes.get(name)
        if node is None or not node.serving:
            return Conflict(obstacle=Obstacle.NODE)
        device = lacking(node.room_as_if([uid]), taken)
        if device is None:
            return self._away_from_group(uid, name, taken)
        holders = tuple(h.holder for h in self.holders(name) if h.holder.pod != uid and has(h.taken, device))
        return Conflict(obstacle=Obstacle.DEVICE, device=device, holders=holders)

    def _away_from_group(self, uid: PodUid, name: str, taken: Taken) -> Conflict | None:
        """Return a conflict if an affinity group would have two cards, by what others hold or within the claim itself; None
        otherwise."""
        wanted = tuple(cards_in_groups(name, taken))
        for group, card in wanted:
            cards = self.group_cards(group, [uid]).union(of for same, of in wanted if same == group)
            if other := min(cards - {card}, default=None):
                return Conflict(obstacle=Obstacle.GROUP, device=other.uuid, holders=self.group_members(group, other))
        return None

    def _claim(self, kind: Claim, claim: OwnClaim) -> None:
        uid = claim.holder.pod
        self._drop(uid, self._plans_beside(kind, claim))
        former = self._own.put(kind, claim)
        for name in {claim.node} | ({former.node} if former is not None else set()):
            self._settle(uid, name)

    def _plans_beside(self, kind: Claim, claim: OwnClaim) -> list[Claim]:
        """Return the other plans of the same pod by which its affinity group would have a card beside this claim's."""
        cards = dict(cards_in_groups(claim.node, claim.taken))
        own = self._own.of(claim.holder.pod)
        return [
            plan
            for plan in _PLANS
            if plan is not kind
            and plan in own
            and any(cards.get(group, card) != card for group, card in cards_in_groups(own[plan].node, own[plan].taken))
        ]

    def _drop(self, uid: PodUid, kinds: Iterable[Claim]) -> None:
        for claim in self._own.drop(uid, kinds):
            self._settle(uid, claim.node)

    # ---- answers

    @property
    def version(self) -> int:
        """Return the number of the last change of any room."""
        return self._changes.version

    def room(self, name: str) -> NodeRoom:
        """Return the room of a node, also of one without a report, or of an unknown one."""
        return self.room_as_if(name, ())

    def without(self, *pods: PodUid) -> Overlay:
        """Return the cluster as if these pods held nothing: for a pod's own claims, and for victims."""
        return Overlay(ledger=self, gone=frozenset(pods))

    def nodes(self) -> tuple[str, ...]:
        """Return the nodes that have a report."""
        return tuple(name for name, node in self._nodes.items() if node.inventory.reported)

    def rooms(self) -> Iterator[NodeRoom]:
        return (self.room(name) for name in self.nodes())

    def rooms_changed_since(self, version: int) -> tuple[list[tuple[str, NodeRoom | None]], int]:
        """Return the rooms that changed after that version (-1: all), None for a node that is gone; and the current version."""
        names = self._changes.since(version)
        return [(name, self._nodes[name].room() if name in self._nodes else None) for name in names], self.version

    def changed_since(self, version: int) -> list[str]:
        """Return only the names of these nodes, and of those that are gone."""
        return self._changes.since(version)

    def claims_changed_since(self, version: int) -> tuple[list[str], int]:
        """Return the names of nodes where the room, or what a pod holds, or the reason for it, may have changed after that
        version (-1: all nodes), and the current version. These versions are counted apart from those of rooms. A node may be
        named although nothing changed there."""
        return self._claimed.since(version), self._claimed.version

    def loads_changed_since(self, version: int) -> tuple[list[tuple[str, int, int, bool]], int]:
        """Return the nodes whose cpu and memory changed after that version (-1: all nodes), and the current version. For each
        node it gives the name, what is left of cpu and memory, and whether that is known. These versions are counted apart from
        those of rooms."""
        changes = self._loads.changes
        names = (name for name in changes.since(version) if name in self._nodes)
        return [(name, *self._loads.left(name)) for name in names], changes.version

    @property
    def turnover(self) -> Turnover:
        return self._loads.turnover

    @property
    def loads_version(self) -> int:
        """Return the current version of what `loads_changed_since` returns."""
        return self._loads.changes.version

    def take_freed(self) -> tuple[str, ...]:
        """Return nodes that got room since the last call: a release, or a device or node that came (back) into service."""
        return self._changes.take_freed()

    def group_members(self, group: Group, card: CardOf) -> tuple[Holder, ...]:
        uids = self._groups.members(group, card)
        return tuple(held.holder for held in self.holders(card.node) if held.holder.pod in uids)

    def take_moved_groups(self) -> frozenset[Group]:
        """Return affinity groups that left a card since the last call: their pods may go where they could not before."""
        return self._groups.take_moved()

    def pod(self, uid: PodUid) -> PodRecord | None:
        return self._pods.get(uid)

    def load_of(self, uid: PodUid) -> PodLoad | None:
        """Return what a bound pod takes of its node's cpu and memory."""
        return self._loads.bound_as(uid)

    def cpu_memory_of(self, uid: PodUid, node: str) -> CpuMemory:
        """Return the cpu and memory that count for this pod there, bound or planned."""
        return self._loads.of(uid, node)

    def allocatable(self, node: str) -> CpuMemory | None:
        """Return the allocatable cpu and memory of a node; None if it is not known."""
        return self._loads.allocatable(node)

    def has_ended(self, uid: PodUid) -> bool:
        """Return whether the pod is terminal, or gone: nothing is claimed for it any more."""
        return self._obstacle(uid) is Obstacle.POD_ENDED

    def is_settled(self, uid: PodUid) -> bool:
        """Tell whether the pod is bound, is being deleted, has ended or is gone."""
        record = self._pods.get(uid)
        return self._obstacle(uid) is not None or self.load_of(uid) is not None or (record is not None and record.deleting)

    def exists(self, uid: PodUid) -> bool:
        """Tell whether the API server has the pod, and the pod has not ended."""
        record = self._pods.get(uid)
        return self._loads.bound_as(uid) is not None if record is None else not record.terminal

    def lowest_priority(self) -> int | None:
        """Return the lowest priority of all pods that hold something by an assignment; None if there are none."""
        return min(self._priorities, default=None)

    def bound_on(self, name: str) -> Iterator[PodRecord]:
        """Yield pods that hold something of this node by an assignment. It is cheaper than `holders`."""
        node = self._nodes.get(name)
        records = map(self._pods.get, node.holds if node is not None else ())
        return (record for record in records if record is not None and record.node == name and record.holds is not None)

    def own_claim(self, uid: PodUid, kind: Claim) -> OwnClaim | None:
        """Return central's prediction, nomination or reservation for this pod."""
        return self._own.of(uid).get(kind)

    def reservations(self) -> tuple[OwnClaim, ...]:
        """Return Bindings under way, with an unclear outcome, or confirmed and not yet shown by the watch."""
        return tuple(self._own.of_kind(Claim.RESERVED))

    def nominations(self) -> tuple[OwnClaim, ...]:
        """Return the nominations: room that is being made for pods."""
        return tuple(self._own.of_kind(Claim.NOMINATED))

    def holds_on(self, name: str) -> Iterator[tuple[PodUid, Taken]]:
        """Yield what each pod holds of this node, by any claim. It is much cheaper than `holders`."""
        node = self._nodes.get(name)
        return ((uid, hold.taken) for uid, hold in (node.holds.items() if node is not None else ()))

    def facts_on(self, name: str) -> Iterator[tuple[PodUid, Taken]]:
        """Yield the same of pods for which central itself claims nothing: what they hold is free when they end."""
        return ((uid, taken) for uid, taken in self.holds_on(name) if not self._own.of(uid))

    def holders(self, name: str) -> tuple[Held, ...]:
        """Return which pods hold something of this node, and by which claims."""
        node = self._nodes.get(name)
        if node is None:
            return ()
        return tuple(
            held_by(uid, node, self._claims(uid, node), self._pods.get(uid), self._own.of(uid).values()) for uid in node.holds
        )

    def conflicts(self) -> tuple[Clash, ...]:
        """Return devices that several pods hold by assignment or grant and cannot all have. Check nodes that changed since the
        last time, and at those that had more claims than devices then."""
        self._crowded.update(self._changes.since(self._looked))
        self._looked = self.version
        self._crowded = {name for name in self._crowded if name in self._nodes and self._nodes[name].crowded()}
        return tuple(clash for name in sorted(self._crowded) for clash in clashes(self._nodes[name], self.holders(name)))

    def conflicts_on(self, name: str) -> tuple[Clash, ...]:
        """Return the same of one node."""
        node = self._nodes.get(name)
        return tuple(clashes(node, self.holders(name))) if node is not None and node.crowded() else ()

    def snapshot(self) -> Snapshot:
        nodes = {
            name: NodeSnapshot(
                inventory=node.inventory,
                reachable=node.reachable,
                claims={uid: self._claims(uid, node) for uid in node.holds},
                cards=dict(node.usage.cards),
                vfs=dict(node.usage.vfs),
            )
            for name, node in self._nodes.items()
        }
        own = {uid: dict(claims) for uid, claims in self._own.all().items()}
        return Snapshot(
            pods=dict(self._pods),
            own=own,
            nodes=nodes,
            facts={name: facts for name, (facts, _) in self._node_facts.items()},
            requested=self._loads.requested(),
        )
