"""Find claims for unbound pods that pods of higher priority may take.

Take the ledger, the gangs, the pending pods and a priority. Return the claims for pods of lower priority:

    the plan of a gang without a bound member    taken as a whole, because the gang could not start without a part of it
    the place of a member in a gang with other bound members, if the member was not sent to bind or no longer exists
    a nomination: devices that are kept, or freed by evictions, for a pod or for a member of a gang

No pod runs on these devices, so no pod is evicted. A pod that is about to be bound keeps its claims (predicted, reserved).

Tests: tests/unit/central/gang/test_yielding.py
"""

from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass

from central.assignment.model import Taken
from central.gang.gang import Gang
from central.gang.starts import Starts
from central.ledger.ledger import Ledger
from central.ledger.model import Claim, OwnClaim
from central.request.gang import GangKey
from central.state.pending import PendingPods
from lading.vocabulary import PodUid


@dataclass(frozen=True, slots=True, kw_only=True)
class Yielding:
    priority: int  # priority of the pods that have the claims
    claims: tuple[OwnClaim, ...]
    gang: GangKey | None = None  # gang that has the plan; None: a nomination
    whole: bool = False  # no member of the gang is bound

    @property
    def uids(self) -> tuple[PodUid, ...]:
        return tuple(claim.holder.pod for claim in self.claims)

    def is_on(self, nodes: Container[str]) -> bool:
        return any(claim.node in nodes for claim in self.claims)

    def overlaps(self, node: str, taken: Taken) -> bool:
        """Return whether the claims include a part of a device in `taken` on this node."""
        there = [claim.taken for claim in self.claims if claim.node == node]
        return any(held.gpus.keys() & taken.gpus.keys() or held.vfs & taken.vfs for held in there)


def find_yielding(ledger: Ledger, starts: Starts, pending: PendingPods, priority: int) -> list[Yielding]:
    """Return the claims for pods with a lower priority than `priority`, the lowest first."""
    lower = (gang for gang in starts.gangs.holding if gang.is_below(priority))
    result = [one for gang in lower for one in _of_gang(ledger, starts, gang)]
    for claim in ledger.nominations():
        pod = pending.get(claim.holder.pod)
        if pod is not None and pod.priority < priority and not _is_binding(ledger, pod.uid):
            result.append(Yielding(priority=pod.priority, claims=(claim,)))
    return sorted(result, key=lambda one: (one.priority, len(one.claims)))


def _of_gang(ledger: Ledger, starts: Starts, gang: Gang) -> Iterator[Yielding]:
    late, life = gang.plan, gang.life
    if not (life.is_open or gang.ordinary or starts.has_begun(gang)):
        claims = _claims(ledger, [*late, *life.kept])
        if claims:
            yield Yielding(priority=gang.priority, claims=claims, gang=gang.key, whole=True)
        return
    for uid in (*(uid for uid in late if uid not in life.arrived), *life.kept):
        if claims := _claims(ledger, [uid]):
            yield Yielding(priority=gang.priority, claims=claims, gang=gang.key)


def _claims(ledger: Ledger, uids: Collection[PodUid]) -> tuple[OwnClaim, ...]:
    claims = (ledger.own_claim(uid, Claim.PLANNED) for uid in uids if not _is_binding(ledger, uid))
    return tuple(claim for claim in claims if claim is not None)


def _is_binding(ledger: Ledger, uid: PodUid) -> bool:
    return any(ledger.own_claim(uid, kind) is not None for kind in (Claim.RESERVED, Claim.PREDICTED))


def take(ledger: Ledger, starts: Starts, some: Sequence[Yielding]) -> None:
    """End these claims. A gang that loses its plan is planned again, and that does not count as a failed start."""
    for one in some:
        gang = None if one.gang is None else starts.gangs.get(one.gang)
        if one.gang is None:
            for uid in one.uids:
                ledger.claims.forget_nomination(uid)
        elif gang is not None and one.whole:
            starts.displace(gang)
        elif gang is not None:
            starts.follow_change(starts.lose(gang, one.uids))
