"""Test central's own claims, and the changes that the ledger reports."""

import pytest

from central.assignment.model import Part, Taken
from central.assignment.sharing import AffinityGroup
from central.ledger.ledger import Ledger
from central.ledger.model import Claim, Clash, Conflict, Holder, NodeFacts, Obstacle
from central.request.model import Sharing
from lading.nodedevices import GrantedGpu
from tests.fakes.capacities import CARD_MIB, gpu_uuid, vf_bdf
from tests.fakes.ended import end_pod
from tests.unit.central.ledger.facts import (
    NOT_READY,
    WHOLE,
    free_cards,
    free_mib,
    gpu,
    grant,
    granted,
    ledger_of,
    mig_uuid,
    pod,
    report,
    share,
    taken,
    uid,
    whole,
)

P, Q = uid("p"), uid("q")


def claims(ledger: Ledger, name: str, node: str = "n1") -> set[Claim]:
    return {claim for held in ledger.holders(node) if held.holder.pod == uid(name) for claim in held.claims}


# Reservations


@pytest.fixture
def ledger() -> Ledger:
    return ledger_of()


@pytest.fixture
def two_nodes() -> Ledger:
    return ledger_of(report("n1"), report("n2"))


def test_reserved_devices_are_not_free_for_another_pod(ledger: Ledger) -> None:
    holder = Holder(pod=P, namespace="default", name="p")
    assert ledger.claims.reserve(P, "n1", share(0, 1000, 60), 1, holder) is None
    before = ledger.snapshot()
    refused = ledger.claims.reserve(Q, "n1", share(0, 1, 41), 1)
    assert refused == Conflict(obstacle=Obstacle.DEVICE, device=gpu_uuid(0), holders=(holder,))
    assert ledger.snapshot() == before
    assert ledger.claims.reserve(Q, "n1", share(0, CARD_MIB - 1000, 40), 1) is None


def test_release_undoes_a_reservation(ledger: Ledger) -> None:
    ledger.claims.predict(P, "n1", whole(0), until=5)
    before = ledger.snapshot()
    ledger.claims.reserve(P, "n1", whole(0, 1), 1)
    ledger.claims.release(P)
    assert ledger.snapshot() == before
    assert ledger.take_freed() == ("n1",)


def test_reserving_the_same_again_is_no_second_reservation(ledger: Ledger) -> None:
    ledger.claims.reserve(P, "n1", whole(0), 1)
    assert ledger.claims.reserve(P, "n1", whole(0), 1) is None
    ledger.claims.release(P)
    assert free_cards(ledger.capacity("n1")) == [0, 1]


@pytest.mark.parametrize(("node", "takes", "gen"), [("n1", whole(1), 1), ("n2", whole(0), 1), ("n1", whole(0), 2)])
def test_a_reservation_whose_outcome_is_unclear_is_not_replaced(two_nodes: Ledger, node: str, takes: Taken, gen: int) -> None:
    two_nodes.claims.reserve(P, "n1", whole(0), 1)
    refused = two_nodes.claims.reserve(P, node, takes, gen)
    assert refused is not None
    assert refused.obstacle is Obstacle.RESERVED
    assert two_nodes.own_claim(P, Claim.RESERVED) is not None
    assert claims(two_nodes, "p") == {Claim.RESERVED}


def test_nothing_is_reserved_on_a_node_that_does_not_serve() -> None:
    ledger = ledger_of(report("lost"), report("unsure", reconciled=False))
    ledger.facts.set_node("lost", NOT_READY, 2)
    refused = [ledger.claims.reserve(P, node, whole(0), 1) for node in ("lost", "unsure", "unknown")]
    assert refused == [Conflict(obstacle=Obstacle.NODE)] * 3
    assert ledger.reservations() == ()


