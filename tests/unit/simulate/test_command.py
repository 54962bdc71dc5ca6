"""Test the command line: from two files to a table, JSON and pictures, and the errors for useless arguments."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lading.errors import ConfigError
from simulate.command import simulate
from tests.unit.simulate.shipped import CLUSTERS, entry
from tests.unit.simulate.small import NODES, PODS


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    nodes = [f"{one.name},{one.cpu_milli},{one.memory_mib},{one.gpus},{one.model}" for one in NODES]
    pods = [f"p,{one.cpu_milli},{one.memory_mib},{one.gpus},{one.gpu_milli},{'|'.join(one.models)}" for one in PODS]
    (tmp_path / "nodes.csv").write_text("\n".join(["sn,cpu_milli,memory_mib,gpu,model", *nodes]))
    (tmp_path / "tiny.csv").write_text("\n".join(["name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec", *pods]))
    return ["--nodes", str(tmp_path / "nodes.csv"), "--pods", str(tmp_path / "tiny.csv")]


@pytest.fixture
def timed(tmp_path: Path) -> Path:
    """Return the file of another workload, whose pods have times."""
    pods = [f"p,{one.cpu_milli},{one.memory_mib},{one.gpus},{one.gpu_milli},{n},{200 + 90 * n}" for n, one in enumerate(PODS)]
    path = tmp_path / "openb_pod_list_timed.csv"
    path.write_text("\n".join(["name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time", *pods]))
    return path


def test_json(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    simulate([*files, "--seeds", "2", "--policy", "fgd,random", "--policy", "best-fit", "-o", "json", "--jobs", "1"])
    result = json.loads(capsys.readouterr().out)
    assert (result["policy"], result["seeds"]) == ("fgd", [42, 43])
    assert result["allocation"].keys() == {"80", "90", "100", "130"}
    assert len(result["per_seed"]) == 2
    assert result["failures_by_class"].keys() == result["arrived_by_class"].keys()
    assert [other["policy"] for other in result["others"]] == ["random", "best-fit"]


def test_central_starts_it(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "simulate.py").write_text("raise SystemExit(9)")  # not what is in the current folder
    central = [sys.executable, "-P", "-m", "central.main", "simulate"]
    done = subprocess.run([*central, *files, "--policy", "fgd"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "fgd" in done.stdout
    done = subprocess.run([*central, *files, "--seeds", "0"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "--seeds 0" in done.stderr) == (2, True)


def test_table_and_pictures(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate([*files, "--policy", "fgd", "--seed", "7", "--pictures", str(tmp_path / "out"), "--jobs", "1"])
    assert "seed 7" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"tiny-allocation.svg", "tiny-fragments.svg"}


DELAYS = {"delay_8gpu", "delay_4gpu", "delay_1gpu", "delay_share"}


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_json_with_departures(files: list[str], timed: Path, capsys: pytest.CaptureFixture[str], jobs: str) -> None:
    arguments = ["--departures", "trace", "--load", ".9", "--seeds", "2", "--policy", "fragmentation,fgd", "-o", "json"]
    simulate([*files[:2], "--pods", str(timed), *arguments, "--jobs", jobs])
    result = json.loads(capsys.readouterr().out)
    assert (result.keys(), result["departures"].keys()) == ({"departures"}, {"timed"})
    policies = result["departures"]["timed"]["0.90"]["trace"]
    assert list(policies) == ["fragmentation", "fgd"]
    ours, fgd = policies.values()
    for one in (ours, fgd):
        assert one.keys() >= {"allocated", "queued", "seeds", "per_seed", "delays", *DELAYS}
        assert one["seeds"] == [seed["seed"] for seed in one["per_seed"]] == [42, 43]
        assert one["allocated"] == pytest.approx(sum(seed["allocated"] for seed in one["per_seed"]) / 2)
        assert one["delays"]["1 GPU"].keys() == {"mean", "p50", "p99", "longest", "pods"}
        assert one["delay_1gpu"] == pytest.approx(one["delays"]["1 GPU"]["mean"])
        assert one["delay_8gpu"] is None  # none of these pods asks for as many
    assert ours["prior"] == "workload"
    assert ours["to_fgd"]["queued"]["mean"] == pytest.approx(ours["queued"] - fgd["queued"])
    assert not {"to_fgd", "prior"} & fgd.keys()


@pytest.mark.parametrize(("load", "key"), [("1.05", "1.05"), ("1", "1.00"), ("0.875", "0.875"), (None, "0.95")])
def test_the_load_is_a_key(files: list[str], capsys: pytest.CaptureFixture[str], load: str | None, key: str) -> None:
    flags = ["--departures", "exponential", *(["--load", load] if load else [])]
    simulate([*files, *flags, "--policy", "first-fit", "-o", "json"])
    assert list(json.loads(capsys.readouterr().out)["departures"]["tiny"]) == [key]


@pytest.mark.parametrize("load", ["0.00001", "2"])
def test_loads_at_the_bounds(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], load: str) -> None:
    """Check loads at which almost no pod arrives, or almost all wait."""
    flags = ["--departures", "exponential", "--load", load, "--policy", "fgd,random", "--jobs", "1"]
    simulate([*files, *flags, "--pictures", str(tmp_path / "out")])
    assert "CLASS" in capsys.readouterr().out


def test_durations_of_another_file(files: list[str], timed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate([*files, "--departures", "trace", "--durations-from", str(timed), "--policy", "dot-product", "-o", "json"])
    assert list(json.loads(capsys.readouterr().out)["departures"]["tiny"]["0.95"]) == ["trace"]


def test_table_and_pictures_with_departures(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--departures", "exponential", "--seeds", "2", "--policy", "fgd,random"]
    simulate([*files, *flags, "--pictures", str(tmp_path / "out"), "--jobs", "1"])
    head, *lines = capsys.readouterr().out.splitlines()
    assert all(part in head for part in ("95 %", "exponential", "seeds 42 to 43"))
    assert {"fgd", "random", "CLASS", "cpu", "4"} <= {line.split()[0] for line in lines if line}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "tiny-departures-allocated.svg",
        "tiny-departures-queued.svg",
    }


def test_priorities_and_patience(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pods = "cpu_milli,memory_mib,num_gpu,gpu_milli,priority\n1000,1024,4,1000,7\n" + "1000,1024,1,1000,0\n" * 9
    (tmp_path / "ranked.csv").write_text(pods)
    flags = ["--departures", "exponential", "--load", "1.2", "--jobs", "1", "-o", "json"]
    simulate([*files, "--pods", str(tmp_path / "ranked.csv"), *flags])
    (tmp_path / "ranked.csv").write_text(pods.replace(",7", ",0"))
    simulate([*files, "--pods", str(tmp_path / "ranked.csv"), *flags])
    simulate([*files, "--pods", str(tmp_path / "ranked.csv"), "--patience", "0.2", *flags])
    printed, result = capsys.readouterr().out, []
    while printed.strip():
        one, end = json.JSONDecoder().raw_decode(printed)
        result.append(one["departures"]["ranked"]["1.20"]["exponential"]["fragmentation"])
        printed = printed[end:].lstrip()
    ranked, plain, patient = result
    assert ranked["evicted"] > 0 == plain["evicted"] == patient["evicted"]
    assert ranked["delay_4gpu"] < patient["delay_4gpu"] < plain["delay_4gpu"]


def test_every_second_node(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    simulate([*files, "--every", "2", "--policy", "fgd"])
    assert "6 GPUs on 3 nodes" in capsys.readouterr().out.splitlines()[0]


MIXED = ["--nodes", str(CLUSTERS / "mixed.json"), "--pods", str(CLUSTERS / "mixed-pods.csv"), "--jobs", "1"]


def test_the_shipped_cluster_with_departures(capsys: pytest.CaptureFixture[str]) -> None:
    simulate([*MIXED, "--departures", "exponential", "--policy", "fragmentation", "-o", "json"])
    result = json.loads(capsys.readouterr().out)["departures"]["mixed-pods"]["0.95"]["exponential"]["fragmentation"]
    assert 50 < result["allocated"] <= 100
    assert {"8 GPUs + VFs", "VFs only"} <= result["delays"].keys()
    assert result["delay_8gpu"] is not None


def test_the_shipped_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    simulate([*MIXED, "--policy", "fragmentation,binpack", "-o", "json"])
    result = json.loads(capsys.readouterr().out)
    for one in (result, *result["others"]):
        assert 90 < one["allocation"]["130"] <= 100
        assert 40 < one["vf_allocation"]["130"] <= 100
    assert {"VFs only", "share >= 50 % + VFs", "8 GPUs + VFs", "cpu only"} <= result["arrived_by_class"].keys()


def test_baselines_on_a_cluster_file(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    simulate([*files, *MIXED[:2], "--policy", "fgd,best-fit,random,spread", "-o", "json"])
    result = json.loads(capsys.readouterr().out)
    assert len(result["others"]) == 3
    assert "vf_allocation" not in result


def test_baselines_do_not_know_of_places(files: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        simulate([*MIXED, "--policy", "fragmentation,best-fit"])
    assert all(part in str(refused.value) for part in ("--policy best-fit", "rdma", "topology"))
    (tmp_path / "honor.json").write_text(json.dumps({"nodes": [entry("dgx-h100", 1)], "nvswitch_partition": "honor"}))
    with pytest.raises(ConfigError, match="random"):
        simulate([*files, "--nodes", str(tmp_path / "honor.json"), "--policy", "random"])
    simulate([*files, "--nodes", str(tmp_path / "honor.json"), "--policy", "spread"])


def test_a_csv_of_nodes_says_nothing_of_places(files: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        simulate([*files, "--pods", str(CLUSTERS / "mixed-pods.csv")])
    assert all(part in str(refused.value) for part in ("nodes.csv", "mixed-pods.csv"))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--nodes", "/nonexistent/cluster.json"], "cluster.json"),
        (["--policy", "fgd,best"], "best"),
        (["--arrival-ratio", "0"], "0"),
        (["--arrival-ratio", "nan"], "nan"),
        (["--arrival-ratio", ""], "--arrival-ratio ''"),
        (["--arrival-ratio", "much"], "much"),
        (["--arrival-ratio", "1_0"], "'1_0'"),
        (["--arrival-ratio", "\u0661"], "\u0661"),
        *((["--policy", ""], "''"), (["--policy", "fgd,"], "''"), (["--seeds", "0"], "0"), (["--seed", "-1"], "-1")),
        *((["--jobs", "0"], "--jobs 0"), (["--jobs", "-1"], "--jobs -1")),
        (["--pods", "/nonexistent/pods.csv"], "pods.csv"),
        (["--every", "0"], "--every 0"),
        (["--every", "9", "--nodes", "bare-first.csv"], "--every 9"),
        (["--load", "0.95"], "--load '0.95'"),
        (["--departures", "exponential", "--load", "0"], "--load '0'"),
        (["--departures", "exponential", "--load", "2.01"], "--load '2.01'"),
        (["--departures", "exponential", "--load", "-1"], "--load '-1'"),
        (["--departures", "exponential", "--load", "high"], "--load 'high'"),
        (["--departures", "exponential", "--load", ""], "--load ''"),
        (["--departures", "exponential", "--arrival-ratio", "1.3"], "--arrival-ratio '1.3'"),
        (["--patience", "1"], "--patience '1'"),
        (["--departures", "exponential", "--patience", "0"], "--patience '0'"),
        (["--departures", "exponential", "--patience", "101"], "--patience '101'"),
        (["--departures", "exponential", "--patience", "1", "--policy", "fgd"], "--patience"),
        (["--departures", "exponential", "--pods", "urgent.csv", "--policy", "fgd"], "of lower priority"),
        (["--departures", "exponential", "--durations-from", "times.csv"], "--durations-from times.csv"),
        (["--durations-from", "times.csv"], "--durations-from times.csv"),
        (["--departures", "trace"], "--durations-from"),  # these pods have no times
        (["--departures", "trace", "--durations-from", "/nonexistent/times.csv"], "times.csv"),
    ],
)
def test_arguments_that_mean_nothing(
    files: list[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], named: str
) -> None:
    monkeypatch.chdir(Path(files[1]).parent)
    Path("bare-first.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nbare,1,1,0,\nb,1,1,1,T4\n")
    Path("urgent.csv").write_text("cpu_milli,memory_mib,num_gpu,gpu_milli,priority\n1,1,1,1000,7\n")
    with pytest.raises(ConfigError) as refused:
        simulate([*files, *arguments])
    assert named in str(refused.value)


def test_durations_that_there_are_not(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        simulate([*files, "--departures", "weibull"])
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert all(word in printed for word in ("--departures", "'weibull'", "exponential", "trace"))


@pytest.mark.parametrize("flag", ["--seed", "--seeds", "--jobs", "--every"])
@pytest.mark.parametrize("text", ["1_0", "1.0", "", "\u0661", "9" * 30])
def test_a_flag_that_is_no_whole_number_is_a_usage_error(
    files: list[str], capsys: pytest.CaptureFixture[str], flag: str, text: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        simulate([*files, flag, text])
    assert ended.value.code == 2
    assert f"{flag}: " in capsys.readouterr().err


def test_a_policy_by_its_key_in_the_bench(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Check that a policy has one name, however it was given."""
    simulate([*files, "--policy", "bestfit,best-fit", "-o", "json"])
    result = json.loads(capsys.readouterr().out)
    assert result["policy"] == "best-fit"
    assert "others" not in result


