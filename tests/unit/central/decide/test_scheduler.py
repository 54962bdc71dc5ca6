"""Test the decisions of the verbs: which nodes fit, which one is chosen, what is held meanwhile, and both results of a
Binding."""

import msgspec
import pytest

from central.decide.scheduler import PREDICTION_S, Bound, NotBound, Reservation
from central.ledger.model import Claim
from central.loop.steps import exhaust
from central.rank.forecast import Forecast
from central.rank.workload import PodKind
from central.request.model import CpuMemory, Policy
from central.request.reasons import Coded, OfBinding, OfPod
from central.search.placement import Missing
from lading.vocabulary import ASSIGNMENT, POLICY, PodUid
from tests.fakes.kube_objects import decoded, gpu_uuid, pod, share, vfs
from tests.unit.central.world import World, uid_of


def world(**nodes: int) -> World:
    """Create nodes by name, with so many cards each."""
    made = World()
    for name, gpus in (nodes or {"n1": 1}).items():
        made.node(name, gpus)
    return made


def predicted(made: World, name: str) -> str:
    claim = made.ledger.own_claim(uid_of(name), Claim.PREDICTED)
    return claim.node if claim else ""


def reserve(made: World, name: str, node: str) -> Reservation:
    reserved = made.scheduler.reserve(uid_of(name), node)
    assert isinstance(reserved, Reservation)
    return reserved


# filter


def test_each_node_is_in_one_answer() -> None:
    made = world(n1=1, n2=2, n3=1)
    made.bind("a", "n3")
    made.show("b")
    answer = made.filter("b", "n1", "n2", "n3", "nobody-reports-me")
    assert set(answer.fitting) == {"n1", "n2"}
    assert answer.fails == {"n3": Missing.TOO_FEW_FREE_GPUS.shown}
    assert answer.never == {"nobody-reports-me": Missing.NO_REPORT.shown}


def test_nodes_that_kube_scheduler_does_not_name_hide_no_stranger() -> None:
    # The call names as many nodes as central has, and one of them is unknown.
    made = world(n1=1, n2=1, n3=1)
    made.show("b")
    answer = made.filter("b", "n1", "n2", "stranger")
    assert set(answer.fitting) == {"n1", "n2"}
    assert answer.never == {"stranger": Missing.NO_REPORT.shown}


def test_what_can_never_fit_is_unresolvable() -> None:
    made = world(n1=1)
    made.show("b", {"lading.dev/gpu": "2"})
    answer = made.filter("b")
    assert (answer.fitting, answer.never) == ([], {"n1": Missing.TOO_FEW_GPUS.shown})


def test_a_pod_that_asks_for_nothing_may_go_anywhere() -> None:
    made = world()
    made.show("b", {"cpu": "1"})
    assert made.filter("b", "n1", "n7").fitting == ["n1", "n7"]
    assert (len(made.pending), made.refused) == (0, [])


def test_a_bad_ask_is_reported_for_every_node_and_waits_for_nothing() -> None:
    made = world()
    made.show("b")
    made.filter("b")
    made.pods["b"] = pod("b", {"lading.dev/gpu": "1", "lading.dev/gpux": "1"}, version=made.next_version())
    answer = made.filter("b", "n1", "n2")
    assert set(answer.never) == {"n1", "n2"}
    assert all("lading.dev/gpux" in reason for reason in answer.never.values())
    assert all(OfPod.REQUEST_MALFORMED in reason for reason in answer.never.values())
    assert (len(made.pending), predicted(made, "b")) == (0, "")


def test_the_winners_room_is_held_for_a_moment() -> None:
    made = world()
    made.show("a")
    made.show("b")
    assert made.filter("a").fitting == ["n1"]
    assert made.filter("b").fitting == []
    made.ledger.expire(PREDICTION_S)
    assert made.filter("b").fitting == ["n1"]


def test_a_decision_holds_nothing_until_it_is_applied() -> None:
    made = world(n1=1)
    decisions = [made.scheduler.decide(made.show(name), ["n1"]) for name in "ab"]
    assert [one.answer.fitting for one in decisions] == [["n1"]] * 2
    assert predicted(made, "a") == predicted(made, "b") == ""
    for decision in decisions:
        made.scheduler.apply(decision)
    assert (predicted(made, "a"), predicted(made, "b")) == ("n1", "")
    assert made.is_refused("b")


