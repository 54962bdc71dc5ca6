"""Compare the tables with the paper's definition: a loop over typical pods."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulate.fragments import Fragments, Typical, typical_pods
from simulate.trace import FULL, TracePod
from tests.unit.simulate.small import share, whole

MODELS = ("A10", "T4")

pods = st.builds(
    TracePod,
    cpu_milli=st.sampled_from([0, 1_000, 2_000, 4_000, 12_000]),
    gpus=st.sampled_from([1, 1, 2, 4]),
    gpu_milli=st.just(FULL),
    models=st.sampled_from([(), (), ("T4",), ("A10", "T4"), ("V100",)]),
)
shares = st.builds(
    TracePod,
    cpu_milli=st.sampled_from([0, 1_000, 2_000, 4_000, 12_000]),
    gpus=st.just(1),
    gpu_milli=st.sampled_from([100, 250, 500, 730]).map(lambda milli: milli // 10 * 10),
    models=st.sampled_from([(), (), ("T4",)]),
)
workloads = st.lists(st.one_of(pods, shares, st.just(TracePod(cpu_milli=3_000))), min_size=1, max_size=30)
frees = st.lists(st.sampled_from([-1, 0, 100, 240, 250, 490, 500, 900, 1000, 1000, 1000]), min_size=1, max_size=6)


def naive(typical: Mapping[Typical, float], model: str, cpu_milli: int, free: Sequence[int]) -> float:
    """Compute the fragment as section 4 of the paper does, one type of pod after the other."""
    cards = [milli for milli in free if milli > 0]
    total = 0.0
    for (cpu, part, count, wanted), weight in typical.items():
        requested = part or (FULL if count else 0)
        large = [milli for milli in cards if requested and milli >= requested]
        runs = requested and cpu <= cpu_milli and (not wanted or model in wanted) and len(large) >= (count or 1)
        total += weight * (sum(cards) - (sum(large) if runs else 0))
    return total


@given(workloads, st.sampled_from(MODELS), st.sampled_from([0, 999, 1_000, 3_000, 50_000]), frees)
def test_like_a_loop_over_typical_pods(workload: list[TracePod], model: str, cpu_milli: int, free: list[int]) -> None:
    typical = typical_pods(workload)
    tables = Fragments(typical, MODELS, most_cards=6)
    result = tables.of_nodes(np.array([MODELS.index(model)]), np.array([cpu_milli]), np.array([free]))
    assert result.tolist() == [pytest.approx(naive(typical, model, cpu_milli, free), abs=1e-6)]


def test_typical_are_the_most_frequent() -> None:
    pods = [share(300)] * 60 + [whole(1)] * 36 + [whole(8)] * 3 + [TracePod()]
    assert typical_pods(pods) == pytest.approx({(1_000, 300, 0, ()): 60 / 96, (1_000, 0, 1, ()): 36 / 96})


def test_by_hand() -> None:
    tables = Fragments(typical_pods([share(500, 1_000), whole(2, 4_000)]), MODELS, most_cards=4)
    free = np.array([1000, 1000, 400, -1])
    result = tables.of_nodes(np.zeros(3, np.int64), np.array([8_000, 2_000, 0]), np.array([free] * 3))
    assert result.tolist() == pytest.approx([400, 400 + 0.5 * 2000, 2400])
