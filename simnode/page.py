"""Serve the page of lading-central for a simulated cluster, in which pods arrive and end.

    python -m simnode.page [--nodes 20]

Ledger, scheduler and server are real. API server, kube-scheduler and nodes are simulated by this program. Nodes report the
devices in simnode/nodedevices, each with its own UUIDs, and an invented use of their cards. Two runs with the same number of
steps show the same.
"""

import argparse
import asyncio
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from zlib import crc32

import msgspec

from central.api.cached_objects import Ident
from central.api.objects import Node
from central.controllers.conditions import Conditions
from central.controllers.informer import DevicesFeed, NodeFeed, PodFeed
from central.decide.configuration import effective_configuration
from central.decide.scheduler import Reservation, Scheduler
from central.ledger.ledger import Ledger
from central.loop.steps import exhaust
from central.page.live import Live
from central.page.routes import PageRoutes
from central.page.server import PageServer
from central.quota.amounts import CARD
from central.quota.model import ROOT, Quota, QuotaDialect, QuotaId
from central.request.model import Policy
from central.request.pod import Pod
from central.state.node_reports import Reports
from central.state.pending import PendingPods
from central.view.quotas import view_quotas
from lading.health import Address
from lading.log import Level, open_log
from lading.nodedevices import Grant, NodeDevices, Past, Status, Use
from lading.vocabulary import ASSIGNMENT, CORDON, PREFIX, RESOURCE_GPU, PodUid
from simnode.reported import read_status
from simulate.objects import render_devices
from simulate.trace import TraceNode

Json = dict[str, Any]

KINDS: Final = ("dgx-h100", "mn2a", "demo-8gpu", "pcie-8gpu", "dgx-a100", "mig", "workstation")
_SHORT: Final = {
    "dgx-h100": "h100",
    "mn2a": "a100",
    "demo-8gpu": "gpu",
    "pcie-8gpu": "l40s",
    "dgx-a100": "dgx",
    "workstation": "desk",
}
# Kinds of pods, and how often they come.
_ASKS: Final[tuple[tuple[int, str, Mapping[str, str]], ...]] = (
    (5, "serve", {"gpu-memory": "16Gi", "gpu-core": "30"}),
    (4, "notebook", {"gpu-memory": "8Gi"}),
    (3, "batch", {"gpu-core": "50"}),
    (4, "finetune", {"gpu": "1"}),
    (3, "train", {"gpu": "2", "rdma": "2"}),
    (2, "pretrain", {"gpu": "4", "rdma": "4"}),
    (1, "pretrain-large", {"gpu": "8", "rdma": "4"}),
)
NAMESPACES: Final = ("research", "vision", "speech", "default")


def gpu_quota(name: str, least: int, most: int, *, parent: str = ROOT, is_parent: bool = False) -> Quota:
    """Return a quota of cards, for the namespace of its name."""
    return Quota(
        id=QuotaId(name),
        dialect=QuotaDialect.KOORDINATOR,
        namespace="quotas",
        name=name,
        parent=QuotaId(parent),
        min={RESOURCE_GPU: least * CARD},
        max={RESOURCE_GPU: most * CARD},
        is_parent=is_parent,
        namespaces=() if is_parent else (name,),
    )


QUOTAS: Final = (
    gpu_quota("science", 40, 80, is_parent=True),
    gpu_quota("research", 16, 60, parent="science"),
    gpu_quota("vision", 16, 60, parent="science"),
    gpu_quota("speech", 30, 60),
    gpu_quota("robots", 8, 4),
)
FULL: Final = 0.8  # share of the cards above which more pods end than come