@pytest.mark.parametrize("end", ["removed", "terminal", "bound"])
def test_nothing_is_claimed_for_a_pod_that_is_over_or_bound(ledger: Ledger, end: str) -> None:
    if end == "removed":
        ledger.facts.remove_pod(P)
    else:
        ledger.facts.set_pod(pod("p", node="n1", takes=whole(0), terminal=end == "terminal"))
    before = ledger.snapshot()
    refused = ledger.claims.reserve(P, "n1", whole(1), 1), ledger.claims.predict(P, "n1", whole(1), until=5)
    ledger.claims.nominate(P, "n1", whole(1), until=5)
    assert refused == (Conflict(obstacle=Obstacle.POD_BOUND if end == "bound" else Obstacle.POD_ENDED),) * 2
    assert ledger.snapshot() == before


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_reservation_outlives_a_stale_event(ledger: Ledger, confirmed: bool) -> None:
    ledger.facts.set_pod(pod("p", 1))
    ledger.claims.reserve(P, "n1", whole(0), 1)
    if confirmed:
        ledger.claims.confirm(P)
    ledger.facts.set_pod(pod("p", 2))
    ledger.facts.replace_pods([pod("p", 2)], version=2)
    assert claims(ledger, "p") == {Claim.RESERVED}


def test_a_bound_pod_takes_over_from_its_reservation_without_a_gap(ledger: Ledger) -> None:
    ledger.claims.reserve(P, "n1", whole(0), 1)
    ledger.claims.confirm(P)
    capacity = ledger.capacity("n1")
    ledger.facts.set_pod(pod("p", node="n1", takes=whole(0)))
    assert claims(ledger, "p") == {Claim.BOUND}
    assert ledger.capacity("n1") is capacity
    assert (ledger.reservations(), ledger.take_freed()) == ((), ())


def test_the_refusal_of_a_second_binding_releases_nothing(ledger: Ledger) -> None:
    ledger.claims.reserve(P, "n1", whole(0), 1)
    ledger.claims.confirm(P)
    ledger.claims.release(P)
    assert claims(ledger, "p") == {Claim.RESERVED}


def test_an_outcome_that_comes_after_the_watch_changes_nothing(ledger: Ledger) -> None:
    ledger.claims.reserve(P, "n1", whole(0), 1)
    ledger.facts.set_pod(pod("p", node="n1", takes=whole(0)))
    before = ledger.snapshot()
    ledger.claims.confirm(P)
    ledger.claims.release(P)
    assert ledger.snapshot() == before


def test_a_reservation_ends_if_the_pod_is_bound_to_another_node(two_nodes: Ledger) -> None:
    two_nodes.claims.reserve(P, "n1", whole(0), 1)
    two_nodes.facts.set_pod(pod("p", node="n2"))
    assert two_nodes.snapshot().nodes["n1"].claims == {}
    assert two_nodes.take_freed() == ("n1",)


def test_no_reservation_lingers_of_a_pod_that_ended_on_another_node(two_nodes: Ledger) -> None:
    two_nodes.claims.reserve(P, "n1", whole(0), 1)
    two_nodes.facts.set_node("n1", NOT_READY, 2)
    two_nodes.facts.set_pod(pod("p", node="n2", terminal=True))
    assert two_nodes.holders("n1") == ()


@pytest.mark.parametrize(("reachable", "left"), [(True, set()), (False, {Claim.LINGERING})])
def test_a_reservation_ends_with_its_pod(ledger: Ledger, reachable: bool, left: set[Claim]) -> None:
    ledger.claims.reserve(P, "n1", whole(0), 1)
    ledger.facts.set_node("n1", NodeFacts(ready=reachable), 2)
    ledger.facts.remove_pod(P)
    assert claims(ledger, "p") == left
    assert ledger.reservations() == ()


def test_a_refused_binding_is_released_on_an_unreachable_node_too(ledger: Ledger) -> None:
    ledger.claims.reserve(P, "n1", whole(0), 1)
    ledger.facts.set_node("n1", NOT_READY, 2)
    ledger.claims.release(P)
    assert ledger.holders("n1") == ()


