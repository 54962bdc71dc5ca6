"""Define the life of a gang's start, as a value and a table of transitions; pure.

    idle        central holds nothing for the gang
    planned     each member of the plan has one node, where its devices are claimed; no Binding was sent
    open        all members that start together reached the barrier: Bindings are being sent, or were sent
    abandoned   the minimum was not bound in time, and the bound members are being evicted

What the members' pods say (their *standing*) is independent of that. Both together are the gang's phase, which users see.
central.gang.starts applies events, and keeps the claims in the ledger equal to the places of each life.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Any, Final

from central.ledger.model import OwnClaim
from central.search.placement import Placement
from lading.vocabulary import PodUid

FIRST_PAUSE_S: Final = 0.25  # seconds, doubled for each start, also for the first
LONGEST_PAUSE_S: Final = 300.0


class Phase(StrEnum):
    """Represent the progress of a gang, as users see it."""

    GATHERING = "gathering"  # members, or the object with the minimum, are missing
    QUEUED = "queued"  # the gang is complete and has no plan: it holds nothing
    PLANNED = "planned"  # each member of the plan has a node, where its devices are claimed; no Binding was sent
    BINDING = "binding"  # Bindings are being sent, or were sent: devices are kept for the missing members
    PLACED = "placed"  # the minimum of each role is bound; later members are ordinary pods


class Standing(Enum):
    """Represent what the pods of a gang say about its start."""

    INCOMPLETE = "incomplete"  # the minimum of each role does not exist, or is unknown
    COMPLETE = "complete"  # the minimum of each role exists
    BEGUN = "begun"  # some members are bound, and others have to follow
    STARTED = "started"  # the minimum of each role is bound, or was bound


class Stage(Enum):
    """Represent what central did for a gang's start."""

    IDLE = "idle"
    PLANNED = "planned"
    OPEN = "open"
    ABANDONED = "abandoned"


class GangEvent(Enum):
    """Represent an event that changes the life of a gang."""

    PLAN = "plan"  # a search found places for members
    NAME = "name"  # kube-scheduler was given the node of a member
    ARRIVE = "arrive"  # kube-scheduler called bind for a member
    OPEN = "open"  # the last member that starts together with the others arrived
    LOSE = "lose"  # the places of some members ended
    KEEP = "keep"  # the place of a member ended, and is kept for a replacement
    EMPTY = "empty"  # the last place ended
    END = "end"  # the plan ended
    FAIL = "fail"  # the minimum was not bound in time, and the bound members have to end
    RECOVER = "recover"  # no bound member waits for others any more


# A gang is abandoned only as long as bound members wait for others.
PHASES: Final[Mapping[tuple[Standing, Stage], Phase]] = {
    (Standing.INCOMPLETE, Stage.IDLE): Phase.GATHERING,
    (Standing.INCOMPLETE, Stage.PLANNED): Phase.PLANNED,
    (Standing.INCOMPLETE, Stage.OPEN): Phase.BINDING,
    (Standing.COMPLETE, Stage.IDLE): Phase.QUEUED,
    (Standing.COMPLETE, Stage.PLANNED): Phase.PLANNED,
    (Standing.COMPLETE, Stage.OPEN): Phase.BINDING,
    (Standing.BEGUN, Stage.IDLE): Phase.BINDING,
    (Standing.BEGUN, Stage.PLANNED): Phase.BINDING,
    (Standing.BEGUN, Stage.OPEN): Phase.BINDING,
    (Standing.BEGUN, Stage.ABANDONED): Phase.BINDING,
    (Standing.STARTED, Stage.IDLE): Phase.PLACED,
    (Standing.STARTED, Stage.PLANNED): Phase.PLACED,
    (Standing.STARTED, Stage.OPEN): Phase.PLACED,
}

