"""Explain node by node why a pod is not running: `GET /v1/why/<namespace>/<pod>`.

Take the scheduler's view of one pod. Return JSON for `kubectl lading why` and for people with curl. It has the codes of
kube-scheduler's reasons with their numbers of nodes, and each node's nearest miss in words and numbers.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, Literal

import msgspec

from central.assignment.sharing import groups_of
from central.decide.line import Line, gang_lines, pod_line
from central.decide.scheduler import Scheduler
from central.decide.victims import Protection, Victims
from central.gang.gang import Gang
from central.gang.life import Phase
from central.ledger.model import Claim
from central.request.describe import describe_request
from central.search.explain import explain
from central.search.placement import Missing, Placement
from central.state.pending import Pending
from lading.vocabulary import PodUid

MOST_PROTECTED: Final = 8  # maximum causes that are shown
FITS: Final = "fits"  # the `reason` of a node on which the pod fits

SENTENCES: Final = {missing.value: missing.text for missing in Missing} | {FITS: "its devices are free"}


class NodeWhy(msgspec.Struct, frozen=True, omit_defaults=True):
    node: str
    reason: str  # code of central.search.placement.Missing, or FITS
    text: str = ""  # the reason's sentence
    detail: str = ""


class GangWhy(msgspec.Struct, frozen=True, omit_defaults=True):
    """Describe the progress of the pod's gang."""

    name: str  # namespace/name
    phase: Phase
    least: dict[str, int] = {}  # minimum by role; an empty name: the gang has no roles
    exist: dict[str, int] = {}  # existing members by role, also beyond the minimum
    bound: dict[str, int] = {}
    reason: str = ""  # code of OfPod, for a gang without a plan
    said: str = ""  # message for `reason`
    nodes: list[str] = []  # nodes of the plan, or nodes where devices are kept or freed for the gang
    line: Line | None = None  # queue position of a gang that waits for a plan

    def as_text(self) -> str:
        roles = [
            f"{f'{role}: ' if role else ''}{self.exist.get(role, 0)} exist and {self.bound.get(role, 0)} are bound of {count}"
            for role, count in self.least.items()
        ]
        text = f"; {self.said} ({self.reason})" if self.reason else ""
        line = f"; {self.line.as_text()}" if self.line is not None else ""
        return f"{self.name} is {self.phase}: {', '.join(roles) or 'its minimum is not known'}{text}{line}"


def why_gang(scheduler: Scheduler, uid: PodUid) -> GangWhy | None:
    """Return the gang that the pod waits for; None if it is placed like other pods."""
    result = scheduler.gangs.of(uid)
    if result is None or result[0].ordinary:
        return None
    return view_gang(scheduler, result[0], gang_lines(scheduler).get(result[0].key))


def view_gang(scheduler: Scheduler, gang: Gang, line: Line | None) -> GangWhy:
    nominations = (scheduler.ledger.own_claim(member, Claim.NOMINATED) for member in gang.members)
    return GangWhy(
        name=str(gang.key),
        phase=gang.phase,
        least=dict(gang.terms.least),
        exist=dict(gang.existing()),
        bound=dict(gang.bound()),
        reason="" if gang.plan else gang.search.reason.value,
        said="" if gang.plan else gang.search.message,
        nodes=sorted(gang.life.nodes or {claim.node for claim in nominations if claim is not None}),
        line=line,
    )


class Why(msgspec.Struct, frozen=True, omit_defaults=True):
    namespace: str
    name: str
    uid: str
    state: Literal["pending", "reserved"]
    asks: str  # the device request in words
    node: str = ""  # node where the pod's devices are reserved
    refused_s: float | None = None  # seconds since the first refusal
    making_room_on: str = ""  # node where pods are evicted for the pod
    keeping_room_on: str = ""  # node where devices that become free are kept for the pod
    gang: GangWhy | None = None  # gang with which the pod starts, in place of the fields below for a single pod
    quota: str = ""  # message why the quota refuses the pod, with the code
    line: Line | None = None  # queue position of a pod that waits alone
    preempts: str = ""  # possible victims by quotas, in words; empty: quotas make no difference
    protected: dict[str, int] = {}  # number of pods of lower priority that cannot be evicted, by protection
    reasons: dict[str, int] = {}  # number of nodes by reason
    nodes: list[NodeWhy] = []


