"""Test what is free after each kind of change that the API server reports."""

import msgspec
import pytest

from central.assignment.model import Part, Taken
from central.ledger.facts import LINGER_S, UNREPORTED_S
from central.ledger.ledger import Ledger
from central.ledger.model import Claim, NodeFacts
from central.request.model import CpuMemory
from lading.nodedevices import NodeDevices, Past, Place, Use
from tests.fakes.capacities import CARD_MIB, gpu_uuid
from tests.unit.central.ledger.facts import (
    NOT_READY,
    READY,
    free_cards,
    free_mib,
    free_vfs,
    gpu,
    grant,
    granted,
    ledger_of,
    pod,
    report,
    share,
    taken,
    uid,
    whole,
)


def claims(ledger: Ledger, name: str, node: str = "n1") -> set[Claim]:
    return {claim for held in ledger.holders(node) if held.holder.pod == uid(name) for claim in held.claims}


# A device is free when the pod is over and the node does not name it


@pytest.fixture
def ledger() -> Ledger:
    return ledger_of()


def test_a_bound_pod_holds_what_its_assignment_says(ledger: Ledger) -> None:
    ledger.facts.set_pod(pod("p", node="n1", takes=taken({0: Part(1000, 30)}, vfs=[1])))
    capacity = ledger.capacity("n1")
    assert free_mib(capacity) == [CARD_MIB - 1000, CARD_MIB]
    assert capacity.cards[0].free_core == 70
    assert free_vfs(capacity) == [0, 2, 3]


def test_a_pod_that_is_not_bound_or_has_no_assignment_holds_nothing(ledger: Ledger) -> None:
    ledger.facts.set_pod(pod("p", takes=whole(0)))
    ledger.facts.set_pod(pod("q", node="n1"))
    assert free_cards(ledger.capacity("n1")) == [0, 1]


def test_a_pod_being_deleted_holds_until_it_is_deleted(ledger: Ledger) -> None:
    ledger.facts.set_pod(pod("p", 1, node="n1", takes=whole(0)))
    ledger.facts.set_pod(pod("p", 2, node="n1", takes=whole(0), deleting=True))
    assert free_cards(ledger.capacity("n1")) == [1]
    ledger.facts.remove_pod(uid("p"))
    assert free_cards(ledger.capacity("n1")) == [0, 1]


@pytest.mark.parametrize("deleted", [True, False])
def test_a_device_that_the_node_still_names_is_not_free(deleted: bool) -> None:
    ledger = ledger_of(report(grants=[grant("p", "c", granted(0))]))
    ledger.facts.set_pod(pod("p", 1, node="n1", takes=whole(0, 1)))
    if deleted:
        ledger.facts.remove_pod(uid("p"))
    else:
        ledger.facts.set_pod(pod("p", 2, node="n1", takes=whole(0, 1), terminal=True))
    assert claims(ledger, "p") == {Claim.GRANTED}
    assert free_cards(ledger.capacity("n1")) == [1]
    ledger.facts.set_report(report(version=2))
    assert free_cards(ledger.capacity("n1")) == [0, 1]


def test_a_grant_holds_without_a_pod() -> None:
    ledger = ledger_of(report(grants=[grant("manual", "c", granted(1), vfs=[0])]))
    assert free_cards(ledger.capacity("n1")) == [0]
    assert ledger.holders("n1")[0].holder.name == "manual"


@pytest.mark.parametrize(("grants_mib", "held_mib"), [(1000, 1000), (800, 1000), (1200, 1200)])
def test_assignment_and_grant_of_one_pod_count_once(grants_mib: int, held_mib: int) -> None:
    ledger = ledger_of(report(grants=[grant("p", "c", granted(0, grants_mib))]))
    ledger.facts.set_pod(pod("p", node="n1", takes=share(0, 1000)))
    assert free_mib(ledger.capacity("n1"))[0] == CARD_MIB - held_mib
    assert ledger.capacity("n1").cards[0].pods == 1


def test_shares_of_several_pods_add_up() -> None:
    ledger = ledger_of(report(grants=[grant("manual", "c", granted(0, 100, 10))]))
    ledger.facts.set_pod(pod("p", node="n1", takes=share(0, 1000, 20), containers={gpu_uuid(0): 2}))
    card = ledger.capacity("n1").cards[0]
    assert (card.free_mib, card.free_core, card.pods, card.containers) == (CARD_MIB - 1100, 70, 2, 3)


