"""Checks of the nodes that have devices. Pure.

A node's report that changes nothing leaves no trace at the API server, so its age alone says nothing: a quiet node has an old
one. That a node does not report shows by what contradicts it: another boot than the node's here, or a pod that runs with
devices of which the report knows nothing (`pod_checks`).
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from kubectl_lading.installation.finding import Check, Part, Said, counted, degraded, listed, note
from kubectl_lading.installation.installed import Installation
from kubectl_lading.objects import Report
from lading.nodedevices import Gpu
from lading.versions import go_together

_DOCTOR: Final = "lading-doctor, on the node"


def nodes_report(now: Installation) -> Iterator[Said]:
    if not now.reports:
        mend = "docs/operations.md: install lading-hooks on a node, and set report"
        yield degraded("no node reports devices: there is nothing to give away", mend=mend)
    if now.workload.unreported:
        nodes = now.workload.unreported
        yield degraded(
            f"{counted(len(nodes), 'node has', 'nodes have')} pods with devices and no report: {listed(nodes)}",
            why="central gives nothing there, and does not see what its ledger holds",
            mend=_DOCTOR,
        )
    if strangers := sorted(set(now.reports) - set(now.nodes)):
        yield note(
            f"{counted(len(strangers), 'report')} of no node: {listed(strangers)}",
            mend=f"kubectl delete nodedevices {strangers[0]}, if that node is gone for good",
        )


def versions_in_step(now: Installation) -> Iterator[Said]:
    """Check that versions are compatible. Neighbours mean an upgrade in progress; larger distances were never tested
    together.
    """
    reporters = Counter(report.status.reporter for report in now.reports.values() if report.status.reporter)
    others = {"central": now.central_version, "this kubectl-lading": now.cli}
    for version in sorted(reporters):
        nodes = sorted(name for name, report in now.reports.items() if report.status.reporter == version)
        far = [f"{part} {its}" for part, its in others.items() if its and not go_together(version, its)]
        if far:
            yield degraded(
                f"lading-hooks {version} on {listed(nodes)} does not go with {' nor '.join(far)}",
                why="parts are at most one minor version apart",
                mend="kubectl lading preflight",
            )
    if len(reporters) > 1:
        shown = ", ".join(f"{version} on {counted(count, 'node')}" for version, count in sorted(reporters.items()))
        yield note(f"nodes run different versions of lading-hooks: {shown}", why="so it is during an upgrade")
    if now.central_version and not go_together(now.central_version, now.cli):
        yield degraded(
            f"central {now.central_version} does not go with this kubectl-lading {now.cli}",
            why="what it computes of the cluster may not be what central decides",
            mend=f"install kubectl-lading {now.central_version}",
        )


def nodes_reconciled(now: Installation) -> Iterator[Said]:
    names = sorted(name for name, report in now.reports.items() if not report.status.reconciled)
    if names:
        yield degraded(
            f"{counted(len(names), 'node does', 'nodes do')} not know yet who holds which devices: {listed(names)}",
            why="nothing is given there",
            mend="a moment after a start that is so; else curl -s http://127.0.0.1:9441/readyz, on the node",
        )


def nodes_reachable(now: Installation) -> Iterator[Said]:
    away = sorted(name for name in now.reports if name in now.nodes and not now.nodes[name].ready)
    if away:
        yield degraded(
            f"{counted(len(away), 'node with devices is', 'nodes with devices are')} not reachable: {listed(away)}",
            why="what is held there stays held, and nothing is given",
            mend=f"kubectl describe node {away[0]}",
        )


def nodes_rebooted(now: Installation) -> Iterator[Said]:
    """Find nodes that have booted since their report: lading-hooks has not reported since then."""
    stale = sorted(
        name
        for name, report in now.reports.items()
        if report.status.boot_id
        and name in now.nodes
        and now.nodes[name].status.node_info.boot_id not in ("", report.status.boot_id)
    )
    if stale:
        yield degraded(
            f"{counted(len(stale), 'node has', 'nodes have')} not reported since the last boot: {listed(stale)}",
            why="what is known of it is of another boot",
            mend="systemctl status lading-hooks; journalctl -t lading-hooks -p err, on the node",
        )


def nodes_problems(now: Installation) -> Iterator[Said]:
    troubled = sorted(name for name, report in now.reports.items() if report.status.problems)
    if troubled:
        first = now.reports[troubled[0]].status.problems[0]
        yield degraded(
            f"{counted(len(troubled), 'node has', 'nodes have')} problems: {listed(troubled)}; {troubled[0]}: {first}",
            mend=f"kubectl get nodedevices {troubled[0]} -o jsonpath='{{.status.problems}}'; {_DOCTOR}",
        )


def devices_healthy(now: Installation) -> Iterator[Said]:
    ill = {name: _ill(report) for name, report in sorted(now.reports.items())}
    nodes = [name for name, devices in ill.items() if devices]
    if nodes:
        devices = [f"{name}: {device}" for name in nodes for device in ill[name]]
        count = counted(len(devices), "device is", "devices are")
        yield degraded(
            f"{count} unhealthy on {counted(len(nodes), 'node')}: {listed(devices)}",
            why="they are not given to any pod",
            mend=f"kubectl lading node {nodes[0]}",
        )
    foreign = [f"{name}: {gpu.uuid} ({gpu.used_by})" for name, one in sorted(now.reports.items()) for gpu in _foreign(one)]
    if foreign:
        yield note(
            f"{counted(len(foreign), 'GPU is', 'GPUs are')} used without a grant: {listed(foreign)}",
            why="they are not given to any pod meanwhile",
        )


def _ill(report: Report) -> list[str]:
    gpus = [f"{gpu.uuid} ({gpu.unhealthy})" for gpu in report.status.gpus if gpu.unhealthy]
    pfs = [f"{pf.bdf} ({pf.unhealthy})" for pf in report.status.pfs if pf.unhealthy]
    return gpus + pfs + [f"{vf.bdf} ({vf.unhealthy})" for pf in report.status.pfs for vf in pf.vfs if vf.unhealthy]


def _foreign(report: Report) -> list[Gpu]:
    return [gpu for gpu in report.status.gpus if gpu.used_by]


CHECKS: Final = (
    Check("nodes-report", Part.NODES, nodes_report),
    Check("versions-in-step", Part.NODES, versions_in_step),
    Check("nodes-reconciled", Part.NODES, nodes_reconciled),
    Check("nodes-reachable", Part.NODES, nodes_reachable),
    Check("nodes-rebooted", Part.NODES, nodes_rebooted),
    Check("nodes-problems", Part.NODES, nodes_problems),
    Check("devices-healthy", Part.NODES, devices_healthy),
)
