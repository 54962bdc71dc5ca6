"""Hold one leadership: the ledger and all tasks that read or write it, from the leadership's begin to its end.

Nothing is kept from one leadership to the next, because another leader may have assigned devices in between. The ledger is
rebuilt from consistent lists, and only then are kube-scheduler's requests answered (`ready`).
"""

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from fractions import Fraction
from functools import partial
from typing import Final, Self, TypeVar

import msgspec

from central.api.decoded import Named
from central.api.kueue import AdmissionCheck, ResourceFlavor, Workload
from central.api.objects import Node
from central.api.pod_groups import GANG_KINDS, PodGroup
from central.api.times import time_now
from central.api.watch import Reflector, Sink, Sinks
from central.assignment.networks import VfNetwork
from central.controllers.admission_checks import (
    AdmissionChecks,
    NamedFeed,
    PlaceFeed,
    Queued,
    WorkloadFeed,
    is_ours,
)
from central.controllers.binder import Binder
from central.controllers.conditions import Conditions
from central.controllers.device_health import Warner
from central.controllers.event_reasons import EventReason
from central.controllers.events import EventRecorder
from central.controllers.evict import Evictor
from central.controllers.gangs import FINISH_S, GangFeed, GangKeeper, GangObjectFeed
from central.controllers.gpu_hours import GpuHours, UseFeed
from central.controllers.informer import BudgetFeed, DevicesFeed, NodeFeed, PodFeed
from central.controllers.patience import Patience
from central.controllers.quotas import QUOTA_RESOURCES, QuotaFeed, QuotaWriter, keep_quotas
from central.controllers.requeue import Requeuer, touch_pod
from central.controllers.share_bypass import Bypassed, BypassEnder, BypassFeed
from central.controllers.statistics import ClusterStatistics
from central.controllers.take_back import TakeBack
from central.daemon.keys import Signer
from central.decide.configuration import effective_configuration
from central.decide.gangs import ALL_DEVICES, GangPlanner
from central.decide.scheduler import Scheduler
from central.decide.why_pod import NodeWhy, judge_nodes, why_by_nodes
from central.decide.workloads import WorkloadPlanner
from central.gang.life import Phase
from central.gang.workload_places import WorkloadPlaces
from central.ledger.ledger import Ledger
from central.ledger.model import Holder
from central.loop.faults import Faults, Work
from central.loop.slices import SLICE_S, Slices, in_slices
from central.loop.steps import Steps
from central.page.live import Live
from central.quota.objects import ElasticQuota
from central.rank.forecast import Forecast
from central.request.model import DeviceRequest, Policy
from central.request.parse import OWN_ONLY, Dialects, parse_request
from central.request.pod import Pod, without_annotations
from central.search.demand import DEFAULT_LIMITS, Limits
from central.state.budgets import Budget
from central.state.counts import Counts
from central.state.node_reports import Reports
from central.state.nodes import CACHED_KEYS, Nodes
from central.state.observed_pods import ObservedPods
from central.state.pending import Pending, PendingPods
from central.view.quotas import view_quotas
from lading.kube.client import KubeClient
from lading.kube.resource import ADMISSION_CHECKS, BUDGETS, FLAVORS, NODE_DEVICES, NODES, PODS, WORKLOADS, Resource
from lading.log import Event, Log
from lading.nodedevices import NodeDevices
from lading.vocabulary import PodUid

EXPIRE_S: Final = 0.5  # seconds between two removals of expired claims
# One filter, prioritize or preempt judges nodes for at most this long: kube-scheduler schedules no other pod meanwhile, and
# gives up after 5 s. 5,000 nodes without common states take 0.4 s for a GPU with a VF.
REQUEST_S: Final = 0.2

T = TypeVar("T", bound=Named)
Watch = (
    Reflector[Pod]
    | Reflector[NodeDevices]
    | Reflector[Node]
    | Reflector[Budget]
    | Reflector[ElasticQuota]
    | Reflector[PodGroup]
)


