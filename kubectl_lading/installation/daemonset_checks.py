"""Check the DaemonSets of `deploy/node`, and the nodes that they should run on. Pure.

A cluster whose nodes run Lading as systemd units has none of these DaemonSets; that is no finding. Names here are equal to
those in `deploy/node`; a test compares them.

Tests: tests/unit/kubectl_lading/installation/test_status_view.py
"""

from collections.abc import Iterator
from typing import Final

from kubectl_lading.installation.control_checks import NAME_LABEL
from kubectl_lading.installation.installation import Installation, Part, checks, several, unreadable
from kubectl_lading.objects import DaemonSet, Unread
from kubectl_lading.terminal.format import age, listed
from lading.checks.model import Finding, degraded, note
from lading.versions import go_together
from lading.vocabulary import FRONT_END, NODES_NAMESPACE, NOT_READY

HOOKS: Final = "lading-node"
GUARD: Final = "lading-guard"
REMOVER: Final = "lading-remove"
PROXY: Final = "lading-proxy"
PROXY_REMOVER: Final = "lading-proxy-remove"
_ITS_LABEL: Final = {HOOKS: "nri", GUARD: "nri", REMOVER: "removed", PROXY: "proxy", PROXY_REMOVER: "proxy-removed"}
DAEMONSETS: Final = tuple(_ITS_LABEL)
_WHY: Final = {
    HOOKS: "pods with devices are refused there, and the node's report is of the time before",
    GUARD: "a container that is created while lading-hooks fails would start without its devices",
    REMOVER: "what Lading kept is still there",
    PROXY: "the proxy of this version is not installed there; an earlier one goes on",
    PROXY_REMOVER: "the proxy is still there",
}
_INSTALL: Final = "kubectl lading install (docs/nodes.md)"


def daemonsets_deployed(now: Installation) -> Iterator[Finding]:
    for name, daemonset in now.daemonsets.items():
        if isinstance(daemonset, Unread):
            yield unreadable(f"DaemonSet {NODES_NAMESPACE}/{name}", daemonset.why)
        else:
            yield from _rolled_out(now, name, daemonset)
    missing = [name for name in (HOOKS, GUARD) if name not in now.daemonsets]
    if len(missing) == 1:
        yield degraded(f"there is no DaemonSet {NODES_NAMESPACE}/{missing[0]}", reason=_WHY[missing[0]], mend=_INSTALL)
    elif not missing and not _nodes(now, HOOKS):
        yield note(f"no node has the label {FRONT_END}={_ITS_LABEL[HOOKS]}", mend=f"kubectl label node NODE {FRONT_END}=nri")


def _rolled_out(now: Installation, name: str, daemonset: DaemonSet) -> Iterator[Finding]:
    ready, wanted = daemonset.status.number_ready, daemonset.status.desired_number_scheduled
    of = f"kubectl -n {NODES_NAMESPACE}"
    silent = {node for node in _nodes(now, name) if not now.nodes[node].ready}  # `nodes_reachable` reports them
    if ready < wanted - len(silent):
        lacking = [node for node in not_ready_on(now, name) if node not in silent]
        where = [_with_age(now, node) if name == HOOKS else node for node in lacking]
        yield degraded(
            f"{ready} of {wanted} pods of {name} are ready{': not on ' + listed(where) if where else ''}",
            reason=_WHY[name],
            mend=f"{of} get pods -o wide -l {NAME_LABEL}={name}; {of} logs POD --all-containers --prefix",
        )
    if daemonset.rolling:
        yield degraded(f"a rollout of {name} is under way", mend=f"{of} rollout status daemonset/{name}")


def _with_age(now: Installation, node: str) -> str:
    changed = now.reports[node].changed_at if node in now.reports else None
    return f"{node} (last news {age((now.at - changed).total_seconds())} ago)" if changed else f"{node} (no report)"


def not_ready_on(now: Installation, name: str) -> list[str]:
    """Return the nodes that should have a ready pod of the DaemonSet but have none; empty if the pods cannot be read."""
    if isinstance(now.node_pods, Unread):
        return []
    ready = {pod.spec.node_name for pod in now.node_pods if pod.ready and pod.metadata.labels.get(NAME_LABEL) == name}
    return [node for node in _nodes(now, name) if node not in ready]


def _nodes(now: Installation, name: str) -> list[str]:
    """Return the nodes that the DaemonSet selects, by their label lading.dev/front-end."""
    return sorted(node for node, one in now.nodes.items() if one.metadata.labels.get(FRONT_END) == _ITS_LABEL[name])


def daemonsets_in_step(now: Installation) -> Iterator[Finding]:
    """Check the versions of the DaemonSets' images. Node reports do not suffice: their version is the one that ran last."""
    for tag, names in images(now).items():
        if tag and not go_together(tag, now.cli):
            yield degraded(
                f"the image of {listed(names)} is {tag}: it does not go with this kubectl-lading {now.cli}",
                reason="parts are at most one minor version apart",
                mend="kubectl lading preflight",
            )
    if len(images(now)) > 1:
        shown = ", ".join(f"{listed(names)} {tag or 'without a tag'}" for tag, names in images(now).items())
        yield note(f"the DaemonSets have different images: {shown}", mend=_INSTALL)


def images(now: Installation) -> dict[str, list[str]]:
    """Return the names of the DaemonSets by the tag of their image."""
    result: dict[str, list[str]] = {}
    for name, one in now.daemonsets.items():
        if isinstance(one, DaemonSet):
            result.setdefault(one.tag, []).append(name)
    return result


def nodes_chosen_report(now: Installation) -> list[Finding]:
    silent = set(_nodes(now, HOOKS)) - set(now.reports) - set(not_ready_on(now, HOOKS))
    return several(
        sorted(silent) if HOOKS in now.daemonsets else [],
        f"(node runs|nodes run) {HOOKS} and do not report",
        reason="central assigns no devices there",
        mend=f"kubectl -n {NODES_NAMESPACE} logs daemonset/{HOOKS} -c hooks | grep report; is report = true in hooks.toml?",
    )


def nodes_untainted(now: Installation) -> list[Finding]:
    return several(
        [name for name, node in sorted(now.nodes.items()) if any(taint.key == NOT_READY for taint in node.spec.taints)],
        f"(node has|nodes have) the taint {NOT_READY}",
        reason="no pod is placed there until its front end is ready: the plugin and the guard connected, the ledger compared",
        mend="kubectl describe node {0}; curl -s http://127.0.0.1:9441/readyz, on the node",
    )


CHECKS: Final = (
    *checks(Part.DAEMONSETS, daemonsets_deployed, daemonsets_in_step),
    *checks(Part.NODES, nodes_chosen_report, nodes_untainted),
)
