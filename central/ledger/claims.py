"""Take and end central's own claims: predictions, nominations, plans of gangs, and reservations.

It refuses a claim on devices that are not free, and a claim for a pod that is bound or has ended. A refusal changes nothing.
`ledger.py` says how each kind of claim ends.

Tests: tests/unit/central/test_docs.py
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from central.assignment.model import NOTHING_TAKEN, Taken
from central.ledger.books import Books
from central.ledger.capacity import lacking
from central.ledger.groups import cards_in_groups
from central.ledger.model import Claim, Conflict, Holder, Obstacle, OwnClaim, PodLoad
from central.ledger.views import has
from central.request.model import NO_CPU_MEMORY, CpuMemory
from lading.vocabulary import PodUid

# How long room is held for a preemptor when its victims are gone: kube-scheduler has to ask again and bind it.
NOMINATION_S: Final = 120.0

_PLANS: Final = (Claim.PREDICTED, Claim.NOMINATED, Claim.PLANNED)


class Claims:
    def __init__(self, books: Books) -> None:
        self._books = books

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
        if self._books.obstacle(load.uid) is None:
            self._books.loads.expect(load, until)

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
        if self._books.obstacle(uid) is None:
            who = holder or Holder(pod=uid)
            claim = OwnClaim(
                holder=who, node=node, taken=taken, until=until, cpu_memory=cpu_memory, victims=victims, evicts=evicts
            )
            self._claim(Claim.NOMINATED, claim)

    def plan(self, claims: Sequence[OwnClaim], *, instead_of: Iterable[PodUid] = ()) -> Conflict | None:
        """Hold what the members of a gang will take, in place of all predictions, nominations and plans for these pods, and for
        those of `instead_of`. A claim ends with the pod's binding or end, or by `forget_plan`. A refusal changes nothing."""
        uids = dict.fromkeys((*(claim.holder.pod for claim in claims), *instead_of))
        former = [(kind, claim) for uid in uids for kind, claim in self._books.own.of(uid).items() if kind in _PLANS]
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
        known = self._books.own.of(uid).get(Claim.RESERVED)
        if known is not None:
            same = (known.node, known.taken, known.gen) == (node, taken, gen)
            return None if same else Conflict(obstacle=Obstacle.RESERVED, holders=(known.holder,))
        conflict = self._check(uid, node, taken)
        if conflict is None:
            self._claim(Claim.RESERVED, wanted)
        return conflict

    def confirm(self, uid: PodUid) -> None:
        """Confirm the reservation after a successful Binding. Do nothing if the watch was faster, or the pod is gone."""
        if self._books.own.confirm(uid):
            self._drop(uid, _PLANS)

    def release(self, uid: PodUid) -> None:
        """Release the reservation after a Binding that was certainly refused. Do nothing if a Binding succeeded: the refused
        one was a second."""
        known = self._books.own.of(uid).get(Claim.RESERVED)
        if known is not None and not known.confirmed:
            self._drop(uid, [Claim.RESERVED])

    def forget_prediction(self, uid: PodUid) -> None:
        self._drop(uid, [Claim.PREDICTED])
        self._books.loads.forget(uid)

    def forget_nomination(self, uid: PodUid) -> None:
        self._drop(uid, [Claim.NOMINATED])

    def expire(self, now: float) -> None:
        """End predictions and nominations whose time is over. `now`: by the clock of `until`."""
        self._follow_victims(now)
        for uid, kind in self._books.own.expired(now):
            self._drop(uid, [kind])
        self._books.loads.expire(now)

    def _follow_victims(self, now: float) -> None:
        """Let nominations whose victims are gone expire after NOMINATION_S."""
        for claim in [claim for claim in self._books.own.of_kind(Claim.NOMINATED) if claim.victims]:
            node = self._books.nodes.get(claim.node)
            if node is None or claim.victims.isdisjoint(node.holds):
                until = min(claim.until, now + NOMINATION_S)
                self._books.own.put(Claim.NOMINATED, replace(claim, victims=frozenset(), until=until))

    def _check(self, uid: PodUid, name: str, taken: Taken) -> Conflict | None:
        if obstacle := self._books.obstacle(uid):
            return Conflict(obstacle=obstacle)
        if taken == NOTHING_TAKEN:  # a member of a gang without devices: any node will do
            return None
        node = self._books.nodes.get(name)
        if node is None or not node.serving:
            return Conflict(obstacle=Obstacle.NODE)
        device = lacking(node.capacity_as_if([uid]), taken)
        if device is None:
            return self._away_from_group(uid, name, taken)
        holders = tuple(h.holder for h in self._books.holders(name) if h.holder.pod != uid and has(h.taken, device))
        return Conflict(obstacle=Obstacle.DEVICE, device=device, holders=holders)

    def _away_from_group(self, uid: PodUid, name: str, taken: Taken) -> Conflict | None:
        """Return a conflict if an affinity group would have two cards, by what others hold or within the claim itself; None
        otherwise."""
        wanted = tuple(cards_in_groups(name, taken))
        for group, card in wanted:
            cards = self._books.groups.cards(group, [uid]).union(of for same, of in wanted if same == group)
            if other := min(cards - {card}, default=None):
                return Conflict(obstacle=Obstacle.GROUP, device=other.uuid, holders=self._books.group_members(group, other))
        return None

    def _claim(self, kind: Claim, claim: OwnClaim) -> None:
        uid = claim.holder.pod
        self._drop(uid, self._plans_beside(kind, claim))
        former = self._books.own.put(kind, claim)
        for name in {claim.node} | ({former.node} if former is not None else set()):
            self._books.settle(uid, name)

    def _plans_beside(self, kind: Claim, claim: OwnClaim) -> list[Claim]:
        """Return the other plans of the same pod by which its affinity group would have a card beside this claim's."""
        cards = dict(cards_in_groups(claim.node, claim.taken))
        own = self._books.own.of(claim.holder.pod)
        return [
            plan
            for plan in _PLANS
            if plan is not kind
            and plan in own
            and any(cards.get(group, card) != card for group, card in cards_in_groups(own[plan].node, own[plan].taken))
        ]

    def _drop(self, uid: PodUid, kinds: Iterable[Claim]) -> None:
        for claim in self._books.own.drop(uid, kinds):
            self._books.settle(uid, claim.node)
