"""Decide for the extender's verbs: filter, prioritize, preempt, why, and begin and end of bind. No I/O; the caller has the
clock.

    decide      return the answer to filter, the nodes that fit, and what the answer changes; nothing changes yet
    apply       carry out a decision, once its answer is sent and before the next decision: hold the best node's devices for a
                moment (*predicted*), so that the next pod does not get them; or record the pod as refused
    prefer      return the answer to prioritize: the predicted node; for a pod without devices the best node
    apply_preference  count the cpu and memory of a pod without devices on that node for a moment
    reserve     claim the devices of one pod on one node in the ledger, before anything is sent to the API server
    confirm, release   record how the Binding ended; until that is known, the reservation stays

kube-scheduler may repeat a request at any time: after its own timeout, after a restart, for a pod that is bound already. So
every method here may be called again for the same pod uid.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, assert_never

from central.assignment.annotation import name_vfs, render_assignment
from central.assignment.model import Taken
from central.assignment.sharing import groups_of
from central.decide.decision import (
    Accept,
    AnswerMember,
    Decision,
    Distrust,
    Drop,
    HoldDevices,
    PodEffect,
    Preference,
    Refuse,
    RefuseByQuota,
)
from central.decide.filtered import Filtered, SameReason, main_reason, only, refuse_everywhere, sort_nodes
from central.decide.yielding import Yielding, find_yielding, take
from central.gang.answers import PlannedNode, hear
from central.gang.answers import answer as answer_member
from central.gang.answers import record as record_answer
from central.gang.gang import Gang, Member
from central.gang.gangs import Gangs
from central.gang.rails import running_rails
from central.gang.starts import Starts
from central.ledger.groups import CardOf
from central.ledger.ledger import Ledger
from central.ledger.model import Claim, Conflict, OwnClaim, PodLoad
from central.ledger.overlay import Overlay
from central.loop.steps import Steps, go_on
from central.quota.preemption import Preemption
from central.rank.cached import CachedVerdicts
from central.rank.forecast import Forecast
from central.rank.verdicts import Verdicts
from central.request.cpu_memory import cpu_memory_of
from central.request.model import NO_CPU_MEMORY, CpuMemory, DeviceRequest, MalformedRequest, Policy, Shape
from central.request.parse import OWN_ONLY, Dialects, parse_request
from central.request.pod import Pod
from central.request.reasons import OfBinding, OfPod
from central.search.demand import DEFAULT_LIMITS, Demand, Limits, policy_of, read_demand
from central.search.placement import Missing, NoFit, Placement, on_preferred
from central.state.counts import Counts
from central.state.pending import Pending, PendingPods, pending_of
from central.state.quotas import Quotas
from central.state.tenants import Tenants
from lading.vocabulary import PciAddress, PodUid

# A prediction lasts from filter to bind: kube-scheduler's own work for one pod, and at most the binding of a volume. A shorter
# time costs a second filter; a longer time holds devices that no pod uses.
PREDICTION_S: Final = 5.0
MOST_YIELDING_NODES: Final = 64  # maximum nodes where a pod is tried in place of claims of lower priority

# The function returns a label's values by node, given the label's key; None if the label is no topology label.
Domains = Callable[[str], Mapping[str, str] | None]

NO_DEVICES: Final = DeviceRequest(containers=(), policy=Policy.FRAGMENTATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Hold the content of a Binding."""

    pod: Pending
    node: str
    gen: int
    assignment: str  # the annotation's exact text
    vfs: tuple[tuple[PciAddress, str], ...] = ()  # VFs with their interface names in the pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Report that the pod is already bound to the node with its devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotBound:
    """Hold the reason why the pod cannot be bound, as a text for the pod's events."""

    why: str


class Yielded(NamedTuple):
    """Hold a node where a pod fits once these claims for pods of lower priority have ended."""

    node: str
    ending: Sequence[Yielding]


