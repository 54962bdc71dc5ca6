"""Measure how long a first filter takes and blocks central's event loop, where every node is in another state.

The nodes of `bench.central` have 8 GPUs and 16 VFs. Here each GPU is taken whole, free, or shared by an amount of its own, and
VFs are taken at random (seeded), so that few verdicts can be shared between nodes. For each pod and policy, in this process and
with the waker in the background:

* `first_ms`: wall time of the first filter; `Leadership.REQUEST_S` bounds it.
* `first_fits`, `first_not_reached`: nodes that the first answer named, and nodes that it refused as `not-reached`.
* `all_judged_s`: seconds from the first filter until the background had judged all nodes.
* `longest_turn_ms`: the longest turn of the event loop meanwhile, in processor time.
* `unbounded_s`: processor time of the same decision without a budget, which earlier versions spent in one turn.

`python -m bench.diverse` writes bench/out/diverse.json; `--nodes N` chooses another size than 1,000.
"""

import argparse
import asyncio
import contextlib
import gc
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import api_server
from bench.figures import write_results
from central.assignment.model import Part, Taken
from central.controllers.requeue import Requeuer
from central.daemon.leadership import REQUEST_S
from central.decide.scheduler import Scheduler
from central.ledger.ledger import Ledger
from central.ledger.model import NodeFacts, PodRecord
from central.loop.slices import SLICE_S, in_slices
from central.request.model import DeviceRequest, Policy
from central.request.parse import parse_request
from central.request.pod import Pod
from central.search import joint
from central.search.placement import Missing
from central.state.pending import PendingPods
from lading.log import Level, open_log
from lading.nodedevices import NodeDevices
from lading.vocabulary import GpuUuid, PciAddress, PodUid

OUT: Final = Path("bench/out/diverse.json")
NODES: Final = 1000
SEED: Final = 1
MOST_S: Final = 120.0  # seconds for the background to judge all nodes
_CARD_GIB: Final = 79

Limits = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiverseFigures:
    first_ms: float
    first_fits: int
    first_not_reached: int
    all_judged_s: float
    longest_turn_ms: float
    unbounded_s: float


# ---- nodes and pods


def fill(count: int) -> Ledger:
    """Return nodes of which hardly two are in the same state."""
    ledger, chance = Ledger(), random.Random(SEED)  # noqa: S311  a simulation
    for number, report in enumerate(api_server.reports(count)):
        text = msgspec.convert(report, NodeDevices)
        ledger.facts.set_node(text.metadata.name, NodeFacts(ready=True), 1)
        ledger.facts.set_report(text)
        busy = 0.9 * chance.random()
        for card in range(8):
            if chance.random() < busy:
                ledger.facts.set_pod(_holder(text.metadata.name, number, card, chance))
    return ledger


def _holder(node: str, number: int, card: int, chance: random.Random) -> PodRecord:
    share = Part(memory_mib=chance.randrange(1, _CARD_GIB - 1) << 10, core_percent=chance.randrange(1, 96))
    part = Part(whole=True) if chance.random() < 0.25 else share
    vfs = (PciAddress(f"0000:{card + 0x40:02x}:00.{vf + 1}") for vf in range(2))
    taken = Taken(
        gpus={GpuUuid(api_server.gpu_uuid(number, card)): part}, vfs=frozenset(vf for vf in vfs if chance.random() < 0.5)
    )
    name = f"holder-{number}-{card}"
    return PodRecord(uid=PodUid(name), namespace="default", name=name, version=1, node=node, taken=taken)


def share(gib: int, core: int, vfs: int = 0) -> Limits:
    limits = {"lading.dev/gpu-memory": f"{gib}Gi", "lading.dev/gpu-core": str(core)}
    return limits | ({"lading.dev/rdma": str(vfs)} if vfs else {})


