"""Check whether the parts of Lading on a node, and this command, are compatible (lading.versions has the rule)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lading.checks.model import Finding, failed, ok, skipped, warning
from lading.versions import find_skews


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
