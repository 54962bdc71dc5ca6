"""Test what bench.placement replays with departures, and its tables."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import placement
from bench.departures import pooled, render_departures
from tests.unit.simulate.small import TRACE

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{number},64000,262144,4,T4\n" for number in range(9))
HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli"
TIMED = f"{HEAD},creation_time,deletion_time\np,4000,4096,1,1000,0,900\nq,1000,1024,4,1000,0,90\n"
TIMELESS = f"{HEAD}\nq,1000,1024,4,1000\np,4000,4096,1,1000\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_node_list.csv").write_text(NODES)
    (tmp_path / "my_pod_list_default.csv").write_text(TIMED)
    (tmp_path / "my_pod_list_multigpu20.csv").write_text(TIMELESS)
    return tmp_path


@pytest.mark.long
def test_departures_only(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that the other figures of the file remain, and those of other workloads."""
    output = folder / "placement.json"
    output.write_text(json.dumps({"replay_s": 2.0, "departures": {"default": {}}}))
    placement.main([str(folder), "--departures-only", "--departure-seeds", "1", "--only", "default", "-o", str(output)])
    placement.main([str(folder), "--departures-only", "--departure-seeds", "2", "--only", "multigpu20", "-o", str(output)])
    result = json.loads(output.read_text())
    assert result["replay_s"] == 2.0
    assert list(result["departures"]) == ["default", "multigpu20"]
    for loads in result["departures"].values():
        assert list(loads) == ["0.80", "0.90", "0.95", "1.05"]
        assert all(list(durations) == ["exponential", "trace"] for durations in loads.values())
    ours = result["departures"]["multigpu20"]["0.95"]["trace"]["fragmentation"]
    assert ours["seeds"] == [42, 43]
    assert "| fragmentation |" in capsys.readouterr().out


def policy(allocated: float, queued: float, eight: float | None) -> dict[str, Any]:
    """Return the figures of two seeds, one point from each other."""
    waits = {"delay_8gpu": eight, "delay_4gpu": 1.0, "delay_1gpu": 0.5, "delay_share": 0.0}
    per_seed = [{"allocated": allocated + more, "queued": queued, **waits} for more in (-0.5, 0.5)]
    return {"allocated": allocated, "queued": queued, "per_seed": per_seed, **waits}


def cell(ours: float, fgd: float, eight: float | None = 2.0) -> dict[str, Any]:
    policies = {
        "fragmentation": policy(ours, 10.0, eight),
        "fgd": policy(fgd, 12.0, eight and 4.0),
        "best-fit": policy(fgd - 1.0, 13.0, eight),
        "first-fit": policy(fgd + 0.2, 13.0, eight),
    }
    return {"exponential": policies, "trace": policies}


def test_tables() -> None:
    departures = {"default": {"0.80": cell(78.0, 77.5), "0.95": cell(88.0, 87.5), "1.05": cell(95.0, 97.0, eight=None)}}
    rows = [line for line in render_departures(departures).splitlines() if line.startswith("|")]
    assert "| 0.80, 0.95 | fragmentation | 83.00 | 10.00 | +0.50 ± 0.00 | -2.00 ± 0.00 | 0.50 | 1.00 | 1.00 | n/a |" in rows
    assert "| 0.80, 0.95 | fgd | 82.50 | 12.00 |  |  |  |  |  |  |" in rows
    assert "| 1.05 | fragmentation | 95.00 | 10.00 | -2.00 ± 0.00 | -2.00 ± 0.00 | n/a | 1.00 | 1.00 | n/a |" in rows
    assert (
        "| default | 83.00 | 10.00 | +0.50 ± 0.00 | -2.00 ± 0.00 | 0.50 | 1.00 | 1.00 | n/a | +0.30 ± 0.00 to first-fit |"
        in rows
    )
    assert len({row.count("|") for row in rows}) == 1


def test_a_pool_has_all_that_the_nodes_have() -> None:
    pool = pooled(TRACE)
    (node,) = pool.nodes
    assert (node.gpus, node.cpu_milli) == (11, sum(node.cpu_milli for node in TRACE.nodes))
    assert pool.capacity == TRACE.capacity
    assert [pod.milli for pod in pool.pods] == [pod.milli for pod in TRACE.pods]
    assert not any(pod.models for pod in pool.pods)
