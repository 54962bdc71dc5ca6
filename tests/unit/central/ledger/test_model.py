import pytest

from central.ledger.model import PodRecord, version_of
from tests.unit.central.ledger.facts import WHOLE, taken, uid


@pytest.mark.parametrize(("text", "version"), [("17", 17), ("", 0), ("-1", 0), ("1e3", 0), ("²", 0)])
def test_a_version_is_a_number_or_older_than_all(text: str, version: int) -> None:
    assert version_of(text) == version


def test_names_that_pods_have_in_common_are_kept_once() -> None:
    def record(name: str) -> PodRecord:
        parts = "team", "node"  # joined at run time: two strings, equal and not one
        namespace, node = ("-".join((part, "1")) for part in parts)
        return PodRecord(uid=uid(name), namespace=namespace, name=name, version=1, node=node, taken=taken({0: WHOLE}, vfs=[0]))

    a, b = record("a"), record("b")
    assert a.namespace is b.namespace
    assert a.node is b.node
    assert a.taken is not None
    assert b.taken is not None
    assert next(iter(a.taken.gpus)) is next(iter(b.taken.gpus))
    assert next(iter(a.taken.vfs)) is next(iter(b.taken.vfs))


def test_only_a_bound_pod_that_did_not_end_holds() -> None:
    takes = taken(vfs=[0])
    held = [
        PodRecord(uid=uid("p"), namespace="d", name="p", version=1, node=node, terminal=terminal, taken=takes).holds
        for node, terminal in (("n1", False), ("n1", True), ("", False))
    ]
    assert held == [takes, None, None]
