"""Define a gang as central observes it: its members, its settings, the life of its start, and what searches found; pure.

A gang is a value: central.gang.gangs replaces it when a pod or object changes, and central.gang.starts when its start does.

Tests: tests/unit/central/gang/test_looks.py
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from central.gang.life import PHASES, GangEvent, Life, Phase, Planned, Stage, Standing
from central.ledger.model import NO_LABELS, Holder
from central.request.gang import GangDialect, GangKey, Match, Membership, Terms
from central.request.reasons import OfPod
from lading.vocabulary import PodUid


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Hold what a pod says about its part in a gang."""

    uid: PodUid
    namespace: str
    name: str
    membership: Membership  # the pod's gang and role, with the settings of the gang's object
    wrong: str = ""  # why the pod cannot be a member
    created: str = ""  # RFC 3339, in UTC
    priority: int = 0
    labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)  # labels of the pod, by which its quota is found
    node: str = ""  # node where the pod is bound; empty: not bound
    old: bool = False  # bound for so long that the gang's start has succeeded or was abandoned
    assigned: bool = False  # the pod has an assignment
    bound_with: str | None = ""  # the gang that the pod's assignment names; None: unknown
    alone: bool = False  # bound before it named the gang; counts for the minimum, but is no part of a start
    is_judged: bool = True  # kube-scheduler calls central about the pod; False: the pod is bound without central
    deleting: bool = False
    gated: bool = False  # a scheduling gate keeps kube-scheduler from trying the pod

    @property
    def holder(self) -> Holder:
        return Holder(pod=self.uid, namespace=self.namespace, name=self.name)

    @property
    def runs(self) -> bool:
        """Return whether central bound the pod as a member, and the pod is not being deleted."""
        return bool(self.node) and self.is_judged and not self.alone and not self.deleting

    @property
    def waits(self) -> bool:
        """Return whether central has to place the pod."""
        return self.is_judged and not self.node and not self.deleting and not self.gated and not self.wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Hold whether a gang would fit if no pod held a device: the result for these numbers of nodes and members."""

    nodes: int
    members: int
    too_large: bool
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Hold since when and why a gang has no plan, and what the last searches found. Times are of the scheduler's clock."""

    reason: OfPod = OfPod.GANG_WAITS_FOR_MEMBERS  # why the last search made no plan
    message: str = ""
    since: float = math.inf  # time when the gang became complete; infinite: incomplete
    not_before: float = -math.inf  # earliest time of the next search
    size: Size | None = None
    evicting: bool = False  # pods are being evicted for the gang
    no_victims: object = None  # last state in which no eviction would have helped
    notified: tuple[OfPod, int] | None = (
        None  # the reason that kube-scheduler was last requeued to show, and the number of nodes
    )
    tried: object = None  # last state of ledger and members for which no plan existed
    guesses: bool = True  # members without a call from kube-scheduler are planned on nodes of equal members
    judged_at: tuple[int, float] = (0, -math.inf)  # the last number of kube-scheduler's calls, and the time when it changed

    @property
    def too_large(self) -> bool:
        return self.size is not None and self.size.too_large


