"""Check before an upgrade that all versions work together and that no operation is half done. Pure.

Take an installation with the target version of the upgrade; return the obstacles. An upgrade replaces parts one by one, so each
running version must be compatible with the target. A degraded finding of `status` is an obstacle if an upgrade could worsen or
hide it. The proxy's version is known on its node only; the node installs it together with lading-hooks.

Tests: tests/unit/kubectl_lading/installation/test_preflight.py
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from kubectl_lading.installation import control_checks, daemonset_checks, node_checks
from kubectl_lading.installation.installation import Installation, Part, checks, several
from kubectl_lading.installation.status_view import find_versions
from kubectl_lading.objects import Crd, Deployment, Unread
from kubectl_lading.terminal.format import count, listed
from lading import nodedevices
from lading.checks.model import Finding, degraded, note, unknown
from lading.versions import Judgement, Support, find_skews, go_together, judge_kubelet, judge_runtime, judge_step
from lading.vocabulary import CENTRAL


def parts_in_step(now: Installation) -> Iterator[Finding]:
    versions = find_versions(now)
    running = {
        f"{part} {version}": version for part, result in versions.items() for version in result if part != "kubectl-lading"
    }
    for skew in find_skews(running):
        yield degraded(
            f"{skew.parts[0]} and {skew.parts[1]} are more than one minor version apart",
            reason="these versions were not tested together",
            mend="bring the older one to the minor version between them first",
        )


def steps_allowed(now: Installation) -> Iterator[Finding]:
    for part, result in find_versions(now).items():
        if part == "kubectl-lading":
            continue
        for version in sorted(result):
            judged = judge_step(version, now.target)
            text = f"{part}: {judged.why}"
            match judged.support:
                case Support.NONE:
                    yield degraded(
                        text, mend=f"kubectl lading preflight --to {judged.via}" if judged.via else "its release notes"
                    )
                case Support.LIMITED:
                    yield note(text, mend="keep /var/lib/lading/node.db of each node until you are sure")
                case Support.UNKNOWN:
                    yield unknown(text)
                case Support.FULL:
                    pass


def this_command(now: Installation) -> Iterator[Finding]:
    if not go_together(now.cli, now.target):
        yield degraded(
            f"this kubectl-lading is {now.cli}: it does not know {now.target}",
            mend=f"install kubectl-lading {now.target}, and ask again",
        )


def resource_current(now: Installation) -> Iterator[Finding]:
    """Check that the cluster's NodeDevices has all fields of this command's version, which `this_command` compares with the
    target."""
    if not isinstance(now.crd, Crd):
        return
    crd = now.crd
    version = crd.version(nodedevices.VERSION)
    known = {field.encode_name for field in msgspec.structs.fields(nodedevices.Status)}
    missing = sorted(known - version.status_fields) if version is not None else []
    if missing:
        yield degraded(
            f"the resource NodeDevices lacks {count(len(missing), 'field')} of {now.cli}: {listed(missing)}",
            reason="the API server drops what a newer lading-hooks writes there",
            mend="kubectl apply --server-side -k deploy/crds, before the nodes",
        )
    served = {one.name for one in crd.spec.versions if one.served}
    if unserved := sorted(set(crd.status.stored_versions or ()) - served):
        yield degraded(
            f"NodeDevices are stored as {listed(unserved)}, which is not served",
            mend="kubectl get nodedevices -o yaml > backup.yaml; then see the release notes",
        )


def kubelets(now: Installation) -> Iterator[Finding]:
    for version, nodes in _of_nodes(now, "kubelet_version").items():
        judged = judge_kubelet(version, api_server=now.api_server)
        yield from _platform(judged, nodes, mend="upgrade that node's kubelet first")


def runtimes(now: Installation) -> Iterator[Finding]:
    for version, nodes in _of_nodes(now, "container_runtime_version").items():
        yield from _platform(judge_runtime(version), nodes, mend="upgrade that node's containerd first")


def _platform(judged: Judgement, nodes: list[str], *, mend: str) -> Iterator[Finding]:
    text = f"{judged.why} ({count(len(nodes), 'node')}: {listed(nodes)})"
    match judged.support:
        case Support.NONE:
            yield degraded(text, mend=mend)
        case Support.LIMITED | Support.UNKNOWN:
            yield note(text)
        case Support.FULL:
            pass


def disks(now: Installation) -> list[Finding]:
    return several(
        [name for name in now.reporting if now.nodes[name].is_true("DiskPressure")],
        "(node has|nodes have) too little disk",
        reason="the new version is installed beside the old one, and the ledger is written on every grant",
        mend="kubectl describe node {0}; df -h /opt/lading /var/lib/lading, on the node",
    )


def vfs_back(now: Installation) -> list[Finding]:
    vfs = [(name, vf) for name, report in now.reports.items() for pf in report.status.pfs for vf in pf.vfs]
    return several(
        sorted(f"{name} {vf.bdf} ({vf.unhealthy})" for name, vf in vfs if vf.unhealthy),
        "(VF|VFs) could not be attached or released, or are unhealthy",
        reason="only the running version knows how far the operation got",
        mend="journalctl -t lading-hooks LADING_EVENT=vf.attach-failed + LADING_EVENT=vf.release-failed, on the node",
    )


def replicas_spare(now: Installation) -> Iterator[Finding]:
    if isinstance(now.central, Deployment) and now.central.spec.replicas == 1:
        yield note(
            "central has one replica: while it is replaced, no pod gets devices for some 15 s",
            mend=f"kubectl -n {now.namespace} scale deployment/{CENTRAL} --replicas=2",
        )


def bindings_settled(now: Installation) -> Iterator[Finding]:
    text = [one.bindings_open for one in now.replicas.values() if not isinstance(one, Unread)]
    if not any(one is not None for one in text):
        yield note(
            "no replica of central says whether Bindings are under way",
            reason="the next leader settles an unclear one; only the wait for it is longer",
        )
    elif bindings := sum(one or 0 for one in text):
        yield note(f"{count(bindings, 'Binding')} under way or unclear", mend="ask again: it takes seconds")


def _of_nodes(now: Installation, component: str) -> dict[str, list[str]]:
    """Return the reporting nodes by the version of a component: a field of NodeInfo, such as `kubelet_version`."""
    result: dict[str, list[str]] = {}
    for name in now.reporting:
        result.setdefault(getattr(now.nodes[name].status.node_info, component), []).append(name)
    return result


def count_platform(now: Installation) -> dict[str, Counter[str]]:
    """Count the versions of kubelet and container runtime on nodes that report, by component."""
    infos = [now.nodes[name].status.node_info for name in now.reporting]
    return {
        "kubelet": Counter(one.kubelet_version for one in infos),
        "container runtime": Counter(one.container_runtime_version for one in infos),
    }


# An upgrade could worsen or hide the problems that these checks of `status` find.
_BLOCKING: Final = (
    *("api-server-version", "resource-served", "central-deployed", "central-leads", "central-announced"),
    *("central-bindings", "scheduler-deployed", "scheduler-version", "daemonsets-deployed", "nodes-reconciled"),
    *("nodes-reachable", "nodes-rebooted", "pods-granted", "pods-apart", "objects-readable"),
)


CHECKS: Final = (
    *checks(Part.VERSIONS, parts_in_step, steps_allowed, this_command),
    *checks(Part.RESOURCE, resource_current),
    *checks(Part.CENTRAL, replicas_spare, bindings_settled),
    *checks(Part.NODES, kubelets, runtimes, disks, vfs_back),
    *(one for one in (*control_checks.CHECKS, *daemonset_checks.CHECKS, *node_checks.CHECKS) if one.name in _BLOCKING),
)
