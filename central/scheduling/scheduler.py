"""Decide for the extender's verbs: filter, prioritize, preempt, why, and the two ends of bind. No I/O; the clock is given.

    decide      which nodes fit, and which is the best: the answer to filter
    apply       what follows from a decision, once its answer is sent and before the next decision: the best node's room is held
                for a moment (*predicted*), so that the next pod does not see it; or the pod is recorded as refused
    prioritize  names the predicted node; for a pod without devices the best one, where its cpu and memory count for that moment
    reserve     the devices of one pod on one node, taken from the ledger before anything is sent to the API server
    confirm, release   how the Binding ended; while that is not known, the reservation stays

kube-scheduler may repeat a request at any time: after its own timeout, after a restart, for a pod that is bound already. So
every method here may be called again for the same pod uid.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from central.assignment.annotation import name_vfs, render_assignment
from central.assignment.model import Admitted, Taken
from central.assignment.sharing import groups_of
from central.fit.cached import CachedVerdicts
from central.fit.demand import DEFAULT_LIMITS, Demand, Limits, policy_of, read_demand
from central.fit.forecast import Forecast
from central.fit.model import Missing, NoFit, Placement
from central.fit.rails import on_preferred
from central.fit.verdicts import Verdicts
from central.gang.answers import answer as answer_member
from central.gang.claims import drop_member, drop_plan, follow_change
from central.gang.gangs import Gangs
from central.gang.model import Gang, Member, Phase
from central.gang.rails import running_rails
from central.ledger.groups import CardOf
from central.ledger.ledger import Ledger
from central.ledger.model import Claim, Conflict, OwnClaim, PodLoad
from central.ledger.overlay import Overlay
from central.loop.steps import Steps, go_on
from central.quota.checks import Key, QuotaRefusal
from central.quota.preemption import Preemption
from central.request.cpu_memory import cpu_memory_of
from central.request.model import NO_CPU_MEMORY, CpuMemory, DeviceRequest, MalformedRequest, Policy, Shape
from central.request.parse import parse_request
from central.request.pod import Pod
from central.request.reasons import OfBinding, OfPod
from central.scheduling.filtered import Filtered, SameReason, main_reason, only, refuse_everywhere, sort_nodes
from central.scheduling.yielding import Yielding, find_yielding, take
from central.state.counts import Counts
from central.state.pending import Pending, PendingPods, pending_of
from central.state.tenants import InTurn, Tenants
from lading.vocabulary import PciAddress, PodUid

# From filter to bind: kube-scheduler's own work for one pod, and the binding of a volume at most. Given up too soon, it costs a
# second filter; too late, room that no pod uses.
PREDICTION_S: Final = 5.0
MOST_YIELDING_NODES: Final = 64  # where a pod is tried in place of what is held for others

# The value that each node has of a label; None: the label is not one of topology.
Domains = Callable[[str], Mapping[str, str] | None]

NO_DEVICES: Final = DeviceRequest(containers=(), policy=Policy.FRAGMENTATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The content of a Binding."""

    pod: Pending
    node: str
    gen: int
    assignment: str  # the annotation's exact text
    vfs: tuple[tuple[PciAddress, str], ...] = ()  # with their interfaces' names in the pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The pod is on that node with its devices already: there is nothing to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotBound:
    """Why the pod cannot be bound, as a text for the pod's events."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer to filter, and what follows from it: `Scheduler.apply` does that. Nothing else is decided in between."""

    uid: PodUid
    answer: Filtered
    pod: Pending | None = None  # None: nothing is held, and the pod is not recorded as refused
    node: str = ""  # whose room is held for the pod; empty: it is refused
    quota: QuotaRefusal | None = None  # why its quota refuses it


class QuotaGate(Protocol):
    """Say whether quotas allow that pods start."""

    def admits(
        self, pods: Sequence[Pending], *, gang: bool = False, starting: bool = True, given_back: Collection[PodUid] = ()
    ) -> QuotaRefusal | None:
        """Return why these pods may not start now; None if they may. Pods of a gang start together. `starting`: they start if
        they may. `given_back`: what is held by these claims ends then."""

    def preemption(self, pods: Sequence[Pending]) -> Preemption | None:
        """Return which pods may be evicted for these, which start together; None where quotas make no difference."""

    def admitted(self, pod: Pending) -> Admitted | None:
        """Return what the pod's assignment says of its quota; None while there is no quota."""

    def turn(self, uid: PodUid) -> Key:
        """Return the sort key by which quotas take turns."""

    def take_free(self, in_turn: InTurn) -> list[Pending]:
        """Return refused pods for which there is room in their quota now, of each quota in the order of `in_turn`."""


