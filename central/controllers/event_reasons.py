"""Define the reasons of the Events that central records about pods. `make docs` writes the table into docs/reasons.md.

Tests: tests/unit/lading/test_reasons.py
"""

from lading.reasons import Explained


class EventReason(Explained):
    """Name what central did to a pod, or found out about it. The names are API, in CamelCase as Kubernetes' own."""

    NO_ASSIGNMENT = (
        "NoAssignment",
        "The pod asks for devices and was bound without an assignment, by another scheduler or by hand: its node refuses it.",
        "set `schedulerName: lading`, leave `nodeName` out, create it again.",
    )
    GANG_INCOMPLETE = (
        "GangIncomplete",
        "The pod was evicted, because the other members of its [gang](gangs.md) were not bound in time.",
        "find out why: their events, or the API server's answers in central's log (`bind.refused`).",
    )
    PREEMPTED = (
        "Preempted",
        "The pod was evicted, so that one of a higher priority gets its devices; the message names it. "
        "[Preemption](central.md#preemption) says which pods are chosen.",
        "nothing.",
    )
    DEVICE_CONFLICT = (
        "DeviceConflict",
        "The pod was evicted, because it and another one had the same device. [It should not happen](central.md#preemption).",
        "find out how: two leaders, or an annotation that central did not write (`bind.conflict` in central's log).",
    )
    QUOTA_TAKEN_BACK = (
        "QuotaTakenBack",
        "The pod was evicted, because its quota used more than it may and a pod of another quota needs it. [Taking "
        "back](quotas.md#taking-back) says when, and which pods.",
        'nothing. A pod that must never go has the label `quota.scheduling.koordinator.sh/preemptible: "false"`.',
    )
    SHARE_BYPASSED = (
        "ShareBypassed",
        "A container of the pod has a process on its card that the share server does not know, or uses more memory than its "
        "share. The message says which; [what is compared](isolation.md#bypasses). With [`bypassed = "
        '"end"`](central.md#bypassed-shares), the pod is evicted.',
        "look which CUDA library the image loads: one at a path of its own is no share's.",
    )
    DEVICE_UNHEALTHY = (
        "DeviceUnhealthy",
        "A device of the pod became unhealthy, or is not reported any more. The message says which and why; [what "
        "follows](central.md#unhealthy-devices).",
        "repair the device, or delete the pod.",
    )
    DEVICE_HEALTHY = "DeviceHealthy", "All devices of the pod are healthy again.", "nothing."
