"""Change some fields of a serialised message, and leave everything else as it is, byte for byte.

Only fields with an edit are parsed. A message of megabytes costs little more than a copy, and a field unknown to our copy of
the API stays in place. An embedded message that comes in parts is joined, which has the same meaning. An edit is used once.
`meet` gets each occurrence of its field, in order, and returns its replacement, as a whole field, or None to keep it.
`appended` returns the fields to append at the end. Editing an edited message changes nothing.

Source: protobuf.dev/programming-guides/encoding (order, last one wins, maps, merging).

Tests: tests/fuzz/test_corpus.py
"""

import posixpath
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from google.protobuf.message import Message

from protos.cri.runtime.v1 import api_pb2 as cri
from runtimeproxy.protobuf.wire import LENGTH, fields
from runtimeproxy.relay.message import joined

_NUMBER: Final = 0  # wire type of int64


class Edit(Protocol):
    def meet(self, content: bytes) -> bytes | None: ...

    def appended(self) -> bytes: ...


Edits = Mapping[int, "Edit | Inner"]  # edits by the tag of their field


class Inner:
    """Hold the edits inside an embedded message."""

    def __init__(self, edits: Edits) -> None:
        self.edits = edits


def tag(kind: type[Message], name: str) -> int:
    field = kind.DESCRIPTOR.fields_by_name[name]
    return field.number << 3 | (_NUMBER if field.cpp_type == field.CPPTYPE_INT64 else LENGTH)


def edited(message: bytes, edits: Edits) -> bytes:
    return joined(_pieces(message, [(0, len(message))], edits))


def _pieces(message: bytes, spans: Iterable[tuple[int, int]], edits: Edits) -> list[bytes | memoryview]:
    """Return the pieces of the edited message. `spans`: start and end of its parts in `message`."""
    view = memoryview(message)
    pieces: list[bytes | memoryview] = []
    parts: dict[int, list[tuple[int, int]]] = {}  # start and end of the parts of embedded messages, by tag
    places: dict[int, int] = {}  # index in `pieces` of each embedded message's first part, by tag
    for start, end in spans:
        kept = start
        for met, begin, content, stop in fields(message, start, end):
            edit = edits.get(met)
            if edit is None:
                continue
            instead = b"" if isinstance(edit, Inner) else edit.meet(message[content:stop])
            if instead is None:
                continue
            pieces.append(view[kept:begin])
            kept = stop
            if isinstance(edit, Inner):
                places.setdefault(met, len(pieces))
                parts.setdefault(met, []).append((content, stop))
            else:
                pieces.append(instead)
        pieces.append(view[kept:end])
    inners = [(its_tag, edit) for its_tag, edit in edits.items() if isinstance(edit, Inner)]
    last = [b"" if isinstance(edit, Inner) else edit.appended() for edit in edits.values()]
    pieces += last
    for its_tag, edit in sorted(inners, key=lambda inner: places.get(inner[0], len(pieces)), reverse=True):
        inside = _pieces(message, parts.get(its_tag, ()), edit.edits)
        size = sum(map(len, inside))
        if size or its_tag in places:
            place = places.get(its_tag, len(pieces))
            pieces[place:place] = [_varint(its_tag), _varint(size), *inside]
    return pieces


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class Upserted:
    """Set and remove key-value pairs. A pair of `wanted` replaces the first entry with its key, or is appended. Further
    entries with its key are dropped, because runtimes differ on which of two entries counts. All entries with a key in
    `removed` are dropped. `replaced`: existing keys whose value was changed or removed."""

    def __init__(
        self, wanted: Mapping[str, bytes], render: Callable[[Iterable[cri.KeyValue]], bytes], removed: Iterable[str] = ()
    ) -> None:
        self.replaced: dict[str, None] = {}  # used as an ordered set
        self._wanted = wanted
        self._render = render
        self._removed = frozenset(removed)
        self._met: set[str] = set()

    def meet(self, content: bytes) -> bytes | None:
        entry = cri.KeyValue.FromString(content)
        key = entry.key
        if key not in self._wanted and key not in self._removed:
            return None
        value = self._wanted.get(key)
        if entry.value != value:
            self.replaced[key] = None
        if value is None or key in self._met:
            return b""
        self._met.add(key)
        if entry.value == value:
            return None
        entry.value = value
        return self._render([entry])

    def appended(self) -> bytes:
        return self._render(cri.KeyValue(key=k, value=v) for k, v in self._wanted.items() if k not in self._met)


def upserted_map(kind: type[Message], name: str, wanted: Mapping[str, str]) -> Upserted:
    """Return an edit of a map field, whose entries have the fields of a CRI KeyValue."""

    def render(entries: Iterable[cri.KeyValue]) -> bytes:
        return _rendered(kind, name, {entry.key: entry.value.decode() for entry in entries})

    return Upserted({key: wanted[key].encode() for key in sorted(wanted)}, render)


class AtPaths:
    """Replace mounts or devices at the container paths of `ours`, and append the others of `ours`. Paths are compared in
    clean form: `//dev/./x` equals `/dev/x`."""

    def __init__(self, name: str, ours: Iterable[cri.Mount | cri.Device]) -> None:
        self._name = name
        self._ours = {entry.container_path: entry for entry in ours}
        self._met: set[str] = set()

    def meet(self, content: bytes) -> bytes | None:
        entry = cri.Mount.FromString(content) if self._name == "mounts" else cri.Device.FromString(content)
        path = _cleaned(entry.container_path)
        if path not in self._ours:
            return None
        if path in self._met:
            return b""
        self._met.add(path)
        return _rendered(cri.ContainerConfig, self._name, [self._ours[path]])

    def appended(self) -> bytes:
        missing = [entry for path, entry in self._ours.items() if path not in self._met]
        return _rendered(cri.ContainerConfig, self._name, missing)


def _cleaned(path: str) -> str:
    return "/" + posixpath.normpath(path).lstrip("/")  # Go's filepath.Clean does the same, and turns '//' into '/'


class Named:
    """Append each name that the field does not contain yet."""

    def __init__(self, names: Iterable[str], read: Callable[[bytes], str], render: Callable[[list[str]], bytes]) -> None:
        self._missing = dict.fromkeys(names)
        self._read = read
        self._render = render

    def meet(self, content: bytes) -> bytes | None:
        self._missing.pop(self._read(content), None)
        return None

    def appended(self) -> bytes:
        return self._render(list(self._missing))


class Replaced:
    """Set a field that has a single value."""

    def __init__(self, kind: type[Message], name: str, value: str | int) -> None:
        self._ours = _rendered(kind, name, value)

    def meet(self, content: bytes) -> bytes | None:
        return self.appended()

    def appended(self) -> bytes:
        ours, self._ours = self._ours, b""
        return ours


def _rendered(kind: type[Message], name: str, value: Any) -> bytes:
    """Return a serialised message with only this field; empty if the value is the default."""
    return kind(**{name: value}).SerializeToString(deterministic=True)
