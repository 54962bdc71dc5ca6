"""Answer kube-scheduler about one member of a gang: its planned node, or why it gets none. In constant time without a plan.

A member without a plan is refused on every node as one for which no eviction helps, or else kube-scheduler would evict pods
for it. Between the first yes to a gang and its first Binding kube-scheduler counts the cpu of each member on its node; two
gangs that do so on one node could wait for each other, so that the second one waits for its turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from central.ask.reasons import OfPod
from central.gang.gangs import Gangs
from central.gang.model import Gang, Member


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    reason: OfPod
    message: str
    vetoed: bool = False  # kube-scheduler does not let the pod go to its planned node: the plan cannot be carried out


def answer(gangs: Gangs, gang: Gang, member: Member, names: Sequence[str]) -> str | Refused:
    """Return the node of the member, or why it gets none now."""
    known, member.names = member.names is not None, names
    if member.wrong:
        return Refused(reason=OfPod.REQUEST_MALFORMED, message=f"gang {gang.key}: {member.wrong}")
    planned = member.planned
    if planned is None:
        return Refused(reason=gang.refused_for, message=gang.refused)
    if other := next((other for other in gangs.named if other is not gang and other.nodes & gang.nodes), None):
        return Refused(reason=OfPod.GANG_WAITS_FOR_TURN, message=f"gang {other.key} is being bound to the same nodes")
    if planned.node not in names:
        # One name alone may be a guess of kube-scheduler's, which asks about all nodes next; or the plan was one of central's.
        vetoed, member.guessed = len(names) > 1 or member.guessed or not known, len(names) == 1
        message = f"gang {gang.key}: node {planned.node} is not possible for the pod any more; the gang is planned again"
        return Refused(reason=OfPod.GANG_WAITS_FOR_TURN, message=message, vetoed=vetoed)
    gangs.name(gang)
    member.guessed = False
    return planned.node
