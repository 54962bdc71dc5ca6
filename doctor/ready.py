"""Check the readiness conditions that a daemon reports over HTTP on this node, and parse its version and gauges.

Take the bodies of /readyz and /metrics (lading.health). Return verdicts about conditions that do not hold, the daemon's
version, and the values of gauges. `decide_versions` checks whether the daemons' versions and this command are compatible.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from lading.checks.model import Finding, failed, ok, skipped, warning
from lading.versions import find_skews

_VERSION: Final = re.compile(r'^lading_build_info\{version="([^"]*)"\}', re.MULTILINE)

# Each condition has its own fix. Keys are the first words of conditions in runtimeproxy.daemon and hooks.daemon.readiness.
MENDS: Final = {
    "runtime": "lading-doctor --only runtime; systemctl restart containerd if it hangs (containers keep running)",
    "hooks-dir": "lading-doctor --only hooks-dir shows how to fix each file; without one: lading-hooks registration --write",
    "hook": "lading-doctor --only hooks; if it is 50-lading.json: systemctl restart lading-hooks.socket lading-hooks",
    "inventory": "lading-doctor --only driver,gpus,vfs says which driver hangs, and how to fix it; "
    "journalctl -t lading-hooks LADING_EVENT=inventory.failed -n 5",
    "reconciled": "lading-doctor --only runtime; systemctl restart containerd where it hangs (containers go on); "
    "journalctl -t lading-hooks LADING_EVENT=ledger.failed -n 5",
    "ledger": "lading-doctor --only ledger,disk says whether it is damaged or has no room, and how to fix it; "
    "then systemctl restart lading-hooks",
    "no-bypass": "lading-doctor --only kubelet-endpoint, until that is ok; then kubectl -n NAMESPACE delete pod POD "
    "for each of them: made again, it goes through the proxy",
    "driver-files": "lading-doctor --only driver,driver-files names the running and the installed versions, and the fix",
    "held-devices": "lading-doctor --only gpus,gpu-nodes,vfs says how to fix the device; or its pod gets another one by "
    "kubectl -n NAMESPACE delete pod POD (lading-hooks ledger has the pods)",
    "files": "systemctl edit {daemon} for the named line below [Service], or move the file below /etc/lading with the setting "
    "that names it; systemctl restart {daemon}",
    "socket": "systemctl restart {daemon}.socket {daemon}",
    "nri": "lading-doctor --only nri says whether NRI is on, and how to fix it; "
    "journalctl -t lading-hooks LADING_EVENT=nri.lost -n 5",
    "nri-guard": "systemctl enable --now lading-nri-guard (or the second container beside lading-hooks); "
    "journalctl -t lading-nri-guard -n 20",
    "node-taint": "lading-doctor --only api; a token of lading-reporter that is bound to this node, as kubelets may not do it, "
    "or node_taint = false; journalctl -t lading-hooks LADING_EVENT=node.taint-failed -n 5",
    "reported": "lading-doctor --only api says what is in the way, and how to fix it; "
    "IPAddressAllow= of its unit, which has to have the API server's address; "
    "journalctl -t lading-hooks LADING_EVENT=report.failed -n 5",
}


class _Condition(msgspec.Struct):
    name: str
    ok: bool
    why: str = ""
    required: bool = True


class _Readiness(msgspec.Struct):
    conditions: list[_Condition]


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonReply:
    """Hold the bodies of a daemon's /readyz and /metrics; None if no process answers at the address."""

    daemon: str
    address: str  # setting `metrics`, as HOST:PORT; empty: metrics are turned off
    readyz: bytes | None = None
    metrics: str | None = None

    @property
    def version(self) -> str:
        """Return the version of the running daemon; empty if it is unknown."""
        match = _VERSION.search(self.metrics or "")
        return match[1] if match else ""

    def gauge(self, name: str) -> float | None:
        match = re.search(rf"^{name} (\S+)$", self.metrics or "", re.MULTILINE)
        return float(match[1]) if match else None


def decide_ready(reply: DaemonReply) -> Iterator[Finding]:
    """Yield a verdict for each condition that the daemon reports as not met. A condition that only a newer daemon has gets
    general advice."""
    if not reply.address:
        yield skipped(f"{reply.daemon} serves no /readyz: metrics is empty in its configuration")
        return
    if reply.readyz is None:
        mend = f"systemctl status {reply.daemon}; journalctl -t {reply.daemon} LADING_EVENT=metrics.failed"
        yield warning(f"{reply.daemon} does not answer at http://{reply.address}/readyz", mend=mend)
        return
    try:
        conditions = msgspec.json.decode(reply.readyz, type=_Readiness).conditions
    except msgspec.DecodeError:
        yield warning(
            f"another program than {reply.daemon} answers at {reply.address}", mend=f"ss -tlnp | grep {reply.address}"
        )
        return
    for condition in (one for one in conditions if not one.ok):
        mend = MENDS.get(condition.name.partition(" ")[0], "journalctl -t {daemon} -p warning -n 50")
        judge, how = (failed, "is not ready:") if condition.required else (warning, "is ready, but")
        what = f"{reply.daemon} {how} {condition.name}: {condition.why}"
        yield judge(what, mend=mend.format(daemon=reply.daemon))
    if all(condition.ok for condition in conditions):
        yield ok(f"{reply.daemon} reports that all {len(conditions)} conditions hold")


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionsReading:
    installed: str  # version of this command
    running: Mapping[str, str]  # version by daemon; empty if unknown


def decide_versions(reading: VersionsReading) -> Iterator[Finding]:
    known = {daemon: version for daemon, version in reading.running.items() if version}
    if not known:
        what = f"no daemon reports its version: is one running, with metrics set? {reading.installed} is installed"
        yield skipped(what, mend="systemctl status lading-hooks lading-runtimeproxy")
        return
    text = ", ".join(f"{daemon} {version}" for daemon, version in known.items())
    skews = find_skews(known)
    for skew in skews:
        yield failed(
            skew.why, mend="upgrade the older one, one minor version at a time: docs/operations.md, Restart and upgrade"
        )
    old = [daemon for daemon, version in known.items() if version != reading.installed]
    for daemon in old:
        yield warning(f"{daemon} {known[daemon]} runs, {reading.installed} is installed", mend=f"systemctl restart {daemon}")
    if not old and not skews:
        yield ok(f"{text}; {reading.installed} is installed")
