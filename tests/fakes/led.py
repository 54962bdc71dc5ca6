"""Run one leadership of central on the fake API server, in simulated time. The test acts as kube-scheduler.

After `pause` all watches have received all changes, because sockets are served before time moves.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from central.controllers import admission_checks, gangs, requeue
from central.controllers.gangs import FINISH_S
from central.controllers.share_bypass import Bypassed
from central.daemon.keys import Signer
from central.daemon.leadership import Leadership
from central.decide.gangs import ALL_DEVICES
from central.request.model import Policy
from central.request.pod import Pod
from lading.kube.client import KubeClient
from lading.kube.config import open_access
from lading.vocabulary import ASSIGNMENT, RESOURCE_GPU, PodUid
from tests.fakes.kube_objects import (
    WHOLE,
    Json,
    budget,
    budget_path,
    devices,
    devices_path,
    elastic_quota,
    node,
    node_path,
    pod,
    pod_path,
    quota_path,
)
from tests.fakes.kube_server import FakeKubeServer, Request
from tests.fakes.records import Records

REFUSED = "refused"  # filter named no node


@dataclass
class Led:
    server: FakeKubeServer
    client: KubeClient
    signer: Signer | None = None
    records: Records = field(default_factory=Records)
    leads: bool = True
    foreign: frozenset[str] = frozenset()
    patience_s: float = 0.0
    bypassed: Bypassed = Bypassed.REPORT
    quota_delay_s: float = 0.0
    plan_share: Fraction = ALL_DEVICES
    finish_s: float = FINISH_S
    policy: Policy = Policy.BINPACK
    page: bool = False

    def make_leadership(self) -> Leadership:
        clock = asyncio.get_running_loop().time
        return Leadership(
            self.client,
            self.signer,
            policy=self.policy,
            leads=lambda: self.leads,
            clock=clock,
            log=self.records.log,
            foreign=self.foreign,
            patience_s=self.patience_s,
            plan_share=self.plan_share,
            finish_s=self.finish_s,
            bypassed=self.bypassed,
            quota_delay_s=self.quota_delay_s,
            page=self.page,
        )

    async def begin(self) -> None:
        """Begin a new leadership, as a new process would."""
        self.leadership = self.make_leadership().begin()
        async with asyncio.timeout(60):  # a machine that does much else is slower
            while not self.leadership.ready:
                await self.pause()

    async def lead_again(self) -> None:
        """End the leadership, and begin another one."""
        await self.leadership.end()
        await self.begin()

    async def pause(self, seconds: float = 0.01) -> None:
        await asyncio.sleep(seconds)

    # ---- what others do to the cluster

    async def put_node(
        self,
        name: str,
        gpus: int = 1,
        vfs: int = 0,
        *,
        allocatable: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[str] = (),
        cordoned: bool = False,
        **options: Any,
    ) -> None:
        made = node(name, allocatable=allocatable, labels=labels, taints=taints, cordoned=cordoned)
        await self.server.put(node_path(name), made)
        await self.report(name, gpus, vfs, **options)

    async def report(self, name: str, gpus: int = 1, vfs: int = 0, **options: Any) -> None:
        await self.server.put(devices_path(name), devices(name, gpus, vfs, **options))
        await self.pause()

    async def put_pod(self, name: str, limits: Mapping[str, str] = WHOLE, **options: Any) -> None:
        await self.server.put(pod_path(name), pod(name, limits, **options))
        await self.pause()

    async def put_budget(self, name: str, labels: Mapping[str, str], allowed: int = 0) -> None:
        await self.server.put(budget_path(name), budget(name, labels, allowed))
        await self.pause()

    async def put_quota(self, name: str, *, least: int = 0, most: int = 100, flat: bool = False, **options: Any) -> None:
        """Put a quota of cards."""
        made = elastic_quota(name, {RESOURCE_GPU: str(least)}, {RESOURCE_GPU: str(most)}, **options)
        await self.server.put(quota_path(name, flat=flat), made)
        await self.pause()

    async def put_quotas(self, names: str, *, least: int = 0, most: int = 100, **options: Any) -> None:
        """Put a quota of cards for each letter, and wait until central counts them."""
        for name in names:
            await self.put_quota(name, least=least, most=most, **options)
        await self.pause(2)

    async def remove_pod(self, name: str, *, forced: bool = False) -> None:
        """Delete it, and remove it, as its node does; `forced`: at once."""
        if not forced:
            deleted = self.json(name)
            deleted["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
            await self.server.put(pod_path(name), deleted)
        await self.server.remove(pod_path(name))
        await self.pause()

    # ---- what kube-scheduler does

    def json(self, name: str) -> Json:
        return self.server.objects[pod_path(name)]

    def shown(self, name: str) -> Pod:
        return msgspec.convert(self.json(name), Pod)

    def uid(self, name: str) -> PodUid:
        return self.shown(name).metadata.uid

    def filter(self, name: str, *names: str) -> list[str]:
        result = self.leadership.scheduler.filter(self.shown(name), list(names or self.node_names()))
        return list(result.fitting)

    async def bind(self, name: str, node: str) -> str:
        return await self.leadership.bind(self.uid(name), node)

    async def schedule(self, name: str) -> str:
        """Filter, prioritize (of several), bind: empty, or why not."""
        fits = self.filter(name)
        best = self.leadership.scheduler.prioritize(self.shown(name), fits) if len(fits) > 1 else next(iter(fits), None)
        return await self.bind(name, best) if best else REFUSED

    async def place(self, name: str, limits: Mapping[str, str] = WHOLE, *, on: str = "", **options: Any) -> None:
        """Create a pod, and bind it to the best node, or to the named one."""
        await self.put_pod(name, limits, **options)
        if on:
            assert self.filter(name, on) == [on]
        assert (await self.bind(name, on) if on else await self.schedule(name)) == ""
        await self.pause()

    async def refuse(self, name: str, limits: Mapping[str, str] = WHOLE, **options: Any) -> None:
        """Create a pod that fits on no node, and let kube-scheduler ask about it."""
        await self.put_pod(name, limits, **options)
        assert await self.schedule(name) == REFUSED

    # ---- what there is then

    def node_names(self) -> list[str]:
        return [path.rpartition("/")[2] for path in self.server.objects if path.startswith(node_path(""))]

    def assigned(self, name: str) -> list[str]:
        """Return the cards of a bound pod by its annotation."""
        text = self.json(name)["metadata"].get("annotations", {}).get(ASSIGNMENT, '{"containers":{}}')
        message = msgspec.json.decode(text)
        return [gpu["uuid"] for container in message["containers"].values() for gpu in container.get("gpus", [])]

    def bound_to(self, name: str) -> str:
        return str(self.json(name)["spec"].get("nodeName", ""))

    def free_cards(self, node: str = "n1") -> int:
        return sum(card.free for card in self.leadership.ledger.capacity(node).cards)

    def sent(self, ending: str) -> list[Request]:
        return [request for request in self.server.requests if request.path.endswith(ending) and request.method != "GET"]


def is_binding(request: Request) -> bool:
    return request.path.endswith("/binding")


def is_touch(request: Request) -> bool:
    return request.method == "PATCH" and request.path.endswith("/status")


@contextlib.contextmanager
def rare_scans() -> Iterator[None]:
    """Let the controllers scan only once a second, so that a test in which many minutes pass takes less time."""
    with contextlib.ExitStack() as stack:
        for controller in (admission_checks, gangs, requeue):
            stack.enter_context(patch.object(controller, "SCAN_S", 1.0))
        yield


@contextlib.asynccontextmanager
async def led(folder: Path, **settings: Any) -> AsyncIterator[Led]:
    """Lead a cluster with one node and one card. `settings`: fields of Led. At the end, no task may be left."""
    async with FakeKubeServer() as server:
        server.grace = True
        access = open_access(server.write_kubeconfig(folder / "kubeconfig"))
        async with KubeClient(access, user_agent="lading-test") as client:
            cluster = Led(server, client, **settings)
            await cluster.put_node("n1")
            await cluster.begin()
            try:
                yield cluster
            finally:
                await cluster.leadership.end()
    assert asyncio.all_tasks() == {asyncio.current_task()}