# An event that is missing here does not occur in that stage.
TRANSITIONS: Final[Mapping[tuple[Stage, GangEvent], Stage]] = {
    (Stage.IDLE, GangEvent.PLAN): Stage.PLANNED,
    (Stage.IDLE, GangEvent.END): Stage.IDLE,
    (Stage.IDLE, GangEvent.FAIL): Stage.ABANDONED,
    (Stage.PLANNED, GangEvent.PLAN): Stage.PLANNED,
    (Stage.PLANNED, GangEvent.NAME): Stage.PLANNED,
    (Stage.PLANNED, GangEvent.ARRIVE): Stage.PLANNED,
    (Stage.PLANNED, GangEvent.OPEN): Stage.OPEN,
    (Stage.PLANNED, GangEvent.LOSE): Stage.PLANNED,
    (Stage.PLANNED, GangEvent.KEEP): Stage.PLANNED,
    (Stage.PLANNED, GangEvent.EMPTY): Stage.IDLE,
    (Stage.PLANNED, GangEvent.END): Stage.IDLE,
    (Stage.PLANNED, GangEvent.FAIL): Stage.ABANDONED,
    (Stage.OPEN, GangEvent.PLAN): Stage.OPEN,
    (Stage.OPEN, GangEvent.NAME): Stage.OPEN,
    (Stage.OPEN, GangEvent.ARRIVE): Stage.OPEN,
    (Stage.OPEN, GangEvent.LOSE): Stage.OPEN,
    (Stage.OPEN, GangEvent.KEEP): Stage.OPEN,
    (Stage.OPEN, GangEvent.EMPTY): Stage.OPEN,
    (Stage.OPEN, GangEvent.END): Stage.IDLE,
    (Stage.OPEN, GangEvent.FAIL): Stage.ABANDONED,
    (Stage.ABANDONED, GangEvent.RECOVER): Stage.IDLE,
}


class IllegalTransitionError(Exception):
    """Report an event that cannot occur in the stage of a gang: an error in this program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Hold the planned node and devices of a member."""

    node: str
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """Hold how far the start of a gang has come, and the places of its members. Times are of the scheduler's clock."""

    stage: Stage = Stage.IDLE
    places: Mapping[PodUid, Planned] = field(default_factory=dict)  # the key is the member; a bound member may still be here
    kept: Mapping[PodUid, OwnClaim] = field(default_factory=dict)  # places kept for former bound members, by the claim's uid
    arrived: frozenset[PodUid] = frozenset()  # members with a place for which kube-scheduler called bind
    nodes: frozenset[str] = frozenset()  # nodes of the plan
    until: float = math.inf  # end of the plan, or of the start once it began
    arrived_at: float = -math.inf  # time of the last new arrival at the barrier, or of the plan
    named_at: float = math.inf  # time when kube-scheduler was first given a member's node, and may count its cpu there
    kept_until: float = math.inf  # end of the places kept for former members
    starts: int = 0  # plans since the minimum was last bound; each failed plan makes the next pause longer
    resumes: float = -math.inf  # end of the pause after the last plan

    @property
    def is_open(self) -> bool:
        return self.stage is Stage.OPEN

    @property
    def named(self) -> bool:
        """Return whether kube-scheduler was given the node of a member."""
        return self.named_at < math.inf

    @property
    def has_held(self) -> bool:
        """Return whether devices are or were held for the gang."""
        return bool(self.nodes or self.kept or self.is_open)

    @property
    def holds(self) -> bool:
        """Return whether devices are planned or kept for the gang."""
        return bool(self.kept or self.places)

    def after(self, event: GangEvent, **changes: Any) -> "Life":
        """Return the life after an event, with these fields changed too. Raise IllegalTransitionError if it cannot occur."""
        return replace(self, stage=next_stage(self.stage, event), **changes)

    def ended(self, event: GangEvent) -> "Life":
        """Return the life after an event that ends all places: END or FAIL."""
        return Life(stage=next_stage(self.stage, event), arrived_at=self.arrived_at, starts=self.starts, resumes=self.resumes)

    def without(self, uids: Collection[PodUid]) -> "Life":
        """Return the life without the places of these members, whether kept or planned."""
        kept = {uid: claim for uid, claim in self.kept.items() if uid not in uids}
        places = {uid: place for uid, place in self.places.items() if uid not in uids}
        if len(kept) + len(places) == len(self.kept) + len(self.places):
            return self
        event = GangEvent.LOSE if places or kept else GangEvent.EMPTY
        return self.after(event, places=places, kept=kept, arrived=self.arrived.difference(uids))

    def keeping(self, uid: PodUid, claim: OwnClaim) -> "Life":
        """Return the life in which the place of a former member is kept under the claim."""
        places = {member: place for member, place in self.places.items() if member != uid}
        kept = {**self.kept, claim.holder.pod: claim}
        return self.after(GangEvent.KEEP, places=places, kept=kept, arrived=self.arrived - {uid})

    def paused(self, now: float) -> "Life":
        """Return the life with a pause until the next plan. The pause doubles with each plan that does not bind the minimum."""
        return replace(self, resumes=now + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self.starts, 32)))


def next_stage(stage: Stage, event: GangEvent) -> Stage:
    """Return the stage after an event. Raise IllegalTransitionError if the event cannot occur in the stage."""
    if (stage, event) not in TRANSITIONS:
        raise IllegalTransitionError(f"{event.value} in stage {stage.value}")
    return TRANSITIONS[stage, event]
