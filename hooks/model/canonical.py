"""Convert values to canonical JSON, compact and with sorted keys, and back.

Stored JSON is read like untrusted input: it must be exactly the bytes that this node would write for the same values, typed and
bounded; otherwise StateError. Defaults are left out, so that a field added later does not change the bytes of older values.

Tests: tests/unit/hooks/model/test_grant.py
"""

import dataclasses
import functools
from typing import Any, Final, TypeVar

import msgspec

from lading.errors import StateError

# Characters; twice an assignment at its largest (assignment.central), with what a VF's request and attachment add to it.
_LARGEST: Final = 512 * 1024

T = TypeVar("T")


def render_canonical(value: Any) -> bytes:
    """Return the JSON of a dataclass, or of a tuple of them."""
    return msgspec.json.encode(without_defaults(value), order="sorted")


def decode(text: str, kind: type[T], *, name: str = "") -> T:
    """Parse typed JSON. msgspec limits the depth, this function the length; `kind` limits numbers, types and names."""
    name = name or kind.__name__
    check_length(text, name)
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as e:
        raise StateError(f"cannot read {name}: {e}") from e


def check_length(text: str, name: str) -> None:
    if len(text) > _LARGEST:
        raise StateError(f"cannot read {name}: {len(text)} characters, more than {_LARGEST}")


def without_defaults(value: Any) -> Any:
    if isinstance(value, tuple):
        return [without_defaults(item) for item in value]
    fields = defaults(value.__class__)
    if fields is None:
        return value
    return {name: without_defaults(item) for name, default in fields if (item := getattr(value, name)) != default}


@functools.cache
def defaults(kind: type) -> tuple[tuple[str, object], ...] | None:
    """Return a dataclass's fields with their defaults; None for any other type."""
    return tuple((f.name, _default(f)) for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


def _default(field: dataclasses.Field[Any]) -> object:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