class NoQuotas:
    """Allow everything."""

    def admits(
        self, pods: Sequence[Pending], *, gang: bool = False, starting: bool = True, given_back: Collection[PodUid] = ()
    ) -> QuotaRefusal | None:
        return None

    def preemption(self, pods: Sequence[Pending]) -> Preemption | None:
        return None

    def admitted(self, pod: Pending) -> Admitted | None:
        return None

    def turn(self, uid: PodUid) -> Key:
        return ()

    def take_free(self, in_turn: InTurn) -> list[Pending]:
        return []


class Scheduler:
    def __init__(
        self,
        ledger: Ledger,
        pending: PendingPods,
        *,
        clock: Callable[[], float],
        policy: Policy = Policy.BINPACK,
        limits: Limits = DEFAULT_LIMITS,
        forecast: Forecast | None = None,
        refused: Callable[[Pending, Sequence[str]], None] = lambda pod, names: None,
        counts: Counts | None = None,
        gangs: Gangs | None = None,
        slice_s: float = math.inf,
        quotas: QuotaGate | None = None,
        domains: Domains = lambda key: None,
    ) -> None:
        """Create the scheduler. `clock`: monotonic seconds. `policy`: for pods that name none. `refused` is called with a pod
        that fits on none of these nodes, where everything but the devices, or its quota, suffices. `slice_s`: how long one call
        judges nodes; those that it does not reach are refused as NOT_REACHED, and `judging` continues."""
        self.ledger = ledger
        self.pending = pending
        self.policy = policy
        self.quotas: QuotaGate = NoQuotas() if quotas is None else quotas
        self.limits = limits
        self._clock = clock
        self._refused = refused
        self._slice_s = slice_s
        self.unfinished: dict[
            DeviceRequest, None
        ] = {}  # that were asked about before all nodes were judged; the longest ago first
        self.counts = counts or Counts()
        self.gangs = Gangs() if gangs is None else gangs
        self.domains = domains
        self.tenants = Tenants(ledger)
        rooms, loads = ledger.rooms_changed_since, ledger.loads_changed_since
        self.verdicts = Verdicts(
            rooms, loads, policy=policy, limits=limits, forecast=forecast, turnover=lambda: ledger.turnover
        )

    @property
    def forecast(self) -> Forecast:
        return self.verdicts.forecast

    def _request_of(self, pod: Pod) -> DeviceRequest | MalformedRequest | None:
        """Return what the pod asks for. A pod that waits was parsed when the watch showed it."""
        known = self.pending.in_version(pod)
        return parse_request(pod) if known is None else known.request

    # ---- which nodes

    def filter_steps(self, pod: Pod) -> Steps:
        """Judge nodes for `filter`, one in each step. `filter` does not judge these again."""
        request, uid = self._request_of(pod), pod.metadata.uid
        waits = isinstance(request, DeviceRequest) and not self._settled_node(uid) and self.waits_for_gang(uid) is None
        if waits and isinstance(request, DeviceRequest) and not self.group_nodes(request, self.ledger.without(uid)):
            yield from self.verdicts.judging(request)

    def prioritize_steps(self, pod: Pod) -> Steps:
        """Take the same steps for `prioritize`."""
        if self.ledger.own_claim(pod.metadata.uid, Claim.PREDICTED) is None:
            request = self._request_of(pod)
            if not isinstance(request, MalformedRequest):
                yield from self.verdicts.judging(request or NO_DEVICES)

    def warming(self) -> Steps:
        """Read all nodes, before the first question."""
        for name in self.ledger.nodes():
            self.ledger.room(name)
            yield
        yield from self.verdicts.catching_up()
        yield from self.tenants.catching_up()

    def filter(self, pod: Pod, names: Sequence[str]) -> Filtered:
        """Decide, and apply the decision at once."""
        decision = self.decide(pod, names)
        self.apply(decision)
        return decision.answer

    def decide(self, pod: Pod, names: Sequence[str]) -> Decision:
        """Decide where the pod fits. Its own prediction ends with that."""
        request, uid = self._request_of(pod), pod.metadata.uid
        if request is None:
            return Decision(uid=uid, answer=Filtered(fitting=names))
        if isinstance(request, MalformedRequest) or self.ledger.has_ended(
            uid
        ):  # kube-scheduler may not have heard of its end yet
            self.pending.remove(uid)
            self.ledger.claims.forget_prediction(uid)
            why = request.shown if isinstance(request, MalformedRequest) else OfPod.POD_ENDED.shown
            return Decision(uid=uid, answer=sort_nodes(names, otherwise=why))
        if settled := self._settled_node(uid):
            return Decision(uid=uid, answer=self._only(settled, uid, names))
        pending = self.pending.in_version(pod) or self.pending.add(pending_of(pod, request))
        if request.containers:
            self.verdicts.learn(uid, pending.shape)
        if (found := self.waits_for_gang(uid)) is not None:
            return self._decide_in_gang(pending, names, *found)
        if not request.containers:
            self.pending.fitted(pending)
            return Decision(uid=uid, answer=Filtered(fitting=names))
        self.ledger.claims.forget_prediction(uid)
        refusal = self.quotas.admits([pending])
        if refusal and self._find_at_lower(pending, names, within_quota=False):
            refusal = self.quotas.admits([pending])
        if refusal:
            answer = Filtered(never=SameReason(names, refusal.shown), reason=refusal.code)
            return Decision(uid=uid, answer=answer, pod=pending, quota=refusal)
        node, answer = self._judge(pending, names)
        if not node and not pending.undecided and self._find_at_lower(pending, names, within_quota=True):
            node, answer = self._judge(pending, names)
        return Decision(uid=uid, answer=answer, pod=pending, node=node)

    def apply(self, decision: Decision) -> None:
        """Hold the room that was chosen for the pod, or record that it was refused."""
        pod, answer = decision.pod, decision.answer
        if pod is not None and self.pending.get(pod.uid) is pod:  # else it ended while the answer was sent
            if decision.quota is not None:
                self.pending.refused_by_quota(pod, decision.quota, self._clock())
                if decision.quota.code is OfPod.QUOTA_EXCEEDED:  # pods of the same quota may go for it
                    self._refused(pod, [*answer.never])
            else:
                self._predict(pod, decision.node)
                if not decision.node and not pod.undecided:
                    self._refused(pod, [*answer.fails, *answer.never])
        if (reason := main_reason(answer)) is not None:
            self.counts.refused[reason] += 1
            if refused := self.pending.get_refused(decision.uid):
                refused.refused_for = reason

    def waits_for_gang(self, uid: PodUid) -> tuple[Gang, Member] | None:
        """Return the gang with which the pod starts, and the pod as its member; None if it is placed like other pods."""
        found = self.gangs.of(uid)
        return None if found is None or (found[0].ordinary and found[1].planned is None) else found

    def _decide_in_gang(self, pod: Pending, names: Sequence[str], gang: Gang, member: Member) -> Decision:
        self.gangs.mark(gang)
        domain_of = self.domains(gang.terms.required_topology) if gang.tried_by_domain else None
        answer = answer_member(self.gangs, gang, member, names, domain_of)
        if isinstance(answer, str):
            self.pending.fitted(pod)
            return Decision(uid=pod.uid, answer=only(answer, names, OfPod.GANG_ELSEWHERE.shown))
        if answer.vetoed:
            gang.guesses = False
            drop_plan(self.ledger, gang) if gang.phase is Phase.PLANNED else drop_member(self.ledger, member)
            follow_change(self.ledger, gang)
        if not answer.elsewhere:
            self.pending.waits_for_gang(pod, self._clock())
        return Decision(uid=pod.uid, answer=refuse_everywhere(names, answer.reason, answer.message))

    # ---- what is held for pods of lower priority

    def yielding(self, priority: int) -> list[Yielding]:
        """Return what is held for pods that are not bound and have a lower priority, the lowest first."""
        return find_yielding(self.ledger, self.gangs, self.pending, priority)

    def take_from_lower(self, node: str, taken: Taken, priority: int) -> None:
        """End what is held of these devices for pods that are not bound and have a lower priority."""
        take(self.ledger, [one for one in self.yielding(priority) if one.overlaps(node, taken)])

    def _find_at_lower(self, pod: Pending, names: Collection[str], *, within_quota: bool) -> bool:
        """End what is held for pods of lower priority, where this one fits then, as little as possible. Return whether it
        does. `within_quota`: its quota allows it already."""
        lower = self.yielding(pod.priority)
        if not lower:
            return False
        allows = _allow_all if within_quota else self.preemption([pod]).allows
        best = None if within_quota else self.verdicts.best(pod.shape, names)
        nodes = dict.fromkeys((best or "", *(claim.node for one in lower for claim in one.claims)))
        possible, found = frozenset(names), list[tuple[int, int, str, list[Yielding]]]()
        for name in islice((name for name in nodes if name in possible), MOST_YIELDING_NODES):
            ending: list[Yielding] = []
            for one in (one for one in lower if not within_quota or one.is_on((name,))):
                ending.append(one)
                gone = [uid for held in ending for uid in held.uids]
                placement = self.fit_devices(pod.shape, name, self.ledger.without(pod.uid, *gone)) if allows(gone) else None
                if placement is not None:
                    if within_quota:
                        ending = [held for held in ending if held.overlaps(name, placement.taken)]
                    found.append((one.priority, len(ending), name, ending))
                    break
        if not found:
            return False
        *_, name, ending = min(found, key=lambda one: one[:3])
        take(self.ledger, ending)
        self.verdicts.of(pod.request).settle(name)
        return True

    def _judge(self, pod: Pending, names: Sequence[str]) -> tuple[str, Filtered]:
        """Return the node to hold room on, and the answer."""
        if group := self.group_nodes(pod.request, self.ledger.without(pod.uid)):
            return self._judge_in_group(pod, names, group)
        return self._judge_nodes(pod, names)

    def _judge_nodes(self, pod: Pending, names: Sequence[str]) -> tuple[str, Filtered]:
        """Return the node to hold room on, and the answer."""
        verdicts = self.judged(pod.request)
        nominated = self.nominated_node(pod.uid)
        if nominated and not (nominated in names and self.placement(pod, nominated)):
            nominated = ""
        node = nominated or self.verdicts.best(pod.shape, names) or ""
        pod.undecided = not node and not verdicts.complete
        if not verdicts.complete:
            self.unfinished.setdefault(pod.request)
        fits, reasons, otherwise = verdicts.fits, verdicts.reasons, Missing.NO_REPORT.shown
        return node, sort_nodes(names, fits=fits, reasons=reasons, otherwise=otherwise, fits_too=nominated)

    def _judge_in_group(self, pod: Pending, names: Sequence[str], group: frozenset[str]) -> tuple[str, Filtered]:
        """Judge for a pod whose affinity group has a card: only there, so that no verdicts of all nodes are cached for it."""
        verdicts = {name: self.verdict(pod.request, name, self.ledger.without(pod.uid)) for name in group}
        reasons = {name: found.missing.shown if isinstance(found, NoFit) else "" for name, found in verdicts.items()}
        fits = {name for name, why in reasons.items() if not why}
        node = next((name for name in reasons if name in fits and name in names), "")
        pod.undecided = False
        return node, sort_nodes(names, fits=fits, reasons=reasons, otherwise=Missing.GROUP_ELSEWHERE.shown)

    def prioritize(self, pod: Pod, names: Collection[str]) -> str | None:
        """Return the one node to take; None if central has no preference."""
        for kind in (Claim.PLANNED, Claim.PREDICTED):
            claim = self.ledger.own_claim(pod.metadata.uid, kind)
            if claim and claim.node in names:
                return claim.node
        request = self._request_of(pod)
        if request is None:
            return self._beside_devices(pod, names)
        if isinstance(request, MalformedRequest):
            return None
        if group := self.group_nodes(request, self.ledger.without(pod.metadata.uid)):
            return next((name for name in group if name in names), None)
        self.judged(request)
        return self.verdicts.best(Shape(request=request, cpu_memory=cpu_memory_of(pod)), names)

    def _beside_devices(self, pod: Pod, names: Collection[str]) -> str | None:
        """Return, for a pod that asks for no device, the node whose cards lose the least by the cpu and the memory that it
        takes. Return None if the cluster's policy is not fragmentation, or if a node without devices is among the names, which
        is better."""
        uid = pod.metadata.uid
        self.ledger.claims.forget_prediction(uid)
        if self.policy is not Policy.FRAGMENTATION or not self.verdicts.reports_all(names):
            return None
        shape = Shape(request=NO_DEVICES, cpu_memory=cpu_memory_of(pod))
        self.verdicts.learn(uid, shape)
        winner = self.verdicts.best(shape, names)
        if winner is not None:
            self.ledger.claims.predict_load(PodLoad(uid, winner, shape.cpu_memory), self._clock() + PREDICTION_S)
        return winner

    def preempting(self, pod: Pod, victims: Mapping[str, Collection[PodUid]], suffice: list[str]) -> Steps:
        """Add to `suffice` the nodes where the devices suffice once these pods are gone, which kube-scheduler would evict for
        cpu or memory, one node in each step. No pod is evicted from the nodes that a caller did not wait for."""
        request, own = self._request_of(pod), pod.metadata.uid
        if self.waits_for_gang(own) is not None:
            return  # an eviction for one member is of no use, and the gang may have its place elsewhere
        if not isinstance(request, DeviceRequest):
            suffice.extend(victims)
            return
        pending = self.pending.get(own)
        rule = self.preemption([pending] if pending is not None else [])
        for name, gone in victims.items():
            allowed = all(map(rule.takes, gone)) and rule.allows(gone)
            if gone and allowed and self.fit_devices(Shape(request=request), name, self.ledger.without(own, *gone)) is not None:
                suffice.append(name)
            yield

    def preemption(self, pods: Sequence[Pending]) -> Preemption:
        """Return which pods may be evicted for these, which start together."""
        rule = self.quotas.preemption(pods)
        if rule is not None:
            return rule
        return Preemption(lowest=self.ledger.facts.lowest_priority(), takes=lambda uid: True, allows=lambda gone: True)

    def judged(self, request: DeviceRequest) -> CachedVerdicts:
        """Return which nodes fit, and why the others do not, of those for which one slice has time."""
        verdicts = self.verdicts.of(request)
        go_on(verdicts.judging(), self._clock, self._clock() + self._slice_s)
        return verdicts

    def verdict(
        self, request: DeviceRequest, node: str, state: Overlay, cpu_memory: CpuMemory = NO_CPU_MEMORY
    ) -> Placement | NoFit:
        """Return whether and how the request fits on the node in that state, by the rooms of all nodes. `cpu_memory` make no
        difference to whether it fits, but to which card is the best."""
        if self.group_nodes(request, state) - {node}:
            return NoFit(missing=Missing.GROUP_ELSEWHERE)
        return self.verdicts.place(state.room(node), Shape(request=request, cpu_memory=cpu_memory))

    def fit_devices(self, shape: Shape, node: str, state: Overlay) -> Placement | None:
        """Return the devices that such a pod would have on the node in that state; None if it does not fit."""
        found = self.verdict(shape.request, node, state, shape.cpu_memory)
        return found if isinstance(found, Placement) else None

    def fit_pod(self, shape: Shape, node: str, state: Overlay) -> Placement | None:
        """Return the same; None also where the node is known to lack the cpu or the memory."""
        return self.fit_devices(shape, node, state) if state.room(node).has_resources(shape.cpu_memory) else None

    def demand(self, request: DeviceRequest) -> Demand:
        """Return what the request needs of a node, under the cluster's policy and limits."""
        return read_demand(request, policy_of(request, self.policy), self.limits)

    def placement(self, pod: Pending, node: str) -> Placement | None:
        """Return where the pod's devices would be there, with what it has claimed there itself. A pod of a gang gets the rails
        of members that run, where that is as good."""
        state = self.ledger.without(pod.uid)
        placement = self.fit_devices(pod.shape, node, state)
        if placement is None:
            return None
        found = self.gangs.of(pod.uid)
        rails = running_rails(found[0], self.ledger) if found is not None and placement.taken.vfs else ()
        return on_preferred(
            placement, rails, lambda some: self.verdict(pod.request, node, state.on_rails(some), pod.cpu_memory)
        )

    def group_cards(self, request: DeviceRequest, state: Overlay) -> frozenset[CardOf]:
        """Return the card of the request's affinity group, if it has one: the pod cannot be on another card. Several are an
        error: the group takes no more pods until one is left."""
        groups = groups_of([request.sharing]) if request.sharing is not None else ()
        return state.group_cards(groups[0]) if groups else frozenset()

    def group_nodes(self, request: DeviceRequest, state: Overlay) -> frozenset[str]:
        return frozenset(card.node for card in self.group_cards(request, state))

    def fits_on(self, request: DeviceRequest, node: str) -> bool:
        """Return whether it fits there as things are. If no verdicts of that request are cached none are made, because that
        means to judge all nodes, and there may be more asks than are cached."""
        group = self.group_nodes(request, self.ledger.without())
        if not group and request.containers and request in self.verdicts:
            verdicts = self.verdicts.of(request)
            verdicts.settle(node)
            return node in verdicts.fits
        return not group - {node} and isinstance(self.verdicts.place(self.ledger.room(node), Shape(request=request)), Placement)

    def known_reasons(self, request: DeviceRequest) -> Mapping[str, str] | None:
        """Return the reason by node, empty if the request fits; None if no verdicts of that request are cached: none are made
        then."""
        return self.judged(request).reasons if request in self.verdicts else None

    def nominated_node(self, uid: PodUid) -> str:
        """Return the node where room is being made, or kept, for the pod; empty: none."""
        nominated = self.ledger.own_claim(uid, Claim.NOMINATED)
        return nominated.node if nominated else ""

    def room_for(self, uid: PodUid) -> tuple[str, str]:
        """Return the node where pods are evicted for the pod, and the one where room is kept for it until pods end. Empty:
        none."""
        nominated = self.ledger.own_claim(uid, Claim.NOMINATED)
        if nominated is None:
            return "", ""
        return (nominated.node, "") if nominated.evicts else ("", nominated.node)

    def _predict(self, pod: Pending, node: str) -> None:
        placement = self.placement(pod, node) if node else None
        if placement is None:
            self.pending.refused(pod, self._clock())
            return
        self.pending.fitted(pod)
        until = self._clock() + PREDICTION_S
        refused = self.ledger.claims.predict(pod.uid, node, placement.taken, until, pod.holder, pod.cpu_memory)
        if refused is None:
            pod.predicted = self.ledger.room(node), placement

    def why_unknown(self, uid: PodUid) -> str:
        """Return in words why no such pod waits: it is bound, it has ended, or the watch has not shown it yet."""
        load = self.ledger.load_of(uid)
        if node := self._settled_node(uid) or (load.node if load is not None else ""):
            return OfPod.BOUND_ELSEWHERE.about(f"the pod is bound to {node} already")
        return OfPod.POD_ENDED.shown if self.ledger.has_ended(uid) else OfBinding.POD_UNKNOWN.shown

    def _settled_node(self, uid: PodUid) -> str:
        """Return the node where the pod is bound, or will be, as far as is known."""
        record = self.ledger.pod(uid)
        if record is not None and record.node:
            return record.node
        reserved = self.ledger.own_claim(uid, Claim.RESERVED)
        return reserved.node if reserved else ""

    def _only(self, settled: str, uid: PodUid, names: Sequence[str]) -> Filtered:
        if settled not in names and (pod := self.pending.get(uid)):
            self.pending.refused(pod, self._clock())  # so that it is woken, should it turn out not to be bound
        return sort_nodes(names, fits={settled}, otherwise=OfPod.BOUND_ELSEWHERE.shown)

    # ---- bind

    def reserve(self, uid: PodUid, node: str) -> Reservation | Bound | NotBound:
        """Reserve the devices. If the outcome of an earlier Binding is not known yet, say that."""
        record = self.ledger.pod(uid)
        if record is not None and record.node:
            if record.node == node and record.taken is not None:
                return Bound()
            return NotBound(why=OfPod.BOUND_ELSEWHERE.about(f"the pod is bound to {record.node} already"))
        reserved = self.ledger.own_claim(uid, Claim.RESERVED)
        if reserved is not None:
            return self._reserved_before(reserved, node)
        pod = self.pending.get(uid)
        if pod is None:
            return NotBound(why=self.why_unknown(uid))
        placement = self._planned(uid, node)
        if (
            placement is None and (found := self.waits_for_gang(uid)) is not None
        ):  # its plan ended after the barrier let it pass
            return NotBound(
                why=OfBinding.GANG_INCOMPLETE.about(f"gang {found[0].key} has no place for the pod on {node} any more")
            )
        if placement is None and (refusal := self.quotas.admits([pod])):
            return NotBound(why=refusal.shown)
        placement = placement or self._predicted(pod, node) or self.placement(pod, node)
        if placement is None and not self.ledger.room(node).reported:
            return NotBound(why=Missing.NO_REPORT.about(f"node {node} reports no devices, or does not exist"))
        if placement is None:
            return NotBound(why=OfBinding.DEVICES_TAKEN.shown)
        gen = pod.gen + 1
        conflict = self.ledger.claims.reserve(uid, node, placement.taken, gen, pod.holder, pod.cpu_memory)
        if conflict is not None:
            return NotBound(why=_in_words(conflict, node))
        self.ledger.claims.forget_prediction(uid)  # which may have been for other cards of this node, or for another node
        pod.gen = gen
        member_of = self.gangs.of(uid)
        text = render_assignment(
            uid,
            node,
            gen,
            placement.containers,
            pod.roles,
            pod.request.sharing,
            self.quotas.admitted(pod),
            gang=member_of[0].key.text if member_of is not None else "",
        )
        vfs = tuple(name_vfs(placement.containers, pod.roles).items())
        return Reservation(pod=pod, node=node, gen=gen, assignment=text, vfs=vfs)

    def _planned(self, uid: PodUid, node: str) -> Placement | None:
        """Return what the plan of its gang holds for the pod there."""
        found = self.gangs.of(uid)
        planned = found[1].planned if found is not None else None
        return planned.placement if planned is not None and planned.node == node else None

    def _predicted(self, pod: Pending, node: str) -> Placement | None:
        """Return what was predicted for the pod if the node has not changed since. The card of a group may have changed on any
        node."""
        room, placement = pod.predicted or (None, None)
        return placement if room is self.ledger.room(node) and pod.request.sharing is None else None

    def confirm(self, reservation: Reservation) -> None:
        self.ledger.claims.confirm(reservation.pod.uid)

    def release(self, reservation: Reservation) -> None:
        self.ledger.claims.release(reservation.pod.uid)

    def is_open(self, reservation: Reservation) -> bool:
        """Return whether neither a Binding's answer nor the watch has shown how it ended."""
        reserved = self.ledger.own_claim(reservation.pod.uid, Claim.RESERVED)
        return reserved is not None and not reserved.confirmed

    def _reserved_before(self, reserved: OwnClaim, node: str) -> Bound | NotBound:
        if reserved.confirmed and reserved.node == node:
            return Bound()
        if reserved.confirmed:
            return NotBound(why=OfPod.BOUND_ELSEWHERE.about(f"the pod is bound to {reserved.node}"))
        why = f"the pod may be bound to {reserved.node}: the API server's answer is not known yet; nothing is sent twice"
        return NotBound(why=OfBinding.BINDING_UNCLEAR.about(why))


def _allow_all(gone: Collection[PodUid]) -> bool:
    return True


def _in_words(conflict: Conflict, node: str) -> str:
    holders: Sequence[str] = [f"{holder.namespace}/{holder.name}" for holder in conflict.holders]
    by = f", held by {', '.join(holders[:4])}" if holders else ""
    device = f" {conflict.device}{by}" if conflict.device else ""
    why = f"its devices on {node} cannot be taken: {conflict.obstacle}{device}; this is retried automatically"
    return OfBinding.DEVICES_TAKEN.about(why)
