"""Decide which events of a watch are new: pure, from the names and versions that were seen before.

It takes a list, then events in the order of the stream. It returns which object is gone, and whether to take the new one. Late
and repeated events are dropped: a watch sends changes in the order of their resource versions, so one that is not newer than
what the stream has reached was taken before, or is part of the list. An object under a known name with another uid means that
the known one is gone, whether or not its deletion was seen.

Source: KEP-5504, "Comparable Resource Version", stable in 1.35: versions of one resource type are integers that grow (API
concepts, "Resource versions"); where they are not integers (aggregated servers) only equality counts. etcd's watch guarantees.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol


class Metadata(Protocol):
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def resource_version(self) -> str: ...


MOST_DIGITS: Final = 128  # Python refuses to read a number of several thousand digits


class Ident(NamedTuple):
    """Identify an object that exists or existed."""

    namespace: str
    name: str
    uid: str


class News(NamedTuple):
    gone: Ident | None
    there: bool  # the event's object is new or changed


_NO_NEWS = News(None, False)


class Known:
    """Keep the known objects. `reached` is the version from which to continue, as the server wrote it."""

    def __init__(self) -> None:
        self.reached = ""
        self._uids: dict[tuple[str, str], str] = {}

    def __len__(self) -> int:
        return len(self._uids)

    def listed(self, objects: Iterable[Metadata], resource_version: str) -> None:
        """Replace all known objects. The version may be lower than before: a store that was restored from a backup counts
        anew."""
        self._uids = {(o.namespace, o.name): o.uid for o in objects}
        self.reached = resource_version

    def bookmark(self, resource_version: str) -> None:
        if _is_newer(resource_version, self.reached):
            self.reached = resource_version

    def event(self, metadata: Metadata, *, deleted: bool) -> News:
        if not _is_newer(metadata.resource_version, self.reached):
            return _NO_NEWS
        self.reached = metadata.resource_version
        key = (metadata.namespace, metadata.name)
        before = self._uids.pop(key, None)
        if not deleted:
            self._uids[key] = metadata.uid
        replaced = before is not None and (deleted or before != metadata.uid)
        return News(Ident(*key, before) if replaced and before is not None else None, not deleted)


def _is_newer(version: str, than: str) -> bool:
    if is_number(version) and is_number(than):
        return int(version) > int(than)
    return version != than


def is_number(version: str) -> bool:
    """Return whether the resourceVersion is a number, as the API server writes it, in decimal."""
    return len(version) <= MOST_DIGITS and version.isascii() and version.isdecimal()
