"""One leadership: the ledger and everything that reads and writes it, made when it begins, thrown away when it ends.

Nothing is kept from one term to the next, because another leader may have assigned in between: the ledger is rebuilt from
consistent lists, and only then are kube-scheduler's questions answered (`ready`).
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Self

import msgspec

from central.api.objects import Node
from central.api.watch import Reflector
from central.ask.model import Policy
from central.ask.pod import Pod
from central.bind.binder import Binder
from central.bind.signer import Signer
from central.evict import Evictor
from central.extender.wire import BindArgs
from central.feed import DevicesFeed, NodeFeed, PodFeed
from central.ledger.ledger import Ledger
from central.pending import PendingPods
from central.scheduler import Scheduler
from central.touch import Toucher
from central.wake import Waker
from central.why import why_pending
from lading.kube.client import KubeClient
from lading.kube.resource import NODE_DEVICES, NODES, PODS
from lading.log import Event, Log
from lading.nodedevices import NodeDevices

EXPIRE_S = 0.5  # between two looks at what is held for a moment


class Term:
    """Begins with `begin`, ends with `end`."""

    def __init__(
        self,
        client: KubeClient,
        signer: Signer | None,
        *,
        policy: Policy,
        leads: Callable[[], bool],
        clock: Callable[[], float],
        log: Log,
    ) -> None:
        self.ledger = Ledger()
        self.pending = PendingPods()
        self.scheduler = Scheduler(self.ledger, self.pending, clock=clock, policy=policy)
        self._clock = clock
        self._log = log
        touch = Toucher(client, now=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
        self._binder = Binder(self.scheduler, client, signer, touch=touch, leads=leads, log=log)
        self._waker = Waker(self.scheduler, touch, log=log)
        self._evictor = Evictor(self.scheduler, client, signer, clock=clock, log=log)
        self.scheduler.on_refused = self._evictor.refused
        self._pods = Reflector(
            client, PODS, Pod, PodFeed(self.ledger, self.pending, log=log, unassigned=self._unassigned), log=log
        )
        self._devices = Reflector(client, NODE_DEVICES, NodeDevices, DevicesFeed(self.ledger), log=log)
        self._nodes = Reflector(client, NODES, Node, NodeFeed(self.ledger), log=log)
        self.tasks: list[asyncio.Task[None]] = []  # that never end by themselves
        self._said: set[str] = set()

    @property
    def ready(self) -> bool:
        """Every list is there: who holds what is known."""
        return all(reflector.synced.is_set() for reflector in (self._pods, self._devices, self._nodes))

    def begin(self) -> Self:
        loop = asyncio.get_running_loop()
        work = (self._pods.run, self._devices.run, self._nodes.run, self._expire)
        self.tasks = [loop.create_task(run()) for run in work]
        self.tasks.append(loop.create_task(self._when_ready()))
        return self

    async def end(self) -> None:
        """A Binding that is under way is left to whoever leads next."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self._evictor.close()
        await self._binder.close()

    async def _when_ready(self) -> None:
        for reflector in (self._pods, self._devices, self._nodes):
            await reflector.synced.wait()
        self._log.info(Event.LEADER_STARTED, "answers", nodes=len(self.ledger.nodes()), pending=len(self.pending))
        async with asyncio.TaskGroup() as both:
            both.create_task(self._waker.run())
            both.create_task(self._evictor.run())

    async def _expire(self) -> None:
        while True:
            self.ledger.expire(self._clock())
            await asyncio.sleep(EXPIRE_S)

    def _unassigned(self, pod: Pod) -> None:
        """Once a pod: it runs without the devices that it asks for, or is refused by its node."""
        if pod.metadata.uid in self._said:
            return
        self._said.add(pod.metadata.uid)
        fields = {"namespace": pod.metadata.namespace, "pod": pod.metadata.name, "pod_uid": pod.metadata.uid}
        why = "it asks for devices and was bound without an assignment; set schedulerName: lading and no nodeName"
        self._log.error(Event.POD_UNASSIGNED, why, **fields, node=pod.spec.node_name, scheduler=pod.spec.scheduler_name)

    async def bind(self, args: BindArgs) -> str:
        """Empty, or why not."""
        return await self._binder.bind(args)

    def why(self, namespace: str, name: str) -> bytes | None:
        """JSON; None for a pod that does not wait for devices."""
        for pod in self.pending:
            if (pod.namespace, pod.name) == (namespace, name):
                return msgspec.json.encode(why_pending(self.scheduler, pod, self._clock()))
        return None
