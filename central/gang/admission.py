"""Decide which Workloads of Kueue to answer, and what: pure.

Kueue reserves quota for a Workload, asks its admission checks, and starts it when all of them are Ready. Central's check says
whether all pods of the Workload have a place now.

    fits                                        Ready     its room is kept until its pods come
    no room, and none comes soon                Retry     Kueue evicts it after 30 s, at most 300 s, and asks about it anew
    larger than the cluster, or malformed       Rejected  Kueue deactivates the Workload

Of a Workload that is evicted the checks are Pending again while its pods end. An answer then would be wrong for ever: Retry is
never heard, and Ready is kept for the next reservation, without room.

Central answers last, when all checks of other controllers are Ready: one of them may make nodes, and no room is kept while
another one is waited for.

Source: Kueue's AdmissionCheck, kueue.x-k8s.io/v1beta2: states, requeueAfterSeconds, retryCount, podSetUpdates.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from central.api.kueue import Workload
from lading.kube.resource import ADMISSION_CHECKS, WORKLOADS
from lading.vocabulary import WORKLOAD

FIRST_RETRY_S: Final = 30
LONGEST_RETRY_S: Final = 300
_LONGEST: Final = 1024  # characters of a message


class State(StrEnum):
    PENDING = "Pending"
    READY = "Ready"
    RETRY = "Retry"
    REJECTED = "Rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionAnswer:
    state: State
    message: str


def is_due(workload: Workload, ours: Collection[str]) -> bool:
    """Return whether central has to answer. `ours`: the names of its checks."""
    checks = workload.status.admission_checks
    pending = any(check.name in ours and check.state == State.PENDING for check in checks)
    return pending and workload.has_quota and all(check.name in ours or check.state == State.READY for check in checks)


def may_hold(workload: Workload, ours: Collection[str]) -> bool:
    """Return whether room may be kept for it: it has its quota, and was not sent back."""
    states = {check.state for check in workload.status.admission_checks if check.name in ours}
    return workload.has_quota and bool(states) and not states & {State.RETRY, State.REJECTED}


def in_line(workloads: Iterable[Workload]) -> list[Workload]:
    """Return them in the order in which they are planned: by priority, then by age."""
    return sorted(
        workloads, key=lambda one: (-(one.spec.priority or 0), one.metadata.creation_timestamp or "", one.metadata.uid)
    )


def mark(workload: Workload, pod_set: str) -> str:
    """Return the annotation's value by which pods of the set are known as those whose room is kept."""
    return f"{workload.metadata.uid}/{pod_set}"


def render_answer(
    workload: Workload, ours: Collection[str], answer: AdmissionAnswer, pod_sets: Sequence[str], at: str
) -> Mapping[str, Any]:
    """Return a server-side apply of all of central's checks: a check that is left out would lose what central wrote before.
    It is for this version of the Workload only. `pod_sets`: those with a place. `at`: RFC 3339."""
    metadata = workload.metadata
    said = [check for check in workload.status.admission_checks if check.name in ours]
    updates = [{"name": name, "annotations": {WORKLOAD: mark(workload, name)}} for name in pod_sets]
    states = [
        {"name": check.name, "state": answer.state, "lastTransitionTime": at, "message": answer.message[:_LONGEST]}
        | ({"podSetUpdates": updates} if answer.state is State.READY and updates else {})
        | ({"requeueAfterSeconds": retry_s(check.retry_count or 0)} if answer.state is State.RETRY else {})
        for check in said
    ]
    named = {"namespace": metadata.namespace, "name": metadata.name}
    only = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
    head = {"apiVersion": WORKLOADS.api_version, "kind": "Workload", "metadata": named | only}
    return head | {"status": {"admissionChecks": states}}


def retry_s(retries: int) -> int:
    """Return after how many seconds Kueue is to ask again. `retries`: how often it did so already."""
    return min(LONGEST_RETRY_S, FIRST_RETRY_S << min(max(retries, 0), 8))


def render_active(name: str, at: str) -> Mapping[str, Any]:
    """Return a server-side apply of the condition without which Kueue starts no Workload of the check's ClusterQueues."""
    condition = {
        "type": "Active",
        "status": "True",
        "reason": "Active",
        "message": "lading-central answers this check",
        "lastTransitionTime": at,
    }
    head = {"apiVersion": ADMISSION_CHECKS.api_version, "kind": "AdmissionCheck", "metadata": {"name": name}}
    return head | {"status": {"conditions": [condition]}}
