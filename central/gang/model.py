"""Define a gang as central observes it: its members, its settings and its phase.

    gathering   members, or the object with the minimum, are missing
    queued      the gang is complete and has no plan: it holds nothing
    planned     each member of the plan has one node, where its devices are claimed; no Binding was sent
    binding     Bindings are being sent, or were sent: devices are kept for the missing members
    placed      the minimum of each role is bound; later members are ordinary pods

Only values and their derivation are here; `central.gang.claims` and `central.scheduling.gangs` change the ledger.
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

FIRST_PAUSE_S: Final = 0.25  # seconds, doubled for each start, also for the first
LONGEST_PAUSE_S: Final = 300.0
EVERYWHERE: Final = ""  # the domain of a call about nodes of several domains, or without any


class Phase(StrEnum):
    GATHERING = "gathering"
    QUEUED = "queued"
    PLANNED = "planned"
    BINDING = "binding"
    PLACED = "placed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Hold the planned node and devices of a member."""

    node: str
    placement: Placement


@dataclass(slots=True, kw_only=True)
class Member:
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
    asks: bool = True  # kube-scheduler calls central about the pod; False: the pod is bound without central
    deleting: bool = False
    gated: bool = False  # a scheduling gate keeps kube-scheduler from trying the pod
    # The nodes that kube-scheduler named in its last call, or in its last call for each domain; empty before the first call.
    names: dict[str, Collection[str]] = field(default_factory=dict)
    guessed: bool = False  # the last call was about a single node, other than the planned node
    planned: Planned | None = None
    arrived: bool = False  # kube-scheduler called bind for the pod since the plan was made

    @property
    def holder(self) -> Holder:
        return Holder(pod=self.uid, namespace=self.namespace, name=self.name)

    def asked_about(self, domain: str, names: Collection[str]) -> bool:
        """Record a call about these nodes of a domain, or of EVERYWHERE. Return whether the domain had a call before."""
        known = domain in self.names
        if domain == EVERYWHERE or EVERYWHERE in self.names:
            self.names.clear()
        self.names[domain] = names
        return known

    @property
    def runs(self) -> bool:
        """Return whether central bound the pod as a member, and the pod is not being deleted."""
        return bool(self.node) and self.asks and not self.alone and not self.deleting

    @property
    def waits(self) -> bool:
        """Return whether central has to place the pod."""
        return self.asks and not self.node and not self.deleting and not self.gated and not self.wrong


