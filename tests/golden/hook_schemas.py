"""The hook API as other versions of Lading have it: as it was released, from files, and as a later one may make it.

    python -m tests.golden.hook_schemas      # at a release: records its schema and messages, for good

`tests/golden/hook_v1/VERSION` holds the schema and one message of each kind with every field set. Their classes are made at run
time from that schema, so that both ends of a test need not be of one version. A later schema is today's with a field more in
every message, a stage more, and a kind of answer more: what hook.proto lets a later version do.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from lading import __version__
from protos.hook.v1 import hook_pb2

FOLDER: Final = Path(__file__).with_name("hook_v1")
RELEASED: Final = tuple(sorted(path.name for path in FOLDER.iterdir() if path.is_dir()))
LATER_FIELD: Final = "of_a_later_version"
_LATER: Final = 1000  # the number of all that a later version has more
_TOP: Final = ("AdjustRequest", "AdjustResponse", "ObserveRequest", "ObserveResponse", "ReleaseRequest", "ReleaseResponse")


class Schema:
    def __init__(self, name: str, file: FileDescriptorProto) -> None:
        self.name = name
        self.file = file
        self._pool = DescriptorPool()
        self._pool.Add(file)

    def message(self, name: str) -> type[Any]:
        return GetMessageClass(self._pool.FindMessageTypeByName(f"{self.file.package}.{name}"))

    def filled(self) -> Iterator[tuple[str, Message]]:
        """One of each kind with every field set, by name; where one of several can be set, one for each."""
        for name in _TOP:
            descriptor = self.message(name).DESCRIPTOR
            arms = [field.name for oneof in descriptor.oneofs for field in oneof.fields if len(oneof.fields) > 1]
            for arm in arms or [""]:
                message = self.message(name)()
                fill(message, arm)
                yield (f"{name}-{arm}" if arm else name), message


def today() -> FileDescriptorProto:
    file = FileDescriptorProto()
    hook_pb2.DESCRIPTOR.CopyToProto(file)
    return file


@cache
def released(version: str) -> Schema:
    return Schema(version, FileDescriptorProto.FromString((FOLDER / version / "schema.binpb").read_bytes()))


@cache
def later() -> Schema:
    file = today()
    for message in file.message_type:
        message.field.add(
            name=LATER_FIELD, number=_LATER, type=FieldDescriptorProto.TYPE_STRING, label=FieldDescriptorProto.LABEL_OPTIONAL
        )
        if message.name == "AdjustResponse":
            arm = message.field.add(name="another_answer", number=_LATER + 1, oneof_index=0)
            arm.type, arm.label = FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.LABEL_OPTIONAL
    for enum in file.enum_type:
        enum.value.add(name="A_LATER_STAGE", number=_LATER)
    return Schema("later", file)


def fill(message: Message, arm: str = "") -> None:
    """Every field, with a value that says which it is."""
    for field in message.DESCRIPTOR.fields:
        several = field.containing_oneof is not None and len(field.containing_oneof.fields) > 1
        if not several or field.name == arm:
            _fill_field(message, field)


def _fill_field(message: Message, field: Any) -> None:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        getattr(message, field.name)[f"{field.name}-key"] = f"{field.name}-value"
    elif kind is not None and field.is_repeated:
        fill(getattr(message, field.name).add())
    elif kind is not None:
        getattr(message, field.name).SetInParent()
        fill(getattr(message, field.name))
    elif field.is_repeated:
        getattr(message, field.name).extend([_value(field), _value(field)])
    else:
        setattr(message, field.name, _value(field))


def _value(field: Any) -> str | int | bool:
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return f"{field.name}-text"
        case FieldDescriptor.TYPE_BOOL:
            return True
        case FieldDescriptor.TYPE_ENUM:
            return int(field.enum_type.values[-1].number)
        case _:
            return 100 + int(field.number)


def main() -> None:
    folder = FOLDER / __version__
    folder.mkdir(parents=True)  # fails where there is one: what was released stays
    (folder / "schema.binpb").write_bytes(today().SerializeToString(deterministic=True))
    for name, message in Schema(__version__, today()).filled():
        (folder / f"{name}.binpb").write_bytes(message.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
