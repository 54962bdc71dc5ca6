"""Parse the cordon of a node's devices, as a person writes it on a NodeDevices object: names with commas between them, or
"all".

Tests: tests/unit/kubectl_lading/where/test_cordon.py
"""

from typing import Final, NamedTuple, Self

EVERYTHING: Final = "all"


class Cordon(NamedTuple):
    entries: tuple[str, ...] = ()  # entries as a person wrote them
    names: frozenset[str] = frozenset()  # the entries in lower case

    @classmethod
    def parse(cls, written: str) -> Self:
        entries = tuple(name for part in written.split(",") if (name := part.strip()))
        return cls(entries, frozenset(name.lower() for name in entries))

    def covers(self, *names: str) -> bool:
        """Return whether everything is cordoned, or the device with these names."""
        return bool(self.names) and (EVERYTHING in self.names or any(name.lower() in self.names for name in names))
