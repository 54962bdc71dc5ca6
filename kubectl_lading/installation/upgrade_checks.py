"""Checks before an upgrade, in addition to those of `status`: versions that work together, nothing half done. Pure.

Enters: an `Upgrade`: an installation and the version that it is to have. Leaves: what is in the way. Parts are replaced one by
one, so that every version that runs has to go with the target. What `status` would call degraded is in the way where an upgrade
could make it worse or hide it. The proxy's version is known on its node only, which installs it together with lading-hooks.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from kubectl_lading.installation import control_checks, node_checks, pod_checks
from kubectl_lading.installation.finding import Check, Level, Part, Said, counted, degraded, listed, note
from kubectl_lading.installation.installed import Installation, Unread
from kubectl_lading.installation.status_view import find_versions
from kubectl_lading.objects import Crd, Deployment
from lading import nodedevices
from lading.versions import Judgement, Support, find_skews, go_together, judge_kubelet, judge_runtime, judge_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    now: Installation
    target: str


def parts_in_step(upgrade: Upgrade) -> Iterator[Said]:
    versions = find_versions(upgrade.now)
    running = {
        f"{part} {version}": version for part, found in versions.items() for version in found if part != "kubectl-lading"
    }
    for skew in find_skews(running):
        yield degraded(
            f"{skew.parts[0]} and {skew.parts[1]} are more than one minor version apart",
            why="these were never tried together",
            mend="bring the older one to the minor version between them first",
        )


def steps_allowed(upgrade: Upgrade) -> Iterator[Said]:
    for part, found in find_versions(upgrade.now).items():
        if part == "kubectl-lading":
            continue
        for version in sorted(found):
            judged = judge_step(version, upgrade.target)
            words = f"{part}: {judged.why}"
            match judged.support:
                case Support.NONE:
                    yield degraded(
                        words, mend=f"kubectl lading preflight --to {judged.via}" if judged.via else "its release notes"
                    )
                case Support.LIMITED:
                    yield note(words, mend="keep /var/lib/lading/node.db of each node until you are sure")
                case Support.UNKNOWN:
                    yield Said(Level.UNKNOWN, words)
                case Support.FULL:
                    pass


def this_command(upgrade: Upgrade) -> Iterator[Said]:
    if not go_together(upgrade.now.cli, upgrade.target):
        yield degraded(
            f"this kubectl-lading is {upgrade.now.cli}: it does not know {upgrade.target}",
            mend=f"install kubectl-lading {upgrade.target}, and ask again",
        )


def resource_current(upgrade: Upgrade) -> Iterator[Said]:
    """Check the resource against the definition in this command, which therefore must have the target's version."""
    if not isinstance(upgrade.now.crd, Crd):
        return
    crd = upgrade.now.crd
    version = crd.version(nodedevices.VERSION)
    known = {field.encode_name for field in msgspec.structs.fields(nodedevices.Status)}
    missing = sorted(known - version.status_fields) if version is not None else []
    if missing:
        yield degraded(
            f"the resource NodeDevices lacks {counted(len(missing), 'field')} of {upgrade.now.cli}: {listed(missing)}",
            why="the API server drops what a newer lading-hooks writes there",
            mend="kubectl apply --server-side -k deploy/crds, before the nodes",
        )
    served = {one.name for one in crd.spec.versions if one.served}
    if unserved := sorted(set(crd.status.stored_versions or ()) - served):
        yield degraded(
            f"NodeDevices are stored as {listed(unserved)}, which is not served",
            mend="kubectl get nodedevices -o yaml > backup.yaml; then see the release notes",
        )


def kubelets(upgrade: Upgrade) -> Iterator[Said]:
    versions = _of_nodes(upgrade.now, lambda name: upgrade.now.nodes[name].status.node_info.kubelet_version)
    for version, nodes in versions.items():
        judged = judge_kubelet(version, api_server=upgrade.now.api_server)
        yield from _platform(judged, nodes, mend="upgrade that node's kubelet first")


def runtimes(upgrade: Upgrade) -> Iterator[Said]:
    versions = _of_nodes(upgrade.now, lambda name: upgrade.now.nodes[name].status.node_info.container_runtime_version)
    for version, nodes in versions.items():
        yield from _platform(judge_runtime(version), nodes, mend="upgrade that node's containerd first")


