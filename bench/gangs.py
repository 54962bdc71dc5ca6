"""Measure the cost of a large gang for central, in this process, without HTTP and the API server.

    python -m bench.gangs

5,000 nodes with 8 GPUs, of which one in five has pods; a gang of 512 pods with 8 GPUs each. Everything is processor time.

* `plan_s`: the search of a node for each member, and the claims in the ledger; `plan_turn_ms`: its longest step.
* `again_s`: the same search for a gang that fits nowhere: the cost of a waiting gang after a change of the cluster.
* `refusal_us`: the decision about a member without a plan, with the names of all nodes; `named_us`: the same with a plan.
* `single_us`: the decision about a pod without a gang, while the gang waits; `single_before_us`: without any gang.
"""

import argparse
import gc
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.figures import percentile, write_results
from central.api.objects import Node
from central.controllers.conditions import Conditions
from central.controllers.gangs import GangFeed
from central.controllers.informer import DevicesFeed, NodeFeed, PodFeed
from central.decide.gangs import GangPlanner
from central.decide.scheduler import Scheduler
from central.gang.gang import Gang
from central.ledger.ledger import Ledger
from central.request.gang import MAX_MIN
from central.request.model import Policy
from central.request.pod import Pod
from central.state.pending import PendingPods
from lading.log import Level, open_log
from lading.nodedevices import NodeDevices
from lading.vocabulary import GANG, GANG_MIN, RESOURCE_GPU

OUT: Final = Path("bench/out/gangs.json")
MEMBERS: Final = 512
MODEL: Final = {"model": "NVIDIA H100 80GB HBM3", "memoryMiB": 81920}
ASKED: Final = 200  # questions for a median


class GangRig:
    def __init__(self, nodes: int) -> None:
        self.version = 0
        self.ledger, pending = Ledger(), PendingPods()
        self.scheduler = Scheduler(self.ledger, pending, clock=time.monotonic, policy=Policy.FRAGMENTATION)
        self.planner = GangPlanner(self.scheduler)
        log = open_log("lading-bench", Level.ERROR)
        self._feed = PodFeed(self.ledger, pending, Conditions(), log=log, unassigned=lambda pod: None)
        self._gangs = GangFeed(self.scheduler.starts, self.ledger)
        self.names = [f"node-{number:05d}" for number in range(nodes)]
        for name in self.names:
            NodeFeed(self.ledger).changed(msgspec.convert(self._node(name), Node))
            self.report(name)

    def report(self, name: str, unhealthy: str = "") -> None:
        """Report the node's devices; `unhealthy`: why none of them can be given."""
        DevicesFeed(self.ledger).changed(msgspec.convert(self._devices(name, unhealthy), NodeDevices))

    def _metadata(self, name: str) -> dict[str, Any]:
        self.version += 1
        return {"name": name, "uid": f"uid-{name}", "resourceVersion": str(self.version)}

    def _node(self, name: str) -> dict[str, Any]:
        status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "128", "memory": "2Ti"}}
        return {"metadata": self._metadata(name), "status": status}

    def _devices(self, name: str, unhealthy: str) -> dict[str, Any]:
        model = MODEL | ({"unhealthy": unhealthy} if unhealthy else {})
        cards = [
            {"uuid": f"GPU-{name[5:]:0>8}-0000-0000-0000-{card:012x}", "bdf": f"0000:{0x10 + card:02x}:00.0", **model}
            for card in range(8)
        ]
        return {"metadata": self._metadata(name), "status": {"reconciled": True, "gpus": cards}}

    def show(self, name: str, gpus: int, annotations: dict[str, str] | None = None) -> Pod:
        metadata = self._metadata(name) | {"namespace": "default", "annotations": annotations or {}}
        resources = {"limits": {RESOURCE_GPU: str(gpus)}, "requests": {"cpu": "8"}}
        spec = {"containers": [{"name": "main", "resources": resources}], "schedulerName": "lading"}
        pod = msgspec.convert({"metadata": metadata, "spec": spec}, Pod)
        self._feed.changed(pod)
        self._gangs.changed(pod)
        return pod

    def gang(self, name: str, members: int) -> tuple[Gang, list[Pod]]:
        pods = [self.show(f"{name}-{number}", 8, {GANG: name, GANG_MIN: str(members)}) for number in range(members)]
        for pod in pods:
            self.scheduler.filter(pod, self.names)
        (gang,) = [gang for gang in self.scheduler.gangs if gang.key.name == name]
        return gang, pods

    def fill(self, count: int) -> None:
        """Record one pod with a GPU on each of the first nodes, as predictions that do not expire."""
        for number in range(count):
            pod = self.show(f"single-{number}", 1)
            self.scheduler.filter(pod, [self.names[5 * number]])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.gangs", description="What a large gang costs central.")
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("-o", "--output", type=Path, default=OUT, metavar="FILE", help=f"[{OUT}]")
    args = parser.parse_args(argv)
    results = measure(args.nodes)
    write_results(args.output, results)
    for name, figure in results.items():
        print(f"{name:18} {figure:10.3f}")


def measure(nodes: int) -> dict[str, float]:
    rig = GangRig(nodes)
    rig.fill(nodes // 5)
    alone = rig.show("alone", 1)
    before = _microseconds(lambda: rig.scheduler.decide(alone, rig.names))
    gang, pods = rig.gang("large", min(MEMBERS, nodes // 2))
    gc.freeze()  # central does this too once it has read the cluster
    refusal = _microseconds(lambda: rig.scheduler.decide(pods[0], rig.names))
    single = _microseconds(lambda: rig.scheduler.decide(alone, rig.names))
    plan_s, turn_ms, result = _steps(rig.planner, gang)
    assert result
    named = _microseconds(lambda: rig.scheduler.decide(pods[0], rig.names))
    other, _ = rig.gang("larger", min(MAX_MIN, int(0.8 * nodes)))
    _steps(rig.planner, other)  # the first time all nodes are looked at as if they were empty, too
    again_s, again_ms, result = _steps(rig.planner, rig.scheduler.gangs.get(other.key) or other)
    assert not result
    return {
        "plan_s": plan_s,
        "plan_turn_ms": turn_ms,
        "again_s": again_s,
        "again_turn_ms": again_ms,
        "refusal_us": refusal,
        "named_us": named,
        "single_before_us": before,
        "single_us": single,
    }


def _steps(planner: GangPlanner, gang: Gang) -> tuple[float, float, bool]:
    """Return the seconds of a search, the milliseconds of its longest step, and whether it found a plan."""
    steps, total, longest = planner.planning(gang), 0.0, 0.0
    while True:
        began = time.process_time()
        try:
            next(steps)
        except StopIteration as end:
            result = planner.apply(gang, end.value, until=math.inf, counts=True)
            took = time.process_time() - began
            return total + took, max(longest, took) * 1e3, result
        took = time.process_time() - began
        total, longest = total + took, max(longest, took)


def _microseconds(decide: Callable[[], object]) -> float:
    took = []
    for _ in range(ASKED):
        began = time.process_time()
        decide()
        took.append(time.process_time() - began)
    return percentile(took, 0.5) * 1e6


if __name__ == "__main__":
    main()
