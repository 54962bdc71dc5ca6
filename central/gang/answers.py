"""Answer kube-scheduler about a gang member: the planned node, or a refusal. Without a plan the time is constant.

A member without a plan is refused on every node as a pod that no eviction helps; otherwise kube-scheduler would evict pods for
it. Before the first Binding of a gang, kube-scheduler already counts the cpu of accepted members on their nodes. Two gangs in
this state on one node could block each other, so the second gang has to wait.

Kubernetes' own topology-aware scheduling tries a gang in one domain after the other. Each call names only nodes of one domain,
and does not say so. Such a *trial* outside the plan's domain is refused, and the plan stays.

Tests: tests/unit/central/gang/test_trials.py
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from central.gang.calls import EVERYWHERE
from central.gang.gang import Gang, Member
from central.gang.gangs import Gangs
from central.gang.life import Phase
from central.gang.starts import Starts
from central.request.gang import GangKey
from central.request.reasons import OfPod
from lading.vocabulary import PodUid


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberCall:
    """Hold one call of kube-scheduler about a gang member."""

    uid: PodUid
    gang: GangKey
    domain: str  # the common domain of the nodes; EVERYWHERE if they have none
    names: Sequence[str]  # the nodes that kube-scheduler named


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNode:
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Answer that the member cannot be placed now."""

    reason: OfPod
    message: str
    # A single named node may be kube-scheduler's guess, after which it names all nodes. True: it may be a guess; False: it was
    # not a guess; None: the call does not show whether it was a guess.
    guess: bool | None = None
    vetoed: str = ""  # the planned node if kube-scheduler excluded it, so that the plan cannot be carried out
    elsewhere: bool = False  # whether the call may be a trial in another domain; the plan then stays


def hear(gang: Gang, member: Member, names: Sequence[str], domain_of: Mapping[str, str] | None = None) -> MemberCall:
    """Return the call about these nodes. `domain_of`: the domain of each node, if kube-scheduler may try one domain after the
    other."""
    domain = _common(names, domain_of) if domain_of is not None else EVERYWHERE
    return MemberCall(uid=member.uid, gang=gang.key, domain=domain, names=names)


def answer(
    gangs: Gangs, gang: Gang, member: Member, call: MemberCall, domain_of: Mapping[str, str] | None = None
) -> PlannedNode | Refused:
    """Return the member's node, or a refusal."""
    if member.wrong:
        return Refused(reason=OfPod.REQUEST_MALFORMED, message=f"gang {gang.key}: {member.wrong}")
    planned = gang.life.places.get(member.uid)
    if planned is None:
        return Refused(reason=gang.search.reason, message=gang.refused)
    others = (other for other in gangs.named if other.key != gang.key)
    if other := next((other for other in others if other.life.nodes & gang.life.nodes), None):
        return Refused(reason=OfPod.GANG_WAITS_FOR_TURN, message=f"gang {other.key} is being bound to the same nodes")
    if domain_of is not None and call.domain not in (EVERYWHERE, domain_of.get(planned.node)):
        message = f"gang {gang.key}: its place is not in {call.domain}"
        return Refused(reason=OfPod.GANG_WAITS_FOR_TURN, message=message, elsewhere=True)
    if planned.node not in call.names:
        # A single name may be a guess of kube-scheduler, which names all nodes in its next call. If there was no earlier call
        # about the member, central guessed the node.
        single, known = len(call.names) == 1, call.domain in gangs.calls.names(member.uid)
        vetoed = not single or not known or gangs.calls.has_guessed(member.uid)
        message = f"gang {gang.key}: node {planned.node} is not possible for the pod any more; the gang is planned again"
        veto = planned.node if vetoed else ""
        return Refused(reason=OfPod.GANG_WAITS_FOR_TURN, message=message, guess=single, vetoed=veto)
    return PlannedNode(node=planned.node)


def record(starts: Starts, call: MemberCall, answered: PlannedNode | Refused) -> None:
    """Record a call and its answer. A plan ends if kube-scheduler excludes a node of it; if the gang's other members run
    already, only the member's place ends."""
    gangs, uid = starts.gangs, call.uid
    gangs.calls.record(uid, call.domain, call.names)
    guess = False if isinstance(answered, PlannedNode) else answered.guess
    if guess is not None:
        gangs.calls.guess(uid, guessed=guess)
    gang = gangs.get(call.gang)
    if gang is None:
        return
    gangs.mark(gang.key)
    planned = gang.life.places.get(uid)
    if planned is None:  # the plan ended while the answer was sent
        return
    if isinstance(answered, PlannedNode) and planned.node == answered.node:
        starts.name(gang)
    elif isinstance(answered, Refused) and planned.node == answered.vetoed:
        gang = gangs.note(gang, guesses=False)
        starts.follow_change(starts.end(gang) if gang.phase is Phase.PLANNED else starts.lose(gang, [uid]))


def _common(names: Sequence[str], domain_of: Mapping[str, str]) -> str:
    """Return the common domain of these nodes; EVERYWHERE if they have several domains, or none."""
    first = domain_of.get(names[0], EVERYWHERE) if names else EVERYWHERE
    return first if all(domain_of.get(name) == first for name in names) else EVERYWHERE