def test_a_repeated_question_gets_the_predicted_node_again() -> None:
    made = world(n1=1, n2=1)
    made.show("a")
    made.filter("a")
    first = predicted(made, "a")
    other = ({"n1", "n2"} - {first}).pop()
    made.show("b")
    assert made.filter("b").fitting == [other]
    assert made.filter("a").fitting == [first]  # the pod's own prediction does not count
    assert predicted(made, "a") == first
    assert made.filter("a", other).fitting == []
    assert (predicted(made, "a"), made.is_refused("a")) == ("", True)


def test_a_decision_about_a_pod_that_ended_meanwhile_changes_nothing() -> None:
    made = world(n1=1)
    decision = made.scheduler.decide(made.show("a"), ["n1"])
    made.deleted("a")
    made.scheduler.apply(decision)
    assert predicted(made, "a") == ""
    assert len(made.pending) == 0


def test_a_claim_for_a_pod_that_is_being_bound_by_now_is_not_ended() -> None:
    made = world(n1=1)
    made.show("low")
    high = made.show("high", priority=10)
    low = made.pending_pod("low")
    placement = made.scheduler.placement(low, "n1")
    assert placement is not None
    made.ledger.claims.nominate(low.uid, "n1", placement.taken, 100.0, low.holder)
    decision = made.scheduler.decide(high, ["n1"])
    assert decision.answer.fitting == ["n1"]
    reserve(made, "low", "n1")
    made.scheduler.apply(decision)
    assert made.scheduler.nominated_node(low.uid) == "n1"
    assert (predicted(made, "high"), made.is_refused("high")) == ("", True)


def test_a_pod_that_is_filtered_twice_is_held_once() -> None:
    made = world(n1=1, n2=1)
    made.show("a")
    first, second = made.filter("a"), made.filter("a")
    assert set(first.fitting) == set(second.fitting) == {"n1", "n2"}
    made.show("b")
    assert made.filter("b").fitting == [({"n1", "n2"} - {predicted(made, "a")}).pop()]


def test_a_pod_that_is_refused_and_fits_later() -> None:
    made = world()
    made.bind("a", "n1")
    made.show("b")
    made.now = 7.0
    assert made.filter("b").fitting == []
    assert (made.pending_pod("b").refused_at, made.refused) == (7.0, ["b"])
    made.now = 9.0
    made.filter("b")
    assert made.pending_pod("b").refused_at == 7.0
    made.deleted("a")
    assert made.filter("b").fitting == ["n1"]
    assert made.pending_pod("b").refused_at is None


def test_a_bound_pod_is_only_where_it_is() -> None:
    made = world(n1=1, n2=1)
    made.bind("a", "n1")
    answer = made.filter("a")
    assert (answer.fitting, answer.never) == (["n1"], {"n2": OfPod.BOUND_ELSEWHERE.shown})
    assert len(made.pending) == 0


def test_kube_scheduler_may_ask_for_a_pod_that_is_deleted() -> None:
    made = world()
    made.show("a")
    late = made.pods["a"]
    made.deleted("a")
    made.pods["a"] = late
    assert made.filter("a").never == {"n1": OfPod.POD_ENDED.shown}
    assert (len(made.pending), made.is_free("n1")) == (0, True)


def test_a_pod_whose_reserved_node_is_not_asked_about_is_requeued_when_it_was_not_bound() -> None:
    made = world(n1=1, n2=1)
    made.show("a")
    made.filter("a")
    reserved = reserve(made, "a", "n1")
    assert made.filter("a", "n2").fitting == []
    made.scheduler.release(reserved)
    assert made.is_refused("a")


def test_the_fullest_node_wins_or_the_emptiest() -> None:
    for policy, winner in ((Policy.BINPACK, "n1"), (Policy.SPREAD, "n2")):
        made = World(policy=policy)
        made.node("n1", 2)
        made.node("n2", 2)
        made.bind("a", "n1")
        made.show("b")
        made.filter("b")
        assert predicted(made, "b") == winner


