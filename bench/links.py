"""Count the pods with several GPUs that got a set without NVLinks, or no NVSwitch partition, while another node had one free.

Pods of 1, 2 and 4 GPUs come to a fleet of simulated nodes, and end in any order (seeded), so that the fleet stays nearly full.
GPUs are *joined*, in the fleet `bridged` (NVLinks between pairs), if each two of them have links; in `partitioned` (dgx-h100)
if they are exactly one partition. For each fleet and policy:

* `pods`: that asked for several GPUs and got them.
* `apart`: of these, those whose GPUs are not joined.
* `avoidable`: of these, those that came while so many joined GPUs were free on one node.

What is joined is read from the reports, without what central makes of them.

`python -m bench.links` writes bench/out/links.json; `--seeds N` replays more than one seed.
"""

import argparse
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bench.figures import write_results
from central.decide.scheduler import Scheduler
from central.ledger.ledger import Ledger
from central.ledger.model import NodeFacts, PodRecord
from central.request.model import ContainerRequest, DeviceRequest, Policy, Shape
from central.search.placement import Placement
from central.state.pending import PendingPods
from lading.kube.objects import AnnotatedMetadata
from lading.nodedevices import Gpu, NodeDevices, NvLink, Status
from lading.vocabulary import PodUid
from simnode.reported import read_status

OUT: Final = Path("bench/out/links.json")
NODES: Final = 16
PODS: Final = 2000  # pods of each replay
ASKED: Final = (1, 1, 2, 2, 4)  # GPUs of a pod: one of these
MOST_HELD: Final = 0.85  # the largest part of the GPUs in use; with more in use, pods would mostly have one node to choose from
_LINKS: Final = 4  # NVLinks of a bridge


@dataclass(slots=True)
class LinkFigures:
    pods: int = 0
    apart: int = 0
    avoidable: int = 0


def _bridged(status: Status) -> Status:
    """Return the node with NVLinks between its first two GPUs, the next two, and so on."""
    links = [(NvLink(count=_LINKS, to=status.gpus[number ^ 1].uuid),) for number in range(len(status.gpus))]
    gpus = (msgspec.structs.replace(gpu, links=its) for gpu, its in zip(status.gpus, links, strict=True))
    return msgspec.structs.replace(status, gpus=tuple(gpus))


FLEETS: Final[Mapping[str, Status]] = {
    "bridged": _bridged(read_status("pcie-8gpu")),
    "partitioned": read_status("dgx-h100"),
}


def are_joined(status: Status, gpus: Sequence[Gpu]) -> bool:
    if status.partitions:
        return {gpu.module_id for gpu in gpus} in [{*partition.modules} for partition in status.partitions]
    return all(other.uuid in [link.to for link in one.links] for one, other in combinations(gpus, 2))


class _Running(NamedTuple):
    record: PodRecord
    gpus: Sequence[Gpu]


class Fleet:
    def __init__(self, status: Status, policy: Policy, nodes: int) -> None:
        self._status = status
        self._free: dict[str, Sequence[Gpu]] = {f"node-{number:02d}": status.gpus for number in range(nodes)}
        self._running: list[_Running] = []
        self._ledger = Ledger()
        for name in self._free:
            self._ledger.facts.set_node(name, NodeFacts(ready=True), 1)
            self._ledger.facts.set_report(
                NodeDevices(metadata=AnnotatedMetadata(name=name, resource_version="1"), status=status)
            )
        self._scheduler = Scheduler(self._ledger, PendingPods(), clock=lambda: 0.0, policy=policy)

    @property
    def held(self) -> float:
        return 1 - sum(map(len, self._free.values())) / (len(self._free) * len(self._status.gpus))

    def has_joined(self, count: int) -> bool:
        """Return whether so many joined GPUs are free on one node."""
        return any(are_joined(self._status, some) for free in self._free.values() for some in combinations(free, count))

    def place(self, uid: PodUid, count: int) -> Sequence[Gpu]:
        """Return the GPUs that the pod gets; none if it fits on no node."""
        shape = Shape(request=DeviceRequest(containers=(ContainerRequest(name="main", gpus=count),)))
        self._scheduler.verdicts.learn(uid, shape)
        self._scheduler.judged(shape.request)
        node = self._scheduler.verdicts.best(shape, self._free) or ""
        placed = self._scheduler.verdict(shape.request, node, self._ledger.without())
        if not isinstance(placed, Placement):
            return ()
        record = PodRecord(uid=uid, namespace="bench", name=uid, version=1, node=node, taken=placed.taken)
        gpus = [gpu for gpu in self._free[node] if gpu.uuid in placed.taken.gpus]
        self._free[node] = [gpu for gpu in self._free[node] if gpu not in gpus]
        self._running.append(_Running(record, gpus))
        self._ledger.facts.set_pod(record)
        return gpus

    def end_one(self, chance: random.Random) -> None:
        record, gpus = self._running.pop(chance.randrange(len(self._running)))
        self._free[record.node] = [*self._free[record.node], *gpus]
        self._ledger.facts.set_pod(replace(record, version=2, terminal=True))


def replay(status: Status, policy: Policy, seed: int, *, nodes: int = NODES, pods: int = PODS) -> LinkFigures:
    """Replay random pods on nodes that all have this report."""
    chance = random.Random(seed)  # noqa: S311  a simulation
    fleet, figures = Fleet(status, policy, nodes), LinkFigures()
    for number in range(pods):
        while fleet.held > MOST_HELD:
            fleet.end_one(chance)
        count = chance.choice(ASKED)
        was_there = count > 1 and fleet.has_joined(count)
        gpus = fleet.place(PodUid(f"uid-{number}"), count)
        if len(gpus) > 1:
            is_apart = not are_joined(status, gpus)
            figures.pods += 1
            figures.apart += is_apart
            figures.avoidable += is_apart and was_there
    return figures


def run(seeds: Sequence[int]) -> dict[str, dict[str, dict[str, int]]]:
    """Return the sums of the figures of all seeds, by fleet and policy."""
    return {
        fleet: {policy.value: _sum([replay(status, policy, seed) for seed in seeds]) for policy in Policy}
        for fleet, status in FLEETS.items()
    }


def _sum(figures: Sequence[LinkFigures]) -> dict[str, int]:
    every = [asdict(one) for one in figures]
    return {key: sum(one[key] for one in every) for key in every[0]}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench.links", description="Which pods get GPUs that are not joined, and need not.")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="replays of each fleet and policy [1]")
    parser.add_argument("-o", "--output", type=Path, default=OUT, metavar="FILE", help=f"[{OUT}]")
    args = parser.parse_args(argv)
    results = run(range(1, args.seeds + 1))
    write_results(args.output, results)
    print(f"{'':28}{'pods':>8}{'apart':>8}{'avoidable':>11}")
    for fleet, by_policy in results.items():
        for policy, result in by_policy.items():
            print(f"{fleet:12}{policy:16}{result['pods']:8}{result['apart']:8}{result['avoidable']:11}")


if __name__ == "__main__":
    main()
