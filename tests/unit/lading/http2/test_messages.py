from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.http2.messages import (
    MAX_STATUS_MESSAGE,
    GrpcStatus,
    parse_prefix,
    parse_status,
    parse_timeout,
    prefixed,
    trailers,
    trailers_only,
)


def test_a_message_and_its_prefix() -> None:
    assert parse_prefix(prefixed(b"abc")) == (False, 3)
    assert parse_prefix(b"\x01\0\0\0\x03abc") == (True, 3)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b"1H", 3600.0),
        (b"2M", 120.0),
        (b"3S", 3.0),
        (b"1500m", 1.5),
        (b"2000000u", 2.0),
        (b"99999999n", 0.099999999),
        (b"0S", 0.0),
        (b"", None),
        (b"S", None),
        (b"1", None),
        (b"1s", None),
        (b"-1S", None),
        (b"1.5S", None),
        (b"123456789S", None),
        (b"\xb2S", None),  # a digit to str.isdigit
        (b"1\xff", None),
    ],
)
def test_timeouts(text: bytes, seconds: float | None) -> None:
    assert parse_timeout(text) == (None if seconds is None else pytest.approx(seconds))


@given(st.text())
def test_a_status_message_is_printable_and_bounded(text: str) -> None:
    (value,) = [value for name, value in trailers(9, text) if name == b"grpc-message"]
    assert len(value) <= MAX_STATUS_MESSAGE
    assert all(0x20 <= byte <= 0x7E for byte in value)
    if len(text) < 100:
        assert unquote_to_bytes(value) == text.encode("utf-8", "replace")


def test_a_long_status_message_is_cut_between_characters() -> None:
    value = dict(trailers(9, "ü" * 5000))[b"grpc-message"]
    assert MAX_STATUS_MESSAGE - 10 < len(value) <= MAX_STATUS_MESSAGE
    assert value.endswith(b"%C3%BC...")


def test_trailers_only_begin_with_a_reply() -> None:
    fields = trailers_only(GrpcStatus.UNAVAILABLE, "no")
    assert fields[:2] == ((b":status", b"200"), (b"content-type", b"application/grpc"))
    assert fields[2:] == trailers(14, "no")
    assert parse_status(fields) == 14


@pytest.mark.parametrize(
    ("value", "status"), [(b"0", 0), (b"16", 16), (b"999", 999), (b"", 2), (b"-1", 2), (b"1000", 2), (b"x", 2), (b"\xb2", 2)]
)
def test_a_status_that_is_no_number_is_unknown(value: bytes, status: int) -> None:
    assert parse_status(((b"x", b"y"), (b"grpc-status", value))) == status


def test_no_status_is_unknown() -> None:
    assert parse_status(()) == GrpcStatus.UNKNOWN
