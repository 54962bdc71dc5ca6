"""Number the changes of nodes, and say which got room: others keep up with the ledger without looking at all of it.

Every change of a node's room gets the next number. Any number of readers each remember the last number they saw and pay for the
nodes that changed since, once each, however often they changed.
"""


class Changes:
    def __init__(self) -> None:
        self.version = 0
        self._changed: dict[str, int] = {}  # by node, the latest change last; nodes that are gone too
        self._freed: dict[str, None] = {}

    def mark(self, name: str) -> int:
        """Record a change of the node. Return its number."""
        self.version += 1
        self._changed.pop(name, None)
        self._changed[name] = self.version
        return self.version

    def free(self, name: str) -> None:
        """Record that a pod that was refused there may fit now."""
        self._freed[name] = None

    def since(self, version: int) -> list[str]:
        names = []
        for name, changed in reversed(self._changed.items()):
            if changed <= version:
                break
            names.append(name)
        return names

    def take_freed(self) -> tuple[str, ...]:
        """Return the nodes in the order in which they got room; each is returned once."""
        freed = tuple(self._freed)
        self._freed.clear()
        return freed