# Old words and lists


def test_an_older_version_does_nothing() -> None:
    ledger = ledger_of(report(version=5, grants=[grant("m", "c", granted(1))]))
    ledger.facts.set_pod(pod("p", 5, node="n1", takes=whole(0)))
    before = ledger.snapshot()
    ledger.facts.set_pod(pod("p", 4))
    ledger.facts.set_report(report(version=4))
    ledger.facts.remove_report("n1", 4)
    ledger.facts.set_node("n1", NOT_READY, 0)
    assert ledger.snapshot() == before


def test_a_deleted_object_does_not_come_back_by_a_late_event(ledger: Ledger) -> None:
    ledger.facts.remove_pod(uid("p"))
    ledger.facts.remove_report("n1", 2)
    ledger.facts.remove_node("n1", 2)
    before = ledger.snapshot()
    ledger.facts.set_pod(pod("p", 9, node="n1", takes=whole(0)))
    ledger.facts.set_report(report(version=2))
    ledger.facts.set_node("n1", NodeFacts(ready=True, boot_id="a", allocatable=CpuMemory(1000, 1000)), 1)
    assert ledger.snapshot() == before
    assert ledger.nodes() == ()


def test_a_node_can_come_back_under_its_name(ledger: Ledger) -> None:
    ledger.facts.remove_report("n1", 2)
    ledger.facts.set_report(report(version=3))
    assert ledger.nodes() == ("n1",)


def test_a_list_removes_objects_that_it_lacks() -> None:
    ledger = ledger_of(report("n1"), report("n2"))
    ledger.facts.set_pod(pod("old", 1, node="n1", takes=whole(0)))
    ledger.facts.set_pod(pod("new", 9, node="n1", takes=whole(1)))  # read after the list was made
    ledger.facts.replace_pods([pod("other", 2, node="n2", takes=whole(0))], version=8)
    ledger.facts.replace_reports([report("n2")], version=8)
    ledger.facts.replace_nodes({"n2": (READY, 1)}, version=8)
    assert {held.holder.name for node in ("n1", "n2") for held in ledger.holders(node)} == {"new", "other"}
    assert ledger.nodes() == ("n2",)
    assert (ledger.capacity("n1").reported, ledger.capacity("n1").reachable) == (False, False)
    assert ledger.capacity("n2").reachable


def test_claims_on_a_node_without_a_report_are_kept() -> None:
    ledger = Ledger()
    ledger.facts.set_pod(pod("p", node="n1", takes=whole(0)))
    assert not ledger.capacity("n1").reported
    assert claims(ledger, "p") == {Claim.BOUND}
    ledger.facts.set_report(report())
    assert free_cards(ledger.capacity("n1")) == [1]


# Nothing is freed on a node that no one can reach


@pytest.fixture
def unreachable(ledger: Ledger) -> Ledger:
    """Let the pod p hold a card of a node that is not reachable."""
    ledger.facts.set_pod(pod("p", 1, node="n1", takes=whole(0)))
    ledger.facts.set_node("n1", NOT_READY, 2)
    return ledger


@pytest.mark.parametrize("end", ["removed", "terminal", "not listed"])
def test_a_claim_that_ends_on_an_unreachable_node_lingers(unreachable: Ledger, end: str) -> None:
    match end:
        case "removed":
            unreachable.facts.remove_pod(uid("p"))
        case "terminal":
            unreachable.facts.set_pod(pod("p", 2, node="n1", takes=whole(0), terminal=True))
        case _:
            unreachable.facts.replace_pods([], version=2)
    assert claims(unreachable, "p") == {Claim.LINGERING}
    assert free_cards(unreachable.capacity("n1")) == [1]
    assert unreachable.take_freed() == ()


@pytest.mark.parametrize("less", [None, share(0, 1)])
def test_an_assignment_that_shrinks_on_an_unreachable_node_lingers(unreachable: Ledger, less: Taken | None) -> None:
    unreachable.facts.set_pod(pod("p", 2, node="n1", takes=less))
    assert Claim.LINGERING in claims(unreachable, "p")
    assert free_cards(unreachable.capacity("n1")) == [1]


