"""Test the rails of VFs: as a node reports them, also during its upgrade, and as if only some VFs existed."""

import msgspec

from central.ledger.rails import capacity_on_rails, free_rails, rails_of, widest
from tests.fakes.capacities import pf_bdf, vf_bdf
from tests.unit.central.ledger.facts import free_vfs, ledger_of, pod, port, report, taken


def test_a_node_that_reports_rails_after_its_upgrade_has_them_and_keeps_what_pods_hold() -> None:
    ledger = ledger_of(report())
    ledger.facts.set_pod(pod("p", node="n1", takes=taken({}, vfs=[1])))
    assert rails_of(ledger.capacity("n1"), {vf_bdf(1)}) == frozenset()
    ledger.facts.set_report(report(version=2, pfs=[msgspec.structs.replace(port(), rail=5)]))
    assert rails_of(ledger.capacity("n1"), {vf_bdf(1)}) == {5}
    assert free_vfs(ledger.capacity("n1")) == [0, 2, 3]
    assert ledger.take_freed() == ()  # no pod fits by it that did not fit before
    ledger.facts.set_report(report(version=3))  # and back
    assert rails_of(ledger.capacity("n1"), {vf_bdf(1)}) == frozenset()


def test_on_other_rails_no_vf_is_free() -> None:
    second = msgspec.structs.replace(port(), bdf=pf_bdf(1), rail=1, vfs=())
    ledger = ledger_of(report(pfs=[msgspec.structs.replace(port(), rail=0), second]))
    state = ledger.without()
    assert free_vfs(state.on_rails(frozenset({0})).capacity("n1")) == [0, 1, 2, 3]
    assert free_vfs(state.on_rails(frozenset({1})).capacity("n1")) == []
    assert free_rails(state.on_rails(frozenset({0})).capacity("n1")) == {0}
    assert free_vfs(state.capacity("n1")) == [0, 1, 2, 3]


def test_without_any_rail_a_node_is_as_it_is() -> None:
    capacity = ledger_of(report()).capacity("n1")
    assert capacity_on_rails(capacity, frozenset({1})) is capacity


def test_a_set_of_rails_within_another_one_is_no_other_set() -> None:
    low, half, high, none = frozenset({0, 1}), frozenset({0}), frozenset({2, 3}), frozenset[int]()
    assert widest({low: 1, half: 5, high: 2, none: 9}) == [high, low]
