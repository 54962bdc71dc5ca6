"""Keep the labels, taints and cordons of all nodes: to evaluate pods' node rules, and to find nodes that are near each other.

Tests: tests/unit/kubectl_lading/pods/test_waiting.py
Tests: tests/unit/central/gang/test_topology.py
"""

from collections.abc import Iterable, Mapping
from typing import Final

from central.request.node_rules import NodeRules, NodeTraits

# These labels come from topograph and cloud providers (rack, block and spine), from NVIDIA's GPU operator (NVLink partition),
# and from Kubernetes.
CACHED_KEYS: Final = (
    "network.topology.nvidia.com/core",
    "network.topology.nvidia.com/spine",
    "network.topology.nvidia.com/leaf",
    "network.topology.nvidia.com/accelerator",
    "nvidia.com/gpu.clique",
    "cloud.google.com/gce-topology-block",
    "cloud.google.com/gce-topology-subblock",
    "cloud.google.com/gce-topology-host",
    "topology.k8s.aws/network-node-layer-1",
    "topology.k8s.aws/network-node-layer-2",
    "topology.k8s.aws/network-node-layer-3",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/rack",
    "kubernetes.io/hostname",
)


class Nodes:
    def __init__(self, topology_keys: Iterable[str] = CACHED_KEYS) -> None:
        self._traits: dict[str, NodeTraits] = {}
        self._domains: dict[str, dict[str, str]] = {key: {} for key in topology_keys}  # value by node, by topology label

    def set(self, traits: NodeTraits) -> None:
        self._traits[traits.name] = traits
        for key, values in self._domains.items():
            if value := traits.labels.get(key, ""):
                values[traits.name] = value
            else:
                values.pop(traits.name, None)

    def remove(self, node: str) -> None:
        self._traits.pop(node, None)
        for values in self._domains.values():
            values.pop(node, None)

    def keep_only(self, nodes: Iterable[str]) -> None:
        """Forget all other nodes."""
        for node in self._traits.keys() - set(nodes):
            self.remove(node)

    def allow(self, rules: NodeRules | None, node: str) -> bool | None:
        """Return whether a pod's node rules allow this node. None: the rules or the node are unknown."""
        traits = self._traits.get(node)
        return None if rules is None or traits is None else rules.allow(traits)

    def chosen(self, selector: Mapping[str, str]) -> frozenset[str]:
        """Return the nodes that have all of these labels."""
        wanted = selector.items()
        return frozenset(node for node, traits in self._traits.items() if wanted <= traits.labels.items())

    def domains(self, key: str) -> Mapping[str, str] | None:
        """Return the label's value for each node that has the label; None if it is not a configured topology label."""
        return self._domains.get(key)