def test_all_that_ends_on_an_unreachable_node_lingers_together() -> None:
    ledger = ledger_of(report(grants=[grant("p", "c", granted(1))]))
    ledger.facts.set_pod(pod("p", node="n1", takes=whole(0)))
    ledger.facts.set_node("n1", NOT_READY, 2)
    ledger.facts.set_report(report(version=2))
    ledger.facts.remove_pod(uid("p"))
    assert free_cards(ledger.capacity("n1")) == []


def test_a_grant_that_grows_on_an_unreachable_node_leaves_nothing_behind() -> None:
    ledger = ledger_of(report(grants=[grant("p", "c", granted(0))]))
    ledger.facts.set_node("n1", NOT_READY, 2)
    ledger.facts.set_report(report(version=2, grants=[grant("p", "c", granted(0), granted(1))]))
    assert claims(ledger, "p") == {Claim.GRANTED}


def test_a_grant_that_vanishes_on_an_unreachable_node_lingers() -> None:
    ledger = ledger_of(report(grants=[grant("p", "c", granted(0))]))
    ledger.facts.set_node("n1", NOT_READY, 2)
    ledger.facts.set_report(report(version=2))
    assert claims(ledger, "p") == {Claim.LINGERING}


def test_a_report_after_the_node_came_back_ends_a_lingering_claim(unreachable: Ledger) -> None:
    unreachable.facts.remove_pod(uid("p"))
    unreachable.facts.set_node("n1", READY, 3)
    assert claims(unreachable, "p") == {Claim.LINGERING}
    unreachable.facts.set_report(report(version=2))
    assert claims(unreachable, "p") == set()
    assert unreachable.take_freed() == ("n1",)


def test_use_and_former_holders_are_no_change_of_the_free_capacity() -> None:
    """Check the use and the former holders, which each node reports once a minute: they are no change of the free capacity."""
    ledger = Ledger()
    held = [grant("p", "c", granted(0))]
    ledger.facts.set_report(report(grants=held))
    capacity, (_, version) = ledger.capacity("n1"), ledger.capacities_changed_since(-1)
    ledger.take_freed()
    busy = report(version=2, grants=held)
    past = Past(device=gpu_uuid(1), pod=uid("q"), container="c", since=1, until=2)
    observed = (Use(uuid=gpu_uuid(0), memory_used_mib=512, busy_percent=95),)
    ledger.facts.set_report(
        msgspec.structs.replace(busy, status=msgspec.structs.replace(busy.status, past=(past,), use=observed, used_at=9))
    )
    assert ledger.capacity("n1") is capacity
    assert ledger.capacities_changed_since(version) == ([], version)
    assert ledger.take_freed() == ()


PROVES_NOTHING = [
    pytest.param(report(version=1), id="the one from before, again"),
    pytest.param(report(version=2, reconciled=False), id="not reconciled"),
    pytest.param(report(version=2, grants=[grant("p", "c", granted(1))]), id="names it"),
]


@pytest.mark.parametrize("after", PROVES_NOTHING)
def test_a_report_that_proves_nothing_ends_nothing(unreachable: Ledger, after: NodeDevices) -> None:
    unreachable.facts.remove_pod(uid("p"))
    unreachable.facts.set_node("n1", READY, 3)
    unreachable.facts.set_report(after)
    assert Claim.LINGERING in claims(unreachable, "p")


def test_a_report_from_before_the_node_came_back_ends_nothing(unreachable: Ledger) -> None:
    unreachable.facts.remove_pod(uid("p"))
    unreachable.facts.set_report(report(version=2))
    unreachable.facts.set_node("n1", READY, 3)
    assert claims(unreachable, "p") == {Claim.LINGERING}


def test_a_lingering_claim_ends_after_a_time_without_a_report(unreachable: Ledger) -> None:
    unreachable.facts.remove_pod(uid("p"))
    unreachable.expire(0.0)
    unreachable.expire(LINGER_S * 9)
    unreachable.facts.set_node("n1", READY, 3)
    unreachable.expire(1000.0)
    unreachable.expire(1000.0 + LINGER_S - 1)
    assert claims(unreachable, "p") == {Claim.LINGERING}
    unreachable.expire(1000.0 + LINGER_S)
    assert claims(unreachable, "p") == set()
    assert unreachable.take_freed() == ("n1",)