# prioritize


def test_prioritize_names_the_predicted_node() -> None:
    made = world(n1=1, n2=2, n3=1)
    made.show("a")
    made.filter("a")
    winner = predicted(made, "a")
    assert made.scheduler.prioritize(decoded(made.pods["a"]), ["n1", "n2", "n3"]) == winner
    others = [name for name in ("n1", "n2", "n3") if name != winner]
    assert made.scheduler.prioritize(decoded(made.pods["a"]), others) in others


def test_prioritize_names_no_one_for_a_pod_without_devices() -> None:
    made = world()
    assert made.scheduler.prioritize(made.show("a", {"cpu": "1"}), ["n1"]) is None


# preempt


def victims(*names: str) -> list[PodUid]:
    return [uid_of(name) for name in names]


def test_preempt_keeps_nodes_where_the_devices_suffice_then() -> None:
    made = world(n1=1, n2=1, n3=1)
    made.bind("a", "n1")
    made.bind("b", "n2")
    made.show("plain", {"cpu": "1"}, node="n3")
    high = made.show("high", priority=9)
    requested = {"n1": victims("a"), "n2": victims("other"), "n3": victims("plain"), "n9": victims("x")}
    assert made.preempt(high, requested) == ["n1", "n3"]


def test_preempt_wants_a_victim_and_ignores_pods_without_devices() -> None:
    made = world()
    assert made.preempt(made.show("high", priority=9), {"n1": victims()}) == []
    plain = made.show("plain", {"cpu": "1"}, priority=9)
    assert made.preempt(plain, {"n1": victims("a")}) == ["n1"]


# both ends of a bind


def test_reserve_takes_the_devices_and_says_so_in_the_annotation() -> None:
    made = world()
    made.show("a")
    reserved = reserve(made, "a", "n1")
    text = msgspec.json.decode(reserved.assignment)
    assert (text["pod"], text["node"], text["gen"]) == (uid_of("a"), "n1", 1)
    assert text["containers"]["main"]["gpus"][0]["uuid"] == gpu_uuid("n1", 0)
    assert not made.is_free("n1")
    made.scheduler.release(reserved)
    assert made.is_free("n1")


def test_the_next_try_has_the_next_generation() -> None:
    made = world()
    made.show("a")
    made.scheduler.release(reserve(made, "a", "n1"))
    assert reserve(made, "a", "n1").gen == 2


def test_a_pod_that_only_the_watch_has_shown_is_bound_without_a_filter() -> None:
    made = world()
    made.show("a")
    assert made.scheduler.is_open(reserve(made, "a", "n1"))


def not_bound(made: World, name: str, node: str) -> str:
    answer = made.scheduler.reserve(uid_of(name), node)
    assert isinstance(answer, NotBound)
    return answer.why


def test_while_the_outcome_is_open_nothing_is_sent_twice() -> None:
    made = world(n1=1, n2=1)
    made.show("a")
    reserved = reserve(made, "a", "n1")
    assert OfBinding.BINDING_UNCLEAR in not_bound(made, "a", "n1")
    assert OfBinding.BINDING_UNCLEAR in not_bound(made, "a", "n2")
    assert made.filter("a").fitting == ["n1"]
    made.scheduler.confirm(reserved)
    assert made.scheduler.reserve(uid_of("a"), "n1") == Bound()
    assert OfPod.BOUND_ELSEWHERE in not_bound(made, "a", "n2")
    made.show("a", node="n1", annotations={ASSIGNMENT: reserved.assignment})
    assert made.scheduler.reserve(uid_of("a"), "n1") == Bound()
    assert OfPod.BOUND_ELSEWHERE in not_bound(made, "a", "n2")


def test_a_pod_that_someone_bound_without_an_assignment_is_not_bound() -> None:
    made = world()
    made.show("a", node="n1")
    assert OfPod.BOUND_ELSEWHERE in not_bound(made, "a", "n1")


