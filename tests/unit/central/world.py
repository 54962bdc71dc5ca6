"""Drive the scheduler with its ledger and feeds by hand: no API server, no event loop, and a clock that the test sets."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import AsyncMock

import msgspec

from central.api.cached_objects import Ident
from central.api.objects import Node
from central.controllers.conditions import Conditions
from central.controllers.informer import DevicesFeed, NodeFeed, PodFeed
from central.controllers.requeue import Requeuer
from central.decide.filtered import Filtered
from central.decide.preempt import Plan, plans
from central.decide.scheduler import Reservation, Scheduler
from central.decide.victims import Protection
from central.ledger.ledger import Ledger
from central.ledger.model import Claim
from central.loop.steps import exhaust
from central.rank.forecast import Forecast
from central.request.model import Policy
from central.request.pod import Pod
from central.state.pending import Pending, PendingPods
from lading.nodedevices import NodeDevices
from lading.vocabulary import ASSIGNMENT, PodUid
from tests.fakes.kube_objects import NAMESPACE, WHOLE, Json, decoded, devices, node, pod
from tests.fakes.records import Records
from tests.fakes.simulated_time import run_simulated

MOST_COMPARED: Final = 100  # the comparison takes time with the number of pods


def uid_of(name: str) -> PodUid:
    return PodUid(f"uid-{name}")


@dataclass
class World:
    """Hold a cluster in memory. Every object that the scheduler receives gets the next version."""

    policy: Policy = Policy.BINPACK
    forecast: Forecast | None = None
    now: float = 0.0
    slice_s: float = math.inf  # 0: one node is judged in each call
    version: int = 0
    pods: dict[str, Json] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)  # pods for whom preemption was asked
    unassigned: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger()
        self.pending = PendingPods()
        self.conditions = Conditions()
        self.records = Records()
        self.scheduler = Scheduler(
            self.ledger,
            self.pending,
            clock=lambda: self.now,
            policy=self.policy,
            forecast=self.forecast,
            refused=lambda pod, names: self.refused.append(pod.name),
            slice_s=self.slice_s,
        )
        self.quotas = self.scheduler.quotas
        self.requeuer = Requeuer(self.scheduler, AsyncMock(), clock=lambda: self.now, log=self.records.log)
        self.pod_feed = PodFeed(self.ledger, self.pending, self.conditions, log=self.records.log, unassigned=self._unassigned)
        self.devices_feed = DevicesFeed(self.ledger)
        self.node_feed = NodeFeed(self.ledger)

    def _unassigned(self, pod: Pod) -> None:
        self.unassigned.append(pod.metadata.name)

    def next_version(self) -> int:
        self.version += 1
        return self.version

    @classmethod
    def of(cls, **cards: int) -> "World":
        """Create nodes by name, with so many cards each."""
        world = cls()
        for name, gpus in cards.items():
            world.node(name, gpus)
        return world

    # ---- what the API server says

    def node(self, name: str, gpus: int = 1, vfs: int = 0, *, ready: bool = True, **options: Any) -> None:
        self.report(name, gpus, vfs, **options)
        self.readiness(name, ready)

    def report(self, name: str, gpus: int = 1, vfs: int = 0, **options: Any) -> None:
        report = devices(name, gpus, vfs, version=self.next_version(), **options)
        self.devices_feed.changed(msgspec.convert(report, NodeDevices))

    def readiness(
        self, name: str, ready: bool, *, allocatable: Mapping[str, str] | None = None, boot_id: str | None = None
    ) -> None:
        text = node(name, ready=ready, allocatable=allocatable)
        if boot_id is not None:
            text["status"]["nodeInfo"] = {"bootID": boot_id}
        text["metadata"]["resourceVersion"] = str(self.next_version())
        self.node_feed.changed(msgspec.convert(text, Node))

    def cordon(self, name: str) -> None:
        text = node(name, cordoned=True)
        text["metadata"]["resourceVersion"] = str(self.next_version())
        self.node_feed.changed(msgspec.convert(text, Node))

    def show(self, name: str, limits: Mapping[str, str] = WHOLE, **options: Any) -> Pod:
        """Show the pod in the watch in its present state."""
        made = self.pods[name] = pod(name, limits, version=self.next_version(), **options)
        shown = decoded(made)
        self.pod_feed.changed(shown)
        return shown

    def deleted(self, name: str, *, forced: bool = False) -> None:
        """Delete the pod: first with a deletionTimestamp, then completely, as a node ends it; `forced`: at once."""
        made = self.pods.pop(name, None)
        if made is not None and not forced:
            made["metadata"] |= {"deletionTimestamp": "2026-11-21T00:00:00Z", "resourceVersion": str(self.next_version())}
            self.pod_feed.changed(decoded(made))
        self.pod_feed.removed(Ident(NAMESPACE, name, uid_of(name)), str(self.next_version()))

    # ---- what kube-scheduler asks

    def filter(self, name: str, *names: str) -> Filtered:
        """Return the answer to kube-scheduler's filter call, once applied. The decision alone must change nothing, which is
        checked for MOST_COMPARED pods and fewer."""
        compared = len(self.pods) <= MOST_COMPARED
        before = self._state() if compared else ()
        decision = self.scheduler.decide(decoded(self.pods[name]), list(names or self.ledger.nodes()))
        assert not compared or self._state() == before
        self.scheduler.apply(decision)
        return decision.answer

    def ask(self, name: str, *names: str, limits: Mapping[str, str] = WHOLE, **options: Any) -> Filtered:
        """Show the pod, and return the answer to kube-scheduler's filter call about these nodes, or about all."""
        self.show(name, limits, **options)
        return self.filter(name, *names)

    def _state(self) -> tuple[object, ...]:
        """Return everything that a filter call may change."""
        one, uids = self.scheduler, [uid_of(name) for name in self.pods]
        claims = [one.ledger.own_claim(uid, kind) for uid in uids for kind in Claim]
        loads = [one.ledger.expected_on(uid) for uid in uids]
        gangs = [(gang, [dict(one.gangs.calls.names(uid)) for uid in gang.members]) for gang in one.gangs]
        counts = one.ledger.version, one.ledger.loads_version, one.forecast.learned, dict(one.counts.refused)
        return claims, loads, gangs, counts, [repr(pod) for pod in self.pending], list(one.unfinished)

    def preempt(self, pod: Pod, victims: Mapping[str, Collection[PodUid]]) -> list[str]:
        suffice: list[str] = []
        exhaust(self.scheduler.preempting(pod, victims, suffice))
        return suffice

    def requeued(self) -> list[str]:
        """Return the pods that the next scan of the requeuer patches."""
        return [pod.name for pod in run_simulated(self.requeuer.scan())]

    def pending_pod(self, name: str) -> Pending:
        result = self.pending.get(uid_of(name))
        assert result is not None
        return result

    def is_refused(self, name: str) -> bool:
        return self.pending_pod(name).refused_at is not None

    def plan(self, pod: Pending, names: Collection[str], *, spared: frozenset[PodUid] = frozenset()) -> Plan | None:
        """Return the victims that a preemption would choose."""
        return [None, *plans(self.scheduler, pod, names, Protection(spared=spared))][-1]

    # ---- a pod that is bound, in one step

    def bind(self, name: str, node: str, limits: Mapping[str, str] = WHOLE, **options: Any) -> Reservation:
        """Show, filter, reserve and confirm the pod, and show it as bound."""
        self.show(name, limits, **options)
        self.filter(name, node)
        reserved = self.scheduler.reserve(uid_of(name), node)
        assert isinstance(reserved, Reservation), reserved
        self.scheduler.confirm(reserved)
        annotations = {**options.pop("annotations", {}), ASSIGNMENT: reserved.assignment}
        self.show(name, limits, node=node, annotations=annotations, **options)
        return reserved

    def is_free(self, node: str) -> bool:
        """Return whether all cards and VFs of the node are free."""
        capacity = self.ledger.capacity(node)
        return all(card.free for card in capacity.cards) and all(vf.free for vf in capacity.vfs)
