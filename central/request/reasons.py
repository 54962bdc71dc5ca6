"""Define the reason codes with which central refuses a pod because of the pod or its Binding, regardless of the node.

Each code has a sentence. kube-scheduler receives both, in one fixed text, because it groups nodes by the text. These codes
and `central.search.placement.Missing`, which is about a node, are all codes of central; the codes of a node are in
`lading.reasons`. docs/reasons.md explains all.

Tests: tests/unit/central/decide/test_scheduler.py
"""

from enum import StrEnum
from typing import Self


class Coded(StrEnum):
    """Give each member of a subclass a code and a sentence."""

    text: str
    shown: str

    def __new__(cls, code: str, text: str) -> Self:
        member = str.__new__(cls, code)
        member._value_ = code
        member.text = text
        member.shown = f"{text} ({code})"  # built once, because a filter's answer repeats the text for thousands of nodes
        return member

    def about(self, detail: str) -> str:
        """Return the code with a detail of this case in place of the sentence."""
        return f"{detail} ({self})"


class OfPod(Coded):
    """Say why a pod gets no node, regardless of the nodes' devices."""

    REQUEST_MALFORMED = "request-malformed", "invalid device request"
    BOUND_ELSEWHERE = "bound-elsewhere", "pod is being bound to another node"
    POD_ENDED = "pod-ended", "pod has ended"
    GANG_WAITS_FOR_MEMBERS = "gang-waits-for-members", "members of its gang are missing"
    GANG_NO_ROOM = "gang-no-room", "no room for all members of its gang that start together"
    GANG_TOO_LARGE = "gang-too-large", "its gang would not fit if all nodes were empty"
    GANG_ELSEWHERE = "gang-elsewhere", "its gang has a place for it on another node"
    GANG_WAITS_FOR_TURN = "gang-waits-for-turn", "its gang is being planned, or another one comes first"
    QUOTA_EXCEEDED = "quota-exceeded", "its quota does not allow it now"
    QUOTA_TURN = "quota-turn", "it is larger than what its quota may use, and waits for its turn to borrow"
    QUOTA_INVALID = "quota-invalid", "its quota cannot be used as it is written"


class OfBinding(Coded):
    """Say why a pod that had a node is not bound to it, or not yet. kube-scheduler tries again."""

    POD_UNKNOWN = "pod-unknown", "central does not know the pod yet; this is retried automatically"
    DEVICES_TAKEN = "devices-taken", "its devices are not free there any more; this is retried automatically"
    GANG_INCOMPLETE = "gang-incomplete", "not all members of its gang can be bound yet; this is retried automatically"
    BINDING_REFUSED = "binding-refused", "the API server refused the Binding"
    BINDING_UNCLEAR = "binding-unclear", "it is not known whether the pod is bound"
    NOT_LEADING = "not-leading", "this replica is no longer the leader; the next leader finds out whether the pod is bound"