def _platform(judged: Judgement, nodes: list[str], *, mend: str) -> Iterator[Said]:
    words = f"{judged.why} ({counted(len(nodes), 'node')}: {listed(nodes)})"
    match judged.support:
        case Support.NONE:
            yield degraded(words, mend=mend)
        case Support.LIMITED | Support.UNKNOWN:
            yield note(words)
        case Support.FULL:
            pass


def disks(upgrade: Upgrade) -> Iterator[Said]:
    now = upgrade.now
    full = sorted(name for name in now.reports if name in now.nodes and now.nodes[name].is_true("DiskPressure"))
    if full:
        yield degraded(
            f"{counted(len(full), 'node has', 'nodes have')} too little disk: {listed(full)}",
            why="the new version is installed beside the old one, and the ledger is written on every grant",
            mend=f"kubectl describe node {full[0]}; df -h /opt/lading /var/lib/lading, on the node",
        )


def vfs_back(upgrade: Upgrade) -> Iterator[Said]:
    stuck = sorted(
        f"{name} {vf.bdf} ({vf.unhealthy})"
        for name, report in upgrade.now.reports.items()
        for pf in report.status.pfs
        for vf in pf.vfs
        if vf.unhealthy
    )
    if stuck:
        yield degraded(
            f"{counted(len(stuck), 'VF')} did not come or go as asked, or broke: {listed(stuck)}",
            why="what was done to it so far is known best to the daemon that did it",
            mend="journalctl -t lading-hooks LADING_EVENT=vf.attach-failed + LADING_EVENT=vf.release-failed, on the node",
        )


def replicas_spare(upgrade: Upgrade) -> Iterator[Said]:
    if isinstance(upgrade.now.central, Deployment) and upgrade.now.central.spec.replicas == 1:
        yield note(
            "central has one replica: while it is replaced, no pod gets devices for some 15 s",
            mend=f"kubectl -n {upgrade.now.namespace} scale deployment/{control_checks.CENTRAL} --replicas=2",
        )


def bindings_settled(upgrade: Upgrade) -> Iterator[Said]:
    now = upgrade.now
    said = [one.bindings_open for one in now.replicas.values() if not isinstance(one, Unread)]
    if not any(count is not None for count in said):
        yield note(
            "no replica of central says whether Bindings are under way",
            why="the next leader settles an unclear one; only the wait for it is longer",
        )
    elif count := sum(one or 0 for one in said):
        yield note(f"{counted(count, 'Binding')} under way or unclear", mend="ask again: it takes seconds")


def _of_nodes(now: Installation, version: Callable[[str], str]) -> dict[str, list[str]]:
    """Return the nodes that report, by the version of one of their components."""
    found: dict[str, list[str]] = {}
    for name in sorted(now.reports):
        if name in now.nodes:
            found.setdefault(version(name), []).append(name)
    return found


def count_platform(now: Installation) -> dict[str, Counter[str]]:
    """Count what runs below Lading, by part, on nodes that report."""
    infos = [now.nodes[name].status.node_info for name in now.reports if name in now.nodes]
    return {
        "kubelet": Counter(one.kubelet_version for one in infos),
        "container runtime": Counter(one.container_runtime_version for one in infos),
    }


_BLOCKING: Final = frozenset(
    {
        "api-server-version",
        "resource-served",
        "central-deployed",
        "central-leads",
        "central-announced",
        "central-bindings",
        "scheduler-deployed",
        "scheduler-version",
        "nodes-reconciled",
        "nodes-reachable",
        "nodes-rebooted",
        "pods-granted",
        "pods-apart",
        "objects-readable",
    }
)


def _of_status(check: Check[Installation]) -> Check[Upgrade]:
    return Check(check.code, check.part, lambda upgrade: check.decide(upgrade.now))


CHECKS: Final[tuple[Check[Upgrade], ...]] = (
    Check("parts-in-step", Part.VERSIONS, parts_in_step),
    Check("steps-allowed", Part.VERSIONS, steps_allowed),
    Check("this-command", Part.VERSIONS, this_command),
    Check("resource-current", Part.RESOURCE, resource_current),
    Check("replicas-spare", Part.CENTRAL, replicas_spare),
    Check("bindings-settled", Part.CENTRAL, bindings_settled),
    Check("kubelets", Part.NODES, kubelets),
    Check("runtimes", Part.NODES, runtimes),
    Check("disks", Part.NODES, disks),
    Check("vfs-back", Part.NODES, vfs_back),
    *(
        _of_status(check)
        for check in (*control_checks.CHECKS, *node_checks.CHECKS, *pod_checks.CHECKS)
        if check.code in _BLOCKING
    ),
)
