import pytest

from lading.http2.messages import GrpcStatus
from lading.reasons import Reason
from lading.refusals import render_refusal


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("of-another-hook-server", GrpcStatus.FAILED_PRECONDITION),
        (Reason.DEVICE_HELD, GrpcStatus.FAILED_PRECONDITION),
        (Reason.HOOK_UNAVAILABLE, GrpcStatus.UNAVAILABLE),
        (Reason.HOOK_TIMEOUT, GrpcStatus.UNAVAILABLE),
        (Reason.NO_REGISTRATION, GrpcStatus.UNAVAILABLE),
        (Reason.NOT_PREPARED, GrpcStatus.UNAVAILABLE),
        (Reason.UNGRANTED, GrpcStatus.UNAVAILABLE),
        (Reason.ANNOTATION_RESERVED, GrpcStatus.INVALID_ARGUMENT),
        (Reason.REQUEST_UNREADABLE, GrpcStatus.INVALID_ARGUMENT),
        (Reason.INTERNAL, GrpcStatus.INTERNAL),
    ],
)
def test_a_refusal_has_a_status_and_says_its_reason_on_one_line(reason: str, status: GrpcStatus) -> None:
    assert render_refusal(reason, "it\nis") == (status, f"lading: {reason}: it\\x0ais")
