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
from central.gang.starts import Starts
from central.request.reasons import OfPod


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    reason: OfPod
    message: str
    vetoed: bool = False  # kube-scheduler excludes the planned node, so that the plan cannot be carried out
    elsewhere: bool = False  # the call may be a trial in another domain, so that the plan stays


def answer(
    starts: Starts, gang: Gang, member: Member, names: Sequence[str], domain_of: Mapping[str, str] | None = None
) -> str | Refused:
    """Return the member's node, or a refusal. `domain_of`: the domain of each node, if kube-scheduler may try one domain after
    the other."""
    domain = _common(names, domain_of) if domain_of is not None else EVERYWHERE
    calls = starts.gangs.calls
    known = calls.record(member.uid, domain, names)
    if member.wrong:
        return Refused(reason=OfPod.REQUEST_MALFORMED, message=f"gang {gang.key}: {member.wrong}")
    planned = gang.life.places.get(member.uid)
    if planned is None:
        return Refused(reason=gang.search.reason, message=gang.refused)
    others = (other for other in starts.gangs.named if other.key != gang.key)
    if other := next((other for other in others if other.life.nodes & gang.life.nodes), None):
        return Refused(reason=OfPod.GANG_WAITS_FOR_TURN, message=f"gang {other.key} is being bound to the same nodes")
    if domain_of is not None and domain not in (EVERYWHERE, domain_of.get(planned.node)):
        message = f"gang {gang.key}: its place is not in {domain}"
        return Refused(reason=OfPod.GANG_WAITS_FOR_TURN, message=message, elsewhere=True)
    if planned.node not in names:
        # A single name may be a guess of kube-scheduler, which names all nodes in its next call. If there was no earlier call
        # about the member, central guessed the node.
        vetoed = calls.guess(member.uid, guessed=len(names) == 1) or len(names) > 1 or not known
        message = f"gang {gang.key}: node {planned.node} is not possible for the pod any more; the gang is planned again"
        return Refused(reason=OfPod.GANG_WAITS_FOR_TURN, message=message, vetoed=vetoed)
    starts.name(gang)
    calls.guess(member.uid, guessed=False)
    return planned.node


def _common(names: Sequence[str], domain_of: Mapping[str, str]) -> str:
    """Return the common domain of these nodes; EVERYWHERE if they have several domains, or none."""
    first = domain_of.get(names[0], EVERYWHERE) if names else EVERYWHERE
    return first if all(domain_of.get(name) == first for name in names) else EVERYWHERE
