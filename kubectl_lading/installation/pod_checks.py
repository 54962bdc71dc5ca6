"""Checks of the pods that request devices or hold some. Pure.

A pod that waits is no fault of the installation: it is said, by its reason, and nothing is degraded by it.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from kubectl_lading.installation.finding import Check, Part, Said, counted, degraded, listed, note
from kubectl_lading.installation.installed import Installation


def pods_assigned(now: Installation) -> Iterator[Said]:
    if pods := now.workload.unassigned:
        yield degraded(
            f"{_pods(pods, 'asks', 'ask')} for devices and {_were(pods)} bound without an assignment: {listed(pods)}",
            why="the node refuses such a pod, or it runs without its devices",
            mend="delete the pod, and create it with schedulerName: lading and no nodeName",
        )


def pods_healthy(now: Installation) -> Iterator[Said]:
    if pods := now.workload.unhealthy:
        yield degraded(
            f"{_pods(pods, 'has', 'have')} devices that became unhealthy: {listed(pods)}",
            mend=f"kubectl lading pod {_flags(pods[0])}",
        )


def pods_granted(now: Installation) -> Iterator[Said]:
    """Check that nodes report the devices of running pods: a node grants them before the container exists."""
    if pods := now.workload.ungranted:
        yield degraded(
            f"{_pods(pods, 'runs', 'run')} with devices of which the node reports nothing: {listed(pods)}",
            why="kubelet goes past the proxy there, or lading-hooks does not report",
            mend="lading-doctor, on the node",
        )


def pods_started(now: Installation) -> Iterator[Said]:
    if pods := now.workload.unstarted:
        yield degraded(
            f"{_pods(pods, 'was', 'were')} given devices long ago and {'has' if len(pods) == 1 else 'have'} not started:"
            f" {listed(pods)}",
            why="the devices are held meanwhile",
            mend=f"kubectl lading why {_flags(pods[0])}",
        )


def pods_apart(now: Installation) -> Iterator[Said]:
    if clashes := now.workload.clashes:
        yield degraded(
            f"{counted(len(clashes), 'device is', 'devices are')} held by several pods: {listed(clashes)}",
            why="the node refuses the second one; central evicts one of them",
            mend="kubectl get events -A --field-selector reason=DeviceConflict",
        )


def objects_readable(now: Installation) -> Iterator[Said]:
    for problem in now.workload.problems:
        yield degraded(problem, mend="kubectl get it with -o yaml; only what its node reports of it counts")


def pods_waiting(now: Installation) -> Iterator[Said]:
    if pending := now.workload.pending:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(pending.items(), key=lambda one: (-one[1], one[0])))
        count = sum(pending.values())
        yield note(f"{counted(count, 'pod waits', 'pods wait')} for devices: {reasons}", mend="kubectl lading why POD")


def _pods(pods: Sequence[str], one: str, many: str) -> str:
    return counted(len(pods), f"pod {one}", f"pods {many}")


def _were(pods: Sequence[str]) -> str:
    return "was" if len(pods) == 1 else "were"


def _flags(pod: str) -> str:
    """Return namespace/name as arguments of kubectl."""
    namespace, _, name = pod.partition("/")
    return f"{name} -n {namespace}"


CHECKS: Final = (
    Check("pods-assigned", Part.PODS, pods_assigned),
    Check("pods-healthy", Part.PODS, pods_healthy),
    Check("pods-granted", Part.PODS, pods_granted),
    Check("pods-started", Part.PODS, pods_started),
    Check("pods-apart", Part.PODS, pods_apart),
    Check("objects-readable", Part.PODS, objects_readable),
    Check("pods-waiting", Part.PODS, pods_waiting),
)