def test_the_time_of_a_lingering_claim_begins_again_with_each_absence(unreachable: Ledger) -> None:
    unreachable.facts.remove_pod(uid("p"))
    unreachable.facts.set_node("n1", READY, 3)
    unreachable.expire(0.0)
    unreachable.facts.set_node("n1", NOT_READY, 4)
    unreachable.facts.set_node("n1", READY, 5)
    unreachable.expire(LINGER_S)
    assert claims(unreachable, "p") == {Claim.LINGERING}


def test_a_lingering_claim_ends_with_the_report(unreachable: Ledger) -> None:
    unreachable.facts.remove_pod(uid("p"))
    unreachable.facts.remove_report("n1", 2)
    assert unreachable.holders("n1") == ()


@pytest.mark.parametrize("end", ["report", "time", "grant"])
def test_devices_of_a_force_deleted_pod_are_free_after_the_next_report_without_a_grant(ledger: Ledger, end: str) -> None:
    ledger.facts.set_pod(pod("p", node="n1", takes=whole(0)))
    ledger.facts.remove_pod(uid("p"))
    assert free_cards(ledger.capacity("n1")) == [1]
    if end == "time":
        ledger.expire(1.0)
        ledger.expire(0.9 + UNREPORTED_S)
        assert free_cards(ledger.capacity("n1")) == [1]
        ledger.expire(1.0 + UNREPORTED_S)
    elif end == "grant":
        ledger.facts.set_report(report(version=2, grants=[grant("p", "c", granted(0))]))
        ledger.expire(2 * UNREPORTED_S)
        ledger.expire(4 * UNREPORTED_S)
        assert free_cards(ledger.capacity("n1")) == [1]
    if end != "time":
        ledger.facts.set_report(report(version=3))
    assert free_cards(ledger.capacity("n1")) == [0, 1]


def test_each_force_deleted_pod_has_its_own_time(ledger: Ledger) -> None:
    for name, now in {"p": 0.0, "q": 2 * LINGER_S}.items():
        ledger.facts.set_pod(pod(name, node="n1", takes=whole(0)))
        ledger.facts.remove_pod(uid(name))
        ledger.expire(now)
        ledger.expire(now + UNREPORTED_S - 1)
        assert free_cards(ledger.capacity("n1")) == [1]
        ledger.expire(now + UNREPORTED_S)
        assert free_cards(ledger.capacity("n1")) == [0, 1]


def test_a_pod_whose_grant_the_node_took_back_leaves_nothing_behind_when_it_is_force_deleted() -> None:
    ledger = ledger_of(report(grants=[grant("p", "c", granted(0))]))
    ledger.facts.set_pod(pod("p", node="n1", takes=whole(0)))
    ledger.facts.set_report(report(version=2))
    ledger.facts.remove_pod(uid("p"))
    assert free_cards(ledger.capacity("n1")) == [0, 1]


def test_a_pod_that_ended_before_its_node_went_away_does_not_hold_again(ledger: Ledger) -> None:
    ledger.facts.set_pod(pod("p", 1, node="n1", takes=whole(0)))
    ledger.facts.set_pod(pod("p", 2, node="n1", takes=whole(0), terminal=True))
    ledger.facts.set_node("n1", NOT_READY, 2)
    ledger.facts.remove_pod(uid("p"))
    assert ledger.holders("n1") == ()


