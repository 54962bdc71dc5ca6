"""Turns as the server gives them to real processes: at each renewal, and against launches at any moment."""

import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise, permutations
from math import inf
from pathlib import Path
from typing import Final

import pytest

from shares.card import GRACE_NS
from shares.policy.fair import Fair
from shares.policy.model import MILLION
from tests.depth import repeats
from tests.fakes.share_rig import ShareServer
from tests.shares.recorded import Choice, Recorded, Seen, Turn
from tests.shares.site import Process, Site, eventually

MS: Final = 1000  # microseconds
MEASURED_S: Final = 2.0
TRIES: Final = 10
ROUNDED_NS: Final = 100_000  # in all: each turn counts in whole nanoseconds
LAUNCHES: Final = repeats(400, long=2_000)


def begin_busy(site: Site, requests: dict[str, int]) -> dict[str, Process]:
    processes = {name: site.container(name, request=request).start() for name, request in requests.items()}
    for process in processes.values():
        process.call("begin", 5 * MS, 0)  # never synchronises: it wants the card at every moment
    return processes


def measure(server: ShareServer, policy: Recorded) -> Seen:
    """Record for a while, again if a process of a busy machine did not run for so long that it had no turn to renew."""
    for _ in range(TRIES):
        before = server.call(policy.count)
        time.sleep(MEASURED_S)  # the period that is measured
        seen = server.call(partial(policy.since, before))
        if not seen.ends and all(turn.ended_ns - turn.began_ns < GRACE_NS for turn in seen.turns):
            break
    return seen


def find_passed_over(policy: Recorded, choices: Sequence[Choice]) -> list[tuple[str, ...]]:
    """Return containers whose choices no virtual times explain.

    A choice of x says that x is not further than any other, y: by so much at most x may have begun before y. So no cycle of
    containers may add up to less than nothing."""
    least: dict[tuple[str, str], float] = defaultdict(lambda: inf)
    for choice in choices:
        far = {name: used * MILLION / policy.shares[name].request_ppm for name, used in choice.used_ns.items()}
        for other, its in far.items():
            least[choice.name, other] = min(least[choice.name, other], its - far[choice.name])
    cycles = [cycle for length in (2, 3) for cycle in permutations(policy.shares, length)]
    return [cycle for cycle in cycles if sum(least[pair] for pair in pairwise((*cycle, cycle[0]))) < -ROUNDED_NS]


def test_one_that_renews_its_turn_is_there_to_be_chosen_and_the_one_furthest_behind_is(site: Site) -> None:
    """Three containers want the card all the time. A renewal in two messages would leave its sender out of the choice."""
    policy = Recorded(Fair())
    server = site.serve_here(lambda: policy)
    begin_busy(site, {"a": 50, "b": 30, "c": 20})
    eventually(lambda: all(use.held_ns for use in server.usage()))
    seen = measure(server, policy)
    server.end()
    assert len(seen.choices) > MEASURED_S / 0.1
    assert seen.ends == []
    assert {choice.waiting for choice in seen.choices} == {frozenset("abc")}
    assert find_passed_over(policy, seen.choices) == []


def find_outside(launches: Iterable[int], turns: Iterable[Turn]) -> list[int]:
    """Return the launches that were in none of these turns."""
    spans = [(turn.began_ns, turn.ended_ns) for turn in turns]
    return [at for at in launches if not any(began <= at <= ended for began, ended in spans)]


def read_launches(path: Path) -> list[int]:
    return [at for (at,) in struct.iter_unpack("<q", path.read_bytes())]


@pytest.mark.repeats
@pytest.mark.fake_card("when each launch reached it")
@pytest.mark.timeout(120 + LAUNCHES // 10)
@pytest.mark.parametrize(
    ("threads", "longest_us", "longest_gap_us"),
    [(1, 6 * MS, 12 * MS), (3, 2 * MS, 30 * MS), (3, 200, 1 * MS)],
    ids=["one thread", "few launches", "many launches"],
)
def test_no_work_reaches_the_card_outside_a_turn(
    site: Site, tmp_path: Path, threads: int, longest_us: int, longest_gap_us: int
) -> None:
    """Launches come at random moments, and take a while until they reach the card. With few, an idle turn is about to be given
    back; with many, one thread renews the turn while others launch."""
    policy = Recorded(Fair())
    server = site.serve_here(lambda: policy)
    log = tmp_path / "launches"
    racing = site.container("a").start(FAKE_CUDA_LAUNCH_US="400", FAKE_CUDA_LAUNCHES=str(log))
    other = site.container("b").start()
    other.call("begin", 1 * MS, 1)
    eventually(lambda: server.usage()[1].held_ns)
    assert racing.call("pulse", threads, LAUNCHES // threads, longest_us, longest_gap_us) == 0
    racing.kill()
    eventually(lambda: server.usage()[0].process_ids == ())
    server.end()
    launches, turns = read_launches(log), [turn for turn in policy.turns if turn.name == "a"]
    assert len(launches) == LAUNCHES // threads * threads
    assert len(turns) > LAUNCHES // 100
    assert find_outside(launches, turns) == []