@dataclass(slots=True, kw_only=True)
class Gang:
    key: GangKey
    members: dict[PodUid, Member] = field(default_factory=dict)
    version: int = 0  # grows with each change of a member, or of the gang's object
    terms: Terms = field(default_factory=Terms)
    roles: tuple[str, ...] = ("",)
    known: bool = False  # the minimum of each role is known
    # True once each role had its minimum bound, or a member runs for longer than a start takes; False when no member runs.
    started: bool = False
    opened: bool = False  # all members of the plan arrived: Bindings are sent
    until: float = math.inf  # end of the plan, on the scheduler's clock
    kept: dict[PodUid, OwnClaim] = field(default_factory=dict)  # places kept for former bound members, by the uid of the claim
    since: float = math.inf  # time when the gang became complete; infinite: incomplete
    not_before: float = -math.inf  # earliest time of the next plan
    starts: int = 0  # plans since the minimum was last bound; each failed plan makes the next pause longer
    resumes: float = -math.inf  # end of the pause after the last plan
    refused_for: OfPod = OfPod.GANG_WAITS_FOR_MEMBERS  # reason why the last attempt made no plan
    waits_for: str = ""  # message for `refused_for`
    sized: tuple[int, int] = (0, 0)  # numbers of nodes and members for which `too_large` and `size_in_words` are valid
    too_large: bool = False  # the gang would not fit if no pod held a device
    size_in_words: str = ""
    evicting: bool = False  # pods are being evicted for the gang
    no_victims: object = None  # last state in which no eviction would have helped
    told: tuple[OfPod, int] | None = None  # the reason that kube-scheduler was last requeued to show, and the number of nodes
    tried: object = None  # last state of ledger and members for which no plan existed
    guesses: bool = True  # members without a call from kube-scheduler are planned on nodes of equal members
    asked: tuple[int, float] = (0, -math.inf)  # value of `questions` when it last changed, and the time of that change
    arrived_at: float = -math.inf  # time of the last new arrival at the barrier, or of the plan
    named_at: float = math.inf  # time when kube-scheduler was first given a member's node
    kept_until: float = math.inf  # end of the places kept for former members
    named: bool = False  # kube-scheduler was given a member's node, and may count the member's cpu there
    nodes: frozenset[str] = frozenset()  # nodes of the plan
    undone: bool = False  # bound members are being evicted, because the others did not follow in time

    # ---- settings

    @property
    def tried_by_domain(self) -> bool:
        """Return whether kube-scheduler itself tries the whole gang in one domain after the other."""
        return self.key.dialect is GangDialect.KUBERNETES and bool(self.terms.required_topology)

    def settle(self) -> None:
        """Derive the settings from the members. The oldest member that is not being deleted decides; a member with different
        settings is marked as wrong."""
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
        """Set the refusal for members without a plan."""
        self.refused_for, self.waits_for = reason, why

    def paused(self, now: float) -> None:
        """Begin the pause after a plan. The pause doubles with each plan that does not bind the minimum."""
        self.resumes = now + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self.starts, 32))

    def displaced(self) -> None:
        """Do not count the last plan as a start, because a pod or gang of higher priority took its devices."""
        self.starts = max(0, self.starts - 1)
        self.refuse(OfPod.GANG_WAITS_FOR_TURN, "pods of higher priority took its place; it is planned again")

    @property
    def refused(self) -> str:
        """Return the refusal message for the events of the gang's members."""
        return f"gang {self.key}: {self.waits_for}"

    @property
    def _one_by_one(self) -> bool:
        """Return whether the gang's object says that its pods are scheduled one by one."""
        said = (member for member in self.members.values() if not member.wrong)
        return not self.terms.least and any(member.membership.terms is not None for member in said)

    # ---- progress

    @property
    def questions(self) -> int:
        """Return the number of members with a call from kube-scheduler, counted once for each domain."""
        return sum(len(member.names) for member in self.members.values())

    @property
    def in_trials(self) -> bool:
        """Return whether kube-scheduler tries the gang in one domain after the other."""
        return any(member.names and EVERYWHERE not in member.names for member in self.members.values())

    @property
    def has_held(self) -> bool:
        """Return whether devices are or were held for the gang."""
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
        """Return the planned node and devices of each member that is not bound."""
        return {uid: member.planned for uid, member in self.members.items() if member.planned is not None and not member.node}

    @property
    def holds(self) -> bool:
        """Return whether devices are planned or kept for the gang."""
        return bool(self.kept) or any(member.planned is not None for member in self.members.values())

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
            if not (member.wrong or member.deleting) and (not member.asks or (member.node and self._counts_bound))
        )
        return {role: max(0, count - there[role]) for role, count in self.terms.least.items()}

    @property
    def _whole(self) -> bool:
        """Return whether the minimum of each role is bound."""
        return self.known and not any(self.lacking().values())

    @property
    def covered(self) -> bool:
        """Return whether each member that has to start is bound or has a planned node."""
        planned = self.planned()
        return self.known and all(planned[role] >= count for role, count in self.lacking().items())

    @property
    def _counts_bound(self) -> bool:
        return self.terms.match is not Match.ONLY_WAITING or self.opened

    @property
    def complete(self) -> bool:
        """Return whether the minimum of each role exists."""
        have = self.existing()
        return self.known and all(have[role] >= count for role, count in self.terms.least.items())

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
        """Return a message about the missing members."""
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
    told = [(one.mode, one.match, one.required_topology, one.preferred_topology) for one in (first, terms)]
    if told[0] != told[1]:
        return "mode, match policy or topology differs from what older members of the gang say; all say the same"
    return ""
