"""Compute the result of `kubectl lading status`: each part of an installation in one line, then the findings. Pure.

Take an `Installation`; return a `StatusView`, which `-o json` prints. Future versions only add keys to it. The state of a part
is the worst level of its findings.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

import msgspec

from kubectl_lading.installation import control_checks, daemonset_checks, node_checks
from kubectl_lading.installation.installation import Installation, Part, SchedulerConfig
from kubectl_lading.objects import DaemonSet, Deployment, Lease, Unread
from kubectl_lading.terminal.format import age, count, listed
from lading import nodedevices
from lading.checks.model import Finding, Verdict, worst, worst_first
from lading.checks.run import decide_all
from lading.vocabulary import NOT_READY

CHECKS: Final = (*control_checks.CHECKS, *daemonset_checks.CHECKS, *node_checks.CHECKS)


class PartView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    part: Part
    state: Verdict
    version: str = ""
    what: str = ""


class DaemonSetView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Hold the state of a DaemonSet of `deploy/node`."""

    name: str
    image: str = ""
    desired: int = 0  # number of nodes that should run its pod
    updated: int = 0  # number of nodes with an up-to-date pod
    ready: int = 0  # number of nodes with a ready pod
    not_ready_on: tuple[str, ...] = ()


class NodeStatusView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    reporter: str = ""  # version of lading-hooks
    reconciled: bool = False
    ready: bool = False  # kubelet's condition Ready
    tainted: bool = False  # whether Lading's taint is set: the node's front end is not ready
    problems: tuple[str, ...] = ()
    changed_at: str = ""  # RFC 3339 time of the last change of the report; on a quiet node long ago


class StatusView(msgspec.Struct, frozen=True, kw_only=True):
    at: str  # RFC 3339 time of the check
    state: Verdict
    parts: tuple[PartView, ...]
    findings: tuple[Finding, ...]
    versions: dict[str, dict[str, int]]  # number of running instances by part, then by version
    pending: dict[str, int]  # number of waiting pods by reason
    nodes: tuple[NodeStatusView, ...]
    daemonsets: tuple[DaemonSetView, ...] = ()


def view_status(now: Installation) -> StatusView:
    findings = worst_first(decide_all(CHECKS, now))
    parts = tuple(
        PartView(part=part, state=worst(one for one in findings if one.group == part), version=version, what=what)
        for part, version, what in _parts(now)
    )
    return StatusView(
        at=_rendered(now.at),
        state=worst(findings),
        parts=parts,
        findings=findings,
        versions={part: dict(versions) for part, versions in find_versions(now).items()},
        pending=dict(now.workload.pending),
        nodes=tuple(_node(now, name) for name in sorted(now.reports)),
        daemonsets=tuple(_daemonset(now, one) for one in now.daemonsets.values() if isinstance(one, DaemonSet)),
    )


def find_versions(now: Installation) -> Mapping[str, Counter[str]]:
    """Return the number of running instances by part, then by version. Unknown versions are left out."""
    central = {name: one.version for name, one in now.replicas.items() if not isinstance(one, Unread)}
    nodes: Counter[str] = Counter()
    for one in now.daemonsets.values():
        if isinstance(one, DaemonSet) and one.tag:
            nodes[one.tag] += one.status.desired_number_scheduled
    return {
        "central": Counter(filter(None, central.values() or [now.central_version])),
        "node image": +nodes,
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
        tainted=name in now.nodes and any(taint.key == NOT_READY for taint in now.nodes[name].spec.taints),
        problems=report.status.problems,
        changed_at=_rendered(report.changed_at) if report.changed_at else "",
    )


def _daemonset(now: Installation, daemonset: DaemonSet) -> DaemonSetView:
    return DaemonSetView(
        name=daemonset.metadata.name,
        image=daemonset.image,
        desired=daemonset.status.desired_number_scheduled,
        updated=daemonset.status.updated_number_scheduled,
        ready=daemonset.status.number_ready,
        not_ready_on=tuple(daemonset_checks.not_ready_on(now, daemonset.metadata.name)),
    )


def _rendered(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


# ---- one part in words


def _parts(now: Installation) -> Iterator[tuple[Part, str, str]]:
    """Yield each part with its version and its state, as text."""
    yield Part.API_SERVER, now.api_server, ""
    yield Part.RESOURCE, "", _resource(now)
    yield Part.ADMISSION, "", _admission(now)
    yield Part.CENTRAL, now.central_version, _central(now)
    yield Part.SCHEDULER, now.scheduler.tag if isinstance(now.scheduler, Deployment) else "", _scheduler(now)
    yield Part.DAEMONSETS, ", ".join(filter(None, daemonset_checks.images(now))), _daemonsets(now)
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
    text = [_replicas(now.central)]
    if now.named is not None and not now.named.silent:
        text.append(f"answers at {now.named.url}")
    if isinstance(now.lease, Lease) and now.lease.holder:
        age = now.lease.age_s(now.at)
        text.append(f"{now.lease.holder} leads" + (f", renewed {max(age, 0):.0f} s ago" if age is not None else ""))
    bindings = sum(one.bindings_open or 0 for one in now.replicas.values() if not isinstance(one, Unread))
    text += [f"{count(bindings, 'Binding')} under way"] if bindings else []
    return "; ".join(filter(None, text))


def _scheduler(now: Installation) -> str:
    profiles = now.scheduler_config.profiles if isinstance(now.scheduler_config, SchedulerConfig) else ()
    text = f"profile{'s' * (len(profiles) != 1)} {listed(profiles)}" if profiles else ""
    return "; ".join(filter(None, (_replicas(now.scheduler), text)))


def _replicas(deployment: Deployment | Unread | None) -> str:
    return (
        f"{deployment.status.ready_replicas} of {deployment.spec.replicas} ready" if isinstance(deployment, Deployment) else ""
    )


def _daemonsets(now: Installation) -> str:
    states = {one.metadata.name: one.status for one in now.daemonsets.values() if isinstance(one, DaemonSet)}
    text = [
        f"{name} {status.number_ready} of {status.desired_number_scheduled} ready"
        for name, status in states.items()
        if status.desired_number_scheduled
    ]
    return "; ".join(text) or ("on no node" if states else "none")


def _nodes(now: Installation) -> str:
    changes = [at for report in now.reports.values() if (at := report.changed_at) is not None]
    newest = f"; the last news {age((now.at - max(changes)).total_seconds())} ago" if changes else ""
    return f"{len(now.reports)} of {count(len(now.nodes), 'node')} report devices{newest}"


def _pods(now: Installation) -> str:
    return f"{now.workload.bound} with devices, {sum(now.workload.pending.values())} waiting"
