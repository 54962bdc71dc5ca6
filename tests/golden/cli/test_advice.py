"""`why`, `simulate`, `defrag` and `cordon` of a cluster with little room, as people and programs read them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.docs import ROOT
from tests.fakes.busy_cluster import BusyCluster
from tests.fakes.kubectl_lading import Cli, served
from tests.fakes.small_cluster import NOW
from tests.golden.recorded import assert_recorded

FOLDER: Final = Path(__file__).parent
COLUMNS: Final = 100
MANIFEST: Final = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: serve, namespace: team-c}
spec:
  replicas: 2
  template:
    metadata: {annotations: {lading.dev/topology: switch}}
    spec:
      schedulerName: lading
      containers:
      - name: main
        resources: {limits: {lading.dev/gpu: 2, lading.dev/rdma: 2}}
---
kind: Pod
metadata: {name: large}
spec:
  schedulerName: lading
  containers: [{name: main, resources: {limits: {lading.dev/gpu: 8}}}]
---
kind: Pod
metadata: {name: misspelt}
spec:
  containers: [{name: main, resources: {limits: {lading.dev/gpu: 0.5}}}]
---
kind: Service
metadata: {name: serve}
"""


@pytest.fixture(scope="module")
def module_cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    folder = tmp_path_factory.mktemp("busy")
    with served(BusyCluster(), folder) as cli:
        (folder / "pods.yaml").write_text(MANIFEST)
        yield cli


@pytest.fixture
def cli(module_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setattr("time.time", lambda: NOW)
    return module_cli


@pytest.mark.parametrize("pod", ["eight", "share", "hungry", "busy-b-5", "misspelt", "gated", "elsewhere", "train-0"])
def test_why(cli: Cli, pod: str) -> None:
    assert_recorded(FOLDER / f"why-{pod}.txt", cli.on_terminal("why", f"team-a/{pod}", columns=COLUMNS))


def test_why_all(cli: Cli) -> None:
    assert_recorded(FOLDER / "why.txt", cli.on_terminal("why", "-A", columns=COLUMNS))
    assert_recorded(FOLDER / "why.json", cli.run("why", "-n", "team-a", "-o", "json").stdout)


def test_why_for_programs(cli: Cli) -> None:
    assert_recorded(FOLDER / "why-eight.json", cli.run("why", "-n", "team-a", "eight", "-o", "json").stdout)


def test_no_such_pod(cli: Cli) -> None:
    done = cli.run("why", "team-a/eigth")
    assert done.exit_code == 1
    assert "team-a/eight" in done.stderr


@pytest.mark.parametrize("output", ["table", "wide"])
def test_simulate(cli: Cli, output: str) -> None:
    manifest = str(cli.kubeconfig.parent / "pods.yaml")
    text = cli.on_terminal("simulate", "-f", manifest, "-o", output, columns=COLUMNS)
    assert_recorded(FOLDER / f"simulate-{output}.txt", text)


def test_defrag(cli: Cli) -> None:
    assert_recorded(FOLDER / "defrag.txt", cli.on_terminal("defrag", columns=COLUMNS))
    assert_recorded(FOLDER / "defrag.json", cli.run("defrag", "-o", "json").stdout)


def test_cordon(cli: Cli) -> None:
    devices = ("busy-b/0", "busy-b/7", "busy-b/0000:18:00.0", "desk-1/0")
    assert_recorded(FOLDER / "cordon.txt", cli.on_terminal("cordon", "--dry-run", *devices, columns=COLUMNS))


@pytest.mark.parametrize("name", ["why", "why-eight", "why-busy-b-5", "simulate-table", "defrag", "cordon"])
def test_the_page_shows_it_as_it_is(name: str) -> None:
    assert (FOLDER / f"{name}.txt").read_text() in (ROOT / "docs/kubectl-lading.md").read_text()