# Predictions and nominations


def test_a_prediction_holds_for_a_moment(ledger: Ledger) -> None:
    ledger.claims.predict(P, "n1", whole(0), until=5.0)
    ledger.expire(4.9)
    assert free_cards(ledger.capacity("n1")) == [1]
    ledger.expire(5.0)
    assert free_cards(ledger.capacity("n1")) == [0, 1]
    assert ledger.take_freed() == ("n1",)


def test_a_pod_has_one_prediction(two_nodes: Ledger) -> None:
    two_nodes.claims.predict(P, "n1", whole(0), until=5)
    assert two_nodes.claims.predict(P, "n2", whole(0, 1), until=5) is None
    assert free_cards(two_nodes.capacity("n1")) == [0, 1]
    assert free_cards(two_nodes.capacity("n2")) == []
    two_nodes.claims.forget_prediction(P)
    assert free_cards(two_nodes.capacity("n2")) == [0, 1]


def test_devices_that_are_not_free_are_not_predicted(ledger: Ledger) -> None:
    ledger.claims.predict(P, "n1", whole(0), until=5)
    refused = ledger.claims.predict(Q, "n1", share(0, 1), until=5)
    assert refused is not None
    assert claims(ledger, "q") == set()


def test_a_pods_own_claims_are_not_in_its_way(ledger: Ledger) -> None:
    ledger.claims.nominate(P, "n1", whole(0), until=5)
    ledger.claims.predict(P, "n1", taken({0: Part(1000, 10)}, vfs=[0]), until=5)
    assert free_cards(ledger.capacity("n1")) == [1]
    assert free_cards(ledger.without(P).capacity("n1")) == [0, 1]
    assert ledger.claims.reserve(P, "n1", taken({0: WHOLE, 1: WHOLE}, vfs=[0]), 1) is None


def test_a_nomination_holds_what_victims_leave() -> None:
    ledger = ledger_of(report(gpus=[gpu(0)]))
    ledger.facts.set_pod(pod("victim", node="n1", takes=share(0, 1000, 100)))
    ledger.claims.nominate(P, "n1", whole(0), until=5)
    assert ledger.claims.reserve(P, "n1", whole(0), 1) is not None
    end_pod(ledger, uid("victim"))
    assert ledger.take_freed() == ("n1",)
    assert ledger.claims.reserve(Q, "n1", share(0, 1), 1) is not None
    assert ledger.claims.reserve(P, "n1", whole(0), 1) is None
    ledger.claims.forget_nomination(P)
    assert claims(ledger, "p") == {Claim.RESERVED}


@pytest.mark.parametrize("end", ["confirmed", "bound", "removed"])
def test_plans_end_with_the_binding_or_the_pod(two_nodes: Ledger, end: str) -> None:
    two_nodes.claims.predict(P, "n2", whole(0), until=5)
    two_nodes.claims.nominate(P, "n2", whole(1), until=5)
    two_nodes.claims.reserve(P, "n1", whole(0), 1)
    match end:
        case "confirmed":
            two_nodes.claims.confirm(P)
        case "bound":
            two_nodes.facts.set_pod(pod("p", node="n1", takes=whole(0)))
        case _:
            two_nodes.facts.remove_pod(P)
    assert two_nodes.holders("n2") == ()


