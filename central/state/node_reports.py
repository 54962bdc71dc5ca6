"""Keep what nodes report and the ledger does not: versions, problems, use, past holders. By node, as last written.

It takes NodeDevices from DevicesFeed. It returns the same, and which nodes changed since a version. Parts that did not change
stay the same objects, which the ledger has too: of most of a report there is one copy in memory, and a heartbeat allocates
nothing that stays.
"""

from collections.abc import Collection, Iterable

import msgspec

from central.ledger.changes import Changes
from lading.nodedevices import NodeDevices
from lading.vocabulary import PREFIX

_PARTS = ("gpus", "pfs", "partitions", "grants", "past", "use", "problems", "summary")


class Reports:
    def __init__(self) -> None:
        self._reports: dict[str, NodeDevices] = {}
        self._changes = Changes()

    def get(self, name: str) -> NodeDevices | None:
        return self._reports.get(name)

    def set(self, report: NodeDevices) -> None:
        name = report.metadata.name
        former = self._reports.get(name)
        if former is None or not _says_the_same(former, report):
            self._reports[name] = _kept(report, former)
            self._changes.mark(name)

    def remove(self, name: str) -> None:
        if self._reports.pop(name, None) is not None:
            self._changes.mark(name)

    def replace(self, reports: Iterable[NodeDevices], *, unreadable: Collection[str]) -> None:
        """Replace all reports with a list. A report that cannot be read stays as it was known."""
        listed = {report.metadata.name: report for report in reports}
        for name in [name for name in self._reports if name not in listed and name not in unreadable]:
            self.remove(name)
        for report in listed.values():
            self.set(report)

    def changed_since(self, version: int) -> tuple[list[str], int]:
        """Return the names of changed nodes, also of those that are gone (-1: all), and the version of this answer."""
        return self._changes.since(version), self._changes.version


def _ours(report: NodeDevices) -> dict[str, str]:
    """Drop annotations of others, which may be long."""
    return {key: value for key, value in report.metadata.annotations.items() if key.startswith(PREFIX)}


def _says_the_same(former: NodeDevices, report: NodeDevices) -> bool:
    return former.status == report.status and former.metadata.annotations == _ours(report)


def _kept(report: NodeDevices, former: NodeDevices | None) -> NodeDevices:
    metadata = msgspec.structs.replace(report.metadata, annotations=_ours(report))
    status = report.status
    if former is not None:
        same = {part: getattr(former.status, part) for part in _PARTS}
        status = msgspec.structs.replace(status, **{k: v for k, v in same.items() if v == getattr(status, k)})
    return NodeDevices(metadata=metadata, status=status)
