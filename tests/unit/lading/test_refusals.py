import pytest

from lading.http2.messages import Status
from lading.reasons import Reason
from lading.refusals import render_refusal


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("of-another-hook-server", Status.FAILED_PRECONDITION),
        (Reason.DEVICE_HELD, Status.FAILED_PRECONDITION),
        (Reason.HOOK_UNAVAILABLE, Status.UNAVAILABLE),
        (Reason.HOOK_TIMEOUT, Status.UNAVAILABLE),
        (Reason.NO_REGISTRATION, Status.UNAVAILABLE),
        (Reason.NOT_PREPARED, Status.UNAVAILABLE),
        (Reason.UNGRANTED, Status.UNAVAILABLE),
        (Reason.ANNOTATION_RESERVED, Status.INVALID_ARGUMENT),
        (Reason.REQUEST_UNREADABLE, Status.INVALID_ARGUMENT),
        (Reason.INTERNAL, Status.INTERNAL),
    ],
)
def test_a_refusal_has_a_status_and_says_its_reason_on_one_line(reason: str, status: Status) -> None:
    assert render_refusal(reason, "it\nis") == (status, f"lading: {reason}: it\\x0ais")