@pytest.mark.parametrize(
    ("why", "code"),
    [
        ("unknown", OfBinding.POD_UNKNOWN),
        ("deleting", OfBinding.POD_UNKNOWN),
        ("ended", OfPod.POD_ENDED),
        ("no room", OfBinding.DEVICES_TAKEN),
        ("no such node", Missing.NO_REPORT),
    ],
)
def test_what_cannot_be_reserved(why: str, code: Coded) -> None:
    made = world()
    if why == "deleting":
        made.show("a")
        made.show("a", deleting=True)
    elif why == "no room":
        made.bind("b", "n1")
        made.show("a")
    elif why != "unknown":
        made.show("a", phase="Succeeded" if why == "ended" else "Pending")
    assert code in not_bound(made, "a", "nowhere" if why == "no such node" else "n1")
    assert made.ledger.reservations() == ()


def test_shares_and_vfs_are_predicted_as_they_are_reserved() -> None:
    made = World()
    made.node("n1", 1, 2)
    made.show("a", share("40Gi", 50) | vfs(1))
    made.show("b", share("40Gi", 50) | vfs(1))
    made.show("c", share("40Gi", 50) | vfs(1))
    assert [bool(made.filter(name).fitting) for name in "abc"] == [True, True, False]
    for name in "ab":
        reserve(made, name, "n1")
    assert OfBinding.DEVICES_TAKEN in not_bound(made, "c", "n1")


def gpus_of(reserved: Reservation) -> list[str]:
    return [gpu["uuid"] for gpu in msgspec.json.decode(reserved.assignment)["containers"]["main"]["gpus"]]


def test_what_was_predicted_is_reserved_without_another_search(monkeypatch: pytest.MonkeyPatch) -> None:
    made = world(n1=2)
    for name in "ab":
        made.show(name)
        made.filter(name)
    made.show("b")  # a new version, by a change of the status
    monkeypatch.setattr("central.search.fit.find_filters", None)
    assert gpus_of(reserve(made, "b", "n1")) == [gpu_uuid("n1", 1)]


def test_a_card_that_was_cordoned_since_it_was_predicted_is_not_reserved() -> None:
    made = world(n1=2)
    made.show("a")
    made.filter("a")
    made.report("n1", 2, cordon=gpu_uuid("n1", 0))
    assert gpus_of(reserve(made, "a", "n1")) == [gpu_uuid("n1", 1)]


def test_what_was_predicted_for_another_ask_is_not_reserved() -> None:
    made = world(n1=2)
    made.show("a")
    made.filter("a")
    made.show("a", {"lading.dev/gpu": "2"})
    assert len(gpus_of(reserve(made, "a", "n1"))) == 2


def test_a_reservation_takes_the_place_of_the_prediction() -> None:
    made = world(n1=2)
    made.bind("before", "n1")  # the first card
    made.show("a")
    made.filter("a")  # predicted on the second
    made.deleted("before")
    reserve(made, "a", "n1")  # on the first: it is free again, and comes first
    made.show("b")
    assert made.filter("b").fitting == ["n1"]
    assert isinstance(made.scheduler.reserve(uid_of("b"), "n1"), Reservation)


# policy fragmentation


def sized(made: World, name: str, gpus: int, cpu: str = "64", memory: str = "256Gi") -> None:
    made.node(name, gpus)
    made.readiness(name, True, allocatable={"cpu": cpu, "memory": memory})


def expecting(**weights: float) -> World:
    """Expect half cards and whole cards, each with 4 cores, by their frequency."""
    kinds = {
        "half": PodKind(cpu_memory=CpuMemory(4000, 4096), core_percent=50),
        "third": PodKind(cpu_memory=CpuMemory(4000, 4096), core_percent=30),
        "whole": PodKind(cpu_memory=CpuMemory(4000, 4096), gpus=1),
    }
    prior = {kinds[name]: weight for name, weight in weights.items()}
    return World(policy=Policy.FRAGMENTATION, forecast=Forecast(prior, learns=False))


SMALL = {"cpu": "4", "memory": "4Gi"}


def test_filter_and_prioritize_name_one_winner_that_leaves_what_others_can_use() -> None:
    made = expecting(half=1, whole=1)
    for name in ("n1", "n2", "n3"):
        sized(made, name, 1)
    made.bind("a", "n2", share(core=50), requests=SMALL)
    made.show("b", share(core=50), requests=SMALL)
    assert made.filter("b").fitting == ["n1", "n2", "n3"]
    assert predicted(made, "b") == "n2"  # the started card, not a whole one
    assert made.scheduler.prioritize(decoded(made.pods["b"]), ["n1", "n2", "n3"]) == "n2"
    assert made.scheduler.prioritize(decoded(made.pods["b"]), ["n1", "n3"]) == "n1"


