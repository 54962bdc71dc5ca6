"""Test what bench.gang_replay writes: JSON of all rules, and the tables of the docs."""

import json
from pathlib import Path

import pytest

from bench import gang_replay
from bench.gang_replay import BEGIN, MARK
from bench.placement_table import END
from lading.errors import ConfigError
from simulate.gangs import jobs
from simulate.gangs.model import Rules
from simulate.stream import Durations, Span

PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "p,4000,4096,1,1000\nq,2000,2048,2,1000\n" * 2


def test_json_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = "".join(f"n{number},64000,262144,8,T4\n" for number in range(2 * gang_replay.EVERY))
    (tmp_path / "small_node_list.csv").write_text(f"sn,cpu_milli,memory_mib,gpu,model\n{nodes}")
    (tmp_path / "small_pod_list_tiny.csv").write_text(PODS)
    docs, out = tmp_path / "docs.md", tmp_path / "out" / "found.json"
    docs.write_text(f"before\n{BEGIN.format(MARK)}\n{END.format(MARK)}\nafter\n")
    monkeypatch.setattr(gang_replay, "DOCS", docs)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    monkeypatch.setattr(jobs, "SPANS", {Durations.EXPONENTIAL: Span(2.0, 0.5)})
    gang_replay.main([str(tmp_path), "--quick", "--docs", "-o", str(out)])
    loads = json.loads(out.read_text())["gangs"]["tiny"]
    assert list(loads) == ["0.95", "1.10"]
    assert list(loads["0.95"]["exponential"]) == list(Rules)
    rows = [line for line in docs.read_text().splitlines() if line.startswith("| 1.10 |")]
    assert len(rows) == 4 + 3
    monkeypatch.delenv("LADING_TRACES", raising=False)
    before = docs.read_text()
    gang_replay.main(["--docs", "-o", str(out)])
    assert docs.read_text() == before
    assert "| 0.95 | lading |" in capsys.readouterr().out


def test_results_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing"):
        gang_replay.read_results(tmp_path / "nothing")
