"""Number the changes of nodes, and list the nodes that got free capacity, so that readers need not read the whole ledger.

Every change of a node's free capacity (`NodeCapacity`) gets the next number. A reader remembers the last number that it read,
and pays once for each node that changed since, however often the node changed.
"""


class Changes:
    def __init__(self) -> None:
        self.version = 0
        self._changed: dict[str, int] = {}  # node → number of its last change, in ascending order; deleted nodes included
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
        """Return the nodes that got free capacity since the last call, in that order."""
        freed = tuple(self._freed)
        self._freed.clear()
        return freed
