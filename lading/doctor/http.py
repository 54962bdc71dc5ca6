"""Check what a daemon reports over HTTP on this node: its conditions, its version.

Enters: the bodies of /readyz and /metrics (lading.health). Leaves: conditions that do not hold, a version, a gauge.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from lading.doctor.model import Verdict, failed, ok, skipped, warning

_VERSION: Final = re.compile(r'^lading_build_info\{version="([^"]*)"\}', re.MULTILINE)

# How to fix the condition `files` of either daemon (lading.access).
FILES: Final = (
    "move the file below /etc/lading, with the setting that names it; or the named line below [Service]: systemctl edit UNIT; "
    "then systemctl restart UNIT"
)


class _Condition(msgspec.Struct):
    name: str
    ok: bool
    why: str = ""
    required: bool = True


class _Readiness(msgspec.Struct):
    conditions: list[_Condition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The answers of a daemon. None: no process answers at this address."""

    daemon: str
    address: str  # empty: metrics are turned off
    readyz: bytes | None = None
    metrics: str | None = None

    @property
    def version(self) -> str:
        """Return the version of the running daemon; empty where it is not known."""
        found = _VERSION.search(self.metrics or "")
        return found[1] if found else ""

    def gauge(self, name: str) -> float | None:
        found = re.search(rf"^{name} (\S+)$", self.metrics or "", re.MULTILINE)
        return float(found[1]) if found else None


def decide_ready(said: Said, mends: Mapping[str, str]) -> Iterator[Verdict]:
    """Report each condition that does not hold, as the daemon found it. `mends` has the fix of each, by the first word of its
    name; a daemon newer than this command may have more conditions."""
    if not said.address:
        yield skipped(f"{said.daemon} serves no /readyz: metrics is empty in its configuration")
        return
    if said.readyz is None:
        mend = f"systemctl status {said.daemon}; journalctl -t {said.daemon} LADING_EVENT=metrics.failed"
        yield warning(f"no process answers at http://{said.address}/readyz", mend=mend)
        return
    try:
        conditions = msgspec.json.decode(said.readyz, type=_Readiness).conditions
    except msgspec.DecodeError:
        yield warning(f"another program than {said.daemon} answers at {said.address}", mend=f"ss -tlnp | grep {said.address}")
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
        yield ok(f"{said.daemon} reports that all {len(conditions)} conditions hold")
