"""Define the errors of a call to the API server: refused, never sent, or unclear.

The caller of a write needs the difference. *Refused*: the server answered, and nothing was changed. *Unreachable*: the request
never left this machine. *Unclear*: after a timeout, a broken connection or a 5xx, the request may have been carried out, and
only a read settles that.

Source: metav1.Status (k8s.io/apimachinery), Kubernetes "API concepts"; 429 and Retry-After: "API Priority and Fairness",
"API-initiated Eviction".
"""

from typing import Final

import msgspec

from lading.errors import LadingError

_MAX_TEXT: Final = 500  # characters of the server's text: an Invalid lists every wrong field


class KubeError(LadingError):
    """Report that a call failed. `retry_after_s` is the wait that the server asked for, or 0."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnreachableError(KubeError):
    """Report that the request was not sent: no connection, no credentials, a certificate that is not trusted."""


class UnclearError(KubeError):
    """Report that the request may have been carried out, or may be carried out later."""


class TimedOutError(UnclearError):
    """Report that no answer came within the time limit of the call."""


class MalformedError(KubeError):
    """Report that the answer does not have the form that Kubernetes defines."""


class RefusedError(KubeError):
    """Report that the server refused the call: nothing was changed."""

    def __init__(self, message: str, *, status: int, reason: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.status = status
        self.reason = reason  # reason of Kubernetes, such as "AlreadyExists"


class InvalidError(RefusedError):
    """400 or 422: the object or the request is wrong."""


class UnauthorizedError(RefusedError):
    """401: the server does not know the client."""


class ForbiddenError(RefusedError):
    """403: the client has no permission, or the namespace is terminating."""


class NotFoundError(RefusedError):
    """404: the object does not exist."""


class ConflictError(RefusedError):
    """409: the object changed, exists already, is bound already, or another manager owns the field."""


class GoneError(RefusedError):
    """410: the server no longer has this resource version or list; list again."""


class TooManyRequestsError(RefusedError):
    """429: the server asks to try later, or a disruption budget does not allow this eviction now."""


_BY_STATUS: Final[dict[int, type[RefusedError]]] = {
    400: InvalidError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: InvalidError,
    429: TooManyRequestsError,
}


class _Details(msgspec.Struct, rename="camel"):
    retry_after_seconds: float = 0.0


class _Status(msgspec.Struct):
    """Represent the body of a failed call, and the object of a watch's ERROR event."""

    status: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


def parse_failure(call: str, status: int, body: bytes | msgspec.Raw, *, retry_after: str = "") -> RefusedError | UnclearError:
    """Return the error of a failed call. `call` is its text, such as "get /api/v1/nodes"; for status 0 the body's is used;
    `retry_after` is the header of that name."""
    try:
        text = msgspec.json.decode(body, type=_Status)
    except msgspec.DecodeError:
        text = _Status(message="an answer without a Status")  # a proxy in front of the server may answer
    status = status or text.code
    message = f"cannot {call}: {f'{status} {text.reason}'.rstrip()}: {text.message[:_MAX_TEXT]}"
    wait_s = float(retry_after) if retry_after.isascii() and retry_after.isdecimal() else 0.0
    wait_s = max(wait_s, text.details.retry_after_seconds if text.details else 0.0)
    if status >= 500 or status == 0:
        return UnclearError(message, retry_after_s=wait_s)
    return _BY_STATUS.get(status, RefusedError)(message, status=status, reason=text.reason, retry_after_s=wait_s)


def parse_failed_status(call: str, body: bytes) -> RefusedError | UnclearError | None:
    """Return the failure that the body of a successful answer contains, or None."""
    try:
        failed = msgspec.json.decode(body, type=_Status).status == "Failure"
    except msgspec.DecodeError:
        return None
    return parse_failure(call, 0, body) if failed else None
