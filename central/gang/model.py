"""Define a gang as central sees it: its members, what is said of it, and how far it is.

    gathering   members, or the object with the minimum, are missing
    queued      the gang is complete and has no plan: it holds nothing
    planned     each member of the plan has one node, where its devices are claimed; no Binding was sent
    binding     Bindings are sent, or were: the gang's room is kept for the members that are missing
    placed      the minimum of each role is bound; later members are ordinary pods

Only values and how they follow from each other: what changes the ledger is `central.scheduling.gangs`.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from central.fit.model import Placement
from central.ledger.model import NO_LABELS, Holder, OwnClaim
from central.request.gang import GangDialect, GangKey, Match, Membership, Terms
from central.request.reasons import OfPod
from lading.vocabulary import PodUid

FIRST_PAUSE_S: Final = 0.25  # doubled before it is used first
LONGEST_PAUSE_S: Final = 300.0
EVERYWHERE: Final = ""  # in place of a domain: a question about nodes of several, or without any


class Phase(StrEnum):
    GATHERING = "gathering"
    QUEUED = "queued"
    PLANNED = "planned"
    BINDING = "binding"
    PLACED = "placed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Say where one member will be."""

    node: str
    placement: Placement


@dataclass(slots=True, kw_only=True)
class Member:
    uid: PodUid
    namespace: str
    name: str
    membership: Membership  # with what its object says
    wrong: str = ""  # why the pod cannot be a member
    created: str = ""  # RFC 3339, in UTC
    priority: int = 0
    labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)  # by which its quota is found
    node: str = ""  # where it is bound
    old: bool = False  # bound for so long that its gang has started, or was given up
    assigned: bool = False  # the pod has an assignment
    bound_with: str | None = ""  # the gang that its assignment names; None: it does not say
    alone: bool = False  # bound before it named the gang: it counts for the minimum, and is no part of a start
    asks: bool = True  # kube-scheduler asks central about it; False: it is bound without central
    deleting: bool = False
    gated: bool = False  # kube-scheduler does not try it yet: a scheduling gate is closed
    # Where kube-scheduler lets it go, as of its last question, or of its last one in each domain; empty: no question yet.
    names: dict[str, Collection[str]] = field(default_factory=dict)
    guessed: bool = False  # that question was about one node alone, which is not the planned one
    planned: Planned | None = None
    arrived: bool = False  # kube-scheduler sent it to bind since the plan was made

    @property
    def holder(self) -> Holder:
        return Holder(pod=self.uid, namespace=self.namespace, name=self.name)

    def asked_about(self, domain: str, names: Collection[str]) -> bool:
        """Record a question about these nodes of one domain, or EVERYWHERE. Return whether it is not the first one."""
        known = domain in self.names
        if domain == EVERYWHERE or EVERYWHERE in self.names:
            self.names.clear()
        self.names[domain] = names
        return known

    @property
    def runs(self) -> bool:
        """Return whether it was bound as a member, by central, and is not being deleted."""
        return bool(self.node) and self.asks and not self.alone and not self.deleting

    @property
    def waits(self) -> bool:
        """Return whether central has to place it."""
        return self.asks and not self.node and not self.deleting and not self.gated and not self.wrong


