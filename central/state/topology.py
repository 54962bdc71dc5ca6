"""Keep the values of the topology labels of all nodes, which show the nodes that are near each other.

Only the configured labels are kept, because a node has dozens of other labels.

Tests: tests/unit/central/gang/test_topology.py
"""

from collections.abc import Iterable, Mapping
from typing import Final

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


class TopologyLabels:
    def __init__(self, keys: Iterable[str] = CACHED_KEYS) -> None:
        self._values: dict[str, dict[str, str]] = {key: {} for key in keys}

    def set(self, node: str, labels: Mapping[str, str]) -> None:
        for key, values in self._values.items():
            if value := labels.get(key, ""):
                values[node] = value
            else:
                values.pop(node, None)

    def remove(self, node: str) -> None:
        self.set(node, {})

    def keep_only(self, nodes: Iterable[str]) -> None:
        """Forget all other nodes."""
        kept = set(nodes)
        self._values = {key: {node: of[node] for node in of if node in kept} for key, of in self._values.items()}

    def domains(self, key: str) -> Mapping[str, str] | None:
        """Return the label's value for each node that has the label; None if it is not a configured topology label."""
        return self._values.get(key)
