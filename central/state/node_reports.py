"""Keep the last report of each node, for the parts that the ledger does not keep: versions, problems, use, past holders.

The reports come from DevicesFeed; readers get a report, or the nodes changed since a version. Unchanged parts of a report stay
the same objects, which the ledger shares. So most of a report has one copy in memory, and a heartbeat leaves no new objects.
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
        if former is None or not _is_same(former, report):
            self._reports[name] = _kept(report, former)
            self._changes.mark(name)

    def remove(self, name: str) -> None:
        if self._reports.pop(name, None) is not None:
            self._changes.mark(name)

    def replace(self, reports: Iterable[NodeDevices], *, unreadable: Collection[str]) -> None:
        """Replace all reports with a list. For an unreadable report, the last one stays."""
        listed = {report.metadata.name: report for report in reports}
        for name in [name for name in self._reports if name not in listed and name not in unreadable]:
            self.remove(name)
        for report in listed.values():
            self.set(report)

    def changed_since(self, version: int) -> tuple[list[str], int]:
        """Return the names of nodes that changed or were removed since `version` (-1: all nodes), and the current version."""
        return self._changes.since(version), self._changes.version


def _ours(report: NodeDevices) -> dict[str, str]:
    """Return only Lading's annotations: others may be long."""
    return {key: value for key, value in report.metadata.annotations.items() if key.startswith(PREFIX)}


def _is_same(former: NodeDevices, report: NodeDevices) -> bool:
    return former.status == report.status and former.metadata.annotations == _ours(report)


def _kept(report: NodeDevices, former: NodeDevices | None) -> NodeDevices:
    metadata = msgspec.structs.replace(report.metadata, annotations=_ours(report))
    status = report.status
    if former is not None:
        same = {part: getattr(former.status, part) for part in _PARTS}
        status = msgspec.structs.replace(status, **{k: v for k, v in same.items() if v == getattr(status, k)})
    return NodeDevices(metadata=metadata, status=status)