class Leadership:
    """Run one leadership, from `begin` to `end`."""

    def __init__(
        self,
        client: KubeClient,
        signer: Signer | None,
        *,
        policy: Policy,
        forecast: Forecast | None = None,
        limits: Limits = DEFAULT_LIMITS,
        leads: Callable[[], bool],
        clock: Callable[[], float],
        log: Log,
        network: VfNetwork | None = None,
        foreign: frozenset[str] = frozenset(),
        dialects: Dialects = OWN_ONLY,
        page: bool = False,
        counts: Counts | None = None,
        patience_s: float = 0.0,
        plan_share: Fraction = ALL_DEVICES,
        finish_s: float = FINISH_S,
        topology_keys: Iterable[str] = CACHED_KEYS,
        bypassed: Bypassed = Bypassed.REPORT,
        quota_status: bool = True,
        quota_delay_s: float = 0.0,
    ) -> None:
        """Create a leadership. `counts` belong to the process, and continue in its next leadership. `foreign`: annotations that
        are not read. `dialects`: how pods may request devices."""
        self._foreign = foreign
        counts = Counts() if counts is None else counts
        self.faults = faults = Faults(clock=clock, log=log, counts=counts.exceptions)
        self.ledger = Ledger()
        self.pending = PendingPods()
        nodes = Nodes(topology_keys)
        self.scheduler = Scheduler(
            self.ledger,
            self.pending,
            clock=clock,
            policy=policy,
            limits=limits,
            forecast=forecast,
            refused=self._make_room,
            counts=counts,
            dialects=dialects,
            slice_s=SLICE_S,
            domains=nodes.domains,
        )
        self.gangs, self.quotas = self.scheduler.gangs, self.scheduler.quotas
        self.statistics = ClusterStatistics(self.ledger, self.scheduler.forecast, clock=clock, faults=faults)
        self._leads = leads
        self._over = self._warm = False
        self._clock = clock
        self._log = log
        touch = partial(touch_pod, client)
        self._recorder = EventRecorder(client, now=time_now, log=log, faults=faults)
        self._binder = Binder(
            self.scheduler,
            client,
            signer.sign if signer else None,
            touch=touch,
            leads=self.leads,
            log=log,
            network=network,
            faults=faults,
        )
        self._requeuer = Requeuer(self.scheduler, touch, clock=clock, log=log, faults=faults)

        def watch(resource: Resource, kind: type[T], sink: Sink[T], *, optional: bool = False) -> Reflector[T]:
            return Reflector(client, resource, kind, sink, log=log, optional=optional, faults=faults)

        budgets = BudgetFeed()
        self._budgets = watch(BUDGETS, Budget, budgets)
        self._evictor = Evictor(
            self.scheduler,
            client,
            budgets=lambda: budgets.budgets() if self._budgets.synced.is_set() else None,
            leads=self.leads,
            record_event=self._recorder.record,
            clock=clock,
            log=log,
            faults=faults,
        )
        self._take_back = TakeBack(self.scheduler, self._evictor, delay_s=quota_delay_s, clock=clock, log=log, faults=faults)
        planner = GangPlanner(self.scheduler, nodes, plan_share=plan_share)
        self._gang_keeper = GangKeeper(
            self.scheduler,
            planner,
            requeue=self._requeuer.want,
            evictions=self._evictor,
            take_back=self._take_back,
            patience_s=patience_s,
            finish_s=finish_s,
            clock=clock,
            log=log,
            faults=faults,
        )
        self._patience = Patience(self.scheduler, nodes, patience_s=patience_s, clock=clock, log=log, faults=faults)
        conditions = Conditions()
        self._warner = Warner(
            self.ledger,
            conditions,
            client,
            leads=self.leads,
            record_event=self._recorder.record,
            clock=clock,
            now=time_now,
            log=log,
            faults=faults,
        )
        queued = Queued(WorkloadPlaces(self.ledger, clock=clock))
        accepts = signer.accepts if signer else lambda text, signature: True
        feed = PodFeed(
            self.ledger, self.pending, conditions, log=log, unassigned=self._unassigned, accepts=accepts, dialects=dialects
        )
        self.observed_pods = ObservedPods(self.ledger.is_settled, dialects)
        self._pods = Reflector(
            client,
            PODS,
            Pod,
            Sinks(
                feed,
                GangFeed(self.scheduler.starts, self.ledger, finish_s=finish_s, dialects=dialects),
                PlaceFeed(queued.places),
                self.observed_pods,
            ),
            log=log,
            read=lambda pod: without_annotations(pod, foreign),
            prepare=feed.verify,
            clock=clock,
            faults=faults,
        )
        reports = Reports() if page else None
        self.live = None if reports is None else Live(self.scheduler, reports, clock=clock)
        bypasses, use = BypassFeed(), UseFeed()
        self._bypass_ender = BypassEnder(
            self.ledger,
            bypasses,
            what=bypassed,
            evict=self._evictor.evict,
            record_event=self._recorder.record,
            leads=self.leads,
            clock=clock,
            faults=faults,
        )
        self.gpu_hours = GpuHours(self.ledger, self.pending, use, clock=clock, faults=faults)
        devices = Sinks(DevicesFeed(self.ledger, reports), bypasses, use)
        self._devices = watch(NODE_DEVICES, NodeDevices, devices)
        self._nodes = watch(NODES, Node, NodeFeed(self.ledger, nodes))
        self._gang_watches = tuple(
            watch(kind.resource, PodGroup, GangObjectFeed(self.scheduler.starts, kind), optional=True) for kind in GANG_KINDS
        )
        self._kueue = (
            watch(ADMISSION_CHECKS, AdmissionCheck, NamedFeed(AdmissionCheck, queued.checks, is_ours), optional=True),
            watch(FLAVORS, ResourceFlavor, NamedFeed(ResourceFlavor, queued.flavors), optional=True),
            watch(WORKLOADS, Workload, WorkloadFeed(queued), optional=True),
        )
        self._admission = AdmissionChecks(
            queued,
            WorkloadPlanner(planner, chosen=nodes.chosen, flavor=queued.flavor_labels),
            client,
            ready=lambda: all(watch.synced.is_set() for watch in self._kueue),
            leads=self.leads,
            clock=clock,
            now=time_now,
            log=log,
            faults=faults,
        )
        quota_feeds = {dialect: QuotaFeed(self.quotas, dialect) for dialect in QUOTA_RESOURCES}
        self._quota_watches = tuple(
            watch(QUOTA_RESOURCES[dialect], ElasticQuota, feed, optional=True) for dialect, feed in quota_feeds.items()
        )
        writer = QuotaWriter(self.quotas, quota_feeds, client, leads=self.leads, clock=clock, log=log, faults=faults)
        self._quota_writers = (writer,) if quota_status else ()
        self.tasks: list[asyncio.Task[None]] = []  # tasks that never end by themselves

    @property
    def ready(self) -> bool:
        """Return whether every list and every node was read, so that the ledger has every held device."""
        return self._warm

    @property
    def watches(self) -> tuple[Watch, ...]:
        """Return the watches of kinds that the API server knows."""
        return *self._needed, self._budgets, *(watch for watch in self._quota_watches if not watch.absent)

    @property
    def _needed(self) -> tuple[Reflector[Pod], Reflector[NodeDevices], Reflector[Node]]:
        """Return the watches without which no pod can be placed. Disruption budgets are not among them: without the right to
        read them central places pods, but evicts none for another one."""
        return self._pods, self._devices, self._nodes

    @property
    def unclear_bindings(self) -> int:
        return self._binder.unclear

    @property
    def gang_phases(self) -> Counter[Phase]:
        """Return the number of gangs by phase. Each gang's phase is that of its last visit."""
        return Counter(self._gang_keeper.phases.values())

    def leads(self) -> bool:
        """Return whether this leadership may write now. It is over for good once stopped, even if the process leads again."""
        return not self._over and self._leads()

    def begin(self, *, after_s: float = 0.0) -> Self:
        """Begin the leadership. `after_s`: seconds until this process' earlier Bindings are certainly over, so that the lists
        show them."""
        loop = asyncio.get_running_loop()
        watches: tuple[Watch, ...] = (*self._needed, self._budgets, *self._quota_watches, *self._gang_watches)
        for watch in (*watches, *self._kueue):
            kept = self.faults.keep(Work.WATCH, partial(_later, after_s, watch.run), name=watch.resource)
            self.tasks.append(loop.create_task(kept))
        for part, run in (
            (Work.EXPIRY, self._expire),
            (Work.EVENTS, self._recorder.run),
            (Work.START, self._when_ready),
        ):
            self.tasks.append(loop.create_task(self.faults.keep(part, run)))
        return self

    def stop(self) -> None:
        """Stop all writes at once. The caller must call `end` next."""
        self._over = True

    async def end(self) -> bool:
        """End the leadership. Bindings under way are left to the next leader. Return whether there are none."""
        self.stop()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self._evictor.close()
        gc.unfreeze()  # the garbage collector may free this leadership's objects
        return await self._binder.close()

    async def _when_ready(self) -> None:
        for reflector in self._needed:
            await reflector.synced.wait()
        for watch in self._quota_watches:  # else pods would be admitted beyond their quota
            await watch.settled.wait()
        with self.faults.handling(Work.START, "nodes"):  # after an error, the first request reads the other nodes
            await in_slices(self.scheduler.warming(), self._clock)
        with self.faults.handling(Work.QUOTAS, ""):
            await in_slices(self.quotas.scan(), self._clock)
        self._warm = True
        for pod in self.pending:  # pods that an earlier leader refused must be requeued: kube-scheduler does not retry them
            self.pending.refused(pod, self._clock())
        self._log.info(Event.LEADER_STARTED, "answers", nodes=len(self.ledger.nodes()), pending=len(self.pending))
        gc.freeze()  # else each full garbage collection visits all objects that were read: 0.3 s for 5,000 nodes
        async with asyncio.TaskGroup() as group:
            for part, run in (
                (Work.REQUEUE, self._requeuer.run),
                (Work.EVICTIONS, self._evictor.run),
                (Work.GANGS, self._gang_keeper.run),
                (Work.PATIENCE, self._patience.run),
                (Work.DEVICE_HEALTH, self._warner.run),
                (Work.SHARE_BYPASS, self._bypass_ender.run),
                (Work.ADMISSION_CHECKS, self._admission.run),
                (Work.QUOTAS, lambda: keep_quotas(self.quotas, self._clock)),
                (Work.TAKE_BACK, self._take_back.run),
                *((Work.QUOTA_STATUS, writer.run) for writer in self._quota_writers),
                (Work.STATISTICS, self._count_cluster),
                (Work.GPU_HOURS, self.gpu_hours.run),
            ):
                group.create_task(self.faults.keep(part, run))

    async def _count_cluster(self) -> None:
        await self.statistics.scan(rest_s=0.0)
        gc.freeze()  # freezes each node's NodeCapacity too, which the first count created
        await self.statistics.run()

    async def _expire(self) -> None:
        while True:
            self.ledger.expire(self._clock())
            await asyncio.sleep(EXPIRE_S)

    def _make_room(self, pod: Pending, names: Sequence[str]) -> None:
        self._evictor.refused(pod, names)
        self._patience.refused(pod, names)
        self._take_back.refused(pod, names)

    def _unassigned(self, pod: Pod) -> None:
        """Report a pod that was bound without an assignment: it runs without its devices, or its node refuses it."""
        metadata, spec = pod.metadata, pod.spec
        reason = "it asks for devices and was bound without an assignment; set schedulerName: lading and no nodeName"
        fields = {"namespace": metadata.namespace, "pod": metadata.name, "pod_uid": metadata.uid}
        self._log.error(Event.POD_UNASSIGNED, reason, **fields, node=spec.node_name, scheduler=spec.scheduler_name)
        if self.leads():
            holder = Holder(pod=metadata.uid, namespace=metadata.namespace, name=metadata.name)
            self._recorder.record(holder, EventReason.NO_ASSIGNMENT, reason)

    async def judge(self, steps: Steps) -> None:
        """Judge nodes in slices, for at most REQUEST_S."""
        await in_slices(steps, self._clock, until=self._clock() + REQUEST_S)

    async def bind(self, uid: PodUid, node: str) -> str:
        """Bind a pod. Return an empty text, or the reason for a refusal. kube-scheduler also sends pods that request an amount
        of 0."""
        if reason := await self._gang_keeper.arrive(uid, node):
            return reason
        pod = self.observed_pods.get(uid)
        request = None if pod is None else parse_request(pod, self.scheduler.dialects)
        if pod is not None and (request is None or (isinstance(request, DeviceRequest) and not request.containers)):
            return await self._binder.bind_plainly(pod, node)
        return await self._binder.bind(uid, node)

    def configuration(self) -> bytes:
        """Return the effective configuration as JSON."""
        return msgspec.json.encode(effective_configuration(self.scheduler, self._foreign))

    def quota_view(self) -> bytes:
        """Return the tree of quotas as JSON."""
        return msgspec.json.encode(view_quotas(self.quotas))

    async def why(self, namespace: str, name: str) -> bytes | None:
        """Return as JSON why a pod waits; None for a pod that does not wait for devices. Nodes are judged in slices, so that
        kube-scheduler's requests are answered meanwhile."""
        key = (namespace, name)
        pod = next((pod for pod in self.pending if (pod.namespace, pod.name) == key), None)
        if pod is None:
            return None
        slices, nodes = Slices(self._clock), list[NodeWhy]()
        for node in judge_nodes(self.scheduler, pod):
            nodes.append(node)
            await slices.pause()
        return msgspec.json.encode(why_by_nodes(self.scheduler, pod, self._clock(), nodes, self._evictor.protection()))


async def _later(after_s: float, run: Callable[[], Awaitable[None]]) -> None:
    await asyncio.sleep(after_s)
    await run()
