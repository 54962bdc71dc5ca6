"""Check whether the parts of Lading on a node, and this command, are compatible (lading.versions has the rule)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lading.doctor.model import Verdict, failed, ok, skipped, warning
from lading.versions import find_skews


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionsSeen:
    program: str  # the daemon whose command this is
    installed: str  # this command's version
    running: Mapping[str, str]  # by daemon; empty where it is not known


def decide_versions(seen: VersionsSeen) -> Iterator[Verdict]:
    known = {daemon: version for daemon, version in seen.running.items() if version}
    if not known:
        what = f"no daemon reports its version: is one running, with metrics set? {seen.program} {seen.installed} is installed"
        yield skipped(what, mend="systemctl status lading-hooks lading-runtimeproxy")
        return
    said = ", ".join(f"{daemon} {version}" for daemon, version in known.items())
    skews = find_skews(known)
    for skew in skews:
        yield failed(
            skew.why, mend="upgrade the older one, one minor version at a time: docs/operations.md, Restart and upgrade"
        )
    running = known.get(seen.program)
    if running and running != seen.installed:
        what = f"{seen.program} {running} runs, {seen.installed} is installed"
        yield warning(what, mend=f"systemctl restart {seen.program}")
    elif not skews:
        yield ok(f"{said}; {seen.installed} is installed")
