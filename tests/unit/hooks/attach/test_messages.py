import errno
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooks.attach.messages import (
    NLM_F_ACK_TLVS,
    NLM_F_CAPPED,
    NLM_F_DUMP_INTR,
    NLMSG_DONE,
    NLMSG_ERROR,
    NetlinkMessage,
    RefusedError,
    parse_answer,
    parse_attributes,
    parse_messages,
    render_attribute,
    render_message,
    stamp,
)

_REQUEST = stamp(render_message(16, 5, bytes(16)), 9)


def ended(code: int, *, text: str = "", capped: bool = True) -> bytes:
    repeated = _REQUEST[:16] if capped else _REQUEST
    attribute = render_attribute(1, text.encode() + b"\0") if text else b""
    flags = (NLM_F_CAPPED if capped else 0) | (NLM_F_ACK_TLVS if text else 0)
    return stamp(render_message(NLMSG_ERROR, flags, struct.pack("=i", -code) + repeated + attribute), 9)


def test_an_acknowledgement_ends_an_answer() -> None:
    assert parse_answer(stamp(render_message(16, 0, b"link"), 9) + ended(0)) == [NetlinkMessage(16, 0, 9, b"link")]


@pytest.mark.parametrize("capped", [True, False])
def test_an_error_tells_its_number_and_the_kernels_words(capped: bool) -> None:
    with pytest.raises(RefusedError) as caught:
        parse_answer(ended(errno.EEXIST, text="the name is taken", capped=capped))
    assert (caught.value.code, caught.value.detail) == (errno.EEXIST, "the name is taken")
    assert str(caught.value) == "EEXIST: the name is taken"


def test_an_error_without_words_has_the_systems() -> None:
    with pytest.raises(RefusedError) as caught:
        parse_answer(ended(errno.ENODEV))
    assert caught.value.detail == ""
    assert "ENODEV" in str(caught.value)


def test_the_end_of_a_list_may_be_an_error() -> None:
    with pytest.raises(RefusedError) as caught:
        parse_answer(render_message(NLMSG_DONE, 0, struct.pack("=i", -errno.EOPNOTSUPP)))
    assert caught.value.code == errno.EOPNOTSUPP


def test_a_list_that_changed_while_it_was_read_is_no_list() -> None:
    done = render_message(NLMSG_DONE, NLM_F_DUMP_INTR, struct.pack("=i", 0))
    with pytest.raises(RefusedError) as caught:
        parse_answer(render_message(24, 0, b"") + done)
    assert caught.value.code == errno.EINTR


def test_an_answer_without_an_end_is_none() -> None:
    with pytest.raises(ValueError, match="without an end"):
        parse_answer(render_message(16, 0, b"link"))


def test_a_stamped_request_differs_in_its_number_only() -> None:
    stamped = stamp(_REQUEST, 0x01020304)
    assert stamped[8:12] == struct.pack("=I", 0x01020304)
    assert stamped[:8] + stamped[12:] == _REQUEST[:8] + _REQUEST[12:]


class CountingBytes(bytes):
    """Count the octets that slices copy, and those that slices of them copy."""

    copied = 0

    def __getitem__(self, key: Any) -> Any:
        result = super().__getitem__(key)
        CountingBytes.copied += len(result)
        return CountingBytes(result)


def test_each_octet_of_a_long_answer_is_copied_once() -> None:
    attributes = render_attribute(1, bytes(28)) * 40
    whole = CountingBytes(render_message(16, 2, attributes) * 200)
    assert len(list(parse_messages(whole))) == 200
    assert CountingBytes.copied <= len(whole)
    CountingBytes.copied = 0
    assert len(list(parse_attributes(CountingBytes(attributes)))) == 40
    assert CountingBytes.copied <= len(attributes)


@given(st.lists(st.tuples(st.integers(0, 0x3FFF), st.binary(max_size=9))))
def test_attributes_come_back_as_they_were_rendered(wanted: list[tuple[int, bytes]]) -> None:
    rendered = b"".join(render_attribute(kind, payload) for kind, payload in wanted)
    assert len(rendered) % 4 == 0
    assert list(parse_attributes(rendered)) == wanted


@given(st.binary(max_size=64))
def test_octets_of_no_form_are_refused_and_never_read_on_for_ever(data: bytes) -> None:
    for parse in (parse_messages, parse_attributes):
        try:
            result = list(parse(data))
        except ValueError:
            continue
        assert len(result) <= len(data) // 4
