"""The result of `kubectl lading status`: each part of an installation in one line, then what is wrong with it. Pure.

It takes an `Installation`. It returns a `StatusView`, which is what `-o json` shows; keys are only added. A part is as bad as
the worst that was found in it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

import msgspec

from kubectl_lading.installation import control_checks, node_checks
from kubectl_lading.installation.finding import Finding, Installation, Level, Part, SchedulerConfig, find, worst
from kubectl_lading.objects import Deployment, Lease, Unread
from kubectl_lading.terminal.words import count, listed
from lading import nodedevices

CHECKS: Final = (*control_checks.CHECKS, *node_checks.CHECKS)


class PartView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    part: Part
    state: Level
    version: str = ""
    what: str = ""


class NodeStatusView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node that reports."""

    name: str
    reporter: str = ""  # version of lading-hooks
    reconciled: bool = False
    ready: bool = False  # kubelet's condition
    problems: tuple[str, ...] = ()
    changed_at: str = ""  # RFC 3339: when what it reports changed last, which on a quiet node is long ago


class StatusView(msgspec.Struct, frozen=True, kw_only=True):
    at: str  # RFC 3339
    state: Level
    parts: tuple[PartView, ...]
    findings: tuple[Finding, ...]
    versions: dict[str, dict[str, int]]  # by part, how many of each
    pending: dict[str, int]  # pods that wait, by reason
    nodes: tuple[NodeStatusView, ...]


def view_status(now: Installation) -> StatusView:
    findings = find(CHECKS, now)
    parts = tuple(
        PartView(part=part, state=worst(one.level for one in findings if one.part is part), version=version, what=what)
        for part, version, what in _parts(now)
    )
    return StatusView(
        at=_rendered(now.at),
        state=worst(one.level for one in findings),
        parts=parts,
        findings=findings,
        versions={part: dict(versions) for part, versions in find_versions(now).items()},
        pending=dict(now.workload.pending),
        nodes=tuple(_node(now, name) for name in sorted(now.reports)),
    )


def find_versions(now: Installation) -> Mapping[str, Counter[str]]:
    """Return the versions that run, by part; unknown versions are left out."""
    central = {name: one.version for name, one in now.replicas.items() if not isinstance(one, Unread)}
    return {
        "central": Counter(filter(None, central.values() or [now.central_version])),
        "hooks": Counter(filter(None, (report.status.reporter for report in now.reports.values()))),
        "kubectl-lading": Counter([now.cli]),
    }


def _node(now: Installation, name: str) -> NodeStatusView:
    report = now.reports[name]
    return NodeStatusView(
        name=name,
        reporter=report.status.reporter,
        reconciled=report.status.reconciled,
        ready=name in now.nodes and now.nodes[name].ready,
        problems=report.status.problems,
        changed_at=_rendered(report.changed_at) if report.changed_at else "",
    )


def _rendered(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


# ---- one part in words


def _parts(now: Installation) -> Iterator[tuple[Part, str, str]]:
    """Yield each part with its version and its state in words."""
    yield Part.API_SERVER, now.api_server, ""
    yield Part.RESOURCE, "", _resource(now)
    yield Part.ADMISSION, "", _admission(now)
    yield Part.CENTRAL, now.central_version, _central(now)
    yield Part.SCHEDULER, now.scheduler.tag if isinstance(now.scheduler, Deployment) else "", _scheduler(now)
    yield Part.NODES, ", ".join(sorted(find_versions(now)["hooks"])), _nodes(now)
    yield Part.PODS, "", _pods(now)


def _resource(now: Installation) -> str:
    if now.crd is None or isinstance(now.crd, Unread):
        return ""
    return f"{nodedevices.VERSION}, {'established' if now.crd.established else 'not established'}"


def _admission(now: Installation) -> str:
    if isinstance(now.policies, Unread):
        return ""
    ours = [name for name in control_checks.POLICIES if name in now.policies]
    return f"{len(ours)} of {len(control_checks.POLICIES)} policies"


def _central(now: Installation) -> str:
    words = [_replicas(now.central)]
    if now.named is not None and not now.named.silent:
        words.append(f"answers at {now.named.url}")
    if isinstance(now.lease, Lease) and now.lease.holder:
        age = now.lease.age_s(now.at)
        words.append(f"{now.lease.holder} leads" + (f", renewed {max(age, 0):.0f} s ago" if age is not None else ""))
    bindings = sum(one.bindings_open or 0 for one in now.replicas.values() if not isinstance(one, Unread))
    words += [f"{count(bindings, 'Binding')} under way"] if bindings else []
    return "; ".join(filter(None, words))


def _scheduler(now: Installation) -> str:
    profiles = now.scheduler_config.profiles if isinstance(now.scheduler_config, SchedulerConfig) else ()
    said = f"profile{'s' * (len(profiles) != 1)} {listed(profiles)}" if profiles else ""
    return "; ".join(filter(None, (_replicas(now.scheduler), said)))


def _replicas(found: Deployment | Unread | None) -> str:
    return f"{found.status.ready_replicas} of {found.spec.replicas} ready" if isinstance(found, Deployment) else ""


def _nodes(now: Installation) -> str:
    changes = [at for report in now.reports.values() if (at := report.changed_at) is not None]
    newest = f"; the last news {age_in_words((now.at - max(changes)).total_seconds())} ago" if changes else ""
    return f"{len(now.reports)} of {count(len(now.nodes), 'node')} report devices{newest}"


def _pods(now: Installation) -> str:
    return f"{now.workload.bound} with devices, {sum(now.workload.pending.values())} waiting"


def age_in_words(seconds: float) -> str:
    """Return an age as kubectl writes it: 12s, 5m, 3h, 4d."""
    whole = max(int(seconds), 0)
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if whole >= 2 * size:
            return f"{whole // size}{unit}"
    return f"{whole}s"
