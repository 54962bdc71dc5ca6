"""Define the parts that Kubernetes objects of several kinds share, and the objects that several programs read.

They are decoded from JSON with msgspec, which skips all other fields without building them. Keys are camelCase on the wire; an
absent field equals its default. The structs are frozen and without cycles, so that the garbage collector does not traverse
100,000 of them.

Source: k8s.io/apimachinery meta/v1, k8s.io/api core/v1 and coordination/v1, as of v1.36.

Tests: tests/unit/central/api/test_watch.py
"""

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

_LONGEST_VERSION: Final = 128  # maximum characters; the API server writes 64-bit numbers


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, rename="camel"):
    """Configure the decoding of all parts of an object."""


class Metadata(Wire, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: Annotated[str, msgspec.Meta(max_length=_LONGEST_VERSION)] = ""
    generation: int = 0
    deletion_timestamp: str | None = None  # RFC 3339
    labels: dict[str, str] = {}


class AnnotatedMetadata(Metadata, frozen=True):
    """Extend Metadata by the fields that are not read of Nodes, whose annotations are large."""

    creation_timestamp: str | None = None  # RFC 3339
    annotations: dict[str, str] = {}


class Object(Wire, frozen=True):
    """Represent an object of which only the metadata is read."""

    metadata: Metadata = Metadata()


class ObjectCondition(Wire, frozen=True):
    type: str = ""
    status: str = ""  # True, False, Unknown


def is_true(conditions: Iterable[ObjectCondition], kind: str) -> bool:
    """Return whether the condition of this type is True. Unknown, the status of a node that went silent, is not."""
    return any(condition.type == kind and condition.status == "True" for condition in conditions)


class Requirement(Wire, frozen=True):
    """Represent a requirement of a selector, of labels or of nodes."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class LeaseSpec(Wire, frozen=True):
    """Hold the spec of a Lease. The times, in RFC 3339 with microseconds, are for people: no replica decides by another
    machine's clock."""

    holder_identity: str | None = None
    lease_duration_seconds: int = 0
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0


class Lease(Object, frozen=True):
    spec: LeaseSpec = LeaseSpec()
