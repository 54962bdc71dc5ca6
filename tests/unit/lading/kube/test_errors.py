"""Test what an answer says about whether the request took effect."""

import json

import pytest

from lading.kube.errors import (
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    KubeError,
    NotFoundError,
    RefusedError,
    TooManyRequestsError,
    UnauthorizedError,
    UnclearError,
    parse_failure,
)


def status(code: int, reason: str = "", **more: object) -> bytes:
    return json.dumps({"kind": "Status", "code": code, "reason": reason, "message": "m", **more}).encode()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, InvalidError),
        (401, UnauthorizedError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (405, RefusedError),
        (409, ConflictError),
        (410, GoneError),
        (422, InvalidError),
        (429, TooManyRequestsError),
        (500, UnclearError),
        (503, UnclearError),
        (504, UnclearError),
    ],
)
def test_each_status_is_a_kind_of_failure(code: int, kind: type[KubeError]) -> None:
    assert type(parse_failure("get /x", code, status(code))) is kind


def test_a_refusal_is_reported_from_an_unclear_outcome_by_type() -> None:
    assert not issubclass(UnclearError, RefusedError)
    assert not isinstance(parse_failure("get /x", 500, status(500)), RefusedError)


def test_a_watchs_error_event_says_its_status_itself() -> None:
    assert isinstance(parse_failure("watch /x", 0, status(410, "Expired")), GoneError)
    assert isinstance(parse_failure("watch /x", 0, b"{}"), UnclearError)


def test_reason_and_status_are_kept() -> None:
    refused = parse_failure("post /x", 409, status(409, "AlreadyExists"))
    assert isinstance(refused, RefusedError)
    assert (refused.status, refused.reason) == (409, "AlreadyExists")


def test_the_longer_wait_of_header_and_body_counts() -> None:
    body = status(429, details={"retryAfterSeconds": 7})
    assert parse_failure("get /x", 429, body, retry_after="3").retry_after_s == 7
    assert parse_failure("get /x", 429, body, retry_after="9").retry_after_s == 9
    assert parse_failure("get /x", 429, status(429), retry_after="soon").retry_after_s == 0


def test_an_answer_of_something_in_between_is_a_failure_too() -> None:
    assert isinstance(parse_failure("get /x", 502, b"<html>"), UnclearError)
    assert isinstance(parse_failure("get /x", 404, b"\xff"), NotFoundError)


def test_the_servers_words_are_bounded() -> None:
    assert len(str(parse_failure("get /x", 422, status(422, message="f" * 10_000)))) < 1000
