"""Decide which Workloads of Kueue to answer, and with which result: pure.

Kueue reserves quota for a Workload, asks its admission checks, and starts the Workload when all checks are Ready. Central's
check reports whether all pods of the Workload fit now.

    fits                                        Ready     central reserves devices until the Workload's pods come
    does not fit now                            Retry     Kueue evicts it, and asks again after 30 s to 300 s
    larger than the cluster, or malformed       Rejected  Kueue deactivates the Workload

The checks of an evicted Workload are Pending again while its pods end. An answer at that time would stay wrong: Kueue ignores
Retry, and keeps Ready for the next quota reservation, for which no devices are reserved.

Central answers last, when all checks of other controllers are Ready. Another controller may add nodes, and central reserves no
devices while other answers are missing.

Source: Kueue's AdmissionCheck, kueue.x-k8s.io/v1beta2: states, requeueAfterSeconds, retryCount, podSetUpdates.

Tests: tests/unit/central/gang/test_kueue.py
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
_LONGEST: Final = 1024  # maximum characters of a message


class AnswerState(StrEnum):
    PENDING = "Pending"
    READY = "Ready"
    RETRY = "Retry"
    REJECTED = "Rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionAnswer:
    state: AnswerState
    message: str


def is_due(workload: Workload, ours: Collection[str]) -> bool:
    """Return whether central has to answer the Workload. `ours`: the names of central's checks."""
    checks = workload.status.admission_checks
    pending = any(check.name in ours and check.state == AnswerState.PENDING for check in checks)
    return pending and workload.has_quota and all(check.name in ours or check.state == AnswerState.READY for check in checks)


def may_hold(workload: Workload, ours: Collection[str]) -> bool:
    """Return whether devices may be reserved for the Workload: it has quota, and no check of central is Retry or Rejected."""
    states = {check.state for check in workload.status.admission_checks if check.name in ours}
    return workload.has_quota and bool(states) and not states & {AnswerState.RETRY, AnswerState.REJECTED}


def in_line(workloads: Iterable[Workload]) -> list[Workload]:
    """Return the Workloads in the order in which they are planned: by priority, then by age."""
    return sorted(
        workloads, key=lambda one: (-(one.spec.priority or 0), one.metadata.creation_timestamp or "", one.metadata.uid)
    )


def mark(workload: Workload, pod_set: str) -> str:
    """Return the annotation value that marks pods of this set, so that they get the reserved devices."""
    return f"{workload.metadata.uid}/{pod_set}"


def render_answer(
    workload: Workload, ours: Collection[str], answer: AdmissionAnswer, pod_sets: Sequence[str], at: str
) -> Mapping[str, Any]:
    """Return a server-side apply of all of central's checks, because an omitted check would lose its earlier answer. The apply
    is for this version of the Workload only. `pod_sets`: pod sets with reserved devices. `at`: RFC 3339."""
    metadata = workload.metadata
    text = [check for check in workload.status.admission_checks if check.name in ours]
    updates = [{"name": name, "annotations": {WORKLOAD: mark(workload, name)}} for name in pod_sets]
    states = [
        {"name": check.name, "state": answer.state, "lastTransitionTime": at, "message": answer.message[:_LONGEST]}
        | ({"podSetUpdates": updates} if answer.state is AnswerState.READY and updates else {})
        | ({"requeueAfterSeconds": retry_s(check.retry_count or 0)} if answer.state is AnswerState.RETRY else {})
        for check in text
    ]
    named = {"namespace": metadata.namespace, "name": metadata.name}
    only = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
    head = {"apiVersion": WORKLOADS.api_version, "kind": "Workload", "metadata": named | only}
    return head | {"status": {"admissionChecks": states}}


def retry_s(retries: int) -> int:
    """Return the seconds until Kueue asks again: 30, 60, 120, 240, then 300. `retries`: the number of earlier retries."""
    return min(LONGEST_RETRY_S, FIRST_RETRY_S << min(max(retries, 0), 8))


def render_active(name: str, at: str) -> Mapping[str, Any]:
    """Return a server-side apply of the condition Active. Without it, Kueue starts no Workload of the check's ClusterQueues."""
    condition = {
        "type": "Active",
        "status": "True",
        "reason": "Active",
        "message": "lading-central answers this check",
        "lastTransitionTime": at,
    }
    head = {"apiVersion": ADMISSION_CHECKS.api_version, "kind": "AdmissionCheck", "metadata": {"name": name}}
    return head | {"status": {"conditions": [condition]}}
