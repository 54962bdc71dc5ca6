"""Build jobs and a cluster by hand: two nodes of four cards, and their books."""

from dataclasses import dataclass

from central.request.model import Policy
from simulate.cluster import Cluster
from simulate.gangs.books import Books
from simulate.gangs.jobs import Times
from simulate.gangs.model import Job, Rules
from simulate.gangs.replay import make_starter
from simulate.gangs.rules import Starter
from simulate.model import Prior
from simulate.product import Product, forecast_of
from simulate.stream import Departures, Durations
from simulate.trace import Trace, TraceNode, TracePod
from tests.unit.simulate.small import whole

NODES = tuple(TraceNode(name=f"n{number}", cpu_milli=64_000, memory_mib=262_144, gpus=4, model="T4") for number in range(2))
KINDS = (whole(2), whole(4), whole(1))
TRACE = Trace(nodes=NODES, pods=KINDS)
GAME = Departures(durations=Durations.EXPONENTIAL, load=0.9)


@dataclass(slots=True)
class Played:
    """Play a replay by hand: jobs arrive when the test decides."""

    books: Books
    starter: Starter
    now: float = 0.0
    jobs: int = 0

    def arrive(self, members: int, pod: TracePod = KINDS[0], *, runs: float = 1000.0) -> Job:
        self.jobs += 1
        job = Job(self.jobs, self.now, KINDS.index(pod), pod, members, runs, "a")
        self.books.arrive(job)
        self.starter.arrive(job)
        return job

    def go_to(self, now: float, *, step_s: float = 20.0) -> None:
        """Let time pass, in steps."""
        while self.now < now:
            self.now = min(now, self.now + step_s)
            self.books.pass_time(self.now)
            for ended in self.books.end_due(self.now):
                self.starter.ended(ended)
            self.starter.step(self.now)

    def running(self, *jobs: Job) -> list[bool]:
        return [self.books.runs(job) for job in jobs]


def begin(rules: Rules) -> Played:
    cluster = Cluster(NODES, KINDS)
    product = Product(cluster, Policy.FRAGMENTATION, forecast_of(TRACE, Prior.WORKLOAD, pods_end=True))
    books = Books(cluster, product, Times(TRACE, GAME))
    return Played(books, make_starter(rules, books, product))
