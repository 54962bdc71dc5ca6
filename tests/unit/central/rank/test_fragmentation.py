"""Test which of two placements leaves more that others can use."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from central.rank.columns import FULL, Columns, States
from central.rank.forecast import STEPS
from central.rank.fragmentation import STEP_MILLI, Fragmentation
from central.rank.workload import PodKind, workload_of
from central.request.model import CpuMemory
from tests.fakes.capacities import capacity, card

CORES = CpuMemory(4000, 8192)
MANY = 64_000, 262_144  # milli-cpu and MiB of memory


def scoring(weights: dict[PodKind, float], turnover: int = 0) -> Fragmentation:
    columns = Columns()
    columns.put(capacity(*(card(number) for number in range(8))))
    return Fragmentation(workload_of(weights), columns, turnover)


def states(*nodes: tuple[int, int, list[int]]) -> States:
    left = np.array([node[:2] for node in nodes], np.int64).T
    return States(left, np.ones(len(nodes), np.int64), np.array([node[2] for node in nodes], np.int64))


def score(
    weights: dict[PodKind, float], before: list[int], after: list[int], cpu_milli: int = 4000, *, turnover: int = 0
) -> int:
    cpu, memory = MANY
    left = states((cpu - cpu_milli, memory - 8192, after))
    return int(scoring(weights, turnover).scores(states((cpu, memory, before)), left, np.zeros(1, np.int64))[0])


HALVES = {PodKind(cpu_memory=CORES, core_percent=50): 3.0, PodKind(cpu_memory=CORES, gpus=1): 1.0}
LARGE = {PodKind(cpu_memory=CORES, gpus=4): 1.0, PodKind(cpu_memory=CORES, core_percent=50): 9.0}


def test_a_half_goes_beside_a_half() -> None:
    assert score(HALVES, [500, FULL], [0, FULL]) > score(HALVES, [500, FULL], [500, 500])


def test_a_rest_that_no_one_fills_is_lost() -> None:
    """Check that 40 % of a half-free card leave 10 %, which no pod requests, and that 70 % leave 30 %, which other pods
    fill."""
    thirds = {PodKind(cpu_memory=CORES, core_percent=30): 3.0, PodKind(cpu_memory=CORES, core_percent=50): 2.0}
    assert score(thirds, [500, 700], [500, 300]) > score(thirds, [500, 700], [100, 700])


def test_cards_that_are_wanted_together_are_kept_together() -> None:
    whole, broken = [FULL] * 4 + [500, 0, 0, 0], [FULL] * 3 + [500, 500, 0, 0, 0]
    before = [FULL] * 4 + [FULL, 0, 0, 0]
    assert score(LARGE, before, whole) > score(LARGE, [FULL] * 4 + [500, 0, 0, 0], broken)


def test_cpu_for_the_cards_that_are_left_counts() -> None:
    """Compare a pod that leaves cpu for the other card with one that leaves hardly any; both take the same of the cards."""
    one = {PodKind(cpu_memory=CpuMemory(32_000, 8192), gpus=1): 1.0}
    assert score(one, [FULL, FULL], [0, FULL], cpu_milli=30_000) > score(one, [FULL, FULL], [0, FULL], cpu_milli=60_000)


def test_finer_differences_than_a_step_are_none() -> None:
    no_one: dict[PodKind, float] = {PodKind(cpu_memory=CORES): 1.0}
    for taken, steps in ((STEP_MILLI, 1), (STEP_MILLI - 1, 0)):
        assert score(no_one, [500], [500 - taken]) == steps  # the rest is worth nothing: what the pod takes is gained


cards = st.lists(st.sampled_from([0, 100, 500, FULL]), min_size=3, max_size=3)
nodes = st.tuples(st.sampled_from([0, 5000, 64_000]), st.sampled_from([0, 9000, 262_144]), cards)


@given(st.lists(st.tuples(nodes, st.lists(nodes, min_size=1, max_size=3)), min_size=1, max_size=4))
def test_many_at_once_score_as_each_alone(
    pairs: list[tuple[tuple[int, int, list[int]], list[tuple[int, int, list[int]]]]],
) -> None:
    one = scoring(HALVES | LARGE)
    of = np.array([number for number, (_, after) in enumerate(pairs) for _ in after], np.int64)
    all_after = [left for _, after in pairs for left in after]
    at_once = one.scores(states(*(before for before, _ in pairs)), states(*all_after), of)
    each = [one.scores(states(pairs[n][0]), states(left), np.zeros(1, np.int64)) for n, left in zip(of, all_after, strict=True)]
    assert at_once.tolist() == [int(alone[0]) for alone in each]


def test_weights_are_current_until_places_for_several_cards_get_scarce() -> None:
    columns = Columns()
    for number in range(20):
        columns.put(capacity(*(card(slot) for slot in range(8)), name=f"n{number}"))
    one = Fragmentation(workload_of({PodKind(gpus=8): 1.0, PodKind(core_percent=50): 99.0}), columns)
    assert one.is_current()  # nothing was made from it yet
    one.worth(columns.states(np.arange(20)))
    assert one.is_current()
    for number in range(19):
        columns.put(capacity(*(card(slot, free_core=90) for slot in range(8)), name=f"n{number}"))
    assert not one.is_current()
    again = Fragmentation(workload_of({PodKind(gpus=8): 1.0, PodKind(core_percent=50): 99.0}), columns)
    before, after = one.worth(columns.states(np.array([19]))), again.worth(columns.states(np.array([19])))
    assert after[0] > before[0]  # the last place for eight cards is worth more
    assert again.is_current()


ONES = {PodKind(cpu_memory=CORES, gpus=1): 1.0}


def test_the_more_pods_end_the_more_a_pod_goes_where_few_cards_are_free() -> None:
    few, many = ([FULL] * 4 + [0] * 4, [FULL] * 3 + [0] * 5), ([FULL] * 8, [FULL] * 7 + [0])
    gaps = [score(ONES, *few, turnover=turnover) - score(ONES, *many, turnover=turnover) for turnover in range(1, STEPS + 1)]
    assert gaps[0] > 0
    assert all(one < other for one, other in pairwise(gaps))


def test_where_pods_end_the_node_with_less_cpu_comes_first_among_equals() -> None:
    full = [0] * 8
    much, little = (score(ONES, full, full, cpu, turnover=STEPS) for cpu in (4_000, 40_000))
    assert little > much
    assert score(ONES, full, full, 4_000) == score(ONES, full, full, 40_000)
