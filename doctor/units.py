"""Check Lading's systemd units: installed, enabled, running, not failed.

Source: systemctl(1) show; org.freedesktop.systemd1(5) has the properties.
"""

from collections.abc import Iterator
from typing import Final

from lading.checks.model import Finding, failed, ok, skipped, warning

PROPERTIES: Final = (
    "Id,LoadState,ActiveState,SubState,UnitFileState,Result,ExecMainCode,ExecMainStatus,NRestarts,NeedDaemonReload"
)
# 2 is the status of lading.errors.die; the others are systemd's, for failures before the program began (systemd.exec(5)).
_STATUS: Final = {
    "2": " (its configuration is invalid)",
    "203": " (EXEC: its program is missing, or cannot be run)",
    "217": " (USER: there is no such user)",
    "226": " (NAMESPACE: a path that its unit names is missing)",
}
_BY_SIGNAL: Final = {"2", "3"}  # ExecMainCode of a process that a signal ended: CLD_KILLED, CLD_DUMPED (sigaction(2))


def decide_units(shown: str | None) -> Iterator[Finding]:
    """Check units as `systemctl show` prints them; None: systemd does not run here, or the host root is another node's."""
    if shown is None:
        yield skipped("systemd does not run here")
        return
    well = []
    for block in shown.strip().split("\n\n"):
        unit = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        name, problem = unit.get("Id", ""), _problem(unit)
        if problem is None:
            well.append(name)
        else:
            yield problem
    if well:
        yield ok(f"{', '.join(well)}: running")


def _does_not_stay_up(unit: dict[str, str]) -> Finding | None:
    """Return a verdict about a unit that failed or restarts repeatedly: with `Restart=always`, systemd never gives up."""
    name, restarts = unit.get("Id", ""), unit.get("NRestarts", "0")
    if unit.get("ActiveState") != "failed" and (unit.get("ActiveState") != "activating" or restarts in ("", "0")):
        return None
    times = f", restarted {restarts} times so far" if restarts not in ("", "0") else ""
    ended = ", ".join(_how_it_ended(unit))
    daemon = name.removesuffix(".service")
    first = f"{daemon} --check-config; " if name.endswith(".service") else ""
    what = f"{name} does not stay up{times}{f': {ended}' if ended else ''}"
    return failed(what, mend=f"{first}journalctl -u {name} -n 50; systemctl restart {name}")


def _how_it_ended(unit: dict[str, str]) -> Iterator[str]:
    """Yield systemd's result for the unit, and the exit status or signal of its process. A socket unit has no process."""
    result, status = unit.get("Result", ""), unit.get("ExecMainStatus", "0")
    if result not in ("", "success"):
        yield result
    if unit.get("ExecMainCode") in _BY_SIGNAL:
        yield f"signal {status}"
    elif status not in ("", "0"):
        yield f"exit status {status}{_STATUS.get(status, '')}"


def _problem(unit: dict[str, str]) -> Finding | None:
    name, active = unit.get("Id", ""), f"{unit.get('ActiveState')} ({unit.get('SubState')})"
    if unit.get("LoadState") == "not-found":
        return failed(f"{name} is not installed", mend=f"cp systemd/{name} /etc/systemd/system/; systemctl daemon-reload")
    if unit.get("LoadState") == "masked":
        return failed(f"{name} is masked", mend=f"systemctl unmask {name}; systemctl enable --now {name}")
    if down := _does_not_stay_up(unit):
        return down
    if unit.get("ActiveState") not in ("active", "reloading", "activating"):
        return failed(f"{name} is {active}", mend=f"systemctl enable --now {name}")
    if unit.get("UnitFileState") not in ("enabled", "enabled-runtime", "static", "alias", "generated"):
        return warning(f"{name} runs, but is not enabled: it is not started at the next boot", mend=f"systemctl enable {name}")
    if unit.get("NeedDaemonReload") == "yes":
        return warning(f"{name} changed on disk since systemd read it", mend="systemctl daemon-reload")
    return None