# Nodes that got free capacity


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(report(gpus=[gpu(0, unhealthy="Xid 79")]), report(version=2, gpus=[gpu(0)]), id="health"),
        pytest.param(report(gpus=[gpu(0, used_by="pid 1")]), report(version=2, gpus=[gpu(0)]), id="a stranger left"),
        pytest.param(report(gpus=[gpu(0, dirty="90 MiB of it")]), report(version=2, gpus=[gpu(0)]), id="clean"),
        pytest.param(report(cordon="all"), report(version=2), id="uncordon"),
        pytest.param(report(grants=[grant("m", "c", granted(0))]), report(version=2), id="released by the node alone"),
        pytest.param(report(reconciled=False), report(version=2), id="reconciled"),
        pytest.param(report(gpus=[gpu(0)]), report(version=2, gpus=[gpu(0), gpu(1)]), id="another card"),
        pytest.param(report(gpus=[gpu(0, reserved_mib=9)]), report(version=2, gpus=[gpu(0)]), id="larger"),
        pytest.param(report(gpus=[gpu(0, mig=1)]), report(version=2, gpus=[gpu(0, mig=2)]), id="an instance"),
        pytest.param(report(pfs=[]), report(version=2), id="VFs"),
    ],
)
def test_new_free_capacity_is_reported(before: NodeDevices, after: NodeDevices) -> None:
    ledger = ledger_of(before)
    ledger.facts.set_report(after)
    assert ledger.take_freed() == ("n1",)
    way_back = msgspec.structs.replace(before.metadata, resource_version="3")
    ledger.facts.set_report(msgspec.structs.replace(before, metadata=way_back))
    assert ledger.take_freed() == ()


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(report(version=2, gpus=[msgspec.structs.replace(gpu(0), model="another")]), id="model"),
        pytest.param(report(version=2, gpus=[msgspec.structs.replace(gpu(0), place=Place(numa=1))]), id="place"),
        pytest.param(report(version=2, gpus=[msgspec.structs.replace(gpu(0), module_id=7)]), id="module"),
    ],
)
def test_a_device_that_is_described_otherwise_is_reported(after: NodeDevices) -> None:
    """Check a changed description, by which a refused pod may fit."""
    ledger = ledger_of(report(gpus=[gpu(0)]))
    ledger.facts.set_report(after)
    assert ledger.take_freed() == ("n1",)


def test_a_new_node_and_a_node_that_came_back_are_reported(ledger: Ledger) -> None:
    ledger.facts.set_node("n2", READY, 1)
    ledger.facts.set_report(report("n2"))
    assert ledger.take_freed() == ("n2",)
    ledger.facts.set_node("n1", NOT_READY, 2)
    ledger.facts.set_node("n1", READY, 3)
    assert ledger.take_freed() == ("n1",)


def test_a_full_node_that_came_back_is_not_reported() -> None:
    ledger = ledger_of(report(gpus=[gpu(0)], pfs=[]))
    ledger.facts.set_pod(pod("p", node="n1", takes=whole(0)))
    ledger.facts.set_node("n1", NOT_READY, 2)
    ledger.facts.set_node("n1", READY, 3)
    assert ledger.take_freed() == ()


def test_free_capacity_of_a_node_that_does_not_serve_is_not_reported() -> None:
    ledger = ledger_of(report(reconciled=False))
    ledger.facts.set_pod(pod("p", node="n1", takes=whole(0)))
    ledger.facts.remove_pod(uid("p"))
    assert ledger.take_freed() == ()


# Changes


def test_an_equal_report_changes_no_free_capacity() -> None:
    ledger = ledger_of(report(grants=[grant("p", "c", granted(0, 100))]))
    before = ledger.version
    ledger.facts.set_report(report(version=2, grants=[grant("p", "c", granted(0, 100))]))
    assert ledger.version == before


def test_another_change_of_a_pod_changes_no_free_capacity(ledger: Ledger) -> None:
    ledger.facts.set_pod(pod("p", 1, node="n1", takes=whole(0)))
    before = ledger.version
    ledger.facts.set_pod(pod("p", 2, node="n1", takes=whole(0), deleting=True))
    assert ledger.version == before


def test_changed_capacities_are_listed_by_version() -> None:
    ledger = ledger_of(report("n1"), report("n2"))
    everything, observed = ledger.capacities_changed_since(-1)
    assert {name for name, _ in everything} == {"n1", "n2"}
    ledger.facts.set_pod(pod("p", node="n2", takes=whole(0)))
    assert ledger.capacities_changed_since(observed) == ([("n2", ledger.capacity("n2"))], ledger.version)
    observed = ledger.version
    ledger.facts.remove_report("n1", 5)
    assert ledger.capacities_changed_since(observed) == ([("n1", None)], ledger.version)


def test_nothing_is_kept_of_a_node_without_report_and_holders(ledger: Ledger) -> None:
    ledger.facts.set_pod(pod("p", node="n1", takes=whole(0)))
    ledger.facts.remove_report("n1", 2)
    ledger.facts.remove_node("n1", 2)
    ledger.facts.remove_pod(uid("p"))
    assert ledger.snapshot() == Ledger().snapshot()


def test_a_pod_that_takes_nothing_is_known_and_holds_nothing(ledger: Ledger) -> None:
    ledger.facts.set_pod(pod("p", node="n1", takes=Taken()))
    assert ledger.pod(uid("p")) is not None
    assert ledger.capacity("n1").cards[0].free
