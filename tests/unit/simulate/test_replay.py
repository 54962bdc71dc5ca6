"""Test whole replays of the small cluster: equal for equal seeds, honest for every policy, and counted right."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from central.request.model import Policy
from simulate import replay as replay_module
from simulate.arrivals import draw_arrivals
from simulate.cluster import Cluster, OverCapacityError, Placed
from simulate.cluster_file import read_cluster
from simulate.model import AnyPolicy, Baseline, Prior, Run
from simulate.replay import TurnedAwayError, replay
from simulate.runs import ArrivalsTask, run_tasks
from simulate.trace import Trace
from tests.unit.simulate.shipped import CLUSTERS, described, entry
from tests.unit.simulate.small import NODES, TRACE, Stubborn, whole

POLICIES: list[AnyPolicy] = [*Policy, *Baseline]
RATIO = 3.0


def figures(run: Run) -> tuple[object, ...]:
    """Return all figures but the duration."""
    return run.policy, run.seed, run.at_end, run.arrived, run.failed, run.curve


def played(policy: AnyPolicy, seed: int = 42, prior: Prior = Prior.WORKLOAD) -> Run:
    return replay(TRACE, policy, seed, ratio=RATIO, prior=prior)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_seed_says_it_all(policy: AnyPolicy) -> None:
    assert figures(played(policy)) == figures(played(policy))
    assert figures(played(policy))[2:] != figures(played(policy, 43))[2:]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("prior", Prior)
@pytest.mark.parametrize("seed", range(3))
def test_figures_are_those_of_the_arrivals(policy: AnyPolicy, prior: Prior, seed: int) -> None:
    """Check a replay, which itself checks at every pod that capacity is not exceeded and that no fitting pod is refused."""
    counted: list[int] = []
    run = replay(TRACE, policy, seed, ratio=RATIO, prior=prior, tell=counted.append)
    arriving = draw_arrivals(TRACE.pods, TRACE.capacity, RATIO, seed)
    assert sum(counted) == len(arriving)
    assert run.arrived == {label: [pod.label for pod in arriving].count(label) for label in run.arrived}
    assert sum(run.arrived.values()) == len(arriving)
    assert all(0 < count <= run.arrived[label] for label, count in run.failed.items())
    assert 0 < run.at(80) <= run.at(100) <= run.at_end <= 100
    assert len(run.curve) == round(100 * RATIO) + 1
    assert run.curve[100].allocated == run.at(100)
    assert run.at(len(run.curve)) == run.at_end == run.curve[-1].allocated
    assert all(a.allocated <= b.allocated for a, b in pairwise(run.curve))
    assert all(0 <= point.fragments <= 100 - point.allocated + 1e-9 for point in run.curve)


@pytest.mark.parametrize("policy", Baseline)
def test_to_baselines_cards_are_cards(policy: Baseline) -> None:
    """Check that baselines ignore the position of cards, and other devices."""
    nodes = read_cluster(CLUSTERS / "mixed.json").nodes
    pods = tuple(replace(pod, models=()) for pod in TRACE.pods)
    described = Trace(nodes=nodes, pods=pods)
    counted = Trace(nodes=tuple(replace(node, devices=None) for node in nodes), pods=pods)
    run = replay(described, policy, 42, ratio=1.3)
    assert figures(run) == figures(replay(counted, policy, 42, ratio=1.3))
    assert run.at_end > 50


@pytest.mark.parametrize(("partition", "failed"), [("honor", {"3 GPUs": 2}), ("prefer", {})])
def test_partitions_are_a_setting_of_the_cluster(tmp_path: Path, partition: str, failed: dict[str, int]) -> None:
    """Check a board of eight GPUs of which three are missing."""
    result = described(tmp_path, entry("dgx-h100", 1), partition=partition)
    trace = Trace(nodes=result.nodes, pods=(whole(3), whole(3)), partition=result.partition)
    assert replay(trace, Policy.FRAGMENTATION, 42, ratio=0.9).failed == failed


@pytest.mark.parametrize(("answer", "error"), [(None, TurnedAwayError), (Placed(0, [0]), OverCapacityError)])
def test_a_policy_that_cheats_ends_the_replay(
    monkeypatch: pytest.MonkeyPatch, answer: Placed | None, error: type[Exception]
) -> None:
    def stubborn(cluster: Cluster, *rest: object) -> Stubborn:
        return Stubborn(answer)

    monkeypatch.setattr(replay_module, "make_player", stubborn)
    with pytest.raises(error):
        played(Baseline.FGD)


def test_several_processes_find_the_same() -> None:
    tasks = [ArrivalsTask(policy, seed, RATIO, Prior.WORKLOAD) for policy in (Baseline.FGD, Baseline.RANDOM) for seed in (1, 2)]
    counted: list[int] = []
    runs = run_tasks(TRACE, tasks, jobs=2, tell=counted.append)
    assert [figures(run) for run in runs] == [figures(run) for run in run_tasks(TRACE, tasks, jobs=1, tell=counted.append)]
    assert sum(counted) == pytest.approx(2 * sum(task.expect_pods(TRACE) for task in tasks), rel=0.2)


class Long(NamedTuple):
    end: Path

    def expect_pods(self, trace: Trace) -> float:
        return 1.0

    def run(self, trace: Trace, tell: Callable[[int], None]) -> None:
        for _ in range(10**6):
            tell(1)
        self.end.touch()


def test_an_interrupt_ends_replays_that_have_begun(tmp_path: Path) -> None:
    def interrupt(arrived: int) -> None:
        if arrived:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_tasks(TRACE, [Long(tmp_path / "end")] * 2, jobs=2, tell=interrupt)
    assert not (tmp_path / "end").exists()


def test_a_failure_in_a_process_ends_all() -> None:
    bare = replace(TRACE, nodes=NODES[-1:])  # without a GPU, which read_nodes refuses
    tasks = [ArrivalsTask(Baseline.FGD, seed, RATIO, Prior.WORKLOAD) for seed in range(4)]
    with pytest.raises(ValueError, match="empty"):
        run_tasks(bare, tasks, jobs=2, tell=lambda arrived: None)
