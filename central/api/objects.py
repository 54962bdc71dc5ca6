"""Define the few fields that central reads of objects other than pods and NodeDevices, and the Events that it writes.

msgspec decodes objects from JSON, and skips other fields. Keys are camelCase on the wire; an absent field equals its default.
Pods are in `central.request.pod`, NodeDevices in `lading.nodedevices`.

Source: k8s.io/api core/v1, coordination/v1, as of v1.36.

Tests: tests/unit/central/state/test_budgets.py
"""

from typing import Any

import msgspec

from central.request.node_rules import Taint
from central.request.pod import Amount


class _Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Configure the decoding of all parts of an object."""


class Metadata(_Wire, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None  # RFC 3339
    labels: dict[str, str] = {}


class NodeCondition(_Wire, frozen=True):
    type: str
    status: str  # True, False, Unknown


class NodeSpec(_Wire, frozen=True):
    unschedulable: bool = False  # cordoned
    taints: tuple[Taint, ...] = ()


class NodeInfo(_Wire, frozen=True):
    boot_id: str = msgspec.field(name="bootID", default="")


class NodeStatus(_Wire, frozen=True):
    conditions: tuple[NodeCondition, ...] = ()
    node_info: NodeInfo = NodeInfo()
    allocatable: dict[str, Amount] = {}


class Node(_Wire, frozen=True):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        """Return whether the node is Ready. Unknown, the status of a node that went silent, is not ready."""
        return any(condition.type == "Ready" and condition.status == "True" for condition in self.status.conditions)


class LeaseSpec(_Wire, frozen=True):
    """Hold the spec of a Lease. The times, in RFC 3339 with microseconds, are for people: no replica decides by another
    machine's clock."""

    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: str = ""
    renew_time: str = ""
    lease_transitions: int = 0


class Lease(_Wire, frozen=True):
    metadata: Metadata
    spec: LeaseSpec = LeaseSpec()


class ObjectReference(_Wire, frozen=True, omit_defaults=False):
    api_version: str
    kind: str
    name: str
    namespace: str
    uid: str


class EventSource(_Wire, frozen=True):
    component: str


class Event(_Wire, frozen=True, omit_defaults=False):
    """Hold an Event of an object, as `kubectl describe` shows it. `metadata.name` must be new."""

    metadata: dict[str, Any]
    involved_object: ObjectReference
    reason: str  # CamelCase
    message: str
    type: str  # Normal or Warning
    source: EventSource
    first_timestamp: str
    last_timestamp: str
    count: int = 1
