"""Run one replay with gangs: jobs arrive, wait until all their pods are placed, run, and end.

Take a trace, the rules, a seed, and the process of arrivals. Return a GangStay. Time passes in steps of STEP_S: ended jobs
release their devices, arrived jobs join the queue, then the rules start jobs. The same seed gives the same jobs for all rules.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, assert_never

from central.request.model import Policy
from simulate.arrivals import run_order
from simulate.cluster import Cluster
from simulate.gangs.books import Books
from simulate.gangs.central import ByPlan
from simulate.gangs.jobs import SPANS, Times, draw_jobs
from simulate.gangs.model import GangStay, Rules
from simulate.gangs.rules import ByQuota, GangByGang, OneByOne, Starter
from simulate.model import Prior
from simulate.product import Product, forecast_of
from simulate.replay import PROGRESS_EVERY, without_collections
from simulate.stream import Departures
from simulate.trace import Trace

STEP_S: Final = 20.0  # less than central's KEPT_S, so that reservations are renewed in time


class GangsTask(NamedTuple):
    rules: Rules
    policy: Policy
    seed: int
    game: Departures
    prior: Prior

    def expect_pods(self, trace: Trace) -> float:
        return trace.pods_for(self.game.load) * SPANS[self.game.durations].end

    def run(self, trace: Trace, tell: Callable[[int], None]) -> GangStay:
        return replay_gangs(trace, self.rules, self.policy, self.seed, self.game, prior=self.prior, tell=tell)


@without_collections()
def replay_gangs(
    trace: Trace,
    rules: Rules,
    policy: Policy,
    seed: int,
    game: Departures,
    *,
    prior: Prior = Prior.WORKLOAD,
    tell: Callable[[int], None] = lambda arrived: None,
) -> GangStay:
    """Run the replay. `tell` is called with the number of arrived pods, in parts of at least PROGRESS_EVERY."""
    cluster = Cluster(run_order(trace.nodes, seed), tuple(dict.fromkeys(trace.pods)), trace.partition)
    product = Product(cluster, policy, forecast_of(trace, prior, pods_end=True))
    times = Times(trace, game)
    books = Books(cluster, product, times)
    starter, jobs, untold = make_starter(rules, books, product), draw_jobs(trace, game, times, seed), 0
    job, now = next(jobs, None), 0.0
    while now < times.end_s:
        now = min(now + STEP_S, times.end_s)
        books.pass_time(now)
        for ended in books.end_due(now):
            starter.ended(ended)
        while job is not None and job.at <= now:
            books.arrive(job)
            starter.arrive(job)
            untold += job.members
            job = next(jobs, None)
        starter.step(now)
        if untold >= PROGRESS_EVERY:
            tell(untold)
            untold = 0
    return books.stay(rules, seed)


def make_starter(rules: Rules, books: Books, product: Product) -> Starter:
    match rules:
        case Rules.LADING:
            return ByPlan(books, product)
        case Rules.GREEDY:
            return OneByOne(books)
        case Rules.KOORDINATOR:
            return GangByGang(books)
        case Rules.KUEUE:
            return ByQuota(books)
        case _:
            assert_never(rules)
