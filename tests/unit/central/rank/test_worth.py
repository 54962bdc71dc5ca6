"""Test that the tables equal the sums over all kinds of pods."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from central.rank.columns import FULL, Kind, States, milli_requested
from central.rank.cutting import worth_of_rests
from central.rank.scarcity import NUMBERS, OFTEN, PodGroupKind, WorkloadGroups
from central.rank.workload import MASS, ExpectedWorkload, PodKind, workload_of
from central.rank.worth import MOST_SIZES, Tables, _of_few_sizes
from central.request.model import CpuMemory

KINDS = (Kind(), Kind("A", 16_000), Kind("B", 80_000))
CARDS = (0, 40, 10)

requests = st.builds(CpuMemory, st.sampled_from([0, 500, 4000, 8000, 32_000]), st.sampled_from([0, 1024, 65_536]))
models = st.sampled_from([(), ("A",), ("A", "B"), ("C",)])
pods = st.one_of(
    st.builds(PodKind, cpu_memory=requests, gpus=st.sampled_from([1, 2, 4, 8]), models=models),
    st.builds(PodKind, cpu_memory=requests, core_percent=st.integers(1, 100), models=models),
    st.builds(PodKind, cpu_memory=requests, memory_mib=st.sampled_from([500, 8000, 16_001, 40_000]), models=models),
    st.builds(PodKind, cpu_memory=requests),
)
workloads = st.dictionaries(pods, st.integers(1, 20), max_size=12).map(workload_of)
cards = st.lists(st.sampled_from([0, 100, 333, 500, 999, FULL, FULL]), min_size=4, max_size=4)
nodes = st.tuples(st.sampled_from([0, 499, 8000, 64_000]), st.sampled_from([0, 2048, 70_000]), st.integers(0, 2), cards)


def states(*nodes: tuple[int, int, int, list[int]]) -> States:
    left, kind = np.array([node[:2] for node in nodes], np.int64).T, np.array([node[2] for node in nodes], np.int64)
    return States(left, kind, np.array([node[3] for node in nodes], np.int64))


def need(pod: PodKind, kind: Kind) -> int:
    if pod.gpus:
        return pod.gpus * FULL
    return 0 if pod.cpu_only else milli_requested(kind.size_mib, pod.memory_mib, pod.core_percent)


def usable_by(pod: PodKind, cpu: int, memory: int, kind: Kind, free: list[int]) -> int:
    if pod.cpu_memory.cpu_milli > cpu or pod.cpu_memory.memory_mib > memory or (pod.models and kind.model not in pod.models):
        return 0
    if pod.gpus:
        return free.count(FULL) * FULL if free.count(FULL) >= pod.gpus else 0
    return 0 if pod.cpu_only else sum(left for left in free if left >= need(pod, kind))


def factor_of(group: PodGroupKind) -> float:
    """Return the factor of a group, any of which would do."""
    return 0.5 + group.gpus / 4 + len(group.models) + group.cpu_memory.cpu_milli / 64_000


def tables_of(workload: ExpectedWorkload, turnover: float = 0.0) -> Tables:
    factors = {group: factor_of(group) for group in WorkloadGroups(workload).of_kind}
    return Tables(workload, KINDS, CARDS, factors, turnover=turnover, most_cards=4)


def weight_of(workload: ExpectedWorkload, pod: PodKind, mass: int) -> int:
    """Return the weights as if each number of whole cards were frequent, with the scarcity of places of each group."""
    group = group_of(pod)
    weight = mass * factor_of(group)
    if pod.gpus > 1:
        together = sum(mass for other, mass in workload.kinds if other.gpus == pod.gpus)
        alike = sum(mass for other, mass in workload.kinds if group_of(other) == group)
        weight = mass * max(OFTEN, together) / alike * factor_of(group)
    return round(weight) if not pod.models or {kind.model for kind in KINDS} & {*pod.models} else 0


def group_of(pod: PodKind) -> PodGroupKind:
    return PodGroupKind(pod.gpus, pod.models, pod.cpu_memory) if pod.gpus > 1 else PodGroupKind(1, pod.models)


@given(workloads, nodes)
def test_usable_is_what_pods_drawn_at_random_could_use(
    workload: ExpectedWorkload, node: tuple[int, int, int, list[int]]
) -> None:
    cpu, memory, number, free = node
    summed = sum(
        weight_of(workload, pod, mass) * usable_by(pod, cpu, memory, KINDS[number], free) for pod, mass in workload.kinds
    )
    reserved = [gpus for gpus in NUMBERS if not any(pod.gpus == gpus for pod, _ in workload.kinds)]
    summed += sum(OFTEN * usable_by(PodKind(gpus=gpus), cpu, memory, KINDS[number], free) for gpus in reserved)
    assert tables_of(workload).usable(states(node)).tolist() == [summed]


def test_where_pods_end_models_count_by_how_few_cards_they_have_and_not_by_what_is_free() -> None:
    """Let a tenth of the pods request one model, which a fifth of all cards are of."""
    workload = workload_of({PodKind(gpus=1): 9.0, PodKind(gpus=1, models=("B",)): 1.0})
    node = states((64_000, 262_144, 2, [FULL, 0, 0, 0]))
    usable = tables_of(workload, turnover=1.0).usable(node)[0]
    assert usable == pytest.approx(FULL * MASS * (0.9 + 0.1 * sum(CARDS) / CARDS[2]), rel=1e-5)


@given(workloads, nodes)
def test_fed_is_for_how_many_cards_cpu_and_memory_last(
    workload: ExpectedWorkload, node: tuple[int, int, int, list[int]]
) -> None:
    cpu, memory, number, free = node
    summed = [0.0, 0.0]
    for pod, mass in workload.kinds:
        wanted = need(pod, KINDS[number])
        if wanted and (pod.gpus or wanted <= FULL):
            for part, left in enumerate((cpu, memory)):
                requested = pod.cpu_memory[part]
                summed[part] += mass * min(sum(free), left * wanted / requested if requested else sum(free))
    by_cpu, by_memory = tables_of(workload).fed(states(node))
    assert [*by_cpu, *by_memory] == pytest.approx(summed, rel=1e-3, abs=MASS)


@given(workloads, nodes)
def test_cut_is_what_the_rests_are_worth(workload: ExpectedWorkload, node: tuple[int, int, int, list[int]]) -> None:
    kind, free = KINDS[node[2]], node[3]
    demand: dict[int, float] = {}
    for pod, mass in workload.kinds:
        wanted = need(pod, kind)
        if not pod.gpus and 0 < wanted <= FULL:
            demand[-(-wanted // 10)] = demand.get(-(-wanted // 10), 0) + mass
    worth = worth_of_rests(demand)
    summed = sum(worth[left // 10] * FULL * MASS for left in free)
    assert tables_of(workload).cut(states(node)).tolist() == [pytest.approx(summed, abs=len(free))]


@given(workloads, st.lists(nodes, min_size=1, max_size=6))
def test_many_nodes_at_once_are_worth_what_each_is(
    workload: ExpectedWorkload, some: list[tuple[int, int, int, list[int]]]
) -> None:
    tables, at_once = tables_of(workload), states(*some)
    each = [states(node) for node in some]
    assert tables.usable(at_once).tolist() == [int(tables.usable(one)[0]) for one in each]
    assert tables.cut(at_once).tolist() == [int(tables.cut(one)[0]) for one in each]
    for part in (0, 1):
        assert tables.fed(at_once)[part].tolist() == [int(tables.fed(one)[part][0]) for one in each]


def test_many_different_amounts_are_taken_for_the_next_higher() -> None:
    workload = workload_of({PodKind(cpu_memory=CpuMemory(cpu, 0), gpus=1): 1.0 for cpu in range(1000, 2000)})
    tables = tables_of(workload)
    usable = [int(tables.usable(states((cpu, 0, 1, [FULL, 0, 0, 0])))[0]) for cpu in (0, 1500, 1999, 5000)]
    assert usable[0] == 0
    assert usable[1] < usable[2] == usable[3]


def test_a_node_without_cpu_amounts_has_plenty() -> None:
    workload = workload_of({PodKind(cpu_memory=CpuMemory(8000, 8192), gpus=1): 1.0})
    by_cpu, by_memory = tables_of(workload).fed(states((1 << 40, 1 << 40, 1, [FULL, FULL, 0, 0])))
    assert (int(by_cpu[0]), int(by_memory[0])) == (2 * FULL * MASS, 2 * FULL * MASS)


def test_many_sizes_of_shares_leave_the_most_frequent() -> None:
    demand = dict.fromkeys(range(1, 101), 1.0) | {50: 9.0, 100: 9.0}
    few = _of_few_sizes(demand)
    assert len(few) == MOST_SIZES
    assert {50, 100} <= few.keys()
    assert sum(few.values()) == sum(demand.values())
