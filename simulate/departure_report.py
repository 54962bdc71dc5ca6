"""Summarize replays with departures: means over seeds, waits of pods by class, differences to FGD paired by seed.

Take stays of several policies on the same seeds, hence on the same stream of pods. Return a StayReport for each policy, and all
reports as JSON. Times are in units (stream.py). The waits of a class are those of all its pods, of all seeds together.

Tests: tests/unit/simulate/test_report.py
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Final

from simulate.model import AnyPolicy, Baseline, Moment, Prior, Stay
from simulate.report import Difference, class_order, difference_of, group_by_policy, name_nodeless, prior_of
from simulate.stream import Departures
from simulate.trace import Trace

# The classes of pods in each delay of the JSON, by key; a class with VFs counts as the class without.
_DELAYS: Final[Mapping[str, Collection[str]]] = {
    "delay_8gpu": {"8 GPUs"},
    "delay_4gpu": {"4 GPUs"},
    "delay_1gpu": {"1 GPU"},
    "delay_share": {"share < 50 %", "share >= 50 %"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Hold statistics of the waits of one class of pods, in units."""

    mean: float
    p50: float
    p99: float
    longest: float
    pods: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StayReport:
    """Hold the figures of one policy: means over its seeds, in percent of the GPUs."""

    policy: AnyPolicy
    prior: Prior | None  # None: the policy does not use a prior
    stays: tuple[Stay, ...]
    allocated: float
    queued: float
    delays: Mapping[str, Delay]  # waits in units, by class of pod
    to_fgd: tuple[Difference, Difference] | None  # allocated, queued; None for FGD itself, and in a replay without FGD


def make_stay_reports(stays: Sequence[Stay], prior: Prior) -> list[StayReport]:
    """Return one report for each policy, in the order in which the policies first appear. All stays have the same `prior`."""
    by_policy = group_by_policy(stays)
    return [_report(policy, its, prior, by_policy.get(Baseline.FGD)) for policy, its in by_policy.items()]


def _report(policy: AnyPolicy, stays: Sequence[Stay], prior: Prior, fgd: Sequence[Stay] | None) -> StayReport:
    labels = sorted({label for stay in stays for label in stay.waits}, key=class_order)
    return StayReport(
        policy=policy,
        prior=prior_of(policy, prior),
        stays=tuple(stays),
        allocated=fmean(stay.allocated for stay in stays),
        queued=fmean(stay.queued for stay in stays),
        delays={label: delay_of([wait for stay in stays for wait in stay.waits.get(label, ())]) for label in labels},
        to_fgd=None if fgd is None or policy is Baseline.FGD else _differences(stays, fgd),
    )


def delay_of(waits: Sequence[float]) -> Delay:
    """Return the statistics of at least one wait; percentiles are by nearest rank."""
    ordered = sorted(waits)
    p50, p99 = (ordered[math.ceil(part * len(ordered)) - 1] for part in (0.5, 0.99))
    return Delay(mean=fmean(ordered), p50=p50, p99=p99, longest=ordered[-1], pods=len(ordered))


def _differences(stays: Sequence[Stay], fgd: Sequence[Stay]) -> tuple[Difference, Difference]:
    pairs = list(zip(stays, fgd, strict=True))
    return (
        difference_of([one.allocated - other.allocated for one, other in pairs]),
        difference_of([one.queued - other.queued for one, other in pairs]),
    )


def mean_moments(stays: Sequence[Stay]) -> list[Moment]:
    return [
        Moment(
            at=moments[0].at,
            allocated=fmean(moment.allocated for moment in moments),
            queued=fmean(moment.queued for moment in moments),
        )
        for moments in zip(*(stay.curve for stay in stays), strict=True)
    ]


def stays_as_json(reports: Sequence[StayReport], trace: Trace, workload: str, game: Departures) -> dict[str, Any]:
    """Return the figures by workload, load, durations and policy."""
    whole = {"departures": {workload: {load_key(game.load): {game.durations.value: render_policies(reports)}}}}
    return whole | name_nodeless(trace)


def render_policies(reports: Sequence[StayReport]) -> dict[str, Any]:
    return {report.policy.value: _render(report) for report in reports}


def load_key(load: float) -> str:
    """Return the load as text with two decimals, or with all its decimals if it has more."""
    text = f"{load:.2f}"
    return text if float(text) == load else repr(load)


def _render(report: StayReport) -> dict[str, Any]:
    rendered: dict[str, Any] = {
        **({"prior": report.prior.value} if report.prior is not None else {}),
        "seeds": [stay.seed for stay in report.stays],
        **_figures(report.allocated, report.queued, report.stays),
        "delays": {label: asdict(delay) for label, delay in report.delays.items()},
        "evicted": fmean(stay.evicted for stay in report.stays),
        "per_seed": [{"seed": stay.seed, **_figures(stay.allocated, stay.queued, [stay])} for stay in report.stays],
    }
    if report.to_fgd is not None:
        allocated, queued = report.to_fgd
        rendered["to_fgd"] = {"allocated": allocated._asdict(), "queued": queued._asdict()}
    return rendered


def _figures(allocated: float, queued: float, stays: Sequence[Stay]) -> dict[str, float | None]:
    return {"allocated": allocated, "queued": queued} | {key: _mean_wait(stays, of) for key, of in _DELAYS.items()}


def _mean_wait(stays: Sequence[Stay], classes: Collection[str]) -> float | None:
    """Return the mean wait of the pods of these classes; None if there are none."""
    waits = [
        wait for stay in stays for label, its in stay.waits.items() if label.partition(" + ")[0] in classes for wait in its
    ]
    return fmean(waits) if waits else None