def test_the_card_of_a_share_is_chosen_as_the_node_is() -> None:
    made = expecting(third=3, half=2)
    sized(made, "n1", 2)
    for name, core in (("a", 50), ("b", 30)):
        made.bind(name, "n1", share(core=core), requests=SMALL)
    made.show("c", share(core=40), requests=SMALL)
    made.filter("c")
    claim = made.ledger.own_claim(uid_of("c"), Claim.PREDICTED)
    assert claim is not None
    # On the card with 50 % free, 10 % would remain, which no pod requests; the card with 70 % free keeps 30 %, as b requests.
    assert [*claim.taken.gpus] == [gpu_uuid("n1", 1)]
    assert made.ledger.capacity("n1").cards[0].free_core == 50
    reserve(made, "c", "n1")
    held = made.ledger.own_claim(uid_of("c"), Claim.RESERVED)
    assert held is not None
    assert held.taken == claim.taken


def test_cpu_that_others_need_counts() -> None:
    made = expecting(whole=1)
    sized(made, "n1", 2, cpu="8")
    sized(made, "n2", 2, cpu="64")
    made.show("a", share(core=50), requests={"cpu": "6", "memory": "1Gi"})
    made.filter("a")
    assert predicted(made, "a") == "n2"


def test_what_was_predicted_counts_until_it_is_over() -> None:
    made = expecting(whole=1)
    sized(made, "n1", 2)
    made.show("a", requests=SMALL)
    made.filter("a")
    assert made.ledger.capacity("n1").cpu_milli == 60_000
    made.ledger.expire(made.now + PREDICTION_S)
    assert made.ledger.capacity("n1").cpu_milli == 64_000


def test_a_node_that_is_short_of_cpu_by_the_ledger_is_named_where_kube_scheduler_has_no_other() -> None:
    made = expecting(whole=1)
    sized(made, "n1", 1, cpu="1")
    made.show("a", requests=SMALL)
    assert made.filter("a").fitting == ["n1"]
    assert predicted(made, "a") == "n1"


def test_a_pod_may_ask_for_the_policy_by_itself() -> None:
    made = World(forecast=Forecast({PodKind(core_percent=50): 1.0, PodKind(gpus=1): 1.0}, learns=False))
    for name in ("n1", "n2"):
        made.node(name, 1)
    made.bind("a", "n2", share(core=50))
    made.show("b", share(core=50), annotations={POLICY: "fragmentation"})
    made.filter("b")
    assert predicted(made, "b") == "n2"


def test_pods_without_devices_go_where_cards_lose_the_least() -> None:
    made = expecting(whole=1)
    sized(made, "n1", 2, cpu="8")  # the two cards need all of this cpu
    sized(made, "n2", 2, cpu="64")
    beside = pod("a", {}, version=made.next_version(), requests=SMALL)
    assert made.scheduler.prioritize(decoded(beside), ["n1", "n2"]) == "n2"
    assert made.scheduler.prioritize(decoded(beside), ["n1", "n2", "without-devices"]) is None
    binpack = World()
    sized(binpack, "n1", 1)
    assert binpack.scheduler.prioritize(decoded(beside), ["n1"]) is None


def test_cpu_of_a_pod_without_devices_counts_where_it_was_named() -> None:
    made = expecting(whole=1)
    sized(made, "n1", 1, cpu="8")
    sized(made, "n2", 1)
    made.bind("a", "n1", requests=SMALL)  # n1 has nothing to lose, and cpu for one more pod
    shown = {name: made.show(name, {}, requests=SMALL) for name in ("b", "c", "d")}
    assert made.scheduler.prioritize(shown["b"], ["n1", "n2"]) == "n1"
    assert made.scheduler.prioritize(shown["b"], ["n1", "n2"]) == "n1"  # the pod's own cpu does not count
    assert made.scheduler.prioritize(shown["c"], ["n1", "n2"]) == "n2"
    made.deleted("b")
    assert made.scheduler.prioritize(shown["d"], ["n1", "n2"]) == "n1"
    made.now += PREDICTION_S
    made.ledger.expire(made.now)
    assert made.ledger.capacity("n1").cpu_milli == 4000
    made.show("c", {}, requests=SMALL, node="n1")
    assert made.ledger.capacity("n1").cpu_milli == 0


