"""Remember the versions of deleted objects, so that a late event does not bring a deleted object back.

A quorum read, a relist or a second watch can be ahead of a watch. An event that comes more than LIMIT removals late is not
recognised as late; the next relist corrects the ledger.
"""

from typing import Final, Generic, TypeVar

LIMIT: Final = 65_536  # remembered objects: 3.5 minutes at 300 pods per second, about 10 MB

K = TypeVar("K")


class Deleted(Generic[K]):
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
