"""Whatever the bytes are, in parts comes to the same as in one go."""

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from protos.cri.runtime.v1 import api_pb2 as cri
from runtimeproxy.protobuf import wire
from runtimeproxy.protobuf.wire import PART, BrokenWireError, contains, fields, parse_in_parts
from tests.unit.runtimeproxy.requests import golden, goldens

CREATE = cri.CreateContainerRequest
GROUP = b"\xa3\x06" + b"\x08\x01" + b"\xab\x06\xac\x06" + b"\xa4\x06"  # number 100, with a varint and a group inside


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PART", 16)


def parsed(kind: type[Message], message: bytes) -> Message | None:
    try:
        return kind.FromString(message)
    except DecodeError:
        return None


def assert_same(message: bytes) -> None:
    whole = parsed(CREATE, message)
    if whole is None:
        with pytest.raises(DecodeError):
            parse_in_parts(CREATE, message)
    else:
        found = parse_in_parts(CREATE, message)
        assert found.SerializeToString(deterministic=True) == whole.SerializeToString(deterministic=True)


def assert_same_in_small_parts(message: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "PART", 16)
        assert_same(message)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("name", goldens("CreateContainer"))
def test_real_requests(name: str) -> None:
    assert_same(golden(name))
    assert_same(golden(name) + GROUP + golden(goldens("CreateContainer")[0]))  # embedded messages in two parts


def test_a_large_request_with_everything() -> None:
    request = CREATE.FromString(golden(goldens("CreateContainer")[0]))
    request.config.envs.extend(cri.KeyValue(key=f"K{i}", value=b"v" * (i % 50)) for i in range(20_000))
    request.config.envs.add(key="LARGE", value=bytes(3 * PART))
    request.config.annotations["large"] = "x" * (2 * PART)
    request.sandbox_config.labels.update({f"l{i}": "x" for i in range(10_000)})
    mount = request.config.mounts.add(container_path="/m")
    mount.uidMappings.extend(cri.IDMapping(host_id=i, length=1) for i in range(30_000))
    assert_same(request.SerializeToString() + GROUP)


@given(st.sampled_from(goldens("CreateContainer")), st.data())
def test_damaged_requests(name: str, data: st.DataObject) -> None:
    message = bytearray(golden(name))
    for at in data.draw(st.lists(st.integers(0, len(message) - 1), min_size=1, max_size=4)):
        message[at] = data.draw(st.integers(0, 255))
    assert_same_in_small_parts(bytes(message[: data.draw(st.integers(0, len(message)))]))


@given(st.binary(max_size=200))
def test_any_bytes(message: bytes) -> None:
    assert_same_in_small_parts(message)


def test_fields_lie_where_they_are() -> None:
    message = b"\x0a\x02id" + GROUP + b"\x10\x96\x01" + b"\x19" + bytes(8) + b"\x25" + bytes(4)
    found = list(fields(message, 0, len(message)))
    assert b"".join(message[start:end] for _, start, _, end in found) == message
    assert [tag >> 3 for tag, *_ in found] == [1, 100, 2, 3, 4]
    assert message[found[0][2] : found[0][3]] == b"id"


@pytest.mark.parametrize("message", [b"\x0a", b"\x0a\x05id", b"\x80", b"\x0c", b"\x02\x00", b"\x0b\x14", b"\x0b", b"\x19\x00"])
def test_what_is_no_field_is_refused(message: bytes) -> None:
    with pytest.raises(BrokenWireError):
        list(fields(message, 0, len(message)))


@pytest.mark.parametrize("at", [0, 1, PART - 11, PART - 5, PART - 1, PART, 2 * PART - 3, 3 * PART - 11])
def test_a_needle_is_found_wherever_it_lies(at: int) -> None:
    haystack = bytearray(3 * PART)
    assert not contains(bytes(haystack), b"lading.dev/")
    haystack[at : at + 11] = b"lading.dev/"
    assert contains(bytes(haystack), b"lading.dev/")


def test_nothing_contains_no_needle() -> None:
    assert not contains(b"", b"lading.dev/")