def render_pod(name: str, containers: Sequence[Limits], inits: Sequence[Limits] = (), **annotations: str) -> Pod:
    def listed(kind: str, limits: Sequence[Limits]) -> list[Any]:
        return [{"name": f"{kind}{i}", "resources": {"limits": one, "requests": one}} for i, one in enumerate(limits)]

    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "99"}
    refined = {f"lading.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    spec = {"schedulerName": "lading", "containers": listed("app", containers), "initContainers": listed("init", inits)}
    return msgspec.convert({"metadata": {**metadata, "annotations": refined}, "spec": spec}, Pod)


def pods() -> Iterator[Pod]:
    yield render_pod("one-gpu", [{"lading.dev/gpu": "1"}])
    yield render_pod("one-gpu-and-vf", [{"lading.dev/gpu": "1", "lading.dev/rdma": "1"}])
    yield render_pod("four-gpus-and-vfs", [{"lading.dev/gpu": "4", "lading.dev/rdma": "4"}])
    yield render_pod("eight-shares-and-vfs", [share(5 + 3 * i, 7 + 5 * i, 1) for i in range(8)], rdma_policy="per-switch")
    yield render_pod("32-shares", [share(1 + i, 2 + i) for i in range(32)])
    yield render_pod(
        "16-inits-16-shares", [share(1 + i, 2 + i, 1) for i in range(16)], [share(3 + i, 3 + i) for i in range(16)]
    )
    yield render_pod("32-shares-of-one-group", [share(1, 2 + i % 3) for i in range(32)], share_affinity="group")


# ---- one pod


async def measure(ledger: Ledger, pod: Pod, policy: Policy) -> DiverseFigures:
    names, request = list(ledger.nodes()), parse_request(pod)
    if not isinstance(request, DeviceRequest):
        raise ValueError(f"{pod.metadata.name} asks for no device")  # noqa: TRY004  a mistake in `pods`
    scheduler = Scheduler(ledger, PendingPods(), clock=time.monotonic, policy=policy, slice_s=SLICE_S)
    waker = Requeuer(scheduler, _touch, clock=time.monotonic, log=open_log("bench", Level.ERROR))
    await in_slices(scheduler.warming(), time.monotonic)
    joint.find.cache_clear()  # the cache still has the results of the pod before
    gc.collect()
    gc.freeze()  # central does this too
    turns = _Turns()
    async with turns.watched(), _running(waker):
        began = time.monotonic()
        await in_slices(scheduler.filter_steps(pod), time.monotonic, until=began + REQUEST_S)
        decision = scheduler.decide(pod, names)
        first_s = time.monotonic() - began
        scheduler.apply(decision)
        not_reached = _not_reached({**decision.answer.fails, **decision.answer.never})
        reasons = scheduler.cached_reasons(request) or {}  # central updates this mapping
        async with asyncio.timeout(MOST_S):
            while _not_reached(reasons):  # noqa: ASYNC110  the waker sets no event
                await asyncio.sleep(0.05)
        all_s = time.monotonic() - began
    ledger.claims.forget_prediction(pod.metadata.uid)
    return DiverseFigures(
        first_ms=first_s * 1e3,
        first_fits=len(decision.answer.fitting),
        first_not_reached=not_reached,
        all_judged_s=all_s,
        longest_turn_ms=turns.longest_s * 1e3,
        unbounded_s=_unbounded(ledger, pod, policy, names),
    )


def _not_reached(reasons: Mapping[str, str]) -> int:
    """Count the nodes that are not judged yet."""
    return sum(reason == Missing.NOT_REACHED.shown for reason in reasons.values())


def _unbounded(ledger: Ledger, pod: Pod, policy: Policy, names: Sequence[str]) -> float:
    scheduler = Scheduler(ledger, PendingPods(), clock=time.monotonic, policy=policy)
    joint.find.cache_clear()
    began = time.process_time()
    scheduler.decide(pod, names)
    took_s = time.process_time() - began
    ledger.claims.forget_prediction(pod.metadata.uid)
    return took_s


async def _touch(pod: object) -> None:
    """Requeue no pod: there is no API server."""


@contextlib.asynccontextmanager
async def _running(waker: Requeuer) -> Any:
    task = asyncio.create_task(waker.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


class _Turns:
    """Measure the longest turn of the event loop, in processor time of this process."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    @contextlib.asynccontextmanager
    async def watched(self) -> Any:
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _watch(self) -> None:
        while True:
            began = time.process_time()
            await asyncio.sleep(0)
            self.longest_s = max(self.longest_s, time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.diverse", description="A first filter on nodes in diverse states.")
    parser.add_argument("--nodes", type=int, default=NODES, metavar="N", help=f"[{NODES}]")
    count: int = parser.parse_args().nodes
    results: dict[str, dict[str, Any]] = {}
    for pod in pods():
        for policy in (Policy.FRAGMENTATION, Policy.BINPACK):
            figures = asyncio.run(measure(fill(count), pod, policy))
            results.setdefault(pod.metadata.name, {})[policy.value] = asdict(figures)
            shown = "  ".join(f"{key} {value:.3g}" for key, value in asdict(figures).items())
            print(f"{pod.metadata.name:24}{policy.value:15}{shown}", flush=True)
    write_results(OUT, {"nodes": count, "request_s": REQUEST_S, "pods": results})


if __name__ == "__main__":
    main()
