"""Build a small cluster and workload: five nodes of three kinds, and pods of every class."""

from simulate.arrivals import run_order
from simulate.cluster import Cluster, Placed
from simulate.fragments import Fragments, typical_pods
from simulate.trace import Trace, TraceNode, TracePod

NODES = (
    TraceNode(name="big-1", cpu_milli=64_000, memory_mib=262_144, gpus=4, model="V100M32"),
    TraceNode(name="big-2", cpu_milli=64_000, memory_mib=262_144, gpus=4, model="V100M32"),
    TraceNode(name="old", cpu_milli=32_000, memory_mib=131_072, gpus=2, model="V100M16"),
    TraceNode(name="small", cpu_milli=16_000, memory_mib=65_536, gpus=1, model="T4"),
    TraceNode(name="bare", cpu_milli=48_000, memory_mib=131_072, gpus=0, model=""),
)


def share(milli: int, cpu_milli: int = 1_000, *models: str) -> TracePod:
    return TracePod(cpu_milli=cpu_milli, memory_mib=2_048, gpus=1, gpu_milli=milli, models=models)


def whole(gpus: int, cpu_milli: int = 1_000, *models: str) -> TracePod:
    return TracePod(cpu_milli=cpu_milli, memory_mib=4_096, gpus=gpus, gpu_milli=1000, models=models)


PODS = (
    *[share(milli, cpu) for milli, cpu in ((300, 2_000), (300, 2_000), (450, 4_000), (500, 8_000), (730, 1_000))],
    *[whole(1, 8_000)] * 4,
    whole(1, 2_000, "T4"),
    whole(2, 12_000),
    whole(2, 12_000, "V100M16", "V100M32"),
    whole(4, 40_000),
    TracePod(cpu_milli=6_000, memory_mib=4_096),
    TracePod(cpu_milli=6_000, memory_mib=4_096),
)
TRACE = Trace(nodes=NODES, pods=PODS)


def cluster(seed: int = 42) -> Cluster:
    return Cluster(run_order(NODES, seed), tuple(dict.fromkeys(PODS)))


def fragments(of: Cluster) -> Fragments:
    return Fragments(typical_pods(PODS), of.models, of.free.shape[1])


class Stubborn:
    """Give the same answer to every request."""

    def __init__(self, answer: Placed | None) -> None:
        self.answer = answer

    def place(self, kind: int, pod: int) -> Placed | None:
        return self.answer

    def ended(self, pod: int) -> None:
        pass

    def changed(self, node: int) -> None:
        pass
