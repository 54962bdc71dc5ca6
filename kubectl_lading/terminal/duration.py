"""Durations on the command line, as in kubectl: `90s`, `5m`, `1h30m`; a bare number is in seconds."""

import re
from typing import Any, Final

import click

_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", re.ASCII)


class Duration(click.ParamType[float]):
    """A duration in seconds. `least`: shorter ones are refused."""

    name = "duration"

    def __init__(self, *, least: float = 0.0) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = _DURATION.fullmatch(str(value))
        if not value or found is None:
            self.fail(f"{value!r} is not a duration: write it as 90s, 5m or 1h", param, ctx)
        hours, minutes, seconds = (int(part or 0) for part in found.groups())
        duration = float(hours * 3600 + minutes * 60 + seconds)
        if duration < self._least:
            self.fail(f"{value} is too short: write {self._least:g}s or more", param, ctx)
        return duration
