"""What a daemon says of itself over HTTP on this node: its conditions, its version.

Enters: the bodies of /readyz and /metrics (lading.health). Leaves: conditions that do not hold, a version, a gauge.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from lading.doctor.model import Verdict, failed, ok, skipped, warning

_VERSION: Final = re.compile(r'^lading_build_info\{version="([^"]*)"\}', re.MULTILINE)


class _Condition(msgspec.Struct):
    name: str
    ok: bool
    why: str = ""
    required: bool = True


class _Readiness(msgspec.Struct):
    conditions: list[_Condition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """None: nobody answers at this address."""

    daemon: str
    address: str  # empty: it is configured to say nothing
    readyz: bytes | None = None
    metrics: str | None = None

    @property
    def version(self) -> str:
        """Of the daemon that runs; empty where it is not known."""
        found = _VERSION.search(self.metrics or "")
        return found[1] if found else ""

    def gauge(self, name: str) -> float | None:
        found = re.search(rf"^{name} (\S+)$", self.metrics or "", re.MULTILINE)
        return float(found[1]) if found else None


def decide_ready(said: Said, mends: Mapping[str, str]) -> Iterator[Verdict]:
    """A condition that does not hold is what the daemon itself found. `mends` has what mends each, by its name's first word;
    a daemon newer than this command may have more."""
    if not said.address:
        yield skipped(f"{said.daemon} serves no /readyz: metrics is empty in its configuration")
        return
    if said.readyz is None:
        mend = f"systemctl status {said.daemon}; journalctl -t {said.daemon} LADING_EVENT=metrics.failed"
        yield warning(f"nobody answers at http://{said.address}/readyz", mend=mend)
        return
    try:
        conditions = msgspec.json.decode(said.readyz, type=_Readiness).conditions
    except msgspec.DecodeError:
        yield warning(f"something else than {said.daemon} answers at {said.address}", mend=f"ss -tlnp | grep {said.address}")
        return
    for condition in conditions:
        if not condition.ok:
            mend = mends.get(condition.name.partition(" ")[0]) or f"journalctl -t {said.daemon} -p warning -n 50"
            what = f"not ready: {condition.name}: {condition.why}"
            yield (
                failed(what, mend=mend)
                if condition.required
                else warning(f"ready, but {condition.name}: {condition.why}", mend=mend)
            )
    if all(condition.ok for condition in conditions):
        yield ok(f"{said.daemon} says so itself: {len(conditions)} conditions hold")
