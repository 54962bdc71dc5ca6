"""Keep the gangs, their member pods and their objects, as the watches report them. No decision is made here.

A gang exists as long as it has members. A pod that ended is no longer a member.

Tests: tests/unit/central/gang/test_looks.py
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from central.api.pod_groups import GangObject
from central.gang.calls import Calls
from central.gang.gang import Gang, Member
from central.gang.life import Life, Stage
from central.loop.steps import Steps
from central.request.gang import GangKey, Membership, ObjectKey
from lading.vocabulary import PodUid


class Gangs:
    def __init__(self) -> None:
        self._gangs: dict[GangKey, Gang] = {}
        self._members: dict[GangKey, dict[PodUid, Member]] = {}  # members of stale gangs: later than in `_gangs`
        self.calls = Calls()
        self._of: dict[PodUid, GangKey] = {}
        self._memberships: dict[PodUid, Membership] = {}  # memberships as the pods state them, without their objects
        self._by_source: dict[ObjectKey, dict[PodUid, None]] = {}  # the pods that name each object
        self._unvisited: dict[GangKey, None] = {}  # gangs that were created, changed or removed since they were last taken
        self._objects: dict[ObjectKey, GangObject] = {}
        self._ended: list[tuple[GangKey, Member]] = []  # memberships that ended since they were last taken
        self._deleted: list[Life] = []  # lives of gangs that lost their last member since they were last taken
        self._changed: set[GangKey] = set()  # gangs that changed since they were last taken
        self._holding: dict[GangKey, None] = {}  # gangs that may hold devices, in the order of their first plan
        self._named: dict[GangKey, None] = {}  # gangs that may be in `named`

    def __iter__(self) -> Iterator[Gang]:
        return iter([self._settled(key) for key in [*self._gangs]])

    def __len__(self) -> int:
        return len(self._gangs)

    def has(self, key: GangKey) -> bool:
        return key in self._gangs

    def get(self, key: GangKey) -> Gang | None:
        return self._settled(key) if key in self._gangs else None

    def mark(self, key: GangKey) -> None:
        """Record a change of the gang, such as a call about a member, or an arrival at the barrier."""
        self._unvisited[key] = None

    def put_life(self, key: GangKey, life: Life) -> Gang:
        """Replace the life of a gang. Only central.gang.starts calls this, because claims in the ledger follow a life."""
        self._gangs[key] = self._gangs[key].living(life)
        if life.holds:
            self._holding[key] = None
        if _is_named(life):
            self._named[key] = None
        return self._settled(key)

    def note(self, gang: Gang, **changes: Any) -> Gang:
        """Change fields of a gang's search. Return the current gang."""
        self._gangs[gang.key] = self._settled(gang.key).searching(**changes)
        return self._gangs[gang.key]

    def compressing(self, gang: Gang) -> Steps:
        """Compress the node names of all members, one member in each step."""
        for uid in [*gang.members]:
            self.calls.compress(uid)
            yield

    def take_unvisited(self) -> list[GangKey]:
        """Return the gangs that were created, changed or removed since the last call."""
        unvisited, self._unvisited = [*self._unvisited], {}
        return unvisited

    def of(self, uid: PodUid) -> tuple[Gang, Member] | None:
        """Return the gang of a pod, and the pod as its member; None for a pod without a gang."""
        key = self._of.get(uid)
        if key is None:
            return None
        gang = self._settled(key)
        return gang, gang.members[uid]

    @property
    def named(self) -> list[Gang]:
        """Return the gangs whose planned nodes were given to kube-scheduler, and whose Bindings are not sent yet."""
        named = [key for key in self._named if (gang := self._gangs.get(key)) is not None and _is_named(gang.life)]
        self._named = dict.fromkeys(named)
        return [self._settled(key) for key in named]

    def bound_with(self, uid: PodUid) -> Gang | None:
        """Return the gang with which the pod was or will be bound; None for a pod that was bound alone."""
        result = self.of(uid)
        return None if result is None or result[1].alone else result[0]

    @property
    def holding(self) -> list[Gang]:
        """Return the gangs for which devices are planned or kept."""
        held = [key for key in self._holding if (gang := self._gangs.get(key)) is not None and gang.life.holds]
        self._holding = dict.fromkeys(held)
        return [self._settled(key) for key in held]

    def spare(self, gang: Gang) -> frozenset[PodUid]:
        """Return the surplus members, which may be evicted without the others: bound members beyond the minimum of their role,
        the last by rank and age. A gang that is being bound has none."""
        if not gang.started:
            return frozenset()
        pod_uids: set[PodUid] = set()
        for role in gang.roles:
            bound = [one for one in gang.members.values() if one.runs and one.membership.role == role]
            bound.sort(key=lambda one: (one.membership.rank or 0, one.created, one.uid))
            pod_uids.update(one.uid for one in bound[gang.terms.least.get(role, 0) :])
        return frozenset(pod_uids)

    def uids(self) -> Collection[PodUid]:
        return self._of.keys()

    # ---- pods

    def put(self, member: Member) -> None:
        """Add or update a member. `member.membership` is as the pod states it, without its object."""
        uid, text = member.uid, member.membership
        membership = self._resolved(text)
        alone = bool(member.node) and member.bound_with not in {None, membership.gang.text}
        member = replace(member, membership=membership, alone=alone)
        self._store(uid, text)
        key = self._of.get(uid)
        if key is not None:
            before = self._current(key)[uid]
            member = replace(member, old=before.old)
            if key == membership.gang:
                # A pod can change its gang while its Binding is sent. A pod without devices has no assignment to name its gang.
                alone = member.alone and (before.alone or (not before.node and member.assigned))
                member = replace(member, wrong=before.wrong, alone=alone)
            else:
                self._leave(uid)
                self._store(uid, text)
                self.calls.guess(uid, guessed=False)
            if member == before:  # an update such as a new condition leaves the gang unchanged
                self._renew(key)
                return
        key = membership.gang
        if key not in self._gangs:
            self._gangs[key] = Gang(key=key)
        self._of[uid] = key
        self._changing(key)[uid] = member
        self._touch(key)

    def remove(self, uid: PodUid) -> None:
        """Remove a pod that ended, was deleted, or no longer names its gang."""
        if uid in self._of:
            self._leave(uid)
            self.calls.forget([uid])

    def _leave(self, uid: PodUid) -> None:
        key = self._of.pop(uid)
        self._drop_membership(uid)
        members = self._changing(key)
        self._ended.append((key, members.pop(uid)))
        if not members:
            self._deleted.append(self._gangs.pop(key).life)
            del self._members[key]
        self._touch(key)

    def take_ended(self) -> list[tuple[GangKey, Member]]:
        """Return the memberships that ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def take_deleted(self) -> list[Life]:
        """Return the lives of the gangs that lost their last member since the last call."""
        deleted, self._deleted = self._deleted, []
        return deleted

    def take_changed(self) -> list[Gang]:
        """Return the gangs that changed since the last call, by a member or their object, and that hold or held devices. Other
        gangs are settled when they are read: otherwise each of 1,000 new members would cause a scan of all members."""
        changed, self._changed = self._changed, set()
        return [self._settled(key) for key in changed if key in self._gangs and self._gangs[key].life.has_held]

    # ---- objects

    def put_object(self, one: GangObject) -> None:
        self._objects[one.key] = one
        self._refile(one.key)

    def remove_object(self, key: ObjectKey) -> None:
        if self._objects.pop(key, None) is not None:
            self._refile(key)

    def _refile(self, source: ObjectKey) -> None:
        """Update the memberships of the pods that name this object."""
        for uid in [*self._by_source.get(source, ())]:
            member = self._current(self._of[uid])[uid]
            self.put(replace(member, membership=self._memberships[uid]))

    def _store(self, uid: PodUid, membership: Membership) -> None:
        self._drop_membership(uid)
        self._memberships[uid] = membership
        if membership.source is not None:
            self._by_source.setdefault(membership.source, {})[uid] = None

    def _drop_membership(self, uid: PodUid) -> None:
        membership = self._memberships.pop(uid, None)
        if membership is not None and membership.source is not None:
            naming = self._by_source[membership.source]
            del naming[uid]
            if not naming:
                del self._by_source[membership.source]

    def _resolved(self, membership: Membership) -> Membership:
        """Return the membership with the settings of its object."""
        one = self._objects.get(membership.source) if membership.source is not None else None
        if one is None:
            return membership
        gang = one.gang or membership.gang
        return replace(membership, gang=gang, role=one.role, roles=one.roles, terms=one.terms, wrong=one.wrong)

    def _touch(self, key: GangKey) -> None:
        if key in self._gangs:
            self._renew(key)
            self._changed.add(key)
        else:
            self.mark(key)

    def _renew(self, key: GangKey) -> None:
        """Give the gang another version, and have it visited."""
        self._gangs[key] = replace(self._gangs[key], version=self._gangs[key].version + 1)
        self.mark(key)

    def _current(self, key: GangKey) -> Mapping[PodUid, Member]:
        return self._members.get(key) or self._gangs[key].members

    def _changing(self, key: GangKey) -> dict[PodUid, Member]:
        """Return the gang's members, to be changed. The gang is stale after that."""
        if key not in self._members:
            self._members[key] = {**self._gangs[key].members}
        return self._members[key]

    def _settled(self, key: GangKey) -> Gang:
        """Return the gang with the settings of its current members."""
        members = self._members.pop(key, None)
        if members is not None:
            self._gangs[key] = self._gangs[key].settled(members)
        return self._gangs[key]


def _is_named(life: Life) -> bool:
    return life.named and life.stage is Stage.PLANNED
