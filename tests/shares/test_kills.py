"""Each party of a share is killed and stopped in each of its states: no turn is lost, the dead hold no memory, waits end."""

import random
import time
from itertools import cycle, islice, product
from signal import SIGCONT, SIGSTOP
from typing import Final, NamedTuple

import pytest

from tests.depth import repeats
from tests.shares.site import BOUND_S, MIB, Process, Site, eventually
from tests.shares.test_turns import MS, longest_gaps

ROUNDS: Final = repeats(8, long=40)
# The longest stop: longer than a lease, and longer than a beat may be old.
LONGEST_S: Final = {"program": 1.0, "server": 1.5, "both": 1.5}
HELD_MIB: Final = 900
SHARE_MIB: Final = 1000
OK: Final = 0
# The work of a program that holds memory: one of these, or it calls cuInit only now, or allocates and frees in two threads.
WORK: Final = {"with its turn": (2 * MS, 1), "waiting": (2 * MS, 1), "in a long kernel": (100 * MS, 1), "queueing": (5 * MS, 0)}
STATES: Final = ("starting", "idle", "allocating", *WORK)


class Case(NamedTuple):
    party: str
    signal: str
    state: str


CASES: Final = [Case(*one) for one in product(LONGEST_S, ("kill", "stop"), STATES)]


def bring_into(site: Site, victim: Process, state: str) -> None:
    """Bring a program that was started into a state. What it is told last, it may not have answered."""
    if state == "starting":
        victim.tell(["init"])
        return
    assert victim.do(["init"], ["alloc", "plain", HELD_MIB * MIB]) == [OK, OK]
    if state == "allocating":
        victim.tell(["churn", 2, 200])
    elif state in WORK:
        victim.call("begin", *WORK[state])
        eventually(lambda: site.use("b").waiters if state == "waiting" else site.use("a").has_turn)


def hit(site: Site, victim: Process, case: Case, chance: random.Random) -> None:
    pause_s = chance.uniform(0, LONGEST_S[case.party])
    if case.signal == "kill":
        if case.party != "program":
            site.server.kill()
            time.sleep(pause_s)  # for how long it is away is what varies
        if case.party != "server":
            victim.kill()
        if case.party != "program":
            site.server.start()
        return
    stopped = [pid for pid, party in ((victim.pid, "program"), (site.server.pid, "server")) if case.party in {party, "both"}]
    chance.shuffle(stopped)
    site.signal(SIGSTOP, stopped)
    time.sleep(pause_s)  # for how long they stand still is what varies
    chance.shuffle(stopped)
    site.signal(SIGCONT, stopped)


def check_lives(site: Site, victim: Process, state: str) -> None:
    """Check that the program goes on: it is answered, keeps its memory, and has turns."""
    if state == "starting":
        assert victim.told() == [OK]
        assert victim.call("alloc", "plain", HELD_MIB * MIB) == OK
    elif state == "allocating":
        assert victim.told()[0] <= SHARE_MIB * MIB
    assert victim.do(["launch", MS], ["sync"]) == [OK, OK]
    eventually(lambda: (site.use("a").processes, site.use("a").memory_used_mib) == (1, HELD_MIB))


def check_dead(site: Site) -> None:
    """Check that nothing of the container counts any more, and that the other one has the card."""
    eventually(lambda: {use.container: use.processes for use in site.uses()} == {"a": 0, "b": 1})
    eventually(lambda: site.use("a").memory_used_mib == 0)
    eventually(lambda: site.use("b").has_turn)
    had_s = site.held()["b"]
    eventually(lambda: site.held()["b"] > had_s)


@pytest.mark.repeats
@pytest.mark.timeout(120 + 15 * ROUNDS)
def test_when_one_is_killed_or_stopped_in_any_state_the_others_go_on(site: Site) -> None:
    chance = random.Random(time.time_ns())  # noqa: S311 -- a test's choice
    cases = list(CASES)
    chance.shuffle(cases)
    a, b = site.container("a", mib=SHARE_MIB), site.container("b", mib=SHARE_MIB)
    steady = b.start()
    assert steady.call("begin", 2 * MS, 1) == OK
    gaps: dict[Case, list[float]] = {}
    for case in islice(cycle(cases), ROUNDS):
        gaps.setdefault(case, []).append(play(site, steady, a.start(init=False), case, chance))
    for case in sorted(gaps):
        print(f"{' '.join(case):36} {len(gaps[case]):4} rounds; the other launched nothing for {max(gaps[case]):.2f} s at most")


def play(site: Site, steady: Process, victim: Process, case: Case, chance: random.Random) -> float:
    """Return the longest time for which the other container's program launched nothing."""
    longest_gaps([steady])
    print(case)  # shown when an assertion fails
    bring_into(site, victim, case.state)
    time.sleep(chance.uniform(0, 0.02))  # the moment of the failure is what varies
    hit(site, victim, case, chance)
    if case.signal == "stop" or case.party == "server":
        check_lives(site, victim, case.state)
        victim.kill()
    check_dead(site)
    (gap_s,) = longest_gaps([steady])
    assert gap_s < BOUND_S / 4
    return gap_s
