"""Draw curves of replays as SVG: a pure conversion of numbers to text, readable on light and dark backgrounds, and without
colours.

Each policy has one line, with its name at the end: names that would overlap are moved apart, in the order of the lines. The
first six colours are those of Okabe and Ito, which people with colour blindness can distinguish; dashes distinguish all lines
without colours.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from simulate.departure_report import StayReport, load_key, mean_moments
from simulate.report import Report, mean_curve, named_prior
from simulate.stream import Departures

WIDTH: Final = 800
HEIGHT: Final = 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 162, 58, 50
_INKS: Final = (
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#ff8f3f"),
    ("#007a5a", "#2fc99a"),
    ("#a8578a", "#e59ac6"),
    ("#7a6a00", "#f0e442"),
    ("#000000", "#ffffff"),
    ("#8f2d2d", "#e0736f"),
    ("#5b3fa0", "#a98ff0"),
)
# One pattern of dashes for each policy, and for each of `_INKS`.
_DASHES: Final = ("", "7 3", "2 3", "9 3 2 3", "14 4", "9 3 2 3 2 3", "4 2", "14 3 2 3")
_LINE_HEIGHT: Final = 17.0
_TICKS: Final = 6
_DIFFERENT_FROM: Final = 70.0  # requested percent up to which every policy places nearly all pods

Line = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    title: str
    across: str  # label of the x axis
    upward: str  # label of the y axis
    lines: Mapping[str, Line]  # lines by the policy's name, the most important first
    x_from: float = 0.0  # least x; points before it are cut off


def draw_arrivals(what: str, reports: Sequence[Report]) -> dict[str, str]:
    """Return pictures by file name: fragments, and the allocated part from where the policies begin to differ."""
    curves = {report.policy.value: mean_curve(report.runs) for report in reports}
    prior = named_prior(report.prior for report in reports)
    across = "GPUs asked for by all pods that have arrived, percent of the cluster"
    differ = any(curve[-1].requested > _DIFFERENT_FROM for curve in curves.values())
    allocation = Picture(
        title=f"GPUs allocated: {what}{prior}",
        across=across,
        upward="allocated, percent of the cluster",
        lines={name: [(point.requested, point.allocated) for point in curve] for name, curve in curves.items()},
        x_from=_DIFFERENT_FROM if differ else 0.0,
    )
    fragments = Picture(
        title=f"Fragments: {what}{prior}",
        across=across,
        upward="free and of no use to a typical pod, percent of the cluster",
        lines={name: [(point.requested, point.fragments) for point in curve] for name, curve in curves.items()},
    )
    return {f"{what}-allocation.svg": draw(allocation), f"{what}-fragments.svg": draw(fragments)}


def draw_departures(what: str, reports: Sequence[StayReport], game: Departures) -> dict[str, str]:
    """Return pictures by file name: the allocated and the queued GPUs over time."""
    curves = {report.policy.value: mean_moments(report.stays) for report in reports}
    of = (
        f"{what}, load {load_key(game.load)}, durations {game.durations.value}{named_prior(report.prior for report in reports)}"
    )
    across = "time in units"
    allocated = Picture(
        title=f"GPUs allocated: {of}",
        across=across,
        upward="allocated, percent of the cluster",
        lines={name: [(moment.at, moment.allocated) for moment in curve] for name, curve in curves.items()},
    )
    queued = Picture(
        title=f"GPUs waited for: {of}",
        across=across,
        upward="asked for by pods that wait, percent of the cluster",
        lines={name: [(moment.at, moment.queued) for moment in curve] for name, curve in curves.items()},
    )
    return {f"{what}-departures-allocated.svg": draw(allocated), f"{what}-departures-queued.svg": draw(queued)}


def draw(picture: Picture) -> str:
    lines = {name: [point for point in line if point[0] >= picture.x_from] for name, line in picture.lines.items()}
    xs = [x for line in lines.values() for x, _ in line]
    ys = [y for line in lines.values() for _, y in line]
    frame = _Frame(_ticks(min(xs), max(xs)), _ticks(min(ys), max(ys)), min(xs), max(xs))
    parts = [_STYLE, f'<text class="title" x="{_LEFT}" y="24">{escape(picture.title)}</text>']
    parts += _axes(frame, picture)
    ends = _spread({name: frame.y(line[-1][1]) for name, line in lines.items()})
    for number, (name, line) in enumerate(lines.items()):
        ink, dash = f"ink{number % len(_INKS)}", _DASHES[number % len(_DASHES)]
        path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in line)
        parts.append(f'<polyline class="line {ink}" stroke-dasharray="{dash}" points="{path}"/>')
        label = f"{escape(name)} {line[-1][1]:.1f}"
        parts.append(f'<text class="{ink} name" x="{frame.x(line[-1][0]) + 8:.1f}" y="{ends[name] + 4:.1f}">{label}</text>')
    body = "\n".join(parts)
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n{body}\n</svg>\n'


class _Frame:
    """Map values to coordinates on the picture."""

    def __init__(self, across: Sequence[float], upward: Sequence[float], x_least: float, x_most: float) -> None:
        self.across = [tick for tick in across if x_least <= tick <= x_most]
        self.upward = upward
        self._x = x_least, max(x_most - x_least, 1e-9)
        self._y = upward[0], upward[-1] - upward[0]

    def x(self, value: float) -> float:
        return _LEFT + (value - self._x[0]) / self._x[1] * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - (value - self._y[0]) / self._y[1] * (HEIGHT - _TOP - _BOTTOM)


def _axes(frame: _Frame, picture: Picture) -> list[str]:
    parts = []
    for tick in frame.upward:
        y = frame.y(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="small" text-anchor="end" x="{_LEFT - 8}" y="{y + 4:.1f}">{tick:g}</text>')
    for tick in frame.across:
        x = frame.x(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{HEIGHT - _BOTTOM}" y2="{HEIGHT - _BOTTOM + 5}"/>')
        parts.append(f'<text class="small" text-anchor="middle" x="{x:.1f}" y="{HEIGHT - _BOTTOM + 20}">{tick:g}</text>')
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(f'<text class="small" text-anchor="middle" x="{middle:.0f}" y="{HEIGHT - 10}">{escape(picture.across)}</text>')
    parts.append(f'<text class="small" x="{_LEFT}" y="{_TOP - 14}">{escape(picture.upward)}</text>')
    return parts


def _ticks(least: float, most: float) -> list[float]:
    """Return round numbers from at most `least` to at least `most`, as ticks of an axis."""
    span = max(most - least, 1e-9)
    rough = span / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    first, last = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def _spread(heights: Mapping[str, float]) -> dict[str, float]:
    """Move the heights apart, so that no two are closer than a line of text, in their order, and none is below the frame."""
    moved: dict[str, float] = {}
    before = -math.inf
    for name in sorted(heights, key=lambda name: heights[name]):
        before = moved[name] = max(heights[name], before + _LINE_HEIGHT)
    lowest = float(HEIGHT - _BOTTOM)
    for name in sorted(moved, key=lambda name: moved[name], reverse=True):
        moved[name] = min(moved[name], lowest)
        lowest = moved[name] - _LINE_HEIGHT
    return moved


def _style() -> str:
    light = "".join(f".ink{n}{{stroke:{ink}}}.ink{n}.name{{stroke:none;fill:{ink}}}" for n, (ink, _) in enumerate(_INKS))
    dark = "".join(f".ink{n}{{stroke:{ink}}}.ink{n}.name{{stroke:none;fill:{ink}}}" for n, (_, ink) in enumerate(_INKS))
    return (
        "<style>"
        "text{font:13px system-ui,sans-serif;fill:#333}.title{font-size:16px;font-weight:600}.small{font-size:12px;fill:#555}"
        ".paper{fill:#fff}.grid{stroke:#ddd}.line{fill:none;stroke-width:2}"
        f".name{{font-weight:600}}{light}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.small{fill:#aaa}.paper{fill:#14171a}.grid{stroke:#333a40}"
        f"{dark}}}"
        "</style>\n"
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>'
    )


_STYLE: Final = _style()