# New gangs share these values, because there may be 10,000 gangs.
_NOT_BEGUN: Final = Life()
_NOT_SEARCHED: Final = Search()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    key: GangKey
    members: Mapping[PodUid, Member] = field(default_factory=dict)
    version: int = 0  # grows with each change of a member, or of the gang's object
    terms: Terms = field(default_factory=Terms)
    roles: tuple[str, ...] = ("",)
    has_minimum: bool = False  # the minimum of each role is known
    # True once each role had its minimum bound, or a member runs for longer than a start takes; False when no member runs.
    started: bool = False
    life: Life = _NOT_BEGUN
    search: Search = _NOT_SEARCHED

    # ---- settings

    @property
    def tried_by_domain(self) -> bool:
        """Return whether kube-scheduler itself tries the whole gang in one domain after the other."""
        return self.key.dialect is GangDialect.KUBERNETES and bool(self.terms.required_topology)

    def settled(self, members: Mapping[PodUid, Member]) -> "Gang":
        """Return the gang with these members, and the settings derived from them. The oldest member that is not being deleted
        decides; a member with different settings is marked as wrong."""
        line = sorted(members.values(), key=lambda member: (member.deleting, member.created, member.uid))
        least: dict[str, int] = {}
        first: Terms | None = None
        wrong = dict[PodUid, str]()
        for member in line:
            terms, wrong[member.uid] = member.membership.terms, member.membership.wrong
            if terms is None or wrong[member.uid]:
                continue
            first = first or terms
            wrong[member.uid] = _differs(first, least, terms)
            if not wrong[member.uid]:
                least.update(terms.least)
        changed = {uid: replace(members[uid], wrong=reason) for uid, reason in wrong.items() if reason != members[uid].wrong}
        roles = line[0].membership.roles if line else ("",)
        gang = replace(
            self,
            members={**members, **changed} if changed else members,
            roles=roles,
            has_minimum=first is not None and all(role in least for role in roles),
            terms=replace(first or Terms(), least=least),
        )
        running = [member for member in gang.members.values() if member.runs]
        was_started = bool(running) and (self.started or any(member.old for member in running))
        gang = replace(gang, started=was_started or gang._whole or gang._one_by_one)
        if gang.life.stage is Stage.ABANDONED and gang.standing is not Standing.BEGUN:
            gang = replace(gang, life=gang.life.after(GangEvent.RECOVER))
        if not gang.complete:
            return gang.searching(reason=OfPod.GANG_WAITS_FOR_MEMBERS, message=gang._shown_members())
        if gang.search.reason is OfPod.GANG_WAITS_FOR_MEMBERS:
            message = "its members are complete, and a place for all of them is searched"
            return gang.searching(reason=OfPod.GANG_WAITS_FOR_TURN, message=message)
        return gang

    def living(self, life: Life) -> "Gang":
        """Return the gang with another life."""
        return replace(self, life=life)

    def searching(self, **changes: Any) -> "Gang":
        """Return the gang with these fields of its search changed."""
        return replace(self, search=replace(self.search, **changes))

    @property
    def refused(self) -> str:
        """Return the refusal message for the events of the gang's members."""
        return f"gang {self.key}: {self.search.message}"

    @property
    def _one_by_one(self) -> bool:
        """Return whether the gang's object says that its pods are scheduled one by one."""
        text = (member for member in self.members.values() if not member.wrong)
        return not self.terms.least and any(member.membership.terms is not None for member in text)

    # ---- progress

    @property
    def phase(self) -> Phase:
        return PHASES[self.standing, self.life.stage]

    @property
    def standing(self) -> Standing:
        if self.ordinary or (self.life.is_open and self._whole):
            return Standing.STARTED
        if self.finishing:
            return Standing.BEGUN
        return Standing.COMPLETE if self.complete else Standing.INCOMPLETE

    @property
    def plan(self) -> dict[PodUid, Planned]:
        """Return the planned node and devices of each member that is not bound."""
        members = self.members
        return {uid: place for uid, place in self.life.places.items() if uid in members and not members[uid].node}

    @property
    def ordinary(self) -> bool:
        """Return whether the gang's members are now placed like ordinary pods."""
        match self.terms.match:
            case Match.ONCE_SATISFIED:
                return self.started
            case Match.WAITING_AND_RUNNING:
                return self._whole
            case Match.ONLY_WAITING:
                return self._one_by_one

    def bound(self) -> Counter[str]:
        """Return by role the number of members that run, among the members that central binds."""
        return Counter(member.membership.role for member in self.members.values() if member.runs)

    def planned(self) -> Counter[str]:
        """Return by role the number of planned members that are not bound."""
        return Counter(self.members[uid].membership.role for uid in self.plan)

    def existing(self) -> Counter[str]:
        """Return by role the number of members that count for the minimum."""
        every = (one for one in self.members.values() if not one.deleting and not one.gated and not one.wrong)
        return Counter(one.membership.role for one in every if self._counts_bound or not one.node)

    def lacking(self) -> dict[str, int]:
        """Return by role the number of members that still have to be bound. A member that is bound without central is not
        lacking."""
        there = Counter(
            member.membership.role
            for member in self.members.values()
            if not (member.wrong or member.deleting) and (not member.is_judged or (member.node and self._counts_bound))
        )
        return {role: max(0, count - there[role]) for role, count in self.terms.least.items()}

    @property
    def _whole(self) -> bool:
        """Return whether the minimum of each role is bound."""
        return self.has_minimum and not any(self.lacking().values())

    @property
    def covered(self) -> bool:
        """Return whether each member that has to start is bound or has a planned node."""
        planned = self.planned()
        return self.has_minimum and all(planned[role] >= count for role, count in self.lacking().items())

    @property
    def _counts_bound(self) -> bool:
        return self.terms.match is not Match.ONLY_WAITING or self.life.is_open

    @property
    def complete(self) -> bool:
        """Return whether the minimum of each role exists."""
        have = self.existing()
        return self.has_minimum and all(have[role] >= count for role, count in self.terms.least.items())

    @property
    def finishing(self) -> bool:
        """Return whether some members are bound, and others have to follow."""
        return not self.ordinary and self._counts_bound and any(self.bound().values())

    def waiting(self) -> list[Member]:
        """Return the members that central has to place, by rank and age."""
        waiting = [member for member in self.members.values() if member.waits]
        return sorted(waiting, key=lambda member: (member.membership.rank or 0, member.created, member.name, member.uid))

    def required(self) -> Iterator[tuple[str, int, int]]:
        """Yield each role, the number of its members that must reach the barrier, and the number that did."""
        there = (self.members[uid] for uid in self.life.arrived if uid in self.members)
        arrived = Counter(member.membership.role for member in there if not member.node)
        for role, lacking in self.lacking().items():
            yield role, lacking, arrived[role]

    @property
    def at_barrier(self) -> bool:
        return self.has_minimum and all(arrived >= lacking for _, lacking, arrived in self.required())

    # ---- its place in the queue

    @property
    def priority(self) -> int:
        return max((member.priority for member in self.members.values()), default=0)

    def is_below(self, priority: int) -> bool:
        """Return whether all members have a lower priority than this."""
        return all(member.priority < priority for member in self.members.values())

    @property
    def created(self) -> str:
        return min((member.created for member in self.members.values()), default="")

    def _shown_members(self) -> str:
        have, least = self.existing(), self.terms.least
        if unknown := [role for role in self.roles if role not in least]:
            where = next((member.membership.source for member in self.members.values() if member.membership.source), None)
            return f"its minimum is not known: there is no {where.kind}" if where else f"there is no member of {unknown[0]} yet"
        counts = [f"{have[role]} of {least[role]}{f' of role {role}' if role else ''}" for role in self.roles]
        return f"{', '.join(counts)} members exist"


def _differs(first: Terms, least: Mapping[str, int], terms: Terms) -> str:
    """Return a message if a member's settings differ from those of older members; empty if they agree."""
    for role, count in terms.least.items():
        if least.get(role, count) != count:
            of = f" of role {role}" if role else ""
            return f"the minimum{of} is {count}, and older members of the gang say {least[role]}; all say the same"
    requirements = [(one.mode, one.match, one.required_topology, one.preferred_topology) for one in (first, terms)]
    if requirements[0] != requirements[1]:
        return "mode, match policy or topology differs from what older members of the gang say; all say the same"
    return ""
