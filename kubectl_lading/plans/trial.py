"""Find where pods would go now, one after another, as central would decide. Pure, except for changes of the cluster's ledger.

Take a cluster that was read, and pods that do not exist. Return a `Trial` for each pod: its node and devices, or why there are
none. Each pod is placed beside the earlier ones, which hold their devices in the private ledger of this cluster. The highest
priority comes first, as in kube-scheduler's queue. Victims are named, but not evicted for the pods that follow. The pods of a
gang are tried together with its most important pod: one plan places all that start together, or none.

A verdict is stored once for all nodes and pods that it applies to: 1,000 pods that wait for 1,000 nodes would otherwise need a
million entries.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from central.controllers.gangs import GangFeed
from central.decide.why_pod import FITS, NodeWhy, Why, why_pending
from central.gang.calls import EVERYWHERE
from central.loop.steps import result
from central.request.describe import describe_request
from central.request.gang import GangKey
from central.request.model import DeviceRequest, MalformedRequest, Shape
from central.request.node_rules import NodeRules
from central.request.parse import parse_request
from central.request.pod import Pod
from central.request.reasons import OfPod
from central.search.placement import Placement
from central.state.pending import Pending, pending_of
from kubectl_lading.deciding import NOT_ALLOWED, DecidingCluster
from kubectl_lading.plans.manifests import RefusedPod
from kubectl_lading.pods.given import Given, Pair, given_of, pairs_of
from kubectl_lading.pods.situation import SCHEDULER
from kubectl_lading.pods.waiting import LATER, Preemption, find_preemption, judge_rules
from lading.vocabulary import PodUid

_PREFIX: Final = "simulated-"  # prefix of the uids of simulated pods


class Verdict(msgspec.Struct, frozen=True):
    reason: str
    text: str  # sentence for the reason
    detail: str  # shortage of the nodes, as text
    nodes: tuple[str, ...]


class Trial(msgspec.Struct, frozen=True, omit_defaults=True):
    namespace: str
    pod: str
    asks: str = ""  # device request, as text
    priority: int = 0
    node: str = ""  # name of the node where the pod would go; empty: nowhere
    containers: dict[str, Given] = {}
    distances: dict[str, int] = {}  # number of pairs of devices by distance, over all containers
    pairs: tuple[Pair, ...] = ()  # pairs of devices, if requested
    why: Why | None = None  # reasons for a pod that fits nowhere, without nodes: the verdicts have them
    verdicts: tuple[int, ...] = ()  # indexes of this pod's verdicts in the simulation
    lacks_resources: tuple[str, ...] = ()  # nodes with the devices but without the cpu or memory
    not_allowed: tuple[str, ...] = ()  # nodes with the devices where kube-scheduler does not let the pod go
    gang: str = ""  # name of the gang with which the pod starts; empty: none
    preemption: Preemption | None = None  # victims for a pod that fits nowhere
    problem: str = ""  # problem of the pod itself, on any node; empty: none
    code: str = ""  # reason code of `problem`
    notes: tuple[str, ...] = ()


class Trials:
    """Run trials of pods, and collect their verdicts. `in_pairs`: list each pair of devices, 92 for 8 cards and 8 VFs."""

    def __init__(self, cluster: DecidingCluster, *, in_pairs: bool = False) -> None:
        self._cluster = cluster
        self._in_pairs = in_pairs
        self._numbers: dict[Verdict, int] = {}
        # Results for pods that fit nowhere stay valid until the next pod is placed.
        self._nowhere: dict[tuple[Shape, int, bool, NodeRules | None], tuple[Trial, Why]] = {}
        self._feed = GangFeed(cluster.scheduler.starts, cluster.ledger)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return tuple(self._numbers)

    def run(self, pods: Sequence[Pod | RefusedPod]) -> Iterator[Trial]:
        """Yield one trial for each pod, in the order in which they are tried."""
        numbered = [one if isinstance(one, RefusedPod) else _with_uid(one, number) for number, one in enumerate(pods)]
        line = sorted(numbered, key=lambda one: -_priority(one))
        together = self._by_gang([one for one in line if isinstance(one, Pod)])
        done: set[PodUid] = set()
        for one in line:
            if isinstance(one, RefusedPod):
                yield self._refused(one)
            elif one.metadata.uid not in done:
                members = together.get(one.metadata.uid, [one])
                done.update(member.metadata.uid for member in members)
                yield from self._try_gang(members) if one.metadata.uid in together else [self._try(one)]

    def _by_gang(self, pods: Sequence[Pod]) -> dict[PodUid, list[Pod]]:
        """Make the pods members of their gangs. Return the pods of the same gang, for each pod that starts with its gang."""
        gangs, members = self._cluster.scheduler.gangs, dict[GangKey, list[Pod]]()
        for pod in pods:
            requested = parse_request(pod, self._cluster.dialects)
            self._feed.changed(pod)
            if isinstance(requested, DeviceRequest) and (membership := gangs.of(pod.metadata.uid)) is not None:
                self._cluster.pending.add(pending_of(pod, requested))
                members.setdefault(membership[0].key, []).append(pod)
        starting = {key: some for key, some in members.items() if self._cluster.scheduler.waits_for_gang(some[0].metadata.uid)}
        return {pod.metadata.uid: some for some in starting.values() for pod in some}

    def _try_gang(self, pods: Sequence[Pod]) -> Iterator[Trial]:
        """Yield the trials of the pods of one gang, placed by a plan as central would do."""
        cluster = self._cluster
        gangs = cluster.scheduler.gangs
        membership = gangs.of(pods[0].metadata.uid)
        if membership is None:
            raise AssertionError("a pod that was made a member of a gang is one")
        gang, _ = membership
        for member in gang.waiting():
            if (pending := cluster.pending.get(member.uid)) is not None:
                gangs.calls.record(member.uid, EVERYWHERE, self._able(pending))
        planner = cluster.planner
        planned = gang.complete and planner.apply(gang, result(planner.planning(gang)), until=math.inf, counts=False)
        if planned:
            self._nowhere.clear()
        gang = gangs.get(gang.key) or gang
        for pod in pods:
            uid = pod.metadata.uid
            member, pending = gang.members[uid], cluster.pending.get(uid)
            if pending is None:
                raise AssertionError("a member of a gang waits")
            blank = msgspec.structs.replace(self._blank(pod, pending), gang=str(gang.key))
            if (place := gang.life.places.get(uid)) is not None:
                yield self._placed(blank, place.node, place.placement)
            elif member.wrong:
                yield msgspec.structs.replace(blank, problem=member.wrong, code=OfPod.REQUEST_MALFORMED.value)
            elif planned:
                problem = "is beyond the members that start together, and there is no room for it"
                yield msgspec.structs.replace(blank, problem=problem, code=OfPod.GANG_NO_ROOM.value)
            else:
                yield msgspec.structs.replace(blank, problem=gang.search.message, code=gang.search.reason.value)

    def _able(self, pod: Pending) -> list[str]:
        """Return the nodes that kube-scheduler would pass to central: the pod may go there, and cpu and memory suffice."""
        cluster = self._cluster
        return [
            name
            for name in cluster.ledger.nodes()
            if cluster.allows(pod, name) and cluster.ledger.capacity(name).has_resources(pod.cpu_memory)
        ]

    def _refused(self, refused: RefusedPod) -> Trial:
        metadata = refused.pod.metadata
        problem = f"would be refused by the API server: {refused.why}"
        return Trial(namespace=metadata.namespace, pod=metadata.name, problem=problem)

    def _try(self, pod: Pod) -> Trial:
        blank, requested = self._blank(pod), parse_request(pod, self._cluster.dialects)
        if requested is None:
            problem = "asks for no device of lading.dev/: any scheduler may take it anywhere"
            return msgspec.structs.replace(blank, problem=problem)
        if isinstance(requested, MalformedRequest):
            return msgspec.structs.replace(blank, problem=requested.message, code=OfPod.REQUEST_MALFORMED.value)
        pending = pending_of(pod, requested)
        blank, cluster = self._blank(pod, pending), self._cluster
        able = self._able(pending)
        cluster.scheduler.filter(pod, able)
        winner = cluster.scheduler.prioritize(pod, able)
        placement = cluster.scheduler.placement(pending, winner) if winner else None
        if winner is None or placement is None:
            return self._nowhere_as_well(blank, pending, able)
        self._nowhere.clear()
        return self._placed(blank, winner, placement)

    def _blank(self, pod: Pod, pending: Pending | None = None) -> Trial:
        return Trial(
            namespace=pod.metadata.namespace,
            pod=pod.metadata.name,
            asks=describe_request(pending.request) if pending else "",
            notes=tuple(_notes(pod)),
            priority=pod.spec.priority,
        )

    def _placed(self, blank: Trial, node: str, placement: Placement) -> Trial:
        placed = placement.containers
        pairs = [pair for one in placed.values() for pair in pairs_of(self._cluster.reports[node], one)]
        return msgspec.structs.replace(
            blank,
            node=node,
            containers={name: given_of(one) for name, one in placed.items()},
            distances=dict(Counter(pair.said for pair in pairs).most_common()),
            pairs=tuple(pairs) if self._in_pairs else (),
        )

    def _nowhere_as_well(self, blank: Trial, pending: Pending, able: Sequence[str]) -> Trial:
        """Return the trial of a pod that fits nowhere. Of 100 equal pods, only the first needs an explanation."""
        kind = pending.shape, pending.priority, pending.may_preempt, pending.node_rules
        if kind not in self._nowhere:
            self._nowhere[kind] = self._explained(blank, pending, frozenset(able))
        known, text = self._nowhere[kind]
        reason = msgspec.structs.replace(text, namespace=pending.namespace, name=pending.name, uid=pending.uid)
        return msgspec.structs.replace(known, namespace=blank.namespace, pod=blank.pod, notes=blank.notes, why=reason)

    def _explained(self, blank: Trial, pending: Pending, able: frozenset[str]) -> tuple[Trial, Why]:
        cluster = self._cluster
        reason = judge_rules(cluster, pending, why_pending(cluster.scheduler, pending, 0.0))
        away = tuple(node.node for node in reason.nodes if node.reason == NOT_ALLOWED)
        lacks = tuple(node.node for node in reason.nodes if node.reason == FITS and node.node not in able)
        later = [node.node for node in reason.nodes if node.reason in LATER and node.node in able]
        *_, preemption = find_preemption(cluster.scheduler, pending, later)
        numbers = tuple(self._numbers.setdefault(one, len(self._numbers)) for one in _verdicts(reason.nodes))
        membership = msgspec.structs.replace(
            blank, verdicts=numbers, lacks_resources=lacks, not_allowed=away, preemption=preemption
        )
        return membership, msgspec.structs.replace(reason, nodes=[])


def _verdicts(nodes: Sequence[NodeWhy]) -> Iterator[Verdict]:
    alike: dict[tuple[str, str, str], list[str]] = {}
    for node in nodes:
        alike.setdefault((node.reason, node.text, node.detail), []).append(node.node)
    for (reason, text, detail), names in alike.items():
        yield Verdict(reason=reason, text=text, detail=detail, nodes=tuple(names))


def _priority(pod: Pod | RefusedPod) -> int:
    return pod.pod.spec.priority if isinstance(pod, RefusedPod) else pod.spec.priority


def _with_uid(pod: Pod, number: int) -> Pod:
    """Return the pod with a made-up uid: a pod that does not exist has none, but the ledger needs one for each pod."""
    metadata = msgspec.structs.replace(pod.metadata, uid=f"{_PREFIX}{number}")
    return msgspec.structs.replace(pod, metadata=metadata)


def _notes(pod: Pod) -> Iterator[str]:
    if pod.spec.scheduler_name != SCHEDULER:
        written = pod.spec.scheduler_name or "none"
        yield f"schedulerName is {written}; devices are given by {SCHEDULER}"
    if pod.spec.node_name:
        yield f"nodeName is {pod.spec.node_name}: no scheduler would be asked, and the pod would come without devices"
