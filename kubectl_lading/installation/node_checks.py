"""Check the nodes that have devices, and the pods that request or hold devices. Pure.

The API server does not record a report that changes nothing. So an old report alone is no problem: a quiet node has one. Two
contradictions show that a node no longer reports: its Node has another boot ID than the report, or a pod runs there with
devices that are missing in the report.

A waiting pod is no fault of the installation: it is counted by its reason in a note, and degrades nothing.

Tests: tests/unit/kubectl_lading/installation/test_status.py
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from kubectl_lading.installation.installation import Installation, Part, checks, several
from kubectl_lading.objects import Report
from kubectl_lading.terminal.format import count, listed
from lading.checks.model import Finding, degraded, note
from lading.nodedevices import is_other_boot
from lading.versions import go_together
from lading.vocabulary import FRONT_END

_DOCTOR: Final = "lading-doctor, on the node"


def nodes_report(now: Installation) -> Iterator[Finding]:
    if not now.reports:
        chosen = any(FRONT_END in one.metadata.labels for one in now.nodes.values())
        mend = _DOCTOR if chosen else f"kubectl label node NODE {FRONT_END}=nri, after kubectl lading install (docs/nodes.md)"
        yield degraded("no node reports devices: no pod can get devices", mend=mend)
    yield from several(
        now.workload.unreported,
        "(node has|nodes have) pods with devices and no report",
        reason="central assigns no devices there, and does not see what its ledger holds",
        mend=_DOCTOR,
    )
    mend = "kubectl delete nodedevices {0}, if that node is gone for good"
    yield from several(sorted(now.reports.keys() - now.nodes.keys()), "(report|reports) of no node", mend=mend, finding=note)


def versions_in_step(now: Installation) -> Iterator[Finding]:
    """Check that all versions are compatible. Neighbouring minor versions mean an upgrade in progress; larger distances were
    never tested."""
    reporters = Counter(report.status.reporter for report in now.reports.values() if report.status.reporter)
    others = {"central": now.central_version, "this kubectl-lading": now.cli}
    for version in sorted(reporters):
        nodes = sorted(name for name, report in now.reports.items() if report.status.reporter == version)
        far = [f"{part} {its}" for part, its in others.items() if its and not go_together(version, its)]
        if far:
            yield degraded(
                f"lading-hooks {version} on {listed(nodes)} does not go with {' nor '.join(far)}",
                reason="parts are at most one minor version apart",
                mend="kubectl lading preflight",
            )
    if len(reporters) > 1:
        shown = ", ".join(f"{version} on {count(number, 'node')}" for version, number in sorted(reporters.items()))
        yield note(f"nodes run different versions of lading-hooks: {shown}", reason="this is normal during an upgrade")
    if now.central_version and not go_together(now.central_version, now.cli):
        yield degraded(
            f"central {now.central_version} does not go with this kubectl-lading {now.cli}",
            reason="kubectl lading may compute other results than central",
            mend=f"install kubectl-lading {now.central_version}",
        )


def nodes_reconciled(now: Installation) -> list[Finding]:
    return several(
        sorted(name for name, report in now.reports.items() if not report.status.reconciled),
        "(node does|nodes do) not know yet who holds which devices",
        reason="no devices are assigned there",
        mend="normal for some seconds after a start; otherwise: curl -s http://127.0.0.1:9441/readyz, on the node",
    )


def nodes_reachable(now: Installation) -> list[Finding]:
    return several(
        sorted(name for name in now.reporting if not now.nodes[name].ready),
        "(node with devices is|nodes with devices are) not reachable",
        reason="devices that pods hold there stay held, and no others are assigned",
        mend="kubectl describe node {0}",
    )


def nodes_rebooted(now: Installation) -> list[Finding]:
    """Find nodes that have booted since their last report."""
    boots = {name: (now.reports[name].status.boot_id, now.nodes[name].status.node_info.boot_id) for name in now.reporting}
    return several(
        [name for name, (reported, current) in boots.items() if is_other_boot(reported, current)],
        "(node has|nodes have) not reported since the last boot",
        reason="the report is from before the reboot",
        mend="systemctl status lading-hooks; journalctl -t lading-hooks -p err, on the node",
    )


def nodes_problems(now: Installation) -> Iterator[Finding]:
    troubled = sorted(name for name, report in now.reports.items() if report.status.problems)
    if troubled:
        first = now.reports[troubled[0]].status.problems[0]
        yield degraded(
            f"{count(len(troubled), 'node has', 'nodes have')} problems: {listed(troubled)}; {troubled[0]}: {first}",
            mend=f"kubectl get nodedevices {troubled[0]} -o jsonpath='{{.status.problems}}'; {_DOCTOR}",
        )


def devices_healthy(now: Installation) -> Iterator[Finding]:
    unhealthy = {name: devices for name, report in sorted(now.reports.items()) if (devices := _unhealthy(report))}
    yield from several(
        [f"{name}: {device}" for name, devices in unhealthy.items() for device in devices],
        f"(device is|devices are) unhealthy on {count(len(unhealthy), 'node')}",
        reason="they are not given to any pod",
        mend=f"kubectl lading node {next(iter(unhealthy), '')}",
    )
    gpus = [(name, gpu) for name, report in sorted(now.reports.items()) for gpu in report.status.gpus]
    used = [f"{name}: {gpu.uuid} ({gpu.used_by})" for name, gpu in gpus if gpu.used_by]
    reason = "they are not given to any pod meanwhile"
    yield from several(used, "(GPU is|GPUs are) used without a grant", reason=reason, finding=note)
    dirty = [f"{name}: {gpu.uuid} ({gpu.dirty})" for name, gpu in gpus if gpu.dirty]
    reason = "they wait until they are clean, and are given to no pod before"
    yield from several(dirty, "(GPU is|GPUs are) dirty", reason=reason, finding=note)


def _unhealthy(report: Report) -> list[str]:
    named = [(str(gpu.uuid), gpu.unhealthy) for gpu in report.status.gpus]
    named += [(pf.bdf, pf.unhealthy) for pf in report.status.pfs]
    named += [(vf.bdf, vf.unhealthy) for pf in report.status.pfs for vf in pf.vfs]
    return [f"{name} ({reason})" for name, reason in named if reason]


def pods_assigned(now: Installation) -> list[Finding]:
    return several(
        now.workload.unassigned,
        "(pod asks|pods ask) for devices and (was|were) bound without an assignment",
        reason="the node refuses such a pod, or it runs without its devices",
        mend="delete the pod, and create it with schedulerName: lading and no nodeName",
    )


def pods_healthy(now: Installation) -> list[Finding]:
    pods = now.workload.unhealthy
    mend = f"kubectl lading pod {_flags(pods)}"
    return several(pods, "(pod has|pods have) devices that became unhealthy", mend=mend)


def pods_granted(now: Installation) -> list[Finding]:
    """Check that nodes report the devices of running pods. A node grants them before it creates the container."""
    return several(
        now.workload.ungranted,
        "(pod runs|pods run) with devices of which the node reports nothing",
        reason="kubelet goes past the proxy there, or lading-hooks does not report",
        mend=_DOCTOR,
    )


def pods_started(now: Installation) -> list[Finding]:
    pods = now.workload.unstarted
    what = "(pod was|pods were) given devices long ago and (has|have) not started"
    mend = f"kubectl lading why {_flags(pods)}"
    return several(pods, what, reason="the devices are held meanwhile", mend=mend)


def pods_apart(now: Installation) -> list[Finding]:
    return several(
        now.workload.clashes,
        "(device is|devices are) held by several pods",
        reason="the node refuses the second one; central evicts one of them",
        mend="kubectl get events -A --field-selector reason=DeviceConflict",
    )


def objects_readable(now: Installation) -> Iterator[Finding]:
    for problem in now.workload.problems:
        yield degraded(problem, mend="kubectl get it with -o yaml; only what its node reports of it counts")


def pods_waiting(now: Installation) -> Iterator[Finding]:
    if pending := now.workload.pending:
        reasons = ", ".join(f"{reason} {pods}" for reason, pods in sorted(pending.items(), key=lambda one: (-one[1], one[0])))
        yield note(
            f"{count(sum(pending.values()), 'pod waits', 'pods wait')} for devices: {reasons}", mend="kubectl lading why POD"
        )


def _flags(pods: Sequence[str]) -> str:
    """Return the first pod as arguments of kubectl: `NAME -n NAMESPACE`."""
    namespace, _, name = "".join(pods[:1]).partition("/")
    return f"{name} -n {namespace}"


CHECKS: Final = (
    *checks(Part.NODES, nodes_report, versions_in_step, nodes_reconciled, nodes_reachable, nodes_rebooted, nodes_problems),
    *checks(Part.NODES, devices_healthy),
    *checks(Part.PODS, pods_assigned, pods_healthy, pods_granted, pods_started, pods_apart, objects_readable, pods_waiting),
)
