"""Compare the joint choice on 16 GPUs and 16 PFs with all sets of GPUs, each with its best VFs by the assignment problem.

Each PF has one VF, and as many VFs as GPUs are requested. Distances and links are those of test_joint's oracle; scipy solves
the assignment.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from central.ledger.model import NodeCapacity
from central.request.model import Policy
from central.search.fit import fit
from central.search.placement import Placement
from central.search.topology import Distance
from tests.fakes.capacities import request, whole
from tests.properties.test_joint import Plan, capacity_of, kept_whole, linked, near, random_status

NEVER = 1 << 20
Key = tuple[int, int, int, int, int, list[str]]


def assigned(distances: NDArray[np.int64]) -> tuple[int, int] | None:
    """Return the least (worst, sum) of the distances between cards and VFs."""
    for level in Distance:
        costs = np.where(distances <= level, distances, NEVER)
        total = int(costs[linear_sum_assignment(costs)].sum())
        if total < NEVER:
            return level, total
    return None


def keys(where: NodeCapacity, count: int) -> Iterator[Key]:
    cards = [(place, one) for place, one in enumerate(where.cards) if one.free]
    distances = np.array([[near(card.gpu.place, vf.pf.place) for vf in where.vfs if vf.free] for _, card in cards], np.int64)
    links = [[linked(a.gpu, b.gpu) if a is not b else 0 for _, b in cards] for _, a in cards]
    groups = [{place for place, one in enumerate(where.cards) if one.gpu.uuid in group} for group in kept_whole(where)]
    worst_so_far = NEVER
    for some in combinations(range(len(cards)), count):
        between = [links[a][b] for a, b in combinations(some, 2)]
        if max(between) > worst_so_far or (result := assigned(distances[list(some)])) is None:
            continue
        worst_so_far = max(between)
        level, total = result
        chosen = {cards[number][0] for number in some}
        broken = sum(1 for group in groups if group & chosen and not group <= chosen)
        yield worst_so_far, level, sum(between), total, broken, sorted(cards[number][1].gpu.bdf for number in some)


@pytest.mark.parametrize("seed", range(6))
def test_sixteen_by_sixteen(seed: int) -> None:
    random = Random(seed)  # noqa: S311
    status = random_status(random, Plan(cards=16, ports=16, vfs_of_pf=1, places=16))
    where = replace(capacity_of(status, random, held=0.1, vfs_of_pf=1), partitions=())
    count = random.choice([2, 3, 5, 7, 8])
    best = min(keys(where, count), default=None)
    result = fit(where, request(whole("a", count, vfs=count)), policy=Policy.BINPACK)
    if best is None:
        assert not isinstance(result, Placement)
        return
    assert isinstance(result, Placement)
    assert result.distances[1:] == best[:2]
    assert sorted(gpu.bdf for gpu in result.containers["a"].gpus) == best[-1]
