"""Test whole replays with gangs: the same jobs for all rules, the offered load, and consistent figures."""

import json
from pathlib import Path

import pytest

from central.request.model import Policy
from lading.errors import ConfigError
from simulate.command import simulate
from simulate.gangs import jobs
from simulate.gangs.jobs import TENANTS, Times, draw_jobs, most_at_once
from simulate.gangs.model import GangStay, Rules, divide_fairly
from simulate.gangs.replay import replay_gangs
from simulate.gangs.report import gangs_as_json, make_gang_reports, render_gangs
from simulate.stream import Departures, Durations, Span
from simulate.trace import Trace, TraceNode
from tests.unit.simulate.small import whole

NODES = tuple(TraceNode(name=f"n{number}", cpu_milli=64_000, memory_mib=262_144, gpus=8, model="T4") for number in range(4))
TRACE = Trace(nodes=NODES, pods=(whole(1), whole(1), whole(2), whole(4)), lifetimes=(100.0, 200.0, 300.0, 400.0))
GAME = Departures(durations=Durations.EXPONENTIAL, load=0.9)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "SPANS", {durations: Span(1.5, 0.5) for durations in Durations})


@pytest.mark.parametrize("rules", Rules)
def test_a_seed_says_it_all(rules: Rules) -> None:
    stay = replay_gangs(TRACE, rules, Policy.FRAGMENTATION, 1, GAME)
    assert stay == replay_gangs(TRACE, rules, Policy.FRAGMENTATION, 1, GAME)
    assert 20 < stay.running <= 100
    assert stay.running + stay.idle <= 100
    assert stay.idle == 0 or rules in {Rules.GREEDY, Rules.KUEUE}
    assert set(stay.served) == set(TENANTS)
    assert sum(stay.had.values()) == pytest.approx(stay.running)
    assert stay.unfairness >= 1
    assert stay.spread >= 1


def test_jobs_have_the_offered_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "SPANS", {Durations.EXPONENTIAL: Span(2000.0, 1.0)})
    times = Times(TRACE, GAME)
    drawn = list(draw_jobs(TRACE, GAME, times, 1))
    held = sum(job.milli * job.runs for job in drawn)
    assert held / times.end_s / TRACE.capacity == pytest.approx(0.9, rel=0.05)
    assert {job.members for job in drawn} == {1, 2, 4, 8}
    assert all(job.members == 1 for job in drawn if job.pod.gpus == 1)
    for tenant, tenths in TENANTS.items():
        its = [job for job in drawn if job.tenant == tenant]
        assert {job.members for job in its if job.pod == whole(2)} == {2, 4, 8}
        assert sum(job.milli * job.runs for job in its) / held == pytest.approx(tenths / 10, rel=0.1)


def test_a_fair_division_gives_no_one_more_than_it_wants() -> None:
    assert divide_fairly(12.0, {"a": 10.0, "b": 2.0, "c": 3.0}) == {"b": 2.0, "c": 3.0, "a": 7.0}
    assert divide_fairly(9.0, {"a": 10.0, "b": 5.0, "c": 1.0}) == {"c": 1.0, "b": 4.0, "a": 4.0}
    stay = GangStay(
        rules=Rules.LADING,
        seed=1,
        running=9.0,
        idle=0.0,
        queued=0.0,
        waits={},
        had={"a": 6.0, "b": 2.0, "c": 1.0},
        wanted={"a": 10.0, "b": 5.0, "c": 1.0},
        given_back=0,
    )
    assert stay.of_due == {"c": 1.0, "b": 0.5, "a": 1.5}
    assert stay.unfairness == 3.0
    assert stay.served == {"a": 0.6, "b": 0.4, "c": 1.0}
    assert stay.spread == 2.5


def test_no_gang_takes_more_than_half_of_its_places() -> None:
    assert most_at_once(whole(4), NODES) == 8
    assert most_at_once(whole(1, 32_000), NODES) == 8
    assert most_at_once(whole(4, 1_000, "A10"), NODES) == 0
    drawn = draw_jobs(TRACE, GAME, Times(TRACE, GAME), 1)
    assert max(job.members for job in drawn if job.pod == whole(4)) == 4


def test_times_of_a_trace() -> None:
    game = Departures(durations=Durations.TRACE, load=0.9)
    times = Times(TRACE, game)
    assert times.unit_s == pytest.approx((100 + 200 + 2 * 300 + 4 * 400) / 8)
    runs = {job.pod: job.runs for job in draw_jobs(TRACE, game, times, 1)}
    assert (runs[whole(2)], runs[whole(4)]) == (300.0, 400.0)


def test_differences_are_paired_by_seed() -> None:
    stays = [
        replay_gangs(TRACE, rules, Policy.FRAGMENTATION, seed, GAME)
        for rules in (Rules.GREEDY, Rules.LADING)
        for seed in (1, 2)
    ]
    reports = make_gang_reports(stays)
    result = gangs_as_json(reports, "w", GAME)["gangs"]["w"]["0.90"]["exponential"]
    assert result["greedy"]["seeds"] == [1, 2]
    less = result["greedy"]["lading_less"]
    assert less["running"]["mean"] == pytest.approx(result["lading"]["running"] - result["greedy"]["running"])
    assert less["running"]["error"] >= 0
    assert "lading_less" not in result["lading"]
    assert json.loads(json.dumps(result)) == result
    shown = render_gangs(reports, "w", GAME)
    assert {"greedy", "lading", "gangs of 2", "wait: gangs of 2"} <= {line.partition("  ")[0] for line in shown.splitlines()}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    nodes = [f"{one.name},{one.cpu_milli},{one.memory_mib},{one.gpus},{one.model}" for one in NODES]
    pods = [f"{one.cpu_milli},{one.memory_mib},{one.gpus},{one.gpu_milli}" for one in TRACE.pods]
    (tmp_path / "nodes.csv").write_text("\n".join(["sn,cpu_milli,memory_mib,gpu,model", *nodes]))
    (tmp_path / "tiny.csv").write_text("\n".join(["cpu_milli,memory_mib,num_gpu,gpu_milli", *pods]))
    return ["--nodes", str(tmp_path / "nodes.csv"), "--pods", str(tmp_path / "tiny.csv"), "--jobs", "1"]


def test_the_command(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*files, "--departures", "exponential", "--gangs", "lading,kueue"]
    simulate([*flags, "-o", "json"])
    result = json.loads(capsys.readouterr().out)["gangs"]["tiny"]["0.95"]["exponential"]
    assert list(result) == ["lading", "kueue"]
    simulate(flags)
    assert "HELD IDLE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--gangs", "lading"], "--gangs 'lading'"),
        (["--gangs", "volcano", "--departures", "exponential"], "'volcano'"),
        (["--gangs", "lading", "--departures", "exponential", "--policy", "fgd"], "--policy fgd"),
        (["--gangs", "lading", "--departures", "exponential", "--policy", "binpack,spread"], "--policy binpack,spread"),
        (["--gangs", "lading", "--departures", "exponential", "--pictures", "out"], "--pictures out"),
    ],
)
def test_flags_that_mean_nothing(files: list[str], flags: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        simulate([*files, *flags])
