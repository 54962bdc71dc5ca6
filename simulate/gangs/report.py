"""Summarize replays with gangs: means over seeds, waits by class of job, and Lading's differences to other rules, paired by
seed.

Take stays of several rules on the same seeds, hence with the same jobs. Return a GangReport for each of the rules, all reports
as JSON, and a table. Waits are in minutes; those of a class are of all its jobs, of all seeds together. A difference is
Lading's figure less the other's with the same jobs, as the mean over seeds with the standard error of that mean.

Tests: tests/unit/simulate/gangs/test_replay.py
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from math import isfinite
from statistics import fmean
from typing import Any, Final

from simulate.departure_report import Delay, delay_of, load_key
from simulate.gangs.model import GangStay, Rules
from simulate.report import Difference, difference_of
from simulate.stream import Departures
from simulate.table import align, signed

_FIGURES: Final[Mapping[str, Callable[[GangStay], float]]] = {
    "running": lambda stay: stay.running,
    "idle": lambda stay: stay.idle,
    "queued": lambda stay: stay.queued,
    "unfairness": lambda stay: stay.unfairness,
    "spread": lambda stay: stay.spread,
}
_OF_TENANTS: Final[Mapping[str, Callable[[GangStay], Mapping[str, float]]]] = {
    "wanted": lambda stay: stay.wanted,
    "had": lambda stay: stay.had,
    "served": lambda stay: stay.served,
    "of_due": lambda stay: stay.of_due,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GangReport:
    rules: Rules
    stays: tuple[GangStay, ...]
    means: Mapping[str, float]  # means over seeds, by the keys of _FIGURES
    delays: Mapping[str, Delay]  # waits in minutes, by class of job
    tenants: Mapping[str, Mapping[str, float]]  # means over seeds, by the keys of _OF_TENANTS, then by tenant
    lading_less: Mapping[str, Difference]  # keys: figures, and "wait: " with a class; empty for Lading


def make_gang_reports(stays: Sequence[GangStay]) -> list[GangReport]:
    """Return one report for each of the rules, in the order in which they first appear. Stays of the same rules must be
    adjacent."""
    by_rules = {rules: tuple(its) for rules, its in groupby(stays, lambda stay: stay.rules)}
    return [_report(rules, its, by_rules.get(Rules.LADING)) for rules, its in by_rules.items()]


def _report(rules: Rules, stays: tuple[GangStay, ...], lading: Sequence[GangStay] | None) -> GangReport:
    labels = sorted({label for stay in stays for label in stay.waits})
    return GangReport(
        rules=rules,
        stays=stays,
        means={name: fmean(map(figure, stays)) for name, figure in _FIGURES.items()},
        delays={label: delay_of([wait for stay in stays for wait in stay.waits.get(label, ())]) for label in labels},
        tenants={name: _by_tenant([figure(stay) for stay in stays]) for name, figure in _OF_TENANTS.items()},
        lading_less={} if lading is None or rules is Rules.LADING else dict(_differences(lading, stays, labels)),
    )


def _by_tenant(stays: Sequence[Mapping[str, float]]) -> dict[str, float]:
    tenants = sorted({tenant for stay in stays for tenant in stay})
    return {tenant: fmean(stay[tenant] for stay in stays if tenant in stay) for tenant in tenants}


def _differences(
    lading: Sequence[GangStay], others: Sequence[GangStay], labels: Sequence[str]
) -> Iterator[tuple[str, Difference]]:
    pairs = list(zip(lading, others, strict=True))
    for name, figure in _FIGURES.items():
        both = [(figure(one), figure(other)) for one, other in pairs]
        by_seed = [one - other for one, other in both if isfinite(one) and isfinite(other)]
        if by_seed:  # seeds with an infinite ratio are left out: a tenant had nothing
            yield name, difference_of(by_seed)
    for label in labels:
        waits = [(one.waits[label], other.waits[label]) for one, other in pairs if one.waits.get(label)]
        yield f"wait: {label}", difference_of([fmean(one) - fmean(other) for one, other in waits])


def gangs_as_json(reports: Sequence[GangReport], workload: str, game: Departures) -> dict[str, Any]:
    """Return the figures by workload, load, durations and rules."""
    figures = {report.rules.value: _render(report) for report in reports}
    return {"gangs": {workload: {load_key(game.load): {game.durations.value: figures}}}}


def _render(report: GangReport) -> dict[str, Any]:
    return {
        "seeds": [stay.seed for stay in report.stays],
        **report.means,
        "waits_min": {label: asdict(delay) for label, delay in report.delays.items()},
        **report.tenants,
        "per_seed": [
            {
                "seed": stay.seed,
                **{name: figure(stay) for name, figure in _FIGURES.items()},
                "waits_min": {label: fmean(waits) for label, waits in sorted(stay.waits.items())},
                **{name: dict(sorted(figure(stay).items())) for name, figure in _OF_TENANTS.items()},
                "given_back": stay.given_back,
            }
            for stay in report.stays
        ],
        **({"lading_less": {key: one._asdict() for key, one in report.lading_less.items()}} if report.lading_less else {}),
    }


def render_gangs(reports: Sequence[GangReport], workload: str, game: Departures) -> str:
    """Return the reports as a table for people."""
    seeds = len(reports[0].stays)
    head = f"{workload}, load {load_key(game.load)}, {game.durations.value} durations, {seeds} seed{'s' if seeds > 1 else ''}"
    return "\n".join(
        [
            head,
            "",
            "GPUs, percent, mean over time",
            *align(_means(reports)),
            "",
            "Minutes waited, mean / 99th percentile of the class",
            *align(_delays(reports)),
            "",
            "GPUs that each tenant had, in percent of what it wanted / of what a fair division would give it",
            *align(_tenants(reports)),
            *_compared(reports),
        ]
    )


def _means(reports: Sequence[GangReport]) -> Iterator[Sequence[str]]:
    yield "RULES", "RUNNING", "HELD IDLE", "QUEUED", "GIVEN BACK"
    for report in reports:
        figures = (f"{report.means[name]:.2f}" for name in ("running", "idle", "queued"))
        yield report.rules.value, *figures, f"{fmean(stay.given_back for stay in report.stays):.0f}"


def _delays(reports: Sequence[GangReport]) -> Iterator[Sequence[str]]:
    yield "CLASS", "JOBS", *(report.rules.value.upper() for report in reports)
    for label, delay in reports[0].delays.items():  # all rules have the same jobs
        delays = [report.delays[label] for report in reports]
        yield label, f"{delay.pods / len(reports[0].stays):.0f}", *(f"{one.mean:.1f} / {one.p99:.0f}" for one in delays)


def _tenants(reports: Sequence[GangReport]) -> Iterator[Sequence[str]]:
    wanted = reports[0].tenants["wanted"]
    yield "RULES", *(f"{tenant.upper()}, WANTS {amount:.0f} %" for tenant, amount in wanted.items()), "MAX/MIN"
    for report in reports:
        served, of_due = report.tenants["served"], report.tenants["of_due"]
        parts = (f"{100 * served[tenant]:.0f} / {100 * of_due[tenant]:.0f}" for tenant in wanted)
        yield report.rules.value, *parts, f"{report.means['spread']:.2f} / {report.means['unfairness']:.2f}"


def _compared(reports: Sequence[GangReport]) -> list[str]:
    others = [report for report in reports if report.lading_less]
    if not others:
        return []
    rows: list[Sequence[str]] = [("LADING LESS", *(report.rules.value.upper() for report in others))]
    rows += [(key, *(signed(report.lading_less.get(key)) for report in others)) for key in others[0].lading_less]
    return ["", "Differences, paired by seed", *align(iter(rows))]
