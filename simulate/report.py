"""Summarize the runs of one or several policies: means over seeds, differences paired by seed, failures by class of pod.

Take runs of several policies on the same seeds, hence on the same arrivals. Return a Report for each policy, all reports as
JSON, and the pods that no policy could have placed. A difference to FGD is the mean over seeds of this policy's figure less
FGD's on the same arrivals, with the standard error of that mean.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Final, NamedTuple, TypeVar

from central.request.model import Policy
from simulate.model import AnyPolicy, Baseline, Point, Prior, Run, Stay
from simulate.trace import Trace

Result = TypeVar("Result", Run, Stay)
ASKED: Final = (80, 90, 100)  # requested percent of the GPUs with figures in the JSON, beside the end


class Difference(NamedTuple):
    """Represent a difference in percentage points."""

    mean: float
    error: float | None  # standard error of the mean; None for one seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Hold the figures of one policy: means over its seeds, in percent."""

    policy: AnyPolicy
    prior: Prior | None  # None: the policy does not use a prior
    runs: tuple[Run, ...]
    at_end: float
    vf_allocation: float | None  # percent of the VFs at the end; None if no pod requests one
    placed: float  # percent of all pods
    arrived: Mapping[str, float]  # mean number of pods, by class
    failures: Mapping[str, float]  # percent of the pods of a class, by class
    to_fgd: tuple[Difference, Difference] | None  # at 100 % and at the end; None for FGD itself, and in a replay without FGD
    decision_ms: float

    def at(self, requested: int) -> float:
        """Return the percentage allocated when arrived pods had requested `requested` percent."""
        return fmean(run.at(requested) for run in self.runs)


def make_reports(runs: Sequence[Run], prior: Prior) -> list[Report]:
    """Return one report for each policy, in the order in which the policies first appear. All runs have the same `prior`."""
    by_policy = group_by_policy(runs)
    return [_report(policy, its, prior, by_policy.get(Baseline.FGD)) for policy, its in by_policy.items()]


def group_by_policy(runs: Sequence[Result]) -> dict[AnyPolicy, list[Result]]:
    by_policy: dict[AnyPolicy, list[Result]] = {}
    for run in runs:
        by_policy.setdefault(run.policy, []).append(run)
    return by_policy


def prior_of(policy: AnyPolicy, prior: Prior) -> Prior | None:
    """Return the prior if the policy uses one, else None."""
    return prior if policy is Policy.FRAGMENTATION else None


def _report(policy: AnyPolicy, runs: Sequence[Run], prior: Prior, fgd: Sequence[Run] | None) -> Report:
    arrived, failed = _add_up(run.arrived for run in runs), _add_up(run.failed for run in runs)
    classes = sorted(arrived, key=class_order)
    vfs = [run.vf_allocation for run in runs if run.vf_allocation is not None]
    return Report(
        policy=policy,
        prior=prior_of(policy, prior),
        runs=tuple(runs),
        at_end=fmean(run.at_end for run in runs),
        vf_allocation=fmean(vfs) if vfs else None,
        placed=100 - 100 * failed.total() / max(1, arrived.total()),
        arrived={label: arrived[label] / len(runs) for label in classes},
        failures={label: 100 * failed[label] / arrived[label] for label in classes},
        to_fgd=None if fgd is None or policy is Baseline.FGD else _differences(runs, fgd),
        decision_ms=1000 * fmean(run.decision_s for run in runs),
    )


def _add_up(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return total


def _differences(runs: Sequence[Run], fgd: Sequence[Run]) -> tuple[Difference, Difference]:
    pairs = list(zip(runs, fgd, strict=True))
    return (
        difference_of([one.at(100) - other.at(100) for one, other in pairs]),
        difference_of([one.at_end - other.at_end for one, other in pairs]),
    )


def difference_of(by_seed: Sequence[float]) -> Difference:
    """Return the mean of the differences of all seeds, and its standard error, which is None for one seed."""
    return Difference(fmean(by_seed), stdev(by_seed) / math.sqrt(len(by_seed)) if len(by_seed) > 1 else None)


def class_order(label: str) -> tuple[bool, bool, int, str]:
    """Return a sort key: pods without GPUs first, then shares, then whole cards by their number."""
    number = label.split(maxsplit=1)[0]
    return label != "cpu only", number.isdecimal(), int(number) if number.isdecimal() else 0, label


def mean_curve(runs: Sequence[Run]) -> list[Point]:
    """Return the mean of the runs' curves, up to the end of the shortest one."""
    return [
        Point(
            requested=points[0].requested,
            allocated=fmean(point.allocated for point in points),
            fragments=fmean(point.fragments for point in points),
        )
        for points in zip(*(run.curve for run in runs), strict=False)
    ]


def named_prior(priors: Iterable[Prior | None]) -> str:
    """Return the prior as text to add to the end of a title; empty if there is none."""
    return next((f"; prior {prior.value}" for prior in priors if prior is not None), "")


def as_json(reports: Sequence[Report], trace: Trace, *, ratio: float) -> dict[str, Any]:
    """Return the first policy's figures, with those of the other policies under `others`. Figures at the end of arrivals have
    the arrival ratio in percent as their key, such as "130"."""
    at_end = percent_of(ratio)
    first, *others = [_render(report, at_end) for report in reports]
    whole = {**first, "arrival_ratio": ratio, **name_nodeless(trace)}
    return whole | ({"others": others} if others else {})


def name_nodeless(trace: Trace) -> dict[str, Any]:
    """Return the JSON entry about pods whose models no node has; empty if there are none."""
    nowhere = nodeless_models(trace)
    return {"models_without_nodes": dict(nowhere)} if nowhere else {}


def nodeless_models(trace: Trace) -> Counter[str]:
    """Count the pods whose models no node has, by models: such pods fit nowhere."""
    there = {node.model for node in trace.nodes}
    return Counter("|".join(pod.models) for pod in trace.pods if pod.models and there.isdisjoint(pod.models))


def render_allocation(of: Report | Run, at_end: str) -> dict[str, float]:
    """Return the percentage allocated, by the requested percentage."""
    return {str(requested): of.at(requested) for requested in ASKED} | {at_end: of.at_end}


def percent_of(ratio: float) -> str:
    return f"{100 * ratio:g}"


def _render(report: Report, at_end: str) -> dict[str, Any]:
    rendered: dict[str, Any] = {
        "policy": report.policy.value,
        **({"prior": report.prior.value} if report.prior is not None else {}),
        "seeds": [run.seed for run in report.runs],
        "allocation": render_allocation(report, at_end),
        "per_seed": [
            {
                "seed": run.seed,
                "allocation": render_allocation(run, at_end),
                "arrived": sum(run.arrived.values()),
                "failed": sum(run.failed.values()),
            }
            for run in report.runs
        ],
        "placed": report.placed,
        "failures_by_class": dict(report.failures),
        "arrived_by_class": dict(report.arrived),
        "decision_ms": report.decision_ms,
    }
    if report.vf_allocation is not None:
        rendered["vf_allocation"] = {at_end: report.vf_allocation}
    if report.to_fgd is not None:
        at_capacity, end = report.to_fgd
        rendered["to_fgd"] = {"100": at_capacity._asdict(), at_end: end._asdict()}
    return rendered
