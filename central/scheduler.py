"""What the extender's verbs decide: filter, prioritize, preempt, why, and the two ends of bind. No I/O; the clock is given.

    filter      which nodes fit; the best one's room is held for a moment (*predicted*), so that the next pod does not see it
    prioritize  names the predicted node
    reserve     the devices of one pod on one node, taken from the ledger before anything is sent to the API server
    confirm, release   how the Binding ended; while nobody knows, the reservation stays

kube-scheduler asks again whenever it likes: after its own timeout, after a restart, for a pod that is bound already. Everything
here may be called again for the same pod uid.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from central.ask.model import Ask, Policy
from central.ask.parse import BadAsk, parse_ask
from central.ask.pod import Pod
from central.assignment.annotation import render_assignment
from central.extender.wire import FilterResult, MetaVictims, Priorities
from central.fit.fit import fit
from central.fit.model import Missing, NoFit, Placement
from central.fit.score import Score, score
from central.fit.standing import Standing, Standings
from central.ledger.ledger import Ledger
from central.ledger.model import Claim, Conflict, NodeRoom, OwnClaim
from central.pending import Pending, PendingPods, pending_of
from lading.vocabulary import PodUid

# From filter to bind: kube-scheduler's own work for one pod, and the binding of a volume at most. Given up too soon, it costs a
# second filter; too late, room that nobody uses.
PREDICTION_S: Final = 5.0

# Beside the reasons of a fit, as fixed as those.
ELSEWHERE: Final = "pod is being bound to another node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What a Binding is to carry."""

    pod: Pending
    node: str
    gen: int
    assignment: str  # the annotation's exact text


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The pod is on that node with its devices already: there is nothing to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotBound:
    """It can not be, in words for the pod's events."""

    why: str


