"""The hook API of today beside every version that was released, and a later one: nothing changed, nothing lost on the way."""

from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from protos.hook.v1 import hook_pb2
from tests.golden.hook_schemas import FOLDER, LATER_FIELD, RELEASED, Schema, later, released, today

RECORDED = [(version, path) for version in RELEASED for path in sorted((FOLDER / version).glob("[A-Z]*.binpb"))]


def test_there_is_a_release_to_compare_with() -> None:
    assert RELEASED
    assert len(RECORDED) >= 7 * len(RELEASED)


@pytest.mark.parametrize("version", RELEASED)
def test_what_was_released_is_still_so(version: str) -> None:
    """The wire has numbers, and code has names: neither may change."""
    missing = statements(released(version).file) - statements(today())
    assert missing == set()


def statements(file: FileDescriptorProto) -> set[tuple[Any, ...]]:
    out: set[tuple[Any, ...]] = set()
    for message in file.message_type:
        out |= {(message.name, *described(message.oneof_decl, field)) for field in message.field}
        out |= {
            (message.name, nested.name, *described(nested.oneof_decl, field))
            for nested in message.nested_type
            for field in nested.field
        }
    out |= {(enum.name, value.name, value.number) for enum in file.enum_type for value in enum.value}
    for service in file.service:
        for method in service.method:
            streaming = method.client_streaming, method.server_streaming
            out.add((file.package, service.name, method.name, method.input_type, method.output_type, streaming))
    return out


def described(oneofs: Any, field: FieldDescriptorProto) -> tuple[Any, ...]:
    oneof = oneofs[field.oneof_index].name if field.HasField("oneof_index") else ""
    return field.name, field.number, field.type, field.label, field.type_name, oneof


def test_a_change_would_be_observed() -> None:
    changed = today()
    changed.message_type[0].field[0].number += 500
    assert statements(today()) - statements(changed)


@pytest.mark.parametrize(("version", "path"), RECORDED, ids=[f"{version}-{path.stem}" for version, path in RECORDED])
def test_a_message_of_a_release_means_the_same_today(version: str, path: Any) -> None:
    content, name = path.read_bytes(), path.stem.split("-")[0]
    then, now = released(version).message(name).FromString(content), getattr(hook_pb2, name).FromString(content)
    assert as_dict(now) == as_dict(then)
    assert now.SerializeToString(deterministic=True) == content


@pytest.mark.parametrize("version", RELEASED)
def test_a_message_of_today_goes_through_a_release_whole(version: str) -> None:
    """And what it does not know it keeps."""
    for name, now in Schema("today", today()).filled():
        then = released(version).message(name.split("-")[0])
        got = then.FromString(now.SerializeToString())
        assert type(now).FromString(got.SerializeToString()) == now


def test_a_message_of_a_later_version_is_kept_whole() -> None:
    observed = 0
    for name, sent in later().filled():
        kind = name.split("-")[0]
        if name == "AdjustResponse-another_answer":
            assert hook_pb2.AdjustResponse.FromString(sent.SerializeToString()).WhichOneof("result") is None
            continue
        got = getattr(hook_pb2, kind).FromString(sent.SerializeToString())
        again = type(sent).FromString(got.SerializeToString())
        assert again == sent
        assert getattr(again, LATER_FIELD)
        observed += 1
    assert observed >= 7


def as_dict(message: Message) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True, use_integers_for_enums=True)
