"""Decode objects of the API server, and keep the identity of an object that cannot be decoded.

Tests: tests/unit/central/api/test_watch.py
"""

from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import msgspec

from central.api.cached_objects import AnyMetadata
from lading.kube.objects import Metadata, Object


class Named(Protocol):
    @property
    def metadata(self) -> AnyMetadata: ...


T = TypeVar("T", bound=Named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """Identify an object that exists but cannot be decoded. The name is empty if it cannot be decoded either."""

    metadata: Metadata
    why: str


OBJECT: Final = msgspec.json.Decoder(Object)  # for a bookmark, a deletion, or an object that cannot be decoded otherwise
# Half of a surrogate pair raises ValueError, and an object of a thousand levels RecursionError.
_UNDECODABLE: Final = (msgspec.DecodeError, ValueError, RecursionError)


def decode_object(decoder: msgspec.json.Decoder[T], raw: msgspec.Raw) -> T | Unreadable:
    """Decode one object. Return an `Unreadable` if that fails, because the object exists and may hold devices."""
    try:
        return decoder.decode(raw)
    except _UNDECODABLE as e:
        reason = str(e)
    try:
        metadata = OBJECT.decode(raw).metadata
    except _UNDECODABLE:
        metadata = Metadata()
    return Unreadable(metadata=metadata, why=reason)
