"""Decide which events of a watch are new, from the names and versions observed before: pure.

Take a list, then events in the order of the stream. Return the deleted object, if any, and whether to take in the event's
object. Late and repeated events are dropped: a watch sends changes in the order of their resource versions. So an event that is
not newer than the version reached was taken in before, or is part of the list. If a cached name appears with another uid, the
cached object was deleted, whether or not the deletion was observed.

Source: KEP-5504, "Comparable Resource Version", stable in 1.35: versions of one resource type are integers that grow (API
concepts, "Resource versions"); other versions (aggregated servers) are compared for equality only. etcd's watch guarantees.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol


class AnyMetadata(Protocol):
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def resource_version(self) -> str: ...


MOST_DIGITS: Final = 128  # maximum digits of a version; Python refuses to parse several thousand digits


class Ident(NamedTuple):
    """Identify an object that exists or existed."""

    namespace: str
    name: str
    uid: str


class News(NamedTuple):
    deleted: Ident | None
    there: bool  # the event's object is new or changed


_NO_NEWS = News(None, False)


class CachedObjects:
    """Keep the cached objects' uids. `reached`: the version from which the watch continues, as the server wrote it."""

    def __init__(self) -> None:
        self.reached = ""
        self._uids: dict[tuple[str, str], str] = {}

    def __len__(self) -> int:
        return len(self._uids)

    def listed(self, objects: Iterable[AnyMetadata], resource_version: str) -> None:
        """Replace all cached objects. The version may be lower than before, because a store restored from a backup counts
        anew."""
        self._uids = {(o.namespace, o.name): o.uid for o in objects}
        self.reached = resource_version

    def bookmark(self, resource_version: str) -> None:
        if _is_newer(resource_version, self.reached):
            self.reached = resource_version

    def event(self, metadata: AnyMetadata, *, deleted: bool) -> News:
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
