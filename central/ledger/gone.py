"""The versions of objects that went away, so that a late event does not bring one of them back.

A watch can be overtaken: by a quorum read, by the list of a relist, by a second watch. An event that is late by more than the
last LIMIT removals is not recognised; a relist puts that right.
"""

from typing import Final, Generic, TypeVar

LIMIT: Final = 65_536  # at 300 pods a second three and a half minutes, and about 10 MB

K = TypeVar("K")


class Gone(Generic[K]):
    def __init__(self) -> None:
        self._versions: dict[K, int] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._versions

    def put(self, key: K, version: int = 0) -> None:
        version = max(version, self._versions.pop(key, 0))
        self._versions[key] = version
        if len(self._versions) > LIMIT:
            del self._versions[next(iter(self._versions))]

    def outdates(self, key: K, version: int) -> bool:
        """Return whether an object of this version existed before the removal."""
        return version <= self._versions.get(key, -1)