def test_pods_that_come_are_learned_from_once() -> None:
    made = World(policy=Policy.FRAGMENTATION)
    sized(made, "n1", 1)
    made.show("a", requests=SMALL)
    for _ in range(3):
        made.filter("a")
    beside = pod("b", {}, version=made.next_version(), requests=SMALL)
    made.scheduler.prioritize(decoded(beside), ["n1"])
    assert made.scheduler.forecast.learned == 2


def test_refusals_are_counted_by_what_most_nodes_reported() -> None:
    made = world(n1=1, n2=1)
    made.bind("a", "n1")
    made.bind("b", "n2")
    made.show("c")
    for _ in range(2):  # kube-scheduler asks again
        made.filter("c")
    assert made.pending_pod("c").refused_for is Missing.TOO_FEW_FREE_GPUS
    made.show("c", annotations={"changed": "yes"})
    assert made.pending_pod("c").refused_for is Missing.TOO_FEW_FREE_GPUS
    made.show("d", {"lading.dev/gpu-core": "500"})
    made.filter("d")
    made.filter("a", "n2")
    assert made.scheduler.counts.refused == {
        Missing.TOO_FEW_FREE_GPUS: 2,
        OfPod.REQUEST_MALFORMED: 1,
        OfPod.BOUND_ELSEWHERE: 1,
    }


# more nodes than one request has time for

EXACT = {"lading.dev/gpu": "1", "lading.dev/rdma": "1"}  # not by counting


@pytest.mark.parametrize("policy", [Policy.BINPACK, Policy.FRAGMENTATION])
def test_nodes_that_were_not_judged_in_time_are_refused_for_that_and_judged_later(policy: Policy) -> None:
    made = World(policy=policy, slice_s=0.0)
    made.node("n1", 1, vfs=1)
    made.node("n2", 2, vfs=1)
    made.show("a", EXACT)
    answer = made.filter("a", "n1", "n2")
    (fits,), failed = answer.fitting, answer.never
    assert failed == {({"n1", "n2"} - {fits}).pop(): Missing.NOT_REACHED.shown}
    exhaust(made.scheduler.filter_steps(decoded(made.pods["a"])))
    assert set(made.filter("a", "n1", "n2").fitting) == {"n1", "n2"}


@pytest.mark.parametrize("policy", [Policy.BINPACK, Policy.FRAGMENTATION])
def test_a_node_that_changed_after_it_was_judged_is_judged_again_before_it_is_named(policy: Policy) -> None:
    made = World(policy=policy, slice_s=0.0)
    made.node("n1", 1, vfs=1)
    made.show("a", EXACT)
    exhaust(made.scheduler.filter_steps(decoded(made.pods["a"])))
    made.bind("b", "n1")
    assert made.filter("a", "n1").fails == {"n1": Missing.TOO_FEW_FREE_GPUS.shown}


def test_no_one_is_evicted_before_all_nodes_were_judged() -> None:
    made = World(slice_s=0.0)
    for name in ("n1", "n2"):
        made.node(name, 1, vfs=1)
        made.bind(f"on-{name}", name)
    made.show("a", EXACT, priority=1)
    made.filter("a", "n1", "n2")
    assert (made.is_refused("a"), made.refused) == (True, [])
    made.filter("a", "n1", "n2")
    assert made.refused == ["a"]


def test_a_pod_whose_binding_failed_is_held_for_as_long_as_any_other() -> None:
    made = world()
    made.show("a")
    made.filter("a")
    made.scheduler.release(reserve(made, "a", "n1"))
    made.now = PREDICTION_S
    made.filter("a")
    claim = made.ledger.own_claim(uid_of("a"), Claim.PREDICTED)
    assert claim is not None
    assert claim.until == 2 * PREDICTION_S