def why_pending(scheduler: Scheduler, pod: Pending, now: float) -> Why:
    return why_by_nodes(scheduler, pod, now, list(judge_nodes(scheduler, pod)))


def judge_nodes(scheduler: Scheduler, pod: Pending) -> Iterator[NodeWhy]:
    """Yield for each node whether the pod fits, and why not; a node takes some tenths of a millisecond. If the caller pauses in
    between, the later nodes have their new state."""
    for name in scheduler.ledger.nodes():
        yield _judge_node(scheduler, pod, name)


def _judge_node(scheduler: Scheduler, pod: Pending, name: str) -> NodeWhy:
    verdict = scheduler.verdict(pod.request, name, scheduler.ledger.without(pod.uid))
    if isinstance(verdict, Placement):
        return NodeWhy(node=name, reason=FITS)
    missing = verdict.missing
    if missing is Missing.GROUP_ELSEWHERE:
        detail = _where_its_group_is(scheduler, pod)
    else:
        capacity = scheduler.ledger.without(pod.uid).capacity(name)
        detail = explain(capacity, pod.request, missing, policy=scheduler.policy, limits=scheduler.limits)
    return NodeWhy(node=name, reason=missing.value, text=missing.text, detail=detail)


def why_by_nodes(
    scheduler: Scheduler, pod: Pending, now: float, nodes: list[NodeWhy], protection: Protection | None = None
) -> Why:
    """Return the whole answer. `protection`: the pods that cannot be evicted; None: unknown."""
    reserved = scheduler.ledger.own_claim(pod.uid, Claim.RESERVED)
    making_room_on, keeping_room_on = scheduler.room_for(pod.uid)
    return Why(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        state="reserved" if reserved else "pending",
        asks=describe_request(pod.request),
        node=reserved.node if reserved else "",
        refused_s=None if pod.refused_at is None else round(now - pod.refused_at, 1),
        making_room_on=making_room_on,
        keeping_room_on=keeping_room_on,
        gang=why_gang(scheduler, pod.uid),
        quota=pod.quota.shown if pod.quota is not None else "",
        line=pod_line(scheduler, pod),
        preempts=scheduler.preemption([pod]).victims,
        protected={} if protection is None else _protected(scheduler, pod, [one.node for one in nodes], protection),
        reasons=dict(Counter(node.reason for node in nodes).most_common()),
        nodes=nodes,
    )


def _protected(scheduler: Scheduler, pod: Pending, names: Iterable[str], protection: Protection) -> dict[str, int]:
    """Return by protection, in words, the number of pods of lower priority that cannot be evicted for this pod."""
    if scheduler.pending.get_refused(pod.uid) is None or not pod.may_preempt:
        return {}
    result = scheduler.gangs.of(pod.uid)
    priority = pod.priority if result is None or result[0].ordinary else result[0].priority
    lower = Victims(scheduler, priority, protection, scheduler.preemption([pod]))
    return dict(islice(lower.protected(names).items(), MOST_PROTECTED))


def _where_its_group_is(scheduler: Scheduler, pod: Pending) -> str:
    """Return a text with the affinity group's card, its node, and the pods on it: pods of the requesting pod's own
    namespace."""
    (group,) = groups_of([pod.request.sharing]) if pod.request.sharing else ()
    cards = []
    for card in sorted(scheduler.group_cards(pod.request, scheduler.ledger.without(pod.uid))):
        members = sorted(f"{holder.namespace}/{holder.name}" for holder in scheduler.ledger.group_members(group, card))
        cards.append(f"{card.uuid} of node {card.node} ({', '.join(members[:4])}{', …' if len(members) > 4 else ''})")
    several = "; it takes no more pods until it is on one" if len(cards) > 1 else ""
    return f"share-affinity {group.affinity} is on {' and '.join(cards)}{several}"
