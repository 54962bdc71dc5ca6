"""Test reports by node: only the newest, without foreign fields, with unchanged parts shared."""

import msgspec
import pytest

from central.state.node_reports import Reports
from lading.nodedevices import NodeDevices
from lading.vocabulary import CORDON
from tests.fakes.kube_objects import devices, grant


def report(name: str, version: int, **options: object) -> NodeDevices:
    return msgspec.convert(devices(name, 2, 4, version=version, **options), NodeDevices)  # type: ignore[arg-type]


def changed(reports: Reports, version: int = -1) -> set[str]:
    return set(reports.changed_since(version)[0])


def test_a_new_report_is_a_change_and_an_equal_report_is_none() -> None:
    reports = Reports()
    reports.set(report("n1", 1))
    _, version = reports.changed_since(-1)
    known = reports.get("n1")
    reports.set(report("n1", 2))
    assert changed(reports, version) == set()
    assert reports.get("n1") is known
    reports.set(report("n1", 3, grants=[grant("uid-a", "n1", 0)]))
    assert changed(reports, version) == {"n1"}
    known = reports.get("n1")
    assert known is not None
    assert [one.pod for one in known.status.grants] == ["uid-a"]


def test_parts_that_did_not_change_are_there_once() -> None:
    reports = Reports()
    first = report("n1", 1)
    reports.set(first)
    reports.set(report("n1", 2, grants=[grant("uid-a", "n1", 0)]))
    known = reports.get("n1")
    assert known is not None
    assert known.status.gpus is first.status.gpus
    assert known.status.pfs is first.status.pfs


def test_annotations_of_others_are_not_kept() -> None:
    reports = Reports()
    written = devices("n1", 1, version=1, cordon="all")
    written["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = "x" * 1000
    reports.set(msgspec.convert(written, NodeDevices))
    known = reports.get("n1")
    assert known is not None
    assert known.metadata.annotations == {CORDON: "all"}
    _, version = reports.changed_since(-1)
    written["metadata"]["annotations"] = {CORDON: "GPU-1"}
    reports.set(msgspec.convert(written, NodeDevices))
    assert changed(reports, version) == {"n1"}


@pytest.mark.parametrize(("unreadable", "left"), [(set(), {"n2"}), ({"n1"}, {"n1", "n2"})])
def test_a_list_takes_away_what_is_not_in_it(unreadable: set[str], left: set[str]) -> None:
    reports = Reports()
    reports.set(report("n1", 1))
    reports.replace([report("n2", 2)], unreadable=unreadable)
    assert {name for name in ("n1", "n2") if reports.get(name)} == left
    assert changed(reports) == {"n1", "n2"}


def test_a_removed_report_is_one_change() -> None:
    reports = Reports()
    reports.set(report("n1", 1))
    _, version = reports.changed_since(-1)
    reports.remove("n1")
    _, deleted = reports.changed_since(version)
    reports.remove("n1")
    assert (changed(reports, version), changed(reports, deleted)) == ({"n1"}, set())
