"""Keep the labels, taints and cordons of all nodes, to evaluate pods' node rules.

Tests: tests/unit/kubectl_lading/pods/test_waiting.py
"""

from collections.abc import Iterable, Mapping

from central.request.node_rules import NodeRules, NodeTraits


class Nodes:
    def __init__(self) -> None:
        self._traits: dict[str, NodeTraits] = {}

    def set(self, traits: NodeTraits) -> None:
        self._traits[traits.name] = traits

    def remove(self, node: str) -> None:
        self._traits.pop(node, None)

    def keep_only(self, nodes: Iterable[str]) -> None:
        """Forget all other nodes."""
        kept = set(nodes)
        self._traits = {node: traits for node, traits in self._traits.items() if node in kept}

    def allow(self, rules: NodeRules | None, node: str) -> bool | None:
        """Return whether a pod's node rules allow this node. None: the rules or the node are unknown."""
        traits = self._traits.get(node)
        return None if rules is None or traits is None else rules.allow(traits)

    def chosen(self, selector: Mapping[str, str]) -> frozenset[str]:
        """Return the nodes that have all of these labels."""
        wanted = selector.items()
        return frozenset(node for node, traits in self._traits.items() if wanted <= traits.labels.items())
