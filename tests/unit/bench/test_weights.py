"""Test the bench of weights: weights are replaced only for the replay, reported seeds are not replayed again, and the JSON is
complete."""

import json
from pathlib import Path

import numpy as np
import pytest

from bench import weights
from bench.weights import ALL, SHIPPED, VARIANTS, Variant, played_with, summarize
from central.rank import fragmentation
from central.rank.columns import FULL, Columns, States
from central.rank.fragmentation import Fragmentation
from central.rank.workload import PodKind, workload_of
from central.request.model import CpuMemory
from tests.fakes.capacities import capacity, card
from tests.unit.bench.test_placement import NODES, PODS


def score() -> int:
    """Return the score of a pod that leaves a tenth of a card less than others request, and hardly any cpu for them."""
    columns = Columns()
    columns.put(capacity(card(0), card(1)))
    cores = CpuMemory(8_000, 1_024)
    pods = {PodKind(cpu_memory=cores, core_percent=50): 1.0, PodKind(cpu_memory=cores, gpus=2): 1.0}
    kind = np.ones(1, np.int64)
    before = States(np.array([[64_000], [9_000]]), kind, np.array([[500, FULL]]))
    after = States(np.array([[10_000], [9_000]]), kind, np.array([[400, FULL]]))
    return int(Fragmentation(workload_of(pods), columns).scores(before, after, np.zeros(1, np.int64))[0])


def test_each_variant_scores_in_its_own_way() -> None:
    as_shipped = score()
    for name, variant in VARIANTS.items():
        with played_with(variant):
            assert (score() == as_shipped) == (name == SHIPPED), name
        assert score() == as_shipped


def test_half_of_every_weight_is_a_whole_number() -> None:
    shipped = fragmentation.FILLING
    assert all(weight % 2 == 0 for weight in shipped)
    halved = VARIANTS["fed x 1/2"].weights()
    assert (2 * halved.fed_by_memory, halved.cut) == (shipped.fed_by_memory, shipped.cut)
    with played_with(VARIANTS["fed x 1/2"]):
        assert _constants()[0] == halved
    assert VARIANTS["cut x 2"].weights() == shipped._replace(cut=2 * shipped.cut)


def test_the_shipped_constants_are_restored_after_a_failure() -> None:
    before = _constants()
    with pytest.raises(ZeroDivisionError):
        _fail_with(Variant(step_milli=15))
    assert _constants() == before


def _fail_with(variant: Variant) -> None:
    with played_with(variant):
        raise ZeroDivisionError


def _constants() -> tuple[object, ...]:
    return fragmentation.FILLING, fragmentation.STEP_MILLI


def test_differences_are_paired_by_seed() -> None:
    gained = {"a": (1.0, 3.0), "b": (2.0, 0.0)}
    allocated = {
        (workload, variant, seed): 90.0 + seed + (more[seed] if variant == "cut x 2" else 0.0)
        for workload, more in gained.items()
        for variant in VARIANTS
        for seed in (0, 1)
    }
    result = summarize(allocated, ["a", "b"], [0, 1], 1.3)
    assert result["allocation"] == {"a": 90.5, "b": 90.5}
    assert result["to_shipped"]["a"]["cut x 2"] == {"mean": 2.0, "error": pytest.approx(1.0)}
    assert result["to_shipped"][ALL]["cut x 2"] == {"mean": 1.5, "error": pytest.approx(0.0)}
    assert result["to_shipped"]["a"]["cut x 1/2"] == {"mean": 0.0, "error": 0.0}
    assert SHIPPED not in result["to_shipped"]["a"]
    assert result["variants"]["fed x 1/2"] == {
        "cut": 12,
        "usable": 1,
        "fed_by_cpu": 0.5,
        "fed_by_memory": 0.25,
        "together": 0,
        "step_milli": 30,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_node_list.csv").write_text(NODES)
    (tmp_path / "my_pod_list_default.csv").write_text(PODS)
    return tmp_path


def test_a_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = folder / "out/weights.json"
    weights.main([str(folder), "--seeds", "2", "--first-seed", "1", "--jobs", "1", "-o", str(output)])
    result = json.loads(output.read_text())
    assert (result["seeds"], result["arrival_ratio"]) == ([1, 2], 1.3)
    assert result["to_shipped"].keys() == {"default", ALL}
    assert result["to_shipped"]["default"].keys() == VARIANTS.keys() - {SHIPPED}
    assert "default" in capsys.readouterr().out


@pytest.mark.parametrize(("first", "seeds"), [(42, 1), (40, 3), (51, 5), (1, 50), (1, 0), (-43, 3)])
def test_seeds_that_are_reported_are_refused(folder: Path, capsys: pytest.CaptureFixture[str], first: int, seeds: int) -> None:
    with pytest.raises(SystemExit) as ended:
        weights.main([str(folder), "--first-seed", str(first), "--seeds", str(seeds)])
    assert ended.value.code == 2
    assert "seed" in capsys.readouterr().err
