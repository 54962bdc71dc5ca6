"""Render reports as text: a table of policies, and one of the classes of pods with failures or waits.

POLICY          100 %   130 %   TO FGD, 100 %    130 %           PLACED   A DECISION
fragmentation   95.74   95.93   +0.51 ± 0.03     +0.54 ± 0.02    88.2 %   0.21 ms
fgd             95.23   95.39                                    88.0 %   0.05 ms

Tests: tests/unit/simulate/test_report.py
"""

from collections.abc import Iterator, Sequence
from typing import Final

from simulate.departure_report import StayReport
from simulate.model import Baseline
from simulate.report import Difference, Report, named_prior, percent_of
from simulate.stream import SPANS, Departures
from simulate.trace import FULL, Trace

FAR: Final = 5.0  # percentage points above FGD's failures; such a class is marked, because it may be starved


def render_table(reports: Sequence[Report], trace: Trace, *, ratio: float) -> str:
    seeds = [run.seed for run in reports[0].runs]
    head = (
        f"{len(trace.pods)} pods, copied or left out at random until they ask for {percent_of(ratio)} % of "
        f"{trace.capacity // FULL} GPUs on {len(trace.nodes)} nodes; {_seeds(seeds)}{_prior(reports)}"
    )
    policies = align(_policies(reports, percent_of(ratio)))
    classes = align(_classes(reports))
    return "\n".join([head, "", "GPUs allocated, percent", *policies, "", "Pods that did not fit, percent", *classes])


def _policies(reports: Sequence[Report], end: str) -> Iterator[Sequence[str]]:
    vfs = [f"VFS, {end} %"] if any(report.vf_allocation is not None for report in reports) else []
    yield "POLICY", "100 %", f"{end} %", "TO FGD, 100 %", f"{end} %", *vfs, "PLACED", "A DECISION"
    for report in reports:
        yield (
            report.policy.value,
            f"{report.at(100):.2f}",
            f"{report.at_end:.2f}",
            *map(signed, report.to_fgd or (None, None)),
            *(f"{report.vf_allocation or 0.0:.2f}" for _ in vfs),
            f"{report.placed:.1f} %",
            f"{report.decision_ms:.2f} ms",
        )


def _classes(reports: Sequence[Report]) -> Iterator[Sequence[str]]:
    yield "CLASS", "PODS", *(report.policy.value.upper() for report in reports)
    fgd = next((report for report in reports if report.policy is Baseline.FGD), None)
    for label, count in reports[0].arrived.items():
        cells = []
        for report in reports:
            far = fgd is not None and report.failures[label] > fgd.failures[label] + FAR
            cells.append(f"{report.failures[label]:.1f}{' !' if far else ''}")
        yield label, f"{count:.0f}", *cells


def render_stays(reports: Sequence[StayReport], trace: Trace, game: Departures) -> str:
    span, seeds = SPANS[game.durations], [stay.seed for stay in reports[0].stays]
    head = (
        f"{len(trace.pods)} pods, drawn at random, would hold {percent_of(game.load)} % of {trace.capacity // FULL} GPUs on "
        f"{len(trace.nodes)} nodes; {game.durations.value} durations; figures of units {span.warm_up:g} to {span.end:g}; "
        f"{_seeds(seeds)}{named_prior(report.prior for report in reports)}"
    )
    policies, classes = align(_stays(reports)), align(_delays(reports))
    waited = "Units waited, mean / 99th percentile of the class"
    return "\n".join([head, "", "GPUs, percent, mean over time", *policies, "", waited, *classes])


def _stays(reports: Sequence[StayReport]) -> Iterator[Sequence[str]]:
    yield "POLICY", "ALLOCATED", "QUEUED", "TO FGD, ALLOCATED", "QUEUED"
    for report in reports:
        yield (
            report.policy.value,
            f"{report.allocated:.2f}",
            f"{report.queued:.2f}",
            *map(signed, report.to_fgd or (None, None)),
        )


def _delays(reports: Sequence[StayReport]) -> Iterator[Sequence[str]]:
    yield "CLASS", "PODS", *(report.policy.value.upper() for report in reports)
    for label, delay in reports[0].delays.items():  # all policies have the same pods
        delays = [report.delays[label] for report in reports]
        yield label, f"{delay.pods / len(reports[0].stays):.0f}", *(f"{one.mean:.3f} / {one.p99:.3f}" for one in delays)


def align(rows: Iterator[Sequence[str]]) -> list[str]:
    """Return the rows as lines with aligned columns; the first column is text, the others are numbers."""
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def signed(difference: Difference | None) -> str:
    if difference is None:
        return ""
    return f"{difference.mean:+.2f}" + ("" if difference.error is None else f" ± {difference.error:.2f}")


def _prior(reports: Sequence[Report | StayReport]) -> str:
    return named_prior(report.prior for report in reports)


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"means of seeds {seeds[0]} to {seeds[-1]}"