class Scheduler:
    def __init__(
        self,
        ledger: Ledger,
        pending: PendingPods,
        *,
        clock: Callable[[], float],
        policy: Policy = Policy.BINPACK,
        refused: Callable[[Pending, frozenset[str]], None] = lambda pod, names: None,
    ) -> None:
        """`clock`: monotonic seconds. `policy`: for pods that name none. `refused` is told of a pod that fits on none of these
        nodes, where all but the devices suffices."""
        self.ledger = ledger
        self.pending = pending
        self.policy = policy
        self.on_refused = refused
        self._clock = clock
        self._standings = Standings(self._judge, ledger.rooms_changed_since)
        self._priorities = Priorities()

    # ---- which nodes

    def filter(self, pod: Pod, names: set[str]) -> FilterResult:
        ask = parse_ask(pod)
        if ask is None:
            return FilterResult(NodeNames=names)
        if isinstance(ask, BadAsk):
            return FilterResult(FailedAndUnresolvableNodes=dict.fromkeys(names, ask.message))
        pending = self.pending.add(pending_of(pod, ask))
        if settled := self._settled_node(pending.uid):
            others = dict.fromkeys(names - {settled}, ELSEWHERE)
            return FilterResult(NodeNames=names & {settled}, FailedAndUnresolvableNodes=others)
        self.ledger.forget_prediction(pending.uid)
        standing = self.standing(ask)
        fits = names & standing.fits.keys()
        nominated = self.nominated_node(pending.uid)
        if nominated in names and self.placement(pending, nominated):
            fits.add(nominated)
        self._predict(pending, nominated if nominated in fits else standing.best(fits))
        if not fits:
            self.on_refused(pending, frozenset(names))
        return FilterResult(
            NodeNames=fits,
            FailedNodes=_among(names, standing.fails, fits),
            FailedAndUnresolvableNodes=_among(names, standing.never, fits) | self._unknown(names, standing, fits),
        )

    def prioritize(self, pod: Pod, names: set[str]) -> bytes:
        ask = parse_ask(pod)
        winner = None
        if isinstance(ask, Ask):
            predicted = self.ledger.own_claim(pod.metadata.uid, Claim.PREDICTED)
            winner = predicted.node if predicted and predicted.node in names else self.standing(ask).best(names)
        return self._priorities.render(names, winner)

    def preempt(self, pod: Pod, victims: Mapping[str, MetaVictims]) -> dict[str, MetaVictims]:
        """kube-scheduler would evict these for cpu or memory: the nodes where the devices suffice once they are gone."""
        ask = parse_ask(pod)
        if not isinstance(ask, Ask):
            return dict(victims)
        own = pod.metadata.uid
        suffice = {}
        for name, gone in victims.items():
            room = self.ledger.room_without(name, [own, *(PodUid(one.UID) for one in gone.Pods)])
            if gone.Pods and isinstance(fit(room, ask, policy=self.policy), Placement):
                suffice[name] = gone
        return suffice

    def standing(self, ask: Ask) -> Standing:
        return self._standings.of(ask)

    def placement(self, pod: Pending, node: str) -> Placement | None:
        """Where the pod's devices would be there, with what it has claimed there itself."""
        placement = fit(self.ledger.room_without(node, [pod.uid]), pod.ask, policy=self.policy)
        return placement if isinstance(placement, Placement) else None

    def nominated_node(self, uid: PodUid) -> str:
        """Where room is being made for it; empty: nowhere."""
        nominated = self.ledger.own_claim(uid, Claim.NOMINATED)
        return nominated.node if nominated else ""

    def _judge(self, room: NodeRoom, ask: Ask) -> Score | Missing:
        placement = fit(room, ask, policy=self.policy)
        return placement.missing if isinstance(placement, NoFit) else score(room, ask, policy=self.policy)

    def _predict(self, pod: Pending, node: str | None) -> None:
        placement = self.placement(pod, node) if node else None
        if node is None or placement is None:
            self.pending.refused(pod, self._clock())
            return
        self.pending.fitted(pod)
        self.ledger.predict(pod.uid, node, placement.taken, self._clock() + PREDICTION_S, pod.holder)

    def _settled_node(self, uid: PodUid) -> str:
        """Where the pod is bound, or will be, as far as anybody knows."""
        record = self.ledger.pod(uid)
        if record is not None and record.node:
            return record.node
        reserved = self.ledger.own_claim(uid, Claim.RESERVED)
        return reserved.node if reserved else ""

    def _unknown(self, names: set[str], standing: Standing, fits: AbstractSet[str]) -> dict[str, str]:
        """Nodes of kube-scheduler's that have no report."""
        known = len(fits) + len(standing.fails) + len(standing.never)
        if known == len(names):
            return {}
        strange = names - standing.fits.keys() - standing.fails.keys() - standing.never.keys() - fits
        return dict.fromkeys(strange, Missing.NO_REPORT.value)

    # ---- bind

    def reserve(self, uid: PodUid, node: str) -> Reservation | Bound | NotBound:
        """Takes the devices. Called again for a Binding whose outcome is not known yet, it says that."""
        record = self.ledger.pod(uid)
        if record is not None and record.node:
            if record.node == node and record.taken is not None:
                return Bound()
            return NotBound(why=f"the pod is bound to {record.node} already")
        reserved = self.ledger.own_claim(uid, Claim.RESERVED)
        if reserved is not None:
            return self._reserved_before(reserved, node)
        pod = self.pending.get(uid)
        if pod is None:
            return NotBound(why="central does not know the pod yet; this is retried by itself")
        placement = self.placement(pod, node)
        if placement is None:
            return NotBound(why=f"its devices are not free on {node} any more; this is retried by itself")
        gen = pod.gen + 1
        conflict = self.ledger.reserve(uid, node, placement.taken, gen, pod.holder)
        if conflict is not None:
            return NotBound(why=_in_words(conflict, node))
        pod.gen = gen
        text = render_assignment(uid, node, gen, placement.containers, pod.roles)
        return Reservation(pod=pod, node=node, gen=gen, assignment=text)

    def confirm(self, reservation: Reservation) -> None:
        self.ledger.confirm(reservation.pod.uid)

    def release(self, reservation: Reservation) -> None:
        self.ledger.release(reservation.pod.uid)

    def _reserved_before(self, reserved: OwnClaim, node: str) -> Bound | NotBound:
        if reserved.confirmed and reserved.node == node:
            return Bound()
        state = (
            "is bound"
            if reserved.confirmed
            else "may be bound: the API server's answer is not known yet; nothing is sent twice"
        )
        return NotBound(why=f"the pod {state} to {reserved.node}")


def _among(names: AbstractSet[str], reasons: Mapping[str, str], fits: AbstractSet[str]) -> dict[str, str]:
    if reasons.keys() <= names and fits.isdisjoint(reasons):
        return dict(reasons)
    return {name: reasons[name] for name in (names & reasons.keys()) - fits}


def _in_words(conflict: Conflict, node: str) -> str:
    holders: Sequence[str] = [f"{holder.namespace}/{holder.name}" for holder in conflict.holders]
    by = f", held by {', '.join(holders[:4])}" if holders else ""
    device = f": {conflict.device}{by}" if conflict.device else ""
    return f"its devices on {node} can not be taken ({conflict.obstacle}{device}); this is retried by itself"