@pytest.mark.parametrize("newer", [Claim.PREDICTED, Claim.NOMINATED, Claim.RESERVED])
def test_the_newer_of_two_claims_decides_the_card_of_a_group(two_nodes: Ledger, newer: Claim) -> None:
    of_x, of_y = (taken({1: Part(10, sharing=(Sharing(namespace="team", affinity=label),))}) for label in "xy")
    older = Claim.PREDICTED if newer is Claim.NOMINATED else Claim.NOMINATED

    def plan(kind: Claim, node: str, wish: Taken) -> None:
        match kind:
            case Claim.PREDICTED:
                two_nodes.claims.predict(P, node, wish, until=5)
            case Claim.NOMINATED:
                two_nodes.claims.nominate(P, node, wish, until=5)
            case _:
                two_nodes.claims.reserve(P, node, wish, 1)

    plan(older, "n1", of_x)
    plan(newer, "n2", of_x)
    assert (claims(two_nodes, "p", "n1"), claims(two_nodes, "p", "n2")) == (set(), {newer})
    assert len(two_nodes.without().group_cards(AffinityGroup("team", "x"))) == 1
    assert two_nodes.take_freed() == ("n1",)
    plan(older, "n2", of_x)  # the same card, or one of another group, is no matter
    assert claims(two_nodes, "p", "n2") == {older, newer}
    plan(older, "n1", of_y)
    assert claims(two_nodes, "p", "n1") == {older}
    assert claims(two_nodes, "p", "n2") == {newer}


def test_a_room_without_victims_is_what_they_would_leave(ledger: Ledger) -> None:
    for name, card in (("a", 0), ("b", 0), ("c", 1)):
        ledger.facts.set_pod(pod(name, node="n1", takes=share(card, 1000)))
    before = ledger.capacity("n1")
    assert free_mib(ledger.without(uid("a"), uid("c"), uid("nobody")).capacity("n1")) == [CARD_MIB - 1000, CARD_MIB]
    assert ledger.capacity("n1") is before


# Answers


def test_an_unknown_node_has_no_free_capacity() -> None:
    capacity = Ledger().capacity("n9")
    assert (capacity.cards, capacity.serving) == ((), False)
    assert Ledger().without(P).capacity("n9") == capacity


def test_rooms_are_those_of_nodes_that_report() -> None:
    ledger = ledger_of(report("n1"))
    ledger.facts.set_pod(pod("p", node="n2", takes=whole(0)))
    assert [capacity.name for capacity in ledger.capacities()] == ["n1"]


def test_holders_are_reported_with_every_claim() -> None:
    ledger = ledger_of(report(grants=[grant("p", "c", granted(0, 100))]))
    record = pod("p", node="n1", takes=share(0, 80), created=7)
    ledger.facts.set_pod(record)
    (held,) = ledger.holders("n1")
    assert held.claims == {Claim.BOUND: share(0, 80), Claim.GRANTED: share(0, 100)}
    assert (held.taken, held.record, held.since, held.holder) == (share(0, 100), record, 7, record.holder)


@pytest.mark.parametrize(
    ("gpus", "device", "exclusive"),
    [
        ([granted(0), granted(0, 1)], gpu_uuid(0), True),
        ([granted(0, mig=mig_uuid(0)), granted(0, mig=mig_uuid(0))], gpu_uuid(0), True),
        ([granted(0, 50_000), granted(0, 50_000)], gpu_uuid(0), False),
        ([granted(0, 1, 60), granted(0, 1, 60)], gpu_uuid(0), False),
    ],
)
def test_two_pods_on_one_card_that_cannot_both_have_it(gpus: list[GrantedGpu], device: str, exclusive: bool) -> None:
    first, second = gpus
    ledger = ledger_of(report(grants=[grant("young", "c", first), grant("old", "c", second)]))
    ledger.facts.set_pod(pod("young", created=9))
    ledger.facts.set_pod(pod("old", created=5))
    clash = Clash(node="n1", device=device, pods=(uid("old"), uid("young")), exclusive=exclusive)
    assert ledger.conflicts() == (clash,)
    assert ledger.conflicts() == (clash,)
    ledger.facts.set_report(report(version=2))
    assert ledger.conflicts() == ()


