"""Answer kube-scheduler about one member of a gang: its planned node, or why it gets none. In constant time without a plan.

A member without a plan is refused on every node as one for which no eviction helps, or else kube-scheduler would evict pods
for it. Between the first yes to a gang and its first Binding kube-scheduler counts the cpu of each member on its node; two
gangs that do so on one node could wait for each other, so that the second one waits for its turn.

Kubernetes' own scheduling by topology tries a gang in one domain after the other, each time with that domain's nodes alone, and
does not say so. Such a *trial* in another domain than that of the plan is refused, and changes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from central.gang.gangs import Gangs
from central.gang.model import EVERYWHERE, Gang, Member
from central.request.reasons import OfPod


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    reason: OfPod
    message: str
    vetoed: bool = False  # kube-scheduler does not let the pod go to its planned node: the plan cannot be carried out
    elsewhere: bool = False  # it may be a trial in another domain: the plan stays as it is


def answer(
    gangs: Gangs, gang: Gang, member: Member, names: Sequence[str], domain_of: Mapping[str, str] | None = None
) -> str | Refused:
    """Return the node of the member, or why it gets none now. `domain_of`: the domain of each node, if kube-scheduler may
    try one after the other."""
    domain = _common(names, domain_of) if domain_of is not None else EVERYWHERE
    known = member.asked_about(domain, names)
    if member.wrong:
        return Refused(reason=OfPod.REQUEST_MALFORMED, message=f"gang {gang.key}: {member.wrong}")
    planned = member.planned
    if planned is None:
        return Refused(reason=gang.refused_for, message=gang.refused)
    if other := next((other for other in gangs.named if other is not gang and other.nodes & gang.nodes), None):
        return Refused(reason=OfPod.GANG_WAITS_FOR_TURN, message=f"gang {other.key} is being bound to the same nodes")
    if domain_of is not None and domain not in (EVERYWHERE, domain_of.get(planned.node)):
        message = f"gang {gang.key}: its place is not in {domain}"
        return Refused(reason=OfPod.GANG_WAITS_FOR_TURN, message=message, elsewhere=True)
    if planned.node not in names:
        # One name alone may be a guess of kube-scheduler's, which asks about all nodes next; or the plan was one of central's.
        vetoed, member.guessed = len(names) > 1 or member.guessed or not known, len(names) == 1
        message = f"gang {gang.key}: node {planned.node} is not possible for the pod any more; the gang is planned again"
        return Refused(reason=OfPod.GANG_WAITS_FOR_TURN, message=message, vetoed=vetoed)
    gangs.name(gang)
    member.guessed = False
    return planned.node


def _common(names: Sequence[str], domain_of: Mapping[str, str]) -> str:
    """Return the one domain of all of these nodes; EVERYWHERE if they have several, or none."""
    first = domain_of.get(names[0], EVERYWHERE) if names else EVERYWHERE
    return first if all(domain_of.get(name) == first for name in names) else EVERYWHERE
