"""Checks of the pods that request devices or hold some. Pure.

A pod that waits is no fault of the installation: it is said, by its reason, and nothing is degraded by it.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from kubectl_lading.installation.finding import Part, Said, checks, degraded, note, several
from kubectl_lading.installation.installed import Installation
from kubectl_lading.terminal.words import count


def pods_assigned(now: Installation) -> list[Said]:
    pods = now.workload.unassigned
    return several(
        pods,
        "pod asks",
        "pods ask",
        f"for devices and {'was' if len(pods) == 1 else 'were'} bound without an assignment",
        why="the node refuses such a pod, or it runs without its devices",
        mend="delete the pod, and create it with schedulerName: lading and no nodeName",
    )


def pods_healthy(now: Installation) -> list[Said]:
    pods = now.workload.unhealthy
    mend = f"kubectl lading pod {_flags(pods)}"
    return several(pods, "pod has", "pods have", "devices that became unhealthy", mend=mend)


def pods_granted(now: Installation) -> list[Said]:
    """Check that nodes report the devices of running pods: a node grants them before the container exists."""
    return several(
        now.workload.ungranted,
        "pod runs",
        "pods run",
        "with devices of which the node reports nothing",
        why="kubelet goes past the proxy there, or lading-hooks does not report",
        mend="lading-runtimeproxy doctor and lading-hooks doctor, on the node",
    )


def pods_started(now: Installation) -> list[Said]:
    pods = now.workload.unstarted
    what = f"given devices long ago and {'has' if len(pods) == 1 else 'have'} not started"
    mend = f"kubectl lading why {_flags(pods)}"
    return several(pods, "pod was", "pods were", what, why="the devices are held meanwhile", mend=mend)


def pods_apart(now: Installation) -> list[Said]:
    return several(
        now.workload.clashes,
        "device is",
        "devices are",
        "held by several pods",
        why="the node refuses the second one; central evicts one of them",
        mend="kubectl get events -A --field-selector reason=DeviceConflict",
    )


def objects_readable(now: Installation) -> Iterator[Said]:
    for problem in now.workload.problems:
        yield degraded(problem, mend="kubectl get it with -o yaml; only what its node reports of it counts")


def pods_waiting(now: Installation) -> Iterator[Said]:
    if pending := now.workload.pending:
        reasons = ", ".join(f"{reason} {pods}" for reason, pods in sorted(pending.items(), key=lambda one: (-one[1], one[0])))
        yield note(
            f"{count(sum(pending.values()), 'pod waits', 'pods wait')} for devices: {reasons}", mend="kubectl lading why POD"
        )


def _flags(pods: Sequence[str]) -> str:
    """Return the first pod, a namespace/name, as arguments of kubectl."""
    namespace, _, name = "".join(pods[:1]).partition("/")
    return f"{name} -n {namespace}"


CHECKS: Final = checks(
    Part.PODS,
    pods_assigned,
    pods_healthy,
    pods_granted,
    pods_started,
    pods_apart,
    objects_readable,
    pods_waiting,
)
