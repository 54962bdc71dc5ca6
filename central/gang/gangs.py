"""Keep the gangs, their member pods and their objects, as the watches report them. No decision is made here.

A gang exists as long as it has members. A pod that ended is no longer a member.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

from central.api.pod_groups import GangObject
from central.gang.model import Gang, Member
from central.gang.node_names import NodeNames, Numbered
from central.loop.steps import Steps
from central.request.gang import GangKey, Membership, ObjectKey
from lading.vocabulary import PodUid


class Gangs:
    def __init__(self) -> None:
        self._gangs: dict[GangKey, Gang] = {}
        self._of: dict[PodUid, GangKey] = {}
        self._said: dict[PodUid, Membership] = {}  # memberships as the pods state them, without their objects
        self._by_source: dict[ObjectKey, dict[PodUid, None]] = {}  # the pods that name each object
        self._node_names = Numbered()
        self._unvisited: dict[GangKey, None] = {}  # gangs that were created, changed or removed since they were last taken
        self._objects: dict[ObjectKey, GangObject] = {}
        self._stale: set[GangKey] = set()  # gangs whose settings have to be derived again
        self._named: dict[GangKey, Gang] = {}
        self._ended: list[tuple[Gang, Member]] = []  # memberships that ended since they were last taken
        self._changed: set[GangKey] = set()  # gangs that changed since they were last taken
        self._holding: dict[GangKey, Gang] = {}

    def __iter__(self) -> Iterator[Gang]:
        for key in [*self._stale]:
            self._settled(key)
        return iter([*self._gangs.values()])

    def __len__(self) -> int:
        return len(self._gangs)

    def has(self, key: GangKey) -> bool:
        return key in self._gangs

    def get(self, key: GangKey) -> Gang | None:
        return self._settled(key) if key in self._gangs else None

    def mark(self, gang: Gang) -> None:
        """Record a change of the gang, such as a call about a member, or an arrival at the barrier."""
        self._unvisited[gang.key] = None

    def compressing(self, gang: Gang) -> Steps:
        """Compress the node names of all members, one member in each step."""
        for member in [*gang.members.values()]:
            self.compress(member)
            yield

    def compress(self, member: Member) -> None:
        """Compress the node names of kube-scheduler's last calls about the member."""
        for domain, names in member.names.items():
            if not isinstance(names, NodeNames):
                member.names[domain] = self._node_names.of(names)

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

    def name(self, gang: Gang) -> None:
        """Record that kube-scheduler was given the node of a member."""
        gang.named = True
        self._named[gang.key] = gang
        self.mark(gang)

    @property
    def named(self) -> list[Gang]:
        """Return the gangs whose planned nodes were given to kube-scheduler, and whose Bindings are not sent yet."""
        if self._named:
            self._named = {key: gang for key, gang in self._named.items() if gang.named and not gang.opened}
        return [*self._named.values()]

    def bound_with(self, uid: PodUid) -> Gang | None:
        """Return the gang with which the pod was or will be bound; None for a pod that was bound alone."""
        found = self.of(uid)
        return None if found is None or found[1].alone else found[0]

    def plan(self, gang: Gang) -> None:
        """Record that the gang has a plan."""
        self._holding[gang.key] = gang

    @property
    def holding(self) -> list[Gang]:
        """Return the gangs for which devices are planned or kept."""
        if self._holding:
            mine = self._gangs.get
            self._holding = {key: gang for key, gang in self._holding.items() if gang.holds and mine(key) is gang}
        return [*self._holding.values()]

    def spare(self, gang: Gang) -> frozenset[PodUid]:
        """Return the surplus members, which may be evicted without the others: bound members beyond the minimum of their role,
        the last by rank and age. A gang that is being bound has none."""
        if not gang.started:
            return frozenset()
        found: set[PodUid] = set()
        for role in gang.roles:
            bound = [one for one in gang.members.values() if one.runs and one.membership.role == role]
            bound.sort(key=lambda one: (one.membership.rank or 0, one.created, one.uid))
            found.update(one.uid for one in bound[gang.terms.least.get(role, 0) :])
        return frozenset(found)

    def uids(self) -> Collection[PodUid]:
        return self._of.keys()

    # ---- pods

    def put(self, member: Member) -> None:
        """Add or update a member. `member.membership` is as the pod states it, without its object."""
        uid, said = member.uid, member.membership
        member.membership = self._resolved(said)
        member.alone = bool(member.node) and member.bound_with not in {None, member.membership.gang.text}
        self._store(uid, said)
        if uid in self._of:
            gang = self._gangs[self._of[uid]]  # stale settings are derived again when they are read
            before = gang.members[uid]
            member.names, member.old = before.names, before.old
            if gang.key == member.membership.gang:
                member.planned, member.guessed, member.wrong = before.planned, before.guessed, before.wrong
                member.arrived = before.arrived
                # A pod can change its gang while its Binding is sent. A pod without devices has no assignment to name its gang.
                member.alone &= before.alone or (not before.node and member.assigned)
            else:
                self.remove(uid)
                self._store(uid, said)
                member.planned, member.guessed, member.arrived = None, False, False
            if member == before:  # an update such as a new condition leaves the gang unchanged
                gang.version += 1
                self.mark(gang)
                return
        gang = self._gangs.setdefault(member.membership.gang, Gang(key=member.membership.gang))
        gang.members[uid] = member
        self._of[uid] = gang.key
        self._touch(gang.key)

    def remove(self, uid: PodUid) -> None:
        """Remove a pod that ended, was deleted, or no longer names its gang."""
        found = self.of(uid)
        if found is None:
            return
        gang, member = found
        self._drop_said(uid)
        del self._of[uid], gang.members[uid]
        if not gang.members:
            del self._gangs[gang.key]
            self._stale.discard(gang.key)
        self._touch(gang.key)
        self._ended.append((gang, member))

    def take_ended(self) -> list[tuple[Gang, Member]]:
        """Return the memberships that ended since the last call, each with the current state of its gang."""
        ended, self._ended = self._ended, []
        return [(self._settled(gang.key) if gang.members else gang, member) for gang, member in ended]

    def take_changed(self) -> list[Gang]:
        """Return the gangs that changed since the last call, by a member or their object, and that hold or held devices. Other
        gangs are settled when they are read: otherwise each of 1,000 new members would cause a scan of all members."""
        changed, self._changed = self._changed, set()
        return [self._settled(key) for key in changed if key in self._gangs and self._gangs[key].has_held]

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
            member = self._gangs[self._of[uid]].members[uid]
            self.put(replace(member, membership=self._said[uid]))

    def _store(self, uid: PodUid, said: Membership) -> None:
        self._drop_said(uid)
        self._said[uid] = said
        if said.source is not None:
            self._by_source.setdefault(said.source, {})[uid] = None

    def _drop_said(self, uid: PodUid) -> None:
        said = self._said.pop(uid, None)
        if said is not None and said.source is not None:
            naming = self._by_source[said.source]
            del naming[uid]
            if not naming:
                del self._by_source[said.source]

    def _resolved(self, said: Membership) -> Membership:
        """Return the membership with the settings of its object."""
        one = self._objects.get(said.source) if said.source is not None else None
        if one is None:
            return said
        gang = one.gang or said.gang
        return replace(said, gang=gang, role=one.role, roles=one.roles, terms=one.terms, wrong=one.wrong)

    def _touch(self, key: GangKey) -> None:
        self._unvisited[key] = None
        if key in self._gangs:
            self._gangs[key].version += 1
            self._stale.add(key)
            self._changed.add(key)

    def _settled(self, key: GangKey) -> Gang:
        gang = self._gangs[key]
        if key in self._stale:
            self._stale.discard(key)
            gang.settle()
        return gang
