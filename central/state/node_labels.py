"""Keep the labels of all nodes: for pods that do not exist yet, central itself judges which nodes their selectors choose."""

import sys
from collections.abc import Iterable, Mapping


class NodeLabels:
    def __init__(self) -> None:
        self._labels: dict[str, dict[str, str]] = {}

    def set(self, node: str, labels: Mapping[str, str]) -> None:
        """Store them. Most keys and values are those of other nodes, too, and are kept once."""
        self._labels[node] = {sys.intern(key): sys.intern(value) for key, value in labels.items()}

    def remove(self, node: str) -> None:
        self._labels.pop(node, None)

    def keep_only(self, nodes: Iterable[str]) -> None:
        """Forget all other nodes."""
        kept = set(nodes)
        self._labels = {node: labels for node, labels in self._labels.items() if node in kept}

    def chosen(self, selector: Mapping[str, str]) -> frozenset[str]:
        """Return the nodes that have all of these labels."""
        wanted = selector.items()
        return frozenset(node for node, labels in self._labels.items() if wanted <= labels.items())
