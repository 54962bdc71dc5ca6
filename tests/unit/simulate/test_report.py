"""Test means, differences paired by seed, and the content of the JSON and the table."""

import math
from dataclasses import replace
from statistics import stdev

import pytest

from central.request.model import Policy
from simulate.model import AnyPolicy, Baseline, Point, Prior, Run
from simulate.report import Report, as_json, class_order, make_reports, mean_curve, nodeless_models
from simulate.table import render_table
from simulate.trace import Trace
from tests.unit.simulate.small import NODES, PODS, TRACE, share, whole


def run(policy: AnyPolicy, seed: int, at_end: float, **failed: int) -> Run:
    return Run(
        policy=policy,
        seed=seed,
        at_end=at_end,
        arrived={"8 GPUs": 10, "cpu only": 40, "share < 50 %": 50},
        failed={"8 GPUs": failed.get("eights", 0), "share < 50 %": failed.get("shares", 0)},
        curve=tuple(Point(requested=requested, allocated=min(requested, at_end - 1), fragments=4) for requested in range(131)),
        decision_s=0.001,
    )


RUNS = [
    *[run(Policy.BINPACK, seed, at_end, eights=2) for seed, at_end in ((1, 92.0), (2, 94.0), (3, 93.0))],
    *[run(Baseline.FGD, seed, at_end, shares=5) for seed, at_end in ((1, 91.0), (2, 93.5), (3, 91.5))],
]


def reports(runs: list[Run]) -> list[Report]:
    return make_reports(runs, Prior.WORKLOAD)


def test_means_and_paired_differences() -> None:
    binpack, fgd = reports(RUNS)
    assert (binpack.policy, fgd.policy) == (Policy.BINPACK, Baseline.FGD)
    assert (binpack.at(80), binpack.at(100), binpack.at_end) == pytest.approx((80, 92, 93))
    assert binpack.placed == pytest.approx(98)
    assert fgd.to_fgd is None
    assert binpack.to_fgd is not None
    at_capacity, at_end = binpack.to_fgd
    assert at_capacity == at_end
    assert at_end.mean == pytest.approx(1.0)
    assert at_end.error == pytest.approx(stdev([1.0, 0.5, 1.5]) / math.sqrt(3))


def test_vfs_stand_there_where_someone_asks_for_them() -> None:
    runs = [replace(one, vf_allocation=share) for one, share in zip(RUNS[:2], (40.0, 60.0), strict=True)]
    (report,) = reports(runs)
    assert report.vf_allocation == pytest.approx(50)
    assert as_json([report], TRACE, ratio=1.3)["vf_allocation"] == {"130": pytest.approx(50)}
    assert "50.00" in render_table([report], TRACE, ratio=1.3)
    (without,) = reports(RUNS[:2])
    assert "vf_allocation" not in as_json([without], TRACE, ratio=1.3)
    assert "VFS" not in render_table([without], TRACE, ratio=1.3)


def test_a_single_seed_has_no_standard_error() -> None:
    binpack, _ = reports([RUNS[0], RUNS[3]])
    assert binpack.to_fgd is not None
    assert binpack.to_fgd[1] == (1.0, None)


def test_without_fgd_there_is_no_difference() -> None:
    assert [report.to_fgd for report in reports(RUNS[:3])] == [None]


def test_failures_are_percent_of_their_class() -> None:
    binpack, fgd = reports(RUNS)
    assert binpack.failures == {"cpu only": 0, "share < 50 %": 0, "8 GPUs": 20}
    assert fgd.failures == {"cpu only": 0, "share < 50 %": 10, "8 GPUs": 0}
    assert list(binpack.arrived.items()) == [("cpu only", 40), ("share < 50 %", 50), ("8 GPUs", 10)]


def test_order_of_classes() -> None:
    labels = ["10 GPUs", "share >= 50 %", "2 GPUs", "cpu only", "1 GPU", "share < 50 %"]
    ordered = ["cpu only", "share < 50 %", "share >= 50 %", "1 GPU", "2 GPUs", "10 GPUs"]
    assert sorted(labels, key=class_order) == ordered


def test_json() -> None:
    whole = as_json(reports(RUNS), TRACE, ratio=1.3)
    assert (whole["policy"], whole["seeds"]) == ("binpack", [1, 2, 3])
    assert whole["allocation"] == {"80": 80.0, "90": 90.0, "100": 92.0, "130": 93.0}
    assert [one["allocation"]["130"] for one in whole["per_seed"]] == [92.0, 94.0, 93.0]
    assert whole["failures_by_class"]["8 GPUs"] == 20
    assert whole["to_fgd"]["130"]["mean"] == pytest.approx(1.0)
    assert [other["policy"] for other in whole["others"]] == ["fgd"]
    assert "others" not in as_json(reports(RUNS[:3]), TRACE, ratio=1.3)
    assert as_json(reports(RUNS), TRACE, ratio=1.05)["allocation"].keys() == {"80", "90", "100", "105"}


def test_table_marks_a_class_that_is_starved() -> None:
    lines = render_table(reports(RUNS), TRACE, ratio=1.3).splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("binpack", "fgd"))] == ["binpack", "fgd"]
    assert [line.split()[0] for line in lines if "!" in line] == ["8"]
    assert not any("!" in line for line in render_table(reports(RUNS[:3]), TRACE, ratio=1.3).splitlines())


def test_mean_curve() -> None:
    curve = mean_curve(RUNS[:2])
    assert curve[:2] == [Point(requested=0, allocated=0, fragments=4), Point(requested=1, allocated=1, fragments=4)]
    assert curve[-1] == Point(requested=130, allocated=92, fragments=4)


def test_the_prior_stands_where_the_policy_has_one() -> None:
    runs = [run(policy, 1, 90.0) for policy in (Baseline.FGD, Policy.FRAGMENTATION, Policy.BINPACK)]
    fgd = as_json(make_reports(runs, Prior.ONLINE), TRACE, ratio=1.3)
    fragmentation, binpack = fgd["others"]
    assert fragmentation["prior"] == "online"
    assert not {"prior"} & (fgd.keys() | binpack.keys())
    heads = {prior: render_table(make_reports(runs, prior), TRACE, ratio=1.3).splitlines()[0] for prior in Prior}
    assert all((prior in head) == (prior is its) for its, head in heads.items() for prior in Prior)
    assert "prior" not in render_table(make_reports(runs[::2], Prior.ONLINE), TRACE, ratio=1.3)


def test_models_that_no_node_has() -> None:
    """Check that a pod counts only if no node has any of the GPU models that it accepts."""
    odd = (share(300, 1_000, "H300"), share(500, 1_000, "H300"), whole(1, 1_000, "H300", "T5"), whole(1, 1_000, "T4", "T5"))
    trace = Trace(nodes=NODES, pods=(*PODS, *odd))
    assert nodeless_models(trace) == {"H300": 2, "H300|T5": 1}
    assert as_json(reports(RUNS), trace, ratio=1.3)["models_without_nodes"] == {"H300": 2, "H300|T5": 1}
    assert "models_without_nodes" not in as_json(reports(RUNS), TRACE, ratio=1.3)
