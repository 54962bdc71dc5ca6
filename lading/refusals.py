"""Render a refusal for the caller of a runtime: the gRPC status that says what to expect of a retry, and the text that kubelet
shows in the pod's events."""

from collections.abc import Mapping
from typing import Final

from lading.http2.messages import GrpcStatus
from lading.log import printable
from lading.reasons import Reason

# Other reasons have FAILED_PRECONDITION: a person must change something before a retry can succeed.
_STATUS_OF: Final[Mapping[str, GrpcStatus]] = {
    Reason.HOOK_UNAVAILABLE: GrpcStatus.UNAVAILABLE,
    Reason.HOOK_TIMEOUT: GrpcStatus.UNAVAILABLE,
    Reason.NO_REGISTRATION: GrpcStatus.UNAVAILABLE,
    Reason.NOT_RECONCILED: GrpcStatus.UNAVAILABLE,
    Reason.NOT_PREPARED: GrpcStatus.UNAVAILABLE,
    Reason.UNGRANTED: GrpcStatus.UNAVAILABLE,
    Reason.REQUEST_UNREADABLE: GrpcStatus.INVALID_ARGUMENT,
    Reason.ANNOTATION_RESERVED: GrpcStatus.INVALID_ARGUMENT,
    Reason.INTERNAL: GrpcStatus.INTERNAL,
}


def render_refusal(reason: str, message: str) -> tuple[GrpcStatus, str]:
    """Return the status, and the text on one line. `reason`: one of `Reason`, or a code of another hook server."""
    return _STATUS_OF.get(reason, GrpcStatus.FAILED_PRECONDITION), f"lading: {reason}: {printable(message)}"
