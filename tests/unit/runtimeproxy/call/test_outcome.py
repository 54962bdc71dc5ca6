import pytest

from lading.http2.messages import Status
from lading.reasons import Reason
from runtimeproxy.call.outcome import CallRefusal


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("device-held", Status.FAILED_PRECONDITION),
        (Reason.HOOK_UNAVAILABLE, Status.UNAVAILABLE),
        (Reason.HOOK_TIMEOUT, Status.UNAVAILABLE),
        (Reason.NO_REGISTRATION, Status.UNAVAILABLE),
        (Reason.REQUEST_UNREADABLE, Status.INVALID_ARGUMENT),
        (Reason.INTERNAL, Status.INTERNAL),
    ],
)
def test_a_refusal_has_a_status_and_names_its_reason(reason: str, status: Status) -> None:
    outcome = CallRefusal(reason=reason, message="because").outcome
    assert outcome.status == status
    assert outcome.message == f"lading: {reason}: because"