@pytest.mark.parametrize("prior", ["workload", "online"])
def test_the_prior_is_reported(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], prior: str) -> None:
    simulate([*files, "--policy", "fgd,fragmentation", "--prior", prior, "--pictures", str(tmp_path / "out"), "--jobs", "1"])
    assert f"prior {prior}" in capsys.readouterr().out.splitlines()[0]
    assert all(f"prior {prior}<" in path.read_text() for path in (tmp_path / "out").iterdir())
    simulate([*files, "--prior", prior, "-o", "json"])
    assert json.loads(capsys.readouterr().out)["prior"] == prior


def test_the_pods_of_another_workload_as_prior(files: list[str], timed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate([*files, "--prior-from", str(timed), "-o", "json"])
    assert json.loads(capsys.readouterr().out)["prior"] == "other"
    timed.write_text("name,cpu_milli\np,1\n")
    with pytest.raises(ConfigError, match=str(timed)):
        simulate([*files, "--prior-from", str(timed)])
    with pytest.raises(ConfigError, match="--prior online"):
        simulate([*files, "--prior-from", str(timed), "--prior", "online"])


def test_a_model_that_no_node_has_is_reported_once(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with Path(files[3]).open("a") as pods:
        pods.write("\np,1000,1024,1,1000,H300\np,1000,1024,1,300,H300|\x1b[1m\n")
    simulate([*files, "--policy", "random,best-fit", "--seeds", "2", "-o", "json", "--jobs", "1"])
    printed = capsys.readouterr()
    (warned,) = [line for line in printed.err.splitlines() if "H300" in line]
    assert warned.isprintable()
    assert json.loads(printed.out)["models_without_nodes"] == {"H300": 1, "\x1b[1m|H300": 1}
