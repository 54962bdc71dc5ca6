"""Keep the gangs: which pods belong to which, and what their objects say. Fed by the watches; it decides nothing.

A gang exists as long as one of its pods does. A pod that ended is no member any more.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

from central.api.pod_groups import GangObject
from central.ask.gang import GangKey, Membership, ObjectKey
from central.gang.model import Gang, Member
from lading.vocabulary import PodUid


class Gangs:
    def __init__(self) -> None:
        self._gangs: dict[GangKey, Gang] = {}
        self._of: dict[PodUid, GangKey] = {}
        self._said: dict[PodUid, Membership] = {}  # what the pods say themselves
        self._objects: dict[ObjectKey, GangObject] = {}
        self._stale: set[GangKey] = set()  # gangs whose terms are to be derived again
        self._named: dict[GangKey, Gang] = {}
        self.version = 0  # grows with each change of a member, or of an object

    def __iter__(self) -> Iterator[Gang]:
        for key in [*self._stale]:
            self._settled(key)
        return iter([*self._gangs.values()])

    def __len__(self) -> int:
        return len(self._gangs)

    def has(self, key: GangKey) -> bool:
        return key in self._gangs

    def of(self, uid: PodUid) -> tuple[Gang, Member] | None:
        """Return the gang of a pod, and the pod as its member."""
        key = self._of.get(uid)
        if key is None:
            return None
        gang = self._settled(key)
        return gang, gang.members[uid]

    def name(self, gang: Gang) -> None:
        """Record that a member was given its node."""
        gang.named = True
        self._named[gang.key] = gang

    @property
    def named(self) -> list[Gang]:
        """Return the gangs whose members are given their nodes, and are not bound yet."""
        if self._named:
            self._named = {key: gang for key, gang in self._named.items() if gang.named and not gang.opened}
        return [*self._named.values()]

    def may_go(self, uid: PodUid) -> bool:
        """Return whether the pod may be evicted alone."""
        found = self.of(uid)
        return found is None or uid in self.spare(found[0])

    def spare(self, gang: Gang) -> frozenset[PodUid]:
        """Return the bound members that may be evicted without the others: those beyond the minimum of their role, the last
        ones first. In a gang that is being bound there is none."""
        if not gang.started:
            return frozenset()
        found: set[PodUid] = set()
        for role in gang.roles:
            bound = [one for one in gang.members.values() if one.node and one.asks and one.membership.role == role]
            bound.sort(key=lambda one: (one.membership.rank or 0, one.created, one.uid))
            found.update(one.uid for one in bound[gang.terms.least.get(role, 0) :])
        return frozenset(found)

    def uids(self) -> Collection[PodUid]:
        return self._of.keys()

    # ---- pods

    def put(self, member: Member) -> None:
        """Add a pod, or bring what is known of it up to date. `membership` is what the pod itself says."""
        uid, said = member.uid, member.membership
        known = self.of(uid)
        member.membership = self._resolved(said)
        if known is not None:
            gang, before = known
            member.names, member.planned, member.guessed = before.names, before.planned, before.guessed
            member.arrived, member.arrived_at, member.old = before.arrived, before.arrived_at, before.old
            member.wrong = before.wrong
            if member == before:  # it was touched, or kube-scheduler set a condition: the gang is what it was
                self._said[uid] = said
                self.version += 1
                return
            if gang.key != member.membership.gang:
                self.remove(uid)
        gang = self._gangs.setdefault(member.membership.gang, Gang(key=member.membership.gang))
        gang.members[uid] = member
        self._of[uid] = gang.key
        self._said[uid] = said
        self._touch(gang.key)

    def remove(self, uid: PodUid) -> tuple[Gang, Member] | None:
        """Remove a pod that ended, is gone, or names no gang any more. Return the gang and the member."""
        found = self.of(uid)
        if found is None:
            return None
        gang, member = found
        del self._of[uid], self._said[uid], gang.members[uid]
        if not gang.members:
            del self._gangs[gang.key]
            self._stale.discard(gang.key)
        self._touch(gang.key)
        return gang, member

    # ---- objects

    def put_object(self, one: GangObject) -> None:
        self._objects[one.key] = one
        self._refile(one.key)

    def remove_object(self, key: ObjectKey) -> None:
        if self._objects.pop(key, None) is not None:
            self._refile(key)

    def _refile(self, source: ObjectKey) -> None:
        """Derive the membership of the pods that name this object again. Without the object their gang keeps its terms."""
        for uid in [uid for uid, said in self._said.items() if said.source == source]:
            found = self.of(uid)
            if found is not None and source in self._objects:
                self.put(replace(found[1], membership=self._said[uid]))

    def _resolved(self, said: Membership) -> Membership:
        """Return the membership with what its object says."""
        one = self._objects.get(said.source) if said.source is not None else None
        if one is None:
            return said
        gang = one.gang or said.gang
        return replace(said, gang=gang, role=one.role, roles=one.roles, terms=one.terms, wrong=one.wrong)

    def _touch(self, key: GangKey) -> None:
        self.version += 1
        if key in self._gangs:
            self._stale.add(key)

    def _settled(self, key: GangKey) -> Gang:
        gang = self._gangs[key]
        if key in self._stale:
            self._stale.discard(key)
            gang.settle()
        return gang
