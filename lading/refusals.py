"""Render a refusal for the caller of a runtime: the gRPC status that says what to expect of a retry, and the text that kubelet
shows in the pod's events."""

from collections.abc import Mapping
from typing import Final

from lading.http2.messages import Status
from lading.log import printable
from lading.reasons import Reason

# Other reasons have FAILED_PRECONDITION: a person must change something before a retry can succeed.
_STATUS_OF: Final[Mapping[str, Status]] = {
    Reason.HOOK_UNAVAILABLE: Status.UNAVAILABLE,
    Reason.HOOK_TIMEOUT: Status.UNAVAILABLE,
    Reason.NO_REGISTRATION: Status.UNAVAILABLE,
    Reason.NOT_RECONCILED: Status.UNAVAILABLE,
    Reason.NOT_PREPARED: Status.UNAVAILABLE,
    Reason.UNGRANTED: Status.UNAVAILABLE,
    Reason.REQUEST_UNREADABLE: Status.INVALID_ARGUMENT,
    Reason.ANNOTATION_RESERVED: Status.INVALID_ARGUMENT,
    Reason.INTERNAL: Status.INTERNAL,
}


def render_refusal(reason: str, message: str) -> tuple[Status, str]:
    """Return the status, and the text on one line. `reason`: one of `Reason`, or a code of another hook server."""
    return _STATUS_OF.get(reason, Status.FAILED_PRECONDITION), f"lading: {reason}: {printable(message)}"
