"""Test what bench.placement finds in a folder, what it writes, and how its table tells what was missed."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench import placement
from bench.departures import ONLINE, POOLED
from bench.placement import find_workloads
from bench.placement_real import expected_pods
from bench.placement_table import BEGIN, END, render, render_baselines, render_markdown, write_docs
from central.rank.workload import kind_of, parse_workload
from lading.errors import ConfigError
from simulate.product import read_pod, shape_of
from tests.unit.simulate.small import PODS as TRACED
from tests.unit.simulate.small import share, whole

NODES = "sn,cpu_milli,memory_mib,gpu,model\na,64000,262144,4,T4\nb,64000,262144,2,A10\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\n"
    + "p,4000,4096,1,1000,0,900\nq,2000,2048,1,300,0,600\nr,1000,1024,0,0,0,90\n" * 3
)


def policy(at_end: float, to_fgd: float, eights: float = 0.0) -> dict[str, Any]:
    difference = {"mean": to_fgd, "error": 0.05}
    allocated = {"80": 80.0, "90": 90.0 if at_end > 90 else at_end, "100": at_end - 0.2, "130": at_end}
    return {
        **allocated,
        "per_seed": [allocated, allocated],
        "to_fgd": {"100": difference, "130": difference},
        "failures_by_class": {"1 GPU": 20.0, "8 GPUs": eights},
    }


def results(
    ours: float = 0.9,
    online: float = 0.1,
    other: float = 0.8,
    first: float = -1.0,
    eights: float = 0.0,
    warm: float = 0.3,
    slowest: float = 3.9,
) -> dict[str, Any]:
    return {
        "seeds": [42, 43],
        "default": {
            "random": policy(87.4, -8.0),
            "bestfit": policy(93.1, -2.3),
            "fgd": policy(95.4, 0.0),
            "first-fit": policy(95.4 + first, first),
            "dot-product": policy(91.0, -4.4),
            "fragmentation": policy(95.4 + ours, ours, eights),
            "fragmentation_online": policy(95.4 + online, online),
            "fragmentation_other": policy(95.4 + other, other),
            "other": "multigpu40",
        },
        "upper_bound": {"default": {"100": 96.9, "130": 99.9, "saturation": 96.3}},
        "replay_s": 2.0,
        "replay_max_s": slowest,
        "replay_max_workload": "default",
        "replay_s_by_workload": {"default": slowest},
        "decision_p50_ms": 0.4,
        "joint_search_warm_p99_ms": warm,
    }


POLICIES = {"fragmentation", "fgd", "best-fit", "first-fit", "dot-product", "random"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_node_list.csv").write_text(NODES)
    for name in ("default", "other"):
        (tmp_path / f"my_pod_list_{name}.csv").write_text(PODS)
    return tmp_path


def test_workloads_of_a_folder(folder: Path) -> None:
    nodes, workloads = find_workloads(folder)
    assert [node.name for node in nodes] == ["a", "b"]
    assert list(workloads) == ["default", "other"]
    assert list(find_workloads(folder, ["other"])[1]) == ["other"]


def test_a_folder_that_lacks_something(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nonsense"):
        find_workloads(folder, ["nonsense"])
    (tmp_path / "another_node_list.csv").write_text(NODES)
    with pytest.raises(ConfigError, match="node_list"):
        find_workloads(folder)


@pytest.mark.long
def test_a_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(placement, "measure_searches", lambda: {"joint_search_warm_p99_ms": 0.1})
    monkeypatch.setattr(placement, "measure_joint", dict)
    output = tmp_path / "out/placement.json"
    placement.main([str(folder), "--quick", "--only", "default", "-o", str(output)])
    result = json.loads(output.read_text())
    for key in ("fragmentation", "fgd", "bestfit", "random", "first-fit", "dot-product", ONLINE, "fragmentation_other"):
        assert {"80", "90", "100", "130"} <= result["default"][key].keys()
    assert result["arrivals"]["default"].keys() == POLICIES
    assert result["default"]["other"] in {"default", "other"}
    assert result["arrivals"]["default"]["best-fit"] == {
        asked: result["default"]["bestfit"][asked] for asked in ("80", "90", "100", "130")
    }
    assert result["departures"]["default"]["0.90"]["trace"].keys() == POLICIES | {ONLINE, POOLED}
    assert result["upper_bound"]["default"].keys() == {"100", "130", "saturation"}
    assert {"replay_s", "replay_max_s", "decision_p50_ms", "joint_search_warm_p99_ms"} <= result.keys()
    assert result["replay_s_by_workload"] == {"default": result["replay_s"]}
    assert (output.parent / "placement/default-allocation.svg").exists()
    assert "default" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("missed", "word"),
    [
        *((results(), ""), (results(ours=0.2), "MISSED"), (results(online=-0.1), "ONLINE")),
        *((results(other=0.3), "OTHER PRIOR"), (results(first=1.2), "BEHIND"), (results(eights=5.1), "STARVED")),
        *((results(warm=1.1), "MISSED"), (results(slowest=4.1), "MISSED")),
    ],
)
def test_missed_goals_are_reported(missed: dict[str, Any], word: str) -> None:
    text = {word for word in ("MISSED", "ONLINE", "STARVED", "OTHER PRIOR", "BEHIND") if word in render(missed)}
    assert text == ({word} if word else set())


def test_the_table_in_the_docs(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin, end = BEGIN.format("placement"), END.format("placement")
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    write_docs(page, {"placement": render_markdown(results())})
    assert page.read_text() == f"before\n{begin}\n{render_markdown(results())}\n{end}\nafter\n"
    (row,) = [line for line in page.read_text().splitlines() if line.startswith("| default |")]
    assert row.startswith("| default | 87.40 | 93.10 | 95.40 | **96.30** |")
    assert row.endswith("| 96.3 | 3.9 s |")
    with pytest.raises(ConfigError, match="departures"):
        write_docs(page, {"placement": "new", "departures": "a table without marks"})
    assert "| default |" in page.read_text()


def test_the_lead_on_the_best_baseline_and_the_prior_of_another_workload() -> None:
    assert render_baselines(results(ours=0.9, first=0.5, other=0.6)).splitlines()[2] == (
        "| default | 80.00, +0.00 ± 0.00 to FGD | 90.00, +0.00 ± 0.00 to FGD | 96.10, +0.40 ± 0.00 to first-fit | multigpu40 "
        "| -0.30 ± 0.00 |"
    )


def test_the_prior_is_that_of_the_workload_that_differs_most() -> None:
    many, some, few = (whole(8), whole(1)), (whole(2), *[whole(1)] * 4), (share(500),)
    every = {"many": many, "some": some, "few": few}
    assert [placement.most_different(name, every) for name in every] == ["few", "many", "many"]


def test_each_workload_is_replayed_alone_for_its_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, workloads = find_workloads(folder)
    took = iter([1.5, 2.5])
    monkeypatch.setattr(placement, "measure_replay", lambda trace, ratio: next(took))
    assert placement.measure_replays(nodes, workloads, "default") == {
        "replay_s": 1.5,
        "replay_max_s": 2.5,
        "replay_max_workload": "other",
        "replay_s_by_workload": {"default": 1.5, "other": 2.5},
    }


def test_figures_of_an_older_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "placement.json"
    old.write_text(json.dumps({key: value for key, value in results().items() if "replay" not in key}))
    with pytest.raises(SystemExit) as ended:
        placement.main(["--docs", "-o", str(old)])
    assert ended.value.code == 2
    assert str(old) in capsys.readouterr().err


def test_central_learns_of_the_same_pods_as_the_replay() -> None:
    written = parse_workload(json.dumps({"pods": list(expected_pods(TRACED))}).encode())
    assert written == Counter(kind_of(shape_of(read_pod(pod))) for pod in TRACED)