@pytest.mark.parametrize(("a", "b", "order"), [(1, 2, ["a", "b"]), (2, 1, ["b", "a"]), (1, 1, ["a", "b"])])
def test_the_youngest_of_those_that_clash_is_the_last(ledger: Ledger, a: int, b: int, order: list[str]) -> None:
    for name, created in (("a", a), ("b", b)):
        ledger.facts.set_pod(pod(name, node="n1", takes=taken({0: WHOLE}, vfs=[0]), created=created))
    assert [clash.pods for clash in ledger.conflicts()] == [tuple(map(uid, order))] * 2


def test_two_pods_on_one_vf_clash_and_the_one_that_cannot_be_evicted_is_the_oldest() -> None:
    ledger = ledger_of(report(grants=[grant("unknown", vfs=[0])]))
    ledger.facts.set_pod(pod("p", node="n1", takes=taken(vfs=[0])))
    assert ledger.conflicts() == (Clash(node="n1", device=vf_bdf(0), pods=(uid("unknown"), P), exclusive=True),)


def test_pods_that_share_a_card_within_its_limits_do_not_clash() -> None:
    ledger = ledger_of(report(gpus=[gpu(0), gpu(1, mig=2)], grants=[grant("m", "c", granted(1, mig=mig_uuid(0)))]))
    ledger.facts.set_pod(pod("m2", node="n1", takes=taken({1: Part(mig=frozenset({mig_uuid(1)}))})))
    for name in ("a", "b"):
        ledger.facts.set_pod(pod(name, node="n1", takes=share(0, CARD_MIB // 2, 50)))
    assert ledger.conflicts() == ()


def test_a_plan_is_no_clash(ledger: Ledger) -> None:
    ledger.facts.set_pod(pod("victim", node="n1", takes=whole(0)))
    ledger.claims.nominate(P, "n1", whole(0), until=5)
    assert ledger.conflicts() == ()


# Sharing a card


def labelled(card: int, memory_mib: int = 1000, **labels: str) -> Taken:
    return taken({card: Part(memory_mib, sharing=(Sharing(namespace="team", **labels),))})


def test_a_claim_that_its_sharers_do_not_allow_is_refused(ledger: Ledger) -> None:
    assert ledger.claims.predict(P, "n1", labelled(0, exclusion="x"), until=5) is None
    for wish in (share(0, 1), labelled(0, exclusion="y")):
        refused = ledger.claims.reserve(Q, "n1", wish, 1)
        assert refused == Conflict(obstacle=Obstacle.DEVICE, device=gpu_uuid(0), holders=(Holder(pod=P),))
    assert ledger.claims.reserve(Q, "n1", labelled(0, exclusion="x"), 1) is None


def test_a_second_card_of_an_affinity_group_is_refused_for_any_claim(two_nodes: Ledger) -> None:
    assert two_nodes.claims.predict(P, "n1", labelled(0, affinity="x"), until=5) is None
    for node, card in (("n1", 1), ("n2", 0)):
        for claim in (
            two_nodes.claims.reserve(Q, node, labelled(card, affinity="x"), 1),
            two_nodes.claims.predict(Q, node, labelled(card, affinity="x"), 5),
        ):
            assert claim == Conflict(obstacle=Obstacle.GROUP, device=gpu_uuid(0), holders=(Holder(pod=P),))
    assert two_nodes.claims.reserve(P, "n2", labelled(0, affinity="x"), 1) is None  # the pod's own prediction does not conflict
    two_nodes.expire(5)
    assert two_nodes.claims.reserve(Q, "n2", labelled(0, affinity="x"), 1) is None


def test_a_pod_with_affinity_may_not_take_two_cards() -> None:
    two = Taken(gpus={**labelled(0, affinity="x").gpus, **labelled(1, affinity="x").gpus})
    refused = ledger_of().claims.reserve(P, "n1", two, 1)
    assert refused is not None
    assert refused.obstacle is Obstacle.GROUP


def test_a_grant_has_no_labels_and_takes_none_away(ledger: Ledger) -> None:
    ledger.facts.set_pod(pod("p", node="n1", takes=labelled(0, exclusion="x")))
    ledger.facts.set_report(report("n1", 2, grants=[grant("p", "c", granted(0, 1000))]))
    (mine,) = labelled(0, exclusion="x").gpus.values()
    assert ledger.capacity("n1").cards[0].sharers == (mine.sharing,)
    ledger.facts.set_report(report("n1", 3, grants=[grant("p", "c", granted(0, 1000)), grant("by-hand", "c", granted(0, 10))]))
    assert ledger.capacity("n1").cards[0].sharers == ((), mine.sharing)
    ledger.facts.remove_pod(P)
    assert ledger.capacity("n1").cards[0].sharers == ()


def isolated(card: int, memory_mib: int = 1000, *isolation: str) -> Taken:
    return taken({card: Part(memory_mib, isolation=isolation)})


def test_a_claim_with_another_isolation_is_refused() -> None:
    ledger = ledger_of(report(isolations=["none", "tokens"]))
    assert ledger.claims.predict(P, "n1", isolated(0, 10, "tokens"), until=5) is None
    for wish in (isolated(0, 10), isolated(1, 10, "mps")):
        refused = ledger.claims.reserve(Q, "n1", wish, 1)
        assert refused is not None
        assert refused.obstacle is Obstacle.DEVICE
    assert ledger.claims.reserve(Q, "n1", isolated(0, 10, "tokens"), 1) is None
    assert ledger.claims.reserve(uid("r"), "n1", isolated(1, 10), 1) is None


def test_claims_of_one_pod_that_differ_in_the_isolation_close_its_card() -> None:
    ledger = ledger_of(report(isolations=["none", "tokens", "mps"]))
    ledger.facts.set_pod(pod("p", node="n1", takes=isolated(0, 10, "tokens")))
    ledger.facts.set_report(
        report("n1", 2, grants=[grant("p", "c", granted(0, 10, isolation="mps"))], isolations=["tokens", "mps"])
    )
    assert ledger.capacity("n1").cards[0].isolations == ("mps", "tokens")
    for isolation in ("tokens", "mps"):
        assert ledger.claims.reserve(Q, "n1", isolated(0, 10, isolation), 1) is not None


def test_isolations_that_this_version_does_not_know_are_one_that_no_pod_can_ask_for() -> None:
    grants = [grant(name, "c", granted(0, 10, isolation=isolation)) for name, isolation in (("p", "later"), ("q", "latest"))]
    ledger = ledger_of(report(grants=grants, isolations=["none", "tokens", "later"]))
    capacity = ledger.capacity("n1")
    assert (capacity.cards[0].isolations, capacity.offered) == (("unknown",), ("none", "tokens"))
    for isolation in ([], ["tokens"], ["later"], ["unknown"]):
        assert ledger.claims.reserve(uid("r"), "n1", isolated(0, 10, *isolation), 1) is not None


def test_a_new_isolation_of_a_node_is_reported_as_new_capacity() -> None:
    ledger = ledger_of(report(isolations=["none"]))
    ledger.facts.set_report(report("n1", 2, isolations=["none"]))
    assert ledger.take_freed() == ()
    ledger.facts.set_report(report("n1", 3, isolations=["none", "tokens"]))
    assert ledger.take_freed() == ("n1",)
    ledger.facts.set_report(report("n1", 4, isolations=["tokens", "none"]))
    assert ledger.take_freed() == ("n1",)


def test_labels_that_end_are_room(ledger: Ledger) -> None:
    ledger.facts.set_pod(pod("p", node="n1", takes=labelled(0, affinity="x", exclusion="x")))
    ledger.facts.set_report(report("n1", 2, grants=[grant("p", "c", granted(0, 1000))]))
    assert (ledger.take_freed(), ledger.take_moved_groups()) == ((), frozenset())
    ledger.facts.remove_pod(P)
    assert (ledger.take_freed(), ledger.take_moved_groups()) == (("n1",), frozenset({AffinityGroup("team", "x")}))
