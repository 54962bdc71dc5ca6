"""Test each baseline against its definition, on a small cluster as it fills up."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from simulate.baselines import BestFit, DotProduct, Fgd, FirstFit, Player, RandomFit, whole_score
from simulate.cluster import Cluster, Placed
from simulate.fragments import typical_pods
from simulate.trace import TraceNode, TracePod
from tests.unit.simulate.small import PODS, cluster, fragments, share, whole
from tests.unit.simulate.test_fragments import naive


def played(of: Cluster, player: Player, count: int, seed: int) -> list[tuple[int, int, tuple[int, ...]]]:
    """Place so many random pods, and return kind, node and cards of the placed ones."""
    chance, placed = random.Random(seed), []  # noqa: S311
    for pod in range(count):
        kind = chance.randrange(len(of.kinds.all))
        where = player.place(kind, pod)
        assert (where is None) == (not of.fits[kind].any())
        if where is not None:
            of.take(where[0], kind, where[1])
            player.changed(where[0])
            placed.append((kind, where[0], tuple(where[1])))
    return placed


def fgd_by_hand(of: Cluster, node: int, kind: int) -> tuple[int, int]:
    """Return the published score of a placement, and the card of a share."""
    typical, model = typical_pods(PODS), of.models[of.model[node]]
    pod, free = of.kinds.all[kind], of.free[node].tolist()
    cpu_milli = int(of.cpu_milli[node])
    before = naive(typical, model, cpu_milli, free)
    best = (-1, 0)
    cards = of.free_cards(node, kind)
    for card in cards if pod.share else [-1]:
        left = list(free)
        for taken in [card] if pod.share else cards[: pod.whole]:
            left[taken] -= pod.gpu_milli
        less = before - naive(typical, model, cpu_milli - pod.cpu_milli, left)
        score = int(100 / (1 + math.exp(-less / 1000)))
        if score > best[0]:
            best = score, card
    return best


def test_scores_are_rounded_down() -> None:
    less_milli = np.array([0.0, 100.0, -100.0, 1000.0, -1000.0, 8000.0])
    assert whole_score(less_milli).tolist() == [50, 52, 47, 73, 26, 99]


@pytest.mark.parametrize("seed", range(4))
def test_fgd_as_published(seed: int) -> None:
    """Check whole scores, the first node of the highest score, and its first card."""
    of = cluster(seed)
    player = Fgd(of, fragments(of))
    chance = random.Random(seed)  # noqa: S311
    for number in range(25):
        kind = chance.randrange(len(of.kinds.all))
        nodes = np.flatnonzero(of.fits[kind]).tolist()
        where = player.place(kind, number)
        if not nodes:
            assert where is None
            continue
        by_hand = {node: fgd_by_hand(of, node, kind) for node in nodes}
        best = max(score for score, _ in by_hand.values())
        node = next(node for node in nodes if by_hand[node][0] == best)
        pod = of.kinds.all[kind]
        assert where is not None
        assert where[0] == node
        assert list(where[1]) == ([by_hand[node][1]] if pod.share else of.free_cards(node, kind)[: pod.whole])
        of.take(node, kind, where[1])
        player.changed(node)


def test_best_fit_takes_the_fullest() -> None:
    nodes = [TraceNode(name=name, cpu_milli=32_000, memory_mib=65_536, gpus=2, model="T4") for name in "abc"]
    of = Cluster(nodes, [share(500, 4_000), share(300, 4_000), whole(1, 4_000)])
    for node, kind, card in ((1, 0, 1), (1, 1, 0)):
        of.take(node, kind, [card])
    of.take(2, 1, [0])
    player = BestFit(of)
    assert player.place(1, 1) == Placed(1, [1])  # the fullest node, and of its cards the one with less left
    assert player.place(2, 2) == Placed(2, [1])  # node 1 has no free card


def test_first_fit_takes_the_first() -> None:
    nodes = [TraceNode(name=name, cpu_milli=32_000, memory_mib=65_536, gpus=2, model="T4") for name in "ab"]
    of = Cluster(nodes, [share(500), whole(1), whole(2)])
    player = FirstFit(of)
    assert player.place(1, 1) == Placed(0, [0])
    of.take(0, 0, [0])
    assert player.place(0, 2) == Placed(0, [0])
    assert player.place(1, 3) == Placed(0, [1])
    assert player.place(2, 4) == Placed(1, [0, 1])


def test_dot_product_takes_the_node_with_the_least_of_what_is_asked_for() -> None:
    """Check that a pod without cards goes where cpu is short, and a pod with cards where cards are short."""
    small = TraceNode(name="few cards", cpu_milli=64_000, memory_mib=65_536, gpus=2, model="T4")
    nodes = [replace(small, name="many cards", gpus=8, cpu_milli=16_000), small]
    of = Cluster(nodes, [TracePod(cpu_milli=16_000), whole(2, 0)])
    player = DotProduct(of)
    assert player.place(0, 1) == Placed(0, [])
    assert player.place(1, 2) == Placed(1, [0, 1])


@pytest.mark.parametrize("policy", [FirstFit, BestFit, DotProduct])
def test_baselines_place_pods_until_the_cluster_is_full(policy: type[FirstFit] | type[BestFit] | type[DotProduct]) -> None:
    of = cluster()
    assert len(played(of, policy(of), 60, 1)) > 10


def test_random_takes_any() -> None:
    of = cluster()
    player = RandomFit(of, 1)
    kind = of.kinds.all.index(share(300, 2_000))
    places = [player.place(kind, pod) for pod in range(200)]
    assert {where[0] for where in places if where} == set(np.flatnonzero(of.fits[kind]).tolist())
    assert len({tuple(where[1]) for where in places if where}) == of.free.shape[1]


def test_random_is_of_the_seed() -> None:
    runs = [played(of := cluster(), RandomFit(of, seed), 40, 7) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
