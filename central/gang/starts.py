"""Change the lives of gangs, and with each life the claims in the ledger: only this module does so.

A life and the ledger agree after each call: the ledger has a claim of the kind PLANNED for each place of a member that is not
bound, and for each kept place, and no other for a gang.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from central.gang.draft import Where
from central.gang.gang import Gang, Member
from central.gang.gangs import Gangs
from central.gang.life import GangEvent, Life, Planned, Standing
from central.ledger.ledger import Ledger
from central.ledger.model import Claim, Conflict, Holder, OwnClaim
from central.request.model import CpuMemory
from central.request.reasons import OfPod
from lading.vocabulary import PodUid

_KEPT: Final = "kept-for-gang/"  # prefix of a made-up uid, followed by the former member's uid; no pod has such a uid


class Starts:
    def __init__(self, gangs: Gangs, ledger: Ledger, *, clock: Callable[[], float]) -> None:
        self.gangs = gangs
        self._ledger = ledger
        self._clock = clock

    # ---- plans

    def plan(
        self, gang: Gang, where: Where, cpu_memory: Mapping[PodUid, CpuMemory], *, until: float, counts: bool
    ) -> Conflict | None:
        """Claim the devices of a plan. The plan replaces earlier plans for its members, and the places kept for former members.
        Other members keep their places. Return the conflict if there is one; then nothing changes. `counts`: the plan is an
        attempt to start the gang, and a pause follows it."""
        claims = [
            OwnClaim(holder=gang.members[uid].holder, node=one.node, taken=one.placement.taken, cpu_memory=cpu_memory[uid])
            for uid, one in where.items()
        ]
        conflict = self._ledger.claims.plan(claims, instead_of=gang.life.kept)
        if conflict is not None:
            return conflict
        now, life = self._clock(), gang.life
        places = {**life.places, **where}
        nodes = frozenset(place.node for uid, place in places.items() if uid in gang.members and not gang.members[uid].node)
        life = life.after(
            GangEvent.PLAN,
            places=places,
            kept={},
            kept_until=math.inf,
            nodes=nodes,
            until=until,
            arrived_at=now,
            named_at=math.inf,
            starts=life.starts + counts,
        )
        self.gangs.put_life(gang.key, life.paused(now) if counts else life)
        return None

    def end(self, gang: Gang) -> Gang:
        """End the plan, and all claims for members that are not bound."""
        return self._change(gang, gang.life.ended(GangEvent.END), forget=gang.members)

    def fail(self, gang: Gang) -> Gang:
        """End the plan. If members are bound, they are evicted after that."""
        if gang.living(gang.life.ended(GangEvent.END)).standing is not Standing.BEGUN:
            return self.end(gang)
        return self._change(gang, gang.life.ended(GangEvent.FAIL), forget=gang.members)

    def lose(self, gang: Gang, uids: Collection[PodUid]) -> Gang:
        """End the claims for these members, which are not bound, or the places kept for former members."""
        return self._change(gang, gang.life.without(uids), forget=uids)

    def pause(self, gang: Gang, *, starts: int) -> Gang:
        """Begin a pause until the next plan. `starts`: the failed starts to count before."""
        life = replace(gang.life, starts=gang.life.starts + starts)
        return self.gangs.put_life(gang.key, life.paused(self._clock()))

    def displace(self, gang: Gang) -> Gang:
        """End the plan for a pod or gang of higher priority. The plan does not count as a start."""
        gang = self.end(gang)
        self.gangs.put_life(gang.key, replace(gang.life, starts=max(0, gang.life.starts - 1)))
        message = "pods of higher priority took its place; it is planned again"
        return self.gangs.note(gang, reason=OfPod.GANG_WAITS_FOR_TURN, message=message)

    def settle(self, gang: Gang) -> Gang:
        """Forget earlier attempts to start, because the minimum is bound."""
        if gang.life.starts:
            return self.gangs.put_life(gang.key, replace(gang.life, starts=0))
        return gang

    def limit(self, gang: Gang, until: float) -> Gang:
        """Set the time at which the start of a partly bound gang ends."""
        return self.gangs.put_life(gang.key, replace(gang.life, until=until))

    # ---- the way to the Bindings

    def name(self, gang: Gang) -> None:
        """Record that kube-scheduler was given the node of a member."""
        if not gang.life.named:
            self.gangs.put_life(gang.key, gang.life.after(GangEvent.NAME, named_at=self._clock()))
        self.gangs.mark(gang.key)

    def arrive(self, gang: Gang, uid: PodUid) -> Gang:
        """Record that kube-scheduler called bind for a member with a place."""
        self.gangs.mark(gang.key)
        if uid in gang.life.arrived:
            return gang
        now = self._clock()
        life = gang.life.after(
            GangEvent.ARRIVE, arrived=gang.life.arrived | {uid}, arrived_at=now, named_at=min(gang.life.named_at, now)
        )
        return self.gangs.put_life(gang.key, life)

    def open(self, gang: Gang, until: float) -> Gang:
        """Open the barrier. `until`: when the last member has to be bound."""
        return self.gangs.put_life(gang.key, gang.life.after(GangEvent.OPEN, until=until, resumes=-math.inf))

    # ---- pods and objects that changed

    def follow(self) -> None:
        """Update lives and claims of the gangs that changed. Call this after each change of a pod or of a gang's object."""
        for life in self.gangs.take_deleted():
            self._release([*life.places, *life.kept])
        for key, member in self.gangs.take_ended():
            gang = self.gangs.get(key)
            if gang is None:
                self._release([member.uid])
            else:
                self.follow_end(gang, member)
        for gang in self.gangs.take_changed():
            self.follow_change(gang)

    def follow_end(self, gang: Gang, member: Member) -> Gang:
        """End the member's part of the plan: the pod was deleted, has ended, or left the gang. After a Binding was sent, the
        place is kept for a replacement pod."""
        planned = gang.life.places.get(member.uid)
        if planned is not None and not gang.ordinary and self.has_begun(gang):
            self._release([member.uid])
            if (kept := self._keep(member, planned)) is not None:
                return self.gangs.put_life(gang.key, gang.life.keeping(member.uid, kept))
        return self.lose(gang, [member.uid])

    def _keep(self, member: Member, planned: Planned) -> OwnClaim | None:
        holder = Holder(pod=PodUid(f"{_KEPT}{member.uid}"), namespace=member.namespace, name=member.name)
        claim = OwnClaim(holder=holder, node=planned.node, taken=planned.placement.taken, labels=member.labels)
        return claim if self._ledger.claims.plan([claim]) is None else None

    def follow_change(self, gang: Gang) -> Gang:
        """End the claims of members that cannot be bound any more. Before the first Binding, end a plan with too few places for
        a start."""
        for member in [gang.members[uid] for uid in gang.plan]:
            if not member.waits:
                gang = self.follow_end(gang, member)
        return gang if gang.ordinary or gang.covered or self.has_begun(gang) else self.end(gang)

    def has_begun(self, gang: Gang) -> bool:
        """Return whether a member is bound, or being bound, so that the other members have to follow."""
        return gang.finishing or any(self._ledger.own_claim(uid, Claim.RESERVED) is not None for uid in gang.members)

    def end_kept(self, gang: Gang, most_s: float) -> Gang:
        """Release the places kept for former members once they were kept for `most_s` seconds."""
        now, life = self._clock(), gang.life
        until = min(life.kept_until, now + most_s) if life.kept else math.inf
        if now >= until:
            return self.lose(gang, [*life.kept])
        return gang if until == life.kept_until else self.gangs.put_life(gang.key, replace(life, kept_until=until))

    # ---- claims

    def _change(self, gang: Gang, life: Life, *, forget: Collection[PodUid]) -> Gang:
        """Replace the gang's life, and end the claims of the places that it lost. `forget`: members whose nominations end."""
        self._release(
            uid for uid in (*gang.life.places, *gang.life.kept, *forget) if uid not in life.places and uid not in life.kept
        )
        return self.gangs.put_life(gang.key, life)

    def _release(self, uids: Iterable[PodUid]) -> None:
        for uid in uids:
            self._ledger.claims.forget_plan(uid)
            self._ledger.claims.forget_nomination(uid)
