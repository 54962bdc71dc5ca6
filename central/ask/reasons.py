"""The form of the codes by which central refuses a pod, and those that are about the pod or its Binding, whatever the node has.

Each code has a sentence. kube-scheduler is told both, in one fixed text: it groups nodes by it. With
`central.fit.model.Missing`, which is about a node, this is the closed list of central; what a node refuses by is
`lading.reasons`. docs/reasons.md explains all.
"""

from enum import StrEnum
from typing import Self


class Coded(StrEnum):
    """Has no members: those that inherit have them, as code and sentence."""

    text: str
    shown: str

    def __new__(cls, code: str, text: str) -> Self:
        member = str.__new__(cls, code)
        member._value_ = code
        member.text = text
        member.shown = f"{text} ({code})"  # made once: a filter's answer has it for thousands of nodes
        return member

    def about(self, detail: str) -> str:
        """Shown with words of this case, in place of the sentence."""
        return f"{detail} ({self})"


class OfPod(Coded):
    """Why a pod is given no node, whatever they have."""

    REQUEST_MALFORMED = "request-malformed", "what the pod asks for has no meaning"
    BOUND_ELSEWHERE = "bound-elsewhere", "pod is being bound to another node"
    POD_ENDED = "pod-ended", "pod has ended"


class OfBinding(Coded):
    """Why a pod that had been given a node is not bound to it, or not yet. kube-scheduler tries again."""

    POD_UNKNOWN = "pod-unknown", "central does not know the pod yet; this is retried by itself"
    DEVICES_TAKEN = "devices-taken", "its devices are not free there any more; this is retried by itself"
    BINDING_REFUSED = "binding-refused", "the API server does not take the Binding"
    BINDING_UNCLEAR = "binding-unclear", "it is not known whether the pod is bound"
    NOT_LEADING = "not-leading", "this central does not lead any more; whether the pod is bound, the next leader sees"