class SimCluster:
    """Simulate the API server and kube-scheduler: one pod at a time, bound at once."""

    def __init__(self, nodes: int) -> None:
        self.ledger = Ledger()
        self.pending = PendingPods()
        self.scheduler = Scheduler(self.ledger, self.pending, clock=time.monotonic, policy=Policy.FRAGMENTATION)
        self.quotas = self.scheduler.quotas
        self.reports = Reports()
        self.live = Live(self.scheduler, self.reports, clock=time.monotonic)
        self.pods: dict[str, Json] = {}  # bound pods, by name
        self._waiting: dict[str, Json] = {}  # pods that do not fit yet, by uid
        self._random = random.Random(1)  # noqa: S311 - a simulation
        self._version = 0
        self._number = 0
        self._node_feed = NodeFeed(self.ledger)
        self._devices_feed = DevicesFeed(self.ledger, self.reports)
        log = open_log("simnode-page", Level.ERROR)
        self._pod_feed = PodFeed(self.ledger, self.pending, Conditions(), log=log, unassigned=lambda pod: None)
        self._status: dict[str, Status] = {}
        self.grants: dict[str, dict[str, Sequence[Grant]]] = {}
        self._past: dict[str, list[Past]] = {}
        self._cordons: dict[str, str] = {}
        for number in range(nodes):
            self._add_node(number)

    def _add_node(self, number: int) -> None:
        kind = KINDS[number % len(KINDS)]
        name = f"{_SHORT.get(kind, kind)}-{number // len(KINDS) + 1:02}"
        trace = TraceNode(name=name, cpu_milli=0, memory_mib=0, gpus=0, model="", devices=read_status(kind))
        self._status[name] = msgspec.convert(render_devices(number, trace)["status"], Status)
        self.grants[name], self._past[name] = {}, []
        self.report(name, driver="580.95.05", reporter="0.1.0")
        self.set_ready(name, True)

    def set_quotas(self, *quotas: Quota) -> None:
        for quota in quotas:
            self.quotas.set_quota(quota.id, quota)
        exhaust(self.quotas.scan())

    # ---- reports of nodes

    @property
    def nodes(self) -> list[str]:
        return list(self._status)

    def status(self, name: str) -> Status:
        return self._status[name]

    def report(self, name: str, **changes: Any) -> None:
        """Return the node's report, with these parts of its status replaced."""
        status = self._status[name] = msgspec.structs.replace(self._status[name], **changes)
        grants = tuple(grant for listed in self.grants[name].values() for grant in listed)
        text = msgspec.structs.replace(status, grants=grants, past=tuple(self._past[name][::-1]), **self.use_of(name, grants))
        metadata = {"name": name, "resourceVersion": self._next(), "annotations": {CORDON: self._cordons.get(name, "")}}
        self._devices_feed.changed(msgspec.convert({"metadata": metadata, "status": msgspec.to_builtins(text)}, NodeDevices))

    def cordon(self, name: str, devices: str) -> None:
        self._cordons[name] = devices
        self.report(name)

    def set_ready(self, name: str, ready: bool) -> None:
        status = {"conditions": [{"type": "Ready", "status": str(ready)}]}
        text = {"metadata": {"name": name, "resourceVersion": self._next()}, "status": status}
        self._node_feed.changed(msgspec.convert(text, Node))

    def remove_node(self, name: str) -> None:
        self._devices_feed.removed(Ident("", name, ""), self._next())

    def use_of(self, name: str, grants: Sequence[Grant]) -> Json:
        """Return the use of each card: usually most of the held memory, sometimes no memory, sometimes too much."""
        use = []
        for gpu in self._status[name].gpus:
            mine = [one for grant in grants for one in grant.gpus if one.uuid == gpu.uuid]
            held = sum(gpu.usable_mib if one.whole else one.memory_mib or gpu.usable_mib // 4 for one in mine)
            share = (crc32(f"{gpu.uuid} {len(mine)}".encode()) % 100) / 100 if held else 0.0
            idle = share < 0.15
            used = 0 if idle else min(gpu.usable_mib, int(held * (0.3 + 0.7 * share)))
            use.append(Use(uuid=gpu.uuid, memory_used_mib=used, busy_percent=0 if idle else int(100 * share)))
        return {"use": tuple(use), "used_at": int(time.time())}

    # ---- pods

    def create(self, name: str, limits: Mapping[str, str], *, namespace: str = "default", priority: int = 0) -> Json:
        """Create a pod that requests devices, without a decision."""
        resources = {"limits": {PREFIX + key: value for key, value in limits.items()}}
        spec = {"containers": [{"name": "main", "resources": resources}], "schedulerName": "lading", "priority": priority}
        self._number += 1
        metadata = {"name": name, "namespace": namespace, "uid": f"00000000-0000-4000-8000-{self._number:012x}"}
        metadata["creationTimestamp"] = "2026-11-21T00:00:00Z"
        pod = {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
        self._show(pod)
        return pod

    def schedule(self, pod: Json) -> str:
        """Schedule the pod. Return its node; empty where it fits on none."""
        nodes = list(self.ledger.nodes())
        decoded = msgspec.convert(pod, Pod)
        if not self.scheduler.filter(decoded, nodes).fitting:
            return ""
        node = self.scheduler.prioritize(decoded, nodes) or ""
        reserved = self.scheduler.reserve(PodUid(pod["metadata"]["uid"]), node)
        if not isinstance(reserved, Reservation):
            return ""
        self.scheduler.confirm(reserved)
        pod["metadata"]["annotations"] = {ASSIGNMENT: reserved.assignment}
        pod["spec"]["nodeName"], pod["status"]["phase"] = node, "Running"
        self._show(pod)
        self.pods[pod["metadata"]["name"]] = pod
        self.grants[node][pod["metadata"]["uid"]] = [*_grants(pod, reserved.assignment)]
        self.report(node)
        return node

    def end(self, name: str) -> None:
        pod = self.pods.pop(name)
        metadata, node = pod["metadata"], pod["spec"]["nodeName"]
        self._pod_feed.removed(Ident(metadata["namespace"], name, metadata["uid"]), self._next())
        now = int(time.time())
        for grant in self.grants[node].pop(metadata["uid"], ()):
            for device in (*(gpu.uuid for gpu in grant.gpus), *grant.vfs):
                self._past[node].append(_past(device, grant, now))
        del self._past[node][:-20]
        self.report(node)

    def _show(self, pod: Json) -> None:
        pod["metadata"]["resourceVersion"] = self._next()
        self._pod_feed.changed(msgspec.convert(pod, Pod))

    def _next(self) -> str:
        self._version += 1
        return str(self._version)

    # ---- time

    def step(self) -> None:
        """Let one pod come, or one end, and try the waiting ones again."""
        cards = [card for capacity in self.ledger.capacities() for card in capacity.cards]
        busy = sum(card.pods > 0 for card in cards) / max(1, len(cards))
        if self.pods and self._random.random() < (0.65 if busy > FULL else 0.25):
            self.end(self._random.choice([*self.pods]))
            for waiting in list(self.pending):
                self._try_again(waiting.uid)
            return
        weights = [weight for weight, *_ in _ASKS]
        _, kind, limits = self._random.choices(_ASKS, weights)[0]
        namespace = self._random.choice(NAMESPACES)
        pod = self.create(f"{kind}-{self._number + 1}", limits, namespace=namespace)
        self._waiting[pod["metadata"]["uid"]] = pod
        self._try_again(PodUid(pod["metadata"]["uid"]))

    def fill(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def make_trouble(self) -> None:
        """Break the cluster in several ways: a card is unhealthy, one is used without a grant, one is cordoned, a PF has no
        link, and a node is unreachable."""
        names = [name for name in self.nodes if len(self._status[name].gpus) > 1]
        for number, name in enumerate(names[2 : 3 + len(names) // 10]):
            first, *others, last = self._status[name].gpus
            if number % 3 == 0:
                ill = msgspec.structs.replace(last, unhealthy="XID 79: it has fallen off the bus")
                self.report(name, gpus=(first, *others, ill), problems=(f"GPU {last.uuid}: XID 79",))
            elif number % 3 == 1:
                self.cordon(name, first.uuid)
            else:
                stranger = msgspec.structs.replace(first, used_by="process 4711 (python3)")
                self.report(name, gpus=(stranger, *others, last))
        if len(names) > 10:
            self.set_ready(names[9], False)

    def _try_again(self, uid: PodUid) -> None:
        pod = self._waiting.get(uid)
        if pod is not None and self.schedule(pod):
            del self._waiting[uid]


def _grants(pod: Json, assignment: str) -> Iterator[Grant]:
    metadata = pod["metadata"]
    written = json.loads(assignment)
    for container, given in written["containers"].items():
        gpus = [
            {"uuid": gpu["uuid"], "migUuid": gpu.get("mig", "")}
            | ({"memoryMiB": gpu["memory_mib"]} if "memory_mib" in gpu else {})
            | ({"corePercent": gpu["core_percent"]} if "core_percent" in gpu else {})
            for gpu in given.get("gpus", ())
        ]
        vfs = [vf["bdf"] for vf in given.get("vfs", ())]
        who = {"pod": metadata["uid"], "namespace": metadata["namespace"], "podName": metadata["name"], "form": "signed"}
        yield msgspec.convert({**who, "container": container, "gen": written["gen"], "gpus": gpus, "vfs": vfs}, Grant)


def _past(device: str, grant: Grant, now: int) -> Past:
    who = {"pod": grant.pod, "namespace": grant.namespace, "podName": grant.pod_name, "container": grant.container}
    return msgspec.convert({**who, "device": device, "since": now - 3600, "until": now, "by": grant.form}, Past)


class _Answers:
    """Answer `kubectl lading`. No pod waits in kube-scheduler, which is not simulated."""

    def __init__(self, cluster: SimCluster) -> None:
        self._scheduler = cluster.scheduler
        self._quotas = cluster.quotas

    def configuration(self) -> bytes:
        return msgspec.json.encode(effective_configuration(self._scheduler))

    def quota_view(self) -> bytes:
        return msgspec.json.encode(view_quotas(self._quotas))

    async def why(self, namespace: str, name: str) -> bytes | None:
        return None


class Served:
    """Run central's real HTTP server for this cluster."""

    def __init__(self, cluster: SimCluster) -> None:
        self.leads = True
        self.cluster = cluster
        answers = _Answers(cluster)
        self._server = PageServer(
            lambda: answers if self.leads else None,
            answered=lambda name, status, seconds: None,
            page=PageRoutes(lambda: cluster.live if self.leads else None),
        )

    async def start(self, port: int = 0) -> str:
        """Start the server. Return the page's address."""
        host, bound = await self._server.start(Address("127.0.0.1", port), None)
        return f"http://{host}:{bound}/"

    async def close(self) -> None:
        await self._server.close()


async def run(nodes: int, port: int, every_s: float) -> None:
    cluster = SimCluster(nodes)
    cluster.fill(nodes * 8)
    cluster.make_trouble()
    cluster.set_quotas(*QUOTAS)
    cluster.schedule(cluster.create("too-large", {"gpu-memory": "200Gi"}, namespace="research"))
    served = Served(cluster)
    print(f"{await served.start(port)} shows {nodes} simulated nodes; Ctrl-C ends it", flush=True)
    try:
        while True:
            await asyncio.sleep(every_s)
            cluster.step()
    finally:
        await served.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="simnode.page", description="The page of lading-central, on a simulated cluster.")
    parser.add_argument("--nodes", type=int, default=20, metavar="N", help="[20]")
    parser.add_argument("--port", type=int, default=8081, metavar="PORT", help="on 127.0.0.1; 0: any free one [8081]")
    parser.add_argument("--every", type=float, default=1.0, metavar="SECONDS", help="between two pods that come or go [1]")
    args = parser.parse_args()
    try:
        asyncio.run(run(args.nodes, args.port, args.every))
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    main()