@dataclass(slots=True, kw_only=True)
class Gang:
    key: GangKey
    members: dict[PodUid, Member] = field(default_factory=dict)
    version: int = 0  # grows with each change of a member, or of an object
    terms: Terms = field(default_factory=Terms)
    roles: tuple[str, ...] = ("",)
    known: bool = False  # the minimum of each role is known
    # Each role had its minimum bound once, or a member runs for longer than a gang takes to start; until no member runs.
    started: bool = False
    opened: bool = False  # all members of the plan arrived: Bindings are sent
    until: float = math.inf  # when the plan ends, on the clock of the scheduler
    kept: dict[PodUid, OwnClaim] = field(default_factory=dict)  # room of bound members that are gone, by the uid of its claim
    since: float = math.inf  # when it became complete; infinite: it is not
    not_before: float = -math.inf  # no plan is made until then
    starts: int = 0  # plans since its minimum was bound last: each one more that failed is followed by a longer pause
    resumes: float = -math.inf  # no plan is made until then, because the last one failed
    refused_for: OfPod = OfPod.GANG_WAITS_FOR_MEMBERS  # why there is no plan, as of the last try
    waits_for: str = ""  # the same in words
    sized: tuple[int, int] = (0, 0)  # nodes and members for which the next two are known
    too_large: bool = False  # it would not fit if no pod held a device
    size_in_words: str = ""
    evicting: bool = False  # pods are being evicted for it
    no_victims: object = None  # the state in which no eviction would have helped
    told: tuple[OfPod, int] | None = None  # the reason that kube-scheduler was asked to show last, and the number of nodes
    tried: object = None  # the state of ledger and members in which there was no plan
    guesses: bool = True  # members that kube-scheduler has not asked about yet are planned where others like them may be
    asked: tuple[int, float] = (0, -math.inf)  # about how many members it asked, in each domain, and when one more was seen
    arrived_at: float = -math.inf  # when a member arrived that had not, or the plan was made
    named_at: float = math.inf  # since when some member of the plan has its node
    kept_until: float = math.inf  # when what is kept for members that are gone ends
    named: bool = False  # some member was given its node: kube-scheduler may count its cpu there
    nodes: frozenset[str] = frozenset()  # of the plan
    undone: bool = False  # its bound members are being evicted, because the others did not follow in time

    # ---- what is said of it

    @property
    def tried_by_domain(self) -> bool:
        """Return whether kube-scheduler itself tries the whole gang in one domain after the other."""
        return self.key.dialect is GangDialect.KUBERNETES and bool(self.terms.required_topology)

    def settle(self) -> None:
        """Derive the terms from the members: the oldest one that is not being deleted decides, and a member that says otherwise
        is none."""
        line = sorted(self.members.values(), key=lambda member: (member.deleting, member.created, member.uid))
        least: dict[str, int] = {}
        first: Terms | None = None
        for member in line:
            terms, member.wrong = member.membership.terms, member.membership.wrong
            if terms is None or member.wrong:
                continue
            first = first or terms
            member.wrong = _differs(first, least, terms)
            if not member.wrong:
                least.update(terms.least)
        self.roles = line[0].membership.roles if line else ("",)
        self.known = first is not None and all(role in least for role in self.roles)
        self.terms = replace(first or Terms(), least=least)
        running = [member for member in self.members.values() if member.runs]
        was_started = bool(running) and (self.started or any(member.old for member in running))
        self.started = was_started or self._whole or self._one_by_one
        if not self.complete:
            self.refuse(OfPod.GANG_WAITS_FOR_MEMBERS, self._shown_members())
        elif self.refused_for is OfPod.GANG_WAITS_FOR_MEMBERS:
            self.refuse(OfPod.GANG_WAITS_FOR_TURN, "its members are complete, and a place for all of them is searched")

    def refuse(self, reason: OfPod, why: str) -> None:
        """Set what members without a plan are told."""
        self.refused_for, self.waits_for = reason, why

    def paused(self, now: float) -> None:
        """Begin the pause after a plan. It doubles with each plan that does not end with the minimum bound."""
        self.resumes = now + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self.starts, 32))

    def displaced(self) -> None:
        """Take back that its last plan counts as a start: a pod or gang of higher priority took its place."""
        self.starts = max(0, self.starts - 1)
        self.refuse(OfPod.GANG_WAITS_FOR_TURN, "pods of higher priority took its place; it is planned again")

    @property
    def refused(self) -> str:
        """Return the words for the events of its members."""
        return f"gang {self.key}: {self.waits_for}"

    @property
    def _one_by_one(self) -> bool:
        """Return whether the gang's object says that its pods are scheduled one by one."""
        said = (member for member in self.members.values() if not member.wrong)
        return not self.terms.least and any(member.membership.terms is not None for member in said)

    # ---- how far it is

    @property
    def questions(self) -> int:
        """Return about how many members kube-scheduler has asked, counted once for each domain."""
        return sum(len(member.names) for member in self.members.values())

    @property
    def in_trials(self) -> bool:
        """Return whether kube-scheduler asks about one domain after the other."""
        return any(member.names and EVERYWHERE not in member.names for member in self.members.values())

    @property
    def has_held(self) -> bool:
        """Return whether anything is held for it, or was."""
        return bool(self.nodes or self.kept or self.opened)

    @property
    def phase(self) -> Phase:
        if self.ordinary or (self.opened and self._whole):
            return Phase.PLACED
        if self.opened or self.finishing:
            return Phase.BINDING
        if self.plan:
            return Phase.PLANNED
        return Phase.QUEUED if self.complete else Phase.GATHERING

    @property
    def plan(self) -> dict[PodUid, Planned]:
        """Return the members that have a node and are not bound."""
        return {uid: member.planned for uid, member in self.members.items() if member.planned is not None and not member.node}

    @property
    def holds(self) -> bool:
        """Return whether capacity is planned or kept for it."""
        return bool(self.kept) or any(member.planned is not None for member in self.members.values())

    @property
    def ordinary(self) -> bool:
        """Return whether its members are placed like other pods now."""
        match self.terms.match:
            case Match.ONCE_SATISFIED:
                return self.started
            case Match.WAITING_AND_RUNNING:
                return self._whole
            case Match.ONLY_WAITING:
                return self._one_by_one

    def bound(self) -> Counter[str]:
        """Return the number of members of each role that run, of those that central binds."""
        return Counter(member.membership.role for member in self.members.values() if member.runs)

    def planned(self) -> Counter[str]:
        """Return the number of members of each role that have a node and are not bound."""
        return Counter(self.members[uid].membership.role for uid in self.plan)

    def existing(self) -> Counter[str]:
        """Return the number of members of each role that count for the minimum."""
        every = (one for one in self.members.values() if not one.deleting and not one.gated and not one.wrong)
        return Counter(one.membership.role for one in every if self._counts_bound or not one.node)

    def lacking(self) -> dict[str, int]:
        """Return how many members of each role have to be bound. A member that central is not asked about is not lacking."""
        there = Counter(
            member.membership.role
            for member in self.members.values()
            if not (member.wrong or member.deleting) and (not member.asks or (member.node and self._counts_bound))
        )
        return {role: max(0, count - there[role]) for role, count in self.terms.least.items()}

    @property
    def _whole(self) -> bool:
        """Return whether the minimum of each role is bound."""
        return self.known and not any(self.lacking().values())

    @property
    def covered(self) -> bool:
        """Return whether each member that has to start is bound or has a place."""
        planned = self.planned()
        return self.known and all(planned[role] >= count for role, count in self.lacking().items())

    @property
    def _counts_bound(self) -> bool:
        return self.terms.match is not Match.ONLY_WAITING or self.opened

    @property
    def complete(self) -> bool:
        """Return whether the members that start together exist."""
        have = self.existing()
        return self.known and all(have[role] >= count for role, count in self.terms.least.items())

    @property
    def finishing(self) -> bool:
        """Return whether some members are bound, and others have to be."""
        return not self.ordinary and self._counts_bound and any(self.bound().values())

    def waiting(self) -> list[Member]:
        """Return the members to place, by rank and age."""
        waiting = [member for member in self.members.values() if member.waits]
        return sorted(waiting, key=lambda member: (member.membership.rank or 0, member.created, member.name, member.uid))

    def required(self) -> Iterator[tuple[str, int, int]]:
        """Yield each role with the number of members that must reach the barrier, and how many have."""
        arrived = Counter(member.membership.role for member in self.members.values() if member.arrived and not member.node)
        for role, lacking in self.lacking().items():
            yield role, lacking, arrived[role]

    @property
    def at_barrier(self) -> bool:
        return self.known and all(arrived >= lacking for _, lacking, arrived in self.required())

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
        """Return which members are missing, in words."""
        have, least = self.existing(), self.terms.least
        if unknown := [role for role in self.roles if role not in least]:
            where = next((member.membership.source for member in self.members.values() if member.membership.source), None)
            return f"its minimum is not known: there is no {where.kind}" if where else f"there is no member of {unknown[0]} yet"
        counts = [f"{have[role]} of {least[role]}{f' of role {role}' if role else ''}" for role in self.roles]
        return f"{', '.join(counts)} members exist"


def _differs(first: Terms, least: Mapping[str, int], terms: Terms) -> str:
    """Return in words where a member's terms differ from what older members say; empty if they agree."""
    for role, count in terms.least.items():
        if least.get(role, count) != count:
            of = f" of role {role}" if role else ""
            return f"the minimum{of} is {count}, and older members of the gang say {least[role]}; all say the same"
    told = [(one.mode, one.match, one.required_topology, one.preferred_topology) for one in (first, terms)]
    if told[0] != told[1]:
        return "mode, match policy or topology differs from what older members of the gang say; all say the same"
    return ""
