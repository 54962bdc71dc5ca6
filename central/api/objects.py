"""Define the few fields that central reads of Nodes.

msgspec decodes objects from JSON, and skips other fields. Keys are camelCase on the wire; an absent field equals its default.
Pods are in `central.request.pod`, NodeDevices in `lading.nodedevices`, and parts of many kinds in `lading.kube.objects`.

Source: k8s.io/api core/v1, as of v1.36.

Tests: tests/unit/central/state/test_budgets.py
"""

import msgspec

from central.request.node_rules import Taint
from central.request.pod import Amount
from lading.kube.objects import Metadata, ObjectCondition, Wire, is_true


class NodeSpec(Wire, frozen=True):
    unschedulable: bool = False  # cordoned
    taints: tuple[Taint, ...] = ()


class NodeInfo(Wire, frozen=True):
    boot_id: str = msgspec.field(name="bootID", default="")


class NodeStatus(Wire, frozen=True):
    conditions: tuple[ObjectCondition, ...] = ()
    node_info: NodeInfo = NodeInfo()
    allocatable: dict[str, Amount] = msgspec.field(default_factory=dict)


class Node(Wire, frozen=True):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        """Return whether the node is Ready. Unknown, the status of a node that went silent, is not ready."""
        return is_true(self.status.conditions, "Ready")