class _Judged(NamedTuple):
    """Hold the answer to kube-scheduler's filter call, and the node where the pod's devices are held next. The node is empty if
    the pod fits on no judged node."""

    node: str
    answer: Filtered
    ending: Sequence[Yielding] = ()  # claims that end before the devices are held
    incomplete: bool = False  # whether some nodes were not judged

    @property
    def undecided(self) -> bool:
        return not self.node and self.incomplete

    def decision(self, pod: Pending) -> Decision:
        effect = (
            HoldDevices(pod=pod, node=self.node, ending=self.ending)
            if self.node
            else Refuse(pod=pod, undecided=self.incomplete)
        )
        return Decision(uid=pod.uid, answer=self.answer, effect=effect, incomplete=self.incomplete)


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
        slice_s: float = math.inf,
        domains: Domains = lambda key: None,
        dialects: Dialects = OWN_ONLY,
    ) -> None:
        """Create the scheduler. `clock`: monotonic seconds. `policy`: the policy of pods that name no policy. `refused` is
        called with a pod that was refused for lack of devices or quota, and the nodes that suffice otherwise. `slice_s`:
        maximum seconds in which one call judges nodes; the remaining nodes are refused as NOT_REACHED, and `judging`
        continues. `dialects`: how pods may request devices."""
        self.ledger = ledger
        self.pending = pending
        self.policy = policy
        self.quotas = Quotas(ledger, pending)
        self.limits = limits
        self._clock = clock
        self._refused = refused
        self._slice_s = slice_s
        # These requests were decided before all nodes were judged, and have to be judged further; the oldest is first.
        self.unfinished: dict[DeviceRequest, None] = {}
        self.counts = counts or Counts()
        self.gangs = Gangs()
        self.starts = Starts(self.gangs, ledger, clock=clock)
        self.domains = domains
        self.dialects = dialects
        self.tenants = Tenants(ledger)
        capacities, loads = ledger.capacities_changed_since, ledger.loads_changed_since
        self.verdicts = Verdicts(
            capacities, loads, policy=policy, limits=limits, forecast=forecast, turnover=lambda: ledger.turnover
        )

    @property
    def forecast(self) -> Forecast:
        return self.verdicts.forecast

    def _request_of(self, pod: Pod) -> DeviceRequest | MalformedRequest | None:
        """Return the pod's device request. A pending pod was parsed when the watch reported it."""
        known = self.pending.in_version(pod)
        return parse_request(pod, self.dialects) if known is None else known.request

    # ---- which nodes

    def filter_steps(self, pod: Pod) -> Steps:
        """Judge nodes for `filter`, one in each step. `filter` does not judge these again."""
        request, uid = self._request_of(pod), pod.metadata.uid
        waits = isinstance(request, DeviceRequest) and not self._settled_node(uid) and self.waits_for_gang(uid) is None
        if waits and isinstance(request, DeviceRequest) and not self.group_nodes(request, self.ledger.without(uid)):
            yield from self.verdicts.judging(request)

    def prioritize_steps(self, pod: Pod) -> Steps:
        """Judge nodes for `prioritize`, one in each step."""
        if self.ledger.own_claim(pod.metadata.uid, Claim.PREDICTED) is None:
            request = self._request_of(pod)
            if not isinstance(request, MalformedRequest):
                yield from self.verdicts.judging(request or NO_DEVICES)

    def warming(self) -> Steps:
        """Read all nodes into the caches, before kube-scheduler's first call."""
        for name in self.ledger.nodes():
            self.ledger.capacity(name)
            yield
        yield from self.verdicts.catching_up()
        yield from self.tenants.catching_up()

    def filter(self, pod: Pod, names: Sequence[str]) -> Filtered:
        """Decide, and apply the decision at once."""
        decision = self.decide(pod, names)
        self.apply(decision)
        return decision.answer

    def decide(self, pod: Pod, names: Sequence[str]) -> Decision:
        """Decide on which nodes the pod fits. Only caches change: nodes may be judged for at most one slice of time."""
        request, uid = self._request_of(pod), pod.metadata.uid
        if request is None:
            return Decision(uid=uid, answer=Filtered(fitting=names))
        # kube-scheduler may not have observed the pod's end yet.
        if isinstance(request, MalformedRequest) or self.ledger.has_ended(uid):
            reason = request.shown if isinstance(request, MalformedRequest) else OfPod.POD_ENDED.shown
            return Decision(uid=uid, answer=sort_nodes(names, otherwise=reason), effect=Drop())
        pending = self.pending.in_version(pod) or pending_of(pod, request)
        if settled := self._settled_node(uid):
            answer = sort_nodes(names, fits={settled}, otherwise=OfPod.BOUND_ELSEWHERE.shown)
            return Decision(uid=uid, answer=answer, effect=None if settled in names else Distrust(pod=pending))
        if (result := self.waits_for_gang(uid)) is not None:
            return self._decide_in_gang(pending, names, *result)
        if not request.containers:
            return Decision(uid=uid, answer=Filtered(fitting=names), effect=Accept(pod=pending))
        refusal = self.quotas.admits([pending])
        if refusal is None:
            judged = self._judge(pending, names)
            yielded = None if judged.node or judged.undecided else self._find_at_lower(pending, names, within_quota=True)
        else:
            yielded = self._find_at_lower(pending, names, within_quota=False)
            if yielded is None:
                answer = Filtered(never=SameReason(names, refusal.shown), reason=refusal.code)
                return Decision(uid=uid, answer=answer, effect=RefuseByQuota(pod=pending, refusal=refusal))
        if yielded is not None:
            judged = self._judge(pending, names, yielded)
        return judged.decision(pending)

    def apply(self, decision: Decision) -> None:
        """Carry out the effect of a decision. Nothing changes for a pod that was bound or has ended while the answer was
        sent."""
        effect, uid = decision.effect, decision.uid
        if isinstance(effect, Drop):
            self.pending.remove(uid)
            self.ledger.claims.forget_prediction(uid)
        elif isinstance(effect, Distrust):
            if (pod := self.pending.get(uid)) is not None:
                self.pending.refused(pod, self._clock())
        elif effect is not None and not (self.ledger.has_ended(uid) or self._settled_node(uid)):
            pod = effect.pod if self.pending.get(uid) is effect.pod else self.pending.add(effect.pod)
            if pod.request.containers:
                self.verdicts.learn(uid, pod.shape)
            if decision.incomplete:
                self.unfinished.setdefault(pod.request)
            self._apply(pod, effect, decision.answer)
        if (reason := main_reason(decision.answer)) is not None:
            self.counts.refused[reason] += 1
            if refused := self.pending.get_refused(uid):
                refused.refused_for = reason

    def _apply(self, pod: Pending, effect: PodEffect, answer: Filtered) -> None:
        match effect:
            case Accept():
                self.pending.fitted(pod)
            case HoldDevices():
                self.quotas.record([pod], None)
                if effect.ending:  # a Binding for one of these claims may have begun while the answer was sent
                    current = self.yielding(pod.priority)
                    take(self.ledger, self.starts, [one for one in effect.ending if one in current])
                self._predict(pod, effect.node)
            case Refuse():
                self.quotas.record([pod], None)
                self.ledger.claims.forget_prediction(pod.uid)
                self.pending.refused(pod, self._clock())
                pod.undecided = effect.undecided
                if not effect.undecided:
                    self._refused(pod, [*answer.fails, *answer.never])
            case RefuseByQuota():
                self.quotas.record([pod], effect.refusal)
                self.ledger.claims.forget_prediction(pod.uid)
                self.pending.refused_by_quota(pod, effect.refusal, self._clock())
                if effect.refusal.code is OfPod.QUOTA_EXCEEDED:  # pods of the same quota may be evicted for the pod
                    self._refused(pod, [*answer.never])
            case AnswerMember():
                record_answer(self.starts, effect.call, effect.answer)
                if isinstance(effect.answer, PlannedNode):
                    self.pending.fitted(pod)
                elif not effect.answer.elsewhere:
                    self.pending.waits_for_gang(pod, self._clock())
            case _:
                assert_never(effect)

    def waits_for_gang(self, uid: PodUid) -> tuple[Gang, Member] | None:
        """Return the gang with which the pod starts, and the pod as its member; None if it is placed like other pods."""
        result = self.gangs.of(uid)
        return None if result is None or (result[0].ordinary and uid not in result[0].life.places) else result

    def _decide_in_gang(self, pod: Pending, names: Sequence[str], gang: Gang, member: Member) -> Decision:
        domain_of = self.domains(gang.terms.required_topology) if gang.tried_by_domain else None
        call = hear(gang, member, names, domain_of)
        result = answer_member(self.gangs, gang, member, call, domain_of)
        if isinstance(result, PlannedNode):
            answer = only(result.node, names, OfPod.GANG_ELSEWHERE.shown)
        else:
            answer = refuse_everywhere(names, result.reason, result.message)
        return Decision(uid=pod.uid, answer=answer, effect=AnswerMember(pod=pod, call=call, answer=result))

    # ---- claims for pods of lower priority

    def yielding(self, priority: int) -> list[Yielding]:
        """Return the claims for unbound pods of lower priority, the lowest first."""
        return find_yielding(self.ledger, self.starts, self.pending, priority)

    def end_lower(self, nodes: Collection[str], priority: int) -> None:
        """End all claims on these nodes for unbound pods of lower priority."""
        take(self.ledger, self.starts, [one for one in self.yielding(priority) if one.is_on(nodes)])

    def take_from_lower(self, node: str, taken: Taken, priority: int) -> None:
        """End the claims on these devices for unbound pods of lower priority."""
        take(self.ledger, self.starts, [one for one in self.yielding(priority) if one.overlaps(node, taken)])

    def _find_at_lower(self, pod: Pending, names: Collection[str], *, within_quota: bool) -> Yielded | None:
        """Return the node where the pod fits once claims for pods of lower priority end, and as few of these claims as
        possible; None if there is no such node. `within_quota`: the pod's quota already allows it."""
        lower = self.yielding(pod.priority)
        if not lower:
            return None
        allows = _allow_all if within_quota else self.preemption([pod]).allows
        best = None if within_quota else self.verdicts.best(pod.shape, names)
        nodes = dict.fromkeys((best or "", *(claim.node for one in lower for claim in one.claims)))
        possible, result = frozenset(names), list[tuple[int, int, Yielded]]()
        for name in islice((name for name in nodes if name in possible), MOST_YIELDING_NODES):
            ending: list[Yielding] = []
            for one in (one for one in lower if not within_quota or one.is_on((name,))):
                ending.append(one)
                evicted = [uid for held in ending for uid in held.uids]
                placement = (
                    self.fit_devices(pod.shape, name, self.ledger.without(pod.uid, *evicted)) if allows(evicted) else None
                )
                if placement is not None:
                    if within_quota:
                        ending = [held for held in ending if held.overlaps(name, placement.taken)]
                    result.append((one.priority, len(ending), Yielded(name, ending)))
                    break
        return min(result, key=lambda one: one[:2])[2] if result else None

    def _judge(self, pod: Pending, names: Sequence[str], yielded: Yielded | None = None) -> _Judged:
        """Judge the nodes for the pod. `yielded`: the node where claims for pods of lower priority end for this pod."""
        ending = () if yielded is None else yielded.ending
        state = self.ledger.without(pod.uid, *(uid for one in ending for uid in one.uids))
        if group := self.group_nodes(pod.request, state):
            node, answer = self._judge_in_group(pod, names, group, state)
            return _Judged(node, answer, ending=ending)
        verdicts = self.judged(pod.request)
        kept = (yielded.node,) if yielded is not None else self._kept_nodes(pod, names)
        node = next(iter(kept), "") or self.verdicts.best(pod.shape, names) or ""
        fits, reasons, otherwise = verdicts.fits, verdicts.reasons, Missing.NO_REPORT.shown
        answer = sort_nodes(names, fits=fits, reasons=reasons, otherwise=otherwise, fits_too=kept)
        return _Judged(node, answer, ending=ending, incomplete=not verdicts.complete)

    def _kept_nodes(self, pod: Pending, names: Collection[str]) -> list[str]:
        """Return the nodes where devices are held for the pod already, by a nomination or by a prediction, if it fits there."""
        claims = (self.ledger.own_claim(pod.uid, kind) for kind in (Claim.NOMINATED, Claim.PREDICTED))
        nodes = dict.fromkeys(claim.node for claim in claims if claim is not None and claim.node in names)
        return [node for node in nodes if self.placement(pod, node) is not None]

    def _judge_in_group(
        self, pod: Pending, names: Sequence[str], group: frozenset[str], state: Overlay
    ) -> tuple[str, Filtered]:
        """Judge only the nodes of the affinity group's card, so that no verdicts of all nodes are cached for the pod."""
        verdicts = {name: self.verdict(pod.request, name, state) for name in group}
        reasons = {name: verdict.missing.shown if isinstance(verdict, NoFit) else "" for name, verdict in verdicts.items()}
        fits = {name for name, reason in reasons.items() if not reason}
        node = next((name for name in reasons if name in fits and name in names), "")
        return node, sort_nodes(names, fits=fits, reasons=reasons, otherwise=Missing.GROUP_ELSEWHERE.shown)

    def prioritize(self, pod: Pod, names: Collection[str]) -> str | None:
        """Return the preferred node, and apply the preference at once."""
        preference = self.prefer(pod, names)
        self.apply_preference(preference)
        return preference.node

    def prefer(self, pod: Pod, names: Collection[str]) -> Preference:
        """Return central's preferred node for kube-scheduler's prioritize call; its `node` is None without a preference."""
        for kind in (Claim.PLANNED, Claim.PREDICTED):
            claim = self.ledger.own_claim(pod.metadata.uid, kind)
            if claim and claim.node in names:
                return Preference(node=claim.node)
        request = self._request_of(pod)
        if request is None:
            return self._beside_devices(pod, names)
        if isinstance(request, MalformedRequest):
            return Preference()
        if group := self.group_nodes(request, self.ledger.without(pod.metadata.uid)):
            return Preference(node=next((name for name in group if name in names), None))
        self.judged(request)
        return Preference(node=self.verdicts.best(Shape(request=request, cpu_memory=cpu_memory_of(pod)), names))

    def _beside_devices(self, pod: Pod, names: Collection[str]) -> Preference:
        """Return the preference for a pod without devices: the node whose free cards lose least value by the pod's cpu and
        memory. Prefer no node if the cluster's policy is not fragmentation, or if `names` include a node without devices."""
        uid = pod.metadata.uid
        if self.policy is not Policy.FRAGMENTATION or not self.verdicts.reports_all(names):
            return Preference()
        shape, expected = Shape(request=NO_DEVICES, cpu_memory=cpu_memory_of(pod)), self.ledger.expected_on(uid)
        node = expected if expected in names else self.verdicts.best(shape, names)
        return Preference(node=node, load=None if node is None else PodLoad(uid, node, shape.cpu_memory))

    def apply_preference(self, preference: Preference) -> None:
        """Count the cpu and memory of a pod without devices on the preferred node for a moment."""
        if (load := preference.load) is not None:
            self.verdicts.learn(load.uid, Shape(request=NO_DEVICES, cpu_memory=load.cpu_memory))
            self.ledger.claims.forget_prediction(load.uid)
            self.ledger.claims.predict_load(load, self._clock() + PREDICTION_S)

    def preempting(self, pod: Pod, victims: Mapping[str, Collection[PodUid]], suffice: list[str]) -> Steps:
        """Add to `suffice` the nodes where the devices suffice after kube-scheduler's evictions for cpu or memory, one node in
        each step. `victims`: the evicted pods by node. If the caller does not wait for a node, no pod is evicted there."""
        request, own = self._request_of(pod), pod.metadata.uid
        if self.waits_for_gang(own) is not None:
            return  # an eviction for one member is of no use, and the gang may have its place elsewhere
        if not isinstance(request, DeviceRequest):
            suffice.extend(victims)
            return
        pending = self.pending.get(own)
        rule = self.preemption([pending] if pending is not None else [])
        for name, evicted in victims.items():
            allowed = all(map(rule.takes, evicted)) and rule.allows(evicted)
            if (
                evicted
                and allowed
                and self.fit_devices(Shape(request=request), name, self.ledger.without(own, *evicted)) is not None
            ):
                suffice.append(name)
            yield

    def preemption(self, pods: Sequence[Pending]) -> Preemption:
        """Return the possible victims for these pods, which start together."""
        rule = self.quotas.preemption(pods)
        if rule is not None:
            return rule
        return Preemption(lowest=self.ledger.lowest_priority(), takes=lambda uid: True, allows=lambda evicted: True)

    def judged(self, request: DeviceRequest) -> CachedVerdicts:
        """Return the verdicts about nodes for the request, after judging further nodes for at most one slice of time."""
        verdicts = self.verdicts.of(request)
        go_on(verdicts.judging(), self._clock, self._clock() + self._slice_s)
        return verdicts

    def verdict(
        self, request: DeviceRequest, node: str, state: Overlay, cpu_memory: CpuMemory = NO_CPU_MEMORY
    ) -> Placement | NoFit:
        """Return the placement of the request on the node in that state, or why it does not fit. The card of an affinity group
        may be on any node. `cpu_memory` does not decide whether the request fits, but which card is the best."""
        if self.group_nodes(request, state) - {node}:
            return NoFit(missing=Missing.GROUP_ELSEWHERE)
        return self.verdicts.place(state.capacity(node), Shape(request=request, cpu_memory=cpu_memory))

    def fit_devices(self, shape: Shape, node: str, state: Overlay) -> Placement | None:
        """Return the devices for such a pod on the node in that state; None if the pod does not fit."""
        result = self.verdict(shape.request, node, state, shape.cpu_memory)
        return result if isinstance(result, Placement) else None

    def fit_pod(self, shape: Shape, node: str, state: Overlay) -> Placement | None:
        """Return the devices as `fit_devices` does; None also if the node is known to lack the cpu or the memory."""
        return self.fit_devices(shape, node, state) if state.capacity(node).has_resources(shape.cpu_memory) else None

    def demand(self, request: DeviceRequest) -> Demand:
        """Return what the request needs of a node, under the cluster's policy and limits."""
        return read_demand(request, policy_of(request, self.policy), self.limits)

    def placement(self, pod: Pending, node: str) -> Placement | None:
        """Return the pod's devices on the node, where its own claims count as free. A gang member gets the rails of running
        members, if its placement there is as good."""
        state = self.ledger.without(pod.uid)
        placement = self.fit_devices(pod.shape, node, state)
        if placement is None:
            return None
        result = self.gangs.of(pod.uid)
        rails = running_rails(result[0], self.ledger) if result is not None and placement.taken.vfs else ()
        return on_preferred(
            placement, rails, lambda some: self.verdict(pod.request, node, state.on_rails(some), pod.cpu_memory)
        )

    def group_cards(self, request: DeviceRequest, state: Overlay) -> frozenset[CardOf]:
        """Return the card of the request's affinity group, if any: the pod cannot be on another card. Several cards are an
        error: the group takes no more pods until one card is left."""
        groups = groups_of([request.sharing]) if request.sharing is not None else ()
        return state.group_cards(groups[0]) if groups else frozenset()

    def group_nodes(self, request: DeviceRequest, state: Overlay) -> frozenset[str]:
        return frozenset(card.node for card in self.group_cards(request, state))

    def fits_on(self, request: DeviceRequest, node: str) -> bool:
        """Return whether the request fits on the node now. Uncached requests get no cached verdicts: they would need a
        judgement of all nodes, and there may be more requests than the cache holds."""
        group = self.group_nodes(request, self.ledger.without())
        if not group and request.containers and request in self.verdicts:
            verdicts = self.verdicts.of(request)
            verdicts.settle(node)
            return node in verdicts.fits
        return not group - {node} and isinstance(
            self.verdicts.place(self.ledger.capacity(node), Shape(request=request)), Placement
        )

    def cached_reasons(self, request: DeviceRequest) -> Mapping[str, str] | None:
        """Return the reason for each node where the request does not fit, and an empty text for other nodes. Return None if the
        request has no cached verdicts. No verdict is computed."""
        return self.judged(request).reasons if request in self.verdicts else None

    def nominated_node(self, uid: PodUid) -> str:
        """Return the node where devices are reserved for the pod, or are freed for it by evictions; empty without such a
        node."""
        nominated = self.ledger.own_claim(uid, Claim.NOMINATED)
        return nominated.node if nominated else ""

    def room_for(self, uid: PodUid) -> tuple[str, str]:
        """Return the node where victims are evicted for the pod, and the node where devices are reserved for it until running
        pods end. At most one of these names is not empty."""
        nominated = self.ledger.own_claim(uid, Claim.NOMINATED)
        if nominated is None:
            return "", ""
        return (nominated.node, "") if nominated.evicts else ("", nominated.node)

    def _predict(self, pod: Pending, node: str) -> None:
        placement = self.placement(pod, node)
        if placement is None:
            self.ledger.claims.forget_prediction(pod.uid)
            self.pending.refused(pod, self._clock())
            return
        self.pending.fitted(pod)
        until = self._clock() + PREDICTION_S
        refused = self.ledger.claims.predict(pod.uid, node, placement.taken, until, pod.holder, pod.cpu_memory)
        if refused is None:
            pod.predicted = self.ledger.capacity(node), placement

    def why_unknown(self, uid: PodUid) -> str:
        """Return a text why the pod is not pending: it is bound, has ended, or was not yet reported by the watch."""
        load = self.ledger.load_of(uid)
        if node := self._settled_node(uid) or (load.node if load is not None else ""):
            return OfPod.BOUND_ELSEWHERE.about(f"the pod is bound to {node} already")
        return OfPod.POD_ENDED.shown if self.ledger.has_ended(uid) else OfBinding.POD_UNKNOWN.shown

    def _settled_node(self, uid: PodUid) -> str:
        """Return the node where the pod is bound, or is being bound; empty if central knows of no such node."""
        record = self.ledger.pod(uid)
        if record is not None and record.node:
            return record.node
        reserved = self.ledger.own_claim(uid, Claim.RESERVED)
        return reserved.node if reserved else ""

    # ---- bind

    def reserve(self, uid: PodUid, node: str) -> Reservation | Bound | NotBound:
        """Reserve the pod's devices on the node. While the outcome of an earlier Binding is unknown, return NotBound with this
        reason."""
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
        # The gang's plan may have ended after the barrier let the pod pass.
        if placement is None and (result := self.waits_for_gang(uid)) is not None:
            return NotBound(
                why=OfBinding.GANG_INCOMPLETE.about(f"gang {result[0].key} has no place for the pod on {node} any more")
            )
        if placement is None:
            refusal = self.quotas.admits([pod])
            self.quotas.record([pod], refusal)
            if refusal is not None:
                return NotBound(why=refusal.shown)
        placement = placement or self._predicted(pod, node) or self.placement(pod, node)
        if placement is None and not self.ledger.capacity(node).reported:
            return NotBound(why=Missing.NO_REPORT.about(f"node {node} reports no devices, or does not exist"))
        if placement is None:
            return NotBound(why=OfBinding.DEVICES_TAKEN.shown)
        gen = pod.gen + 1
        conflict = self.ledger.claims.reserve(uid, node, placement.taken, gen, pod.holder, pod.cpu_memory)
        if conflict is not None:
            return NotBound(why=_as_text(conflict, node))
        self.ledger.claims.forget_prediction(uid)  # the prediction may be for other cards or another node
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
        """Return the pod's devices on the node from the plan of its gang; None if the plan has no devices for the pod there."""
        result = self.gangs.of(uid)
        planned = result[0].life.places.get(uid) if result is not None else None
        return planned.placement if planned is not None and planned.node == node else None

    def _predicted(self, pod: Pending, node: str) -> Placement | None:
        """Return the pod's predicted devices if the node has not changed since. A pod with sharing labels gets None, because
        the card of its group may have changed on any node."""
        capacity, placement = pod.predicted or (None, None)
        return placement if capacity is self.ledger.capacity(node) and pod.request.sharing is None else None

    def confirm(self, reservation: Reservation) -> None:
        self.ledger.claims.confirm(reservation.pod.uid)

    def release(self, reservation: Reservation) -> None:
        self.ledger.claims.release(reservation.pod.uid)

    def is_open(self, reservation: Reservation) -> bool:
        """Return whether the outcome of the Binding is unknown, both from its answer and from the watch."""
        reserved = self.ledger.own_claim(reservation.pod.uid, Claim.RESERVED)
        return reserved is not None and not reserved.confirmed

    def _reserved_before(self, reserved: OwnClaim, node: str) -> Bound | NotBound:
        if reserved.confirmed and reserved.node == node:
            return Bound()
        if reserved.confirmed:
            return NotBound(why=OfPod.BOUND_ELSEWHERE.about(f"the pod is bound to {reserved.node}"))
        reason = f"the pod may be bound to {reserved.node}: the API server's answer is not known yet; nothing is sent twice"
        return NotBound(why=OfBinding.BINDING_UNCLEAR.about(reason))


def _allow_all(evicted: Collection[PodUid]) -> bool:
    return True


def _as_text(conflict: Conflict, node: str) -> str:
    holders: Sequence[str] = [f"{holder.namespace}/{holder.name}" for holder in conflict.holders]
    by = f", held by {', '.join(holders[:4])}" if holders else ""
    device = f" {conflict.device}{by}" if conflict.device else ""
    reason = f"its devices on {node} cannot be taken: {conflict.obstacle}{device}; this is retried automatically"
    return OfBinding.DEVICES_TAKEN.about(reason)
