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


@pytest.fixture
def world() -> World:
    return World.of(n1=1)


def predicted(world: World, name: str) -> str:
    claim = world.ledger.own_claim(uid_of(name), Claim.PREDICTED)
    return claim.node if claim else ""


def reserve(world: World, name: str, node: str) -> Reservation:
    reserved = world.scheduler.reserve(uid_of(name), node)
    assert isinstance(reserved, Reservation)
    return reserved


# filter


def test_each_node_is_in_one_list_of_the_answer() -> None:
    world = World.of(n1=1, n2=2, n3=1)
    world.bind("a", "n3")
    answer = world.ask("b", "n1", "n2", "n3", "nobody-reports-me")
    assert set(answer.fitting) == {"n1", "n2"}
    assert answer.fails == {"n3": Missing.TOO_FEW_FREE_GPUS.shown}
    assert answer.never == {"nobody-reports-me": Missing.NO_REPORT.shown}


def test_an_unknown_node_is_answered_although_as_many_nodes_are_named_as_there_are() -> None:
    # The call names as many nodes as central has, and one of them is unknown.
    world = World.of(n1=1, n2=1, n3=1)
    answer = world.ask("b", "n1", "n2", "stranger")
    assert set(answer.fitting) == {"n1", "n2"}
    assert answer.never == {"stranger": Missing.NO_REPORT.shown}


def test_a_pod_that_can_never_fit_is_unresolvable(world: World) -> None:
    answer = world.ask("b", limits={"lading.dev/gpu": "2"})
    assert (answer.fitting, answer.never) == ([], {"n1": Missing.TOO_FEW_GPUS.shown})


def test_a_pod_without_a_request_fits_everywhere(world: World) -> None:
    assert world.ask("b", "n1", "n7", limits={"cpu": "1"}).fitting == ["n1", "n7"]
    assert (len(world.pending), world.refused) == (0, [])


def test_a_malformed_request_is_refused_on_every_node_and_not_pending(world: World) -> None:
    world.ask("b")
    world.pods["b"] = pod("b", {"lading.dev/gpu": "1", "lading.dev/gpux": "1"}, version=world.next_version())
    answer = world.filter("b", "n1", "n2")
    assert set(answer.never) == {"n1", "n2"}
    assert all("lading.dev/gpux" in reason for reason in answer.never.values())
    assert all(OfPod.REQUEST_MALFORMED in reason for reason in answer.never.values())
    assert (len(world.pending), predicted(world, "b")) == (0, "")


def test_the_devices_on_the_best_node_are_held_for_a_time(world: World) -> None:
    world.show("a")
    world.show("b")
    assert world.filter("a").fitting == ["n1"]
    assert world.filter("b").fitting == []
    world.ledger.expire(PREDICTION_S)
    assert world.filter("b").fitting == ["n1"]


def test_a_decision_holds_nothing_until_it_is_applied(world: World) -> None:
    decisions = [world.scheduler.decide(world.show(name), ["n1"]) for name in "ab"]
    assert [one.answer.fitting for one in decisions] == [["n1"]] * 2
    assert predicted(world, "a") == predicted(world, "b") == ""
    for decision in decisions:
        world.scheduler.apply(decision)
    assert (predicted(world, "a"), predicted(world, "b")) == ("n1", "")
    assert world.is_refused("b")


def test_a_repeated_call_gets_the_predicted_node_again() -> None:
    world = World.of(n1=1, n2=1)
    world.ask("a")
    first = predicted(world, "a")
    other = ({"n1", "n2"} - {first}).pop()
    assert world.ask("b").fitting == [other]
    assert world.filter("a").fitting == [first]  # the pod's own prediction does not count
    assert predicted(world, "a") == first
    assert world.filter("a", other).fitting == []
    assert (predicted(world, "a"), world.is_refused("a")) == ("", True)


def test_a_decision_about_a_pod_that_ended_meanwhile_changes_nothing(world: World) -> None:
    decision = world.scheduler.decide(world.show("a"), ["n1"])
    world.deleted("a")
    world.scheduler.apply(decision)
    assert predicted(world, "a") == ""
    assert len(world.pending) == 0


def test_a_claim_for_a_pod_that_is_being_bound_by_now_is_not_ended(world: World) -> None:
    world.show("low")
    high = world.show("high", priority=10)
    low = world.pending_pod("low")
    placement = world.scheduler.placement(low, "n1")
    assert placement is not None
    world.ledger.claims.nominate(low.uid, "n1", placement.taken, 100.0, low.holder)
    decision = world.scheduler.decide(high, ["n1"])
    assert decision.answer.fitting == ["n1"]
    reserve(world, "low", "n1")
    world.scheduler.apply(decision)
    assert world.scheduler.nominated_node(low.uid) == "n1"
    assert (predicted(world, "high"), world.is_refused("high")) == ("", True)


def test_a_pod_that_is_filtered_twice_is_held_once() -> None:
    world = World.of(n1=1, n2=1)
    first, second = world.ask("a"), world.filter("a")
    assert set(first.fitting) == set(second.fitting) == {"n1", "n2"}
    assert world.ask("b").fitting == [({"n1", "n2"} - {predicted(world, "a")}).pop()]


def test_a_pod_that_is_refused_and_fits_later(world: World) -> None:
    world.bind("a", "n1")
    world.show("b")
    world.now = 7.0
    assert world.filter("b").fitting == []
    assert (world.pending_pod("b").refused_at, world.refused) == (7.0, ["b"])
    world.now = 9.0
    world.filter("b")
    assert world.pending_pod("b").refused_at == 7.0
    world.deleted("a")
    assert world.filter("b").fitting == ["n1"]
    assert world.pending_pod("b").refused_at is None


def test_a_bound_pod_fits_on_its_node_alone() -> None:
    world = World.of(n1=1, n2=1)
    world.bind("a", "n1")
    answer = world.filter("a")
    assert (answer.fitting, answer.never) == (["n1"], {"n2": OfPod.BOUND_ELSEWHERE.shown})
    assert len(world.pending) == 0


def test_kube_scheduler_may_ask_for_a_pod_that_is_deleted(world: World) -> None:
    world.show("a")
    late = world.pods["a"]
    world.deleted("a")
    world.pods["a"] = late
    assert world.filter("a").never == {"n1": OfPod.POD_ENDED.shown}
    assert (len(world.pending), world.is_free("n1")) == (0, True)


def test_a_pod_whose_reserved_node_is_not_asked_about_is_requeued_when_it_was_not_bound() -> None:
    world = World.of(n1=1, n2=1)
    world.ask("a")
    reserved = reserve(world, "a", "n1")
    assert world.filter("a", "n2").fitting == []
    world.scheduler.release(reserved)
    assert world.is_refused("a")


def test_binpack_chooses_the_fullest_node_and_spread_the_emptiest() -> None:
    for policy, winner in ((Policy.BINPACK, "n1"), (Policy.SPREAD, "n2")):
        world = World(policy=policy)
        world.node("n1", 2)
        world.node("n2", 2)
        world.bind("a", "n1")
        world.ask("b")
        assert predicted(world, "b") == winner


# prioritize


def test_prioritize_names_the_predicted_node() -> None:
    world = World.of(n1=1, n2=2, n3=1)
    world.ask("a")
    winner = predicted(world, "a")
    assert world.scheduler.prioritize(decoded(world.pods["a"]), ["n1", "n2", "n3"]) == winner
    others = [name for name in ("n1", "n2", "n3") if name != winner]
    assert world.scheduler.prioritize(decoded(world.pods["a"]), others) in others


def test_prioritize_names_no_node_for_a_pod_without_devices(world: World) -> None:
    assert world.scheduler.prioritize(world.show("a", {"cpu": "1"}), ["n1"]) is None


# preempt


def victims(*names: str) -> list[PodUid]:
    return [uid_of(name) for name in names]


def test_preempt_keeps_nodes_where_the_devices_suffice_then() -> None:
    world = World.of(n1=1, n2=1, n3=1)
    world.bind("a", "n1")
    world.bind("b", "n2")
    world.show("plain", {"cpu": "1"}, node="n3")
    high = world.show("high", priority=9)
    requested = {"n1": victims("a"), "n2": victims("other"), "n3": victims("plain"), "n9": victims("x")}
    assert world.preempt(high, requested) == ["n1", "n3"]


def test_preempt_needs_a_victim_and_ignores_pods_without_devices(world: World) -> None:
    assert world.preempt(world.show("high", priority=9), {"n1": victims()}) == []
    plain = world.show("plain", {"cpu": "1"}, priority=9)
    assert world.preempt(plain, {"n1": victims("a")}) == ["n1"]


# both ends of a bind


def test_reserve_takes_the_devices_and_says_so_in_the_annotation(world: World) -> None:
    world.show("a")
    reserved = reserve(world, "a", "n1")
    text = msgspec.json.decode(reserved.assignment)
    assert (text["pod"], text["node"], text["gen"]) == (uid_of("a"), "n1", 1)
    assert text["containers"]["main"]["gpus"][0]["uuid"] == gpu_uuid("n1", 0)
    assert not world.is_free("n1")
    world.scheduler.release(reserved)
    assert world.is_free("n1")


def test_the_next_reservation_has_the_next_generation(world: World) -> None:
    world.show("a")
    world.scheduler.release(reserve(world, "a", "n1"))
    assert reserve(world, "a", "n1").gen == 2


def test_a_pod_that_only_the_watch_has_shown_is_bound_without_a_filter(world: World) -> None:
    world.show("a")
    assert world.scheduler.is_open(reserve(world, "a", "n1"))


def not_bound(world: World, name: str, node: str) -> str:
    answer = world.scheduler.reserve(uid_of(name), node)
    assert isinstance(answer, NotBound)
    return answer.why


def test_no_second_binding_is_sent_while_the_outcome_of_the_first_is_unknown() -> None:
    world = World.of(n1=1, n2=1)
    world.show("a")
    reserved = reserve(world, "a", "n1")
    assert OfBinding.BINDING_UNCLEAR in not_bound(world, "a", "n1")
    assert OfBinding.BINDING_UNCLEAR in not_bound(world, "a", "n2")
    assert world.filter("a").fitting == ["n1"]
    world.scheduler.confirm(reserved)
    assert world.scheduler.reserve(uid_of("a"), "n1") == Bound()
    assert OfPod.BOUND_ELSEWHERE in not_bound(world, "a", "n2")
    world.show("a", node="n1", annotations={ASSIGNMENT: reserved.assignment})
    assert world.scheduler.reserve(uid_of("a"), "n1") == Bound()
    assert OfPod.BOUND_ELSEWHERE in not_bound(world, "a", "n2")


def test_a_pod_that_someone_bound_without_an_assignment_is_not_bound(world: World) -> None:
    world.show("a", node="n1")
    assert OfPod.BOUND_ELSEWHERE in not_bound(world, "a", "n1")


@pytest.mark.parametrize(
    ("why", "code"),
    [
        *(("unknown", OfBinding.POD_UNKNOWN), ("deleting", OfBinding.POD_UNKNOWN), ("ended", OfPod.POD_ENDED)),
        *(("no room", OfBinding.DEVICES_TAKEN), ("no such node", Missing.NO_REPORT)),
    ],
)
def test_a_reservation_is_refused_with_the_reason(world: World, why: str, code: Coded) -> None:
    if why == "deleting":
        world.show("a")
        world.show("a", deleting=True)
    elif why == "no room":
        world.bind("b", "n1")
        world.show("a")
    elif why != "unknown":
        world.show("a", phase="Succeeded" if why == "ended" else "Pending")
    assert code in not_bound(world, "a", "nowhere" if why == "no such node" else "n1")
    assert world.ledger.reservations() == ()


def test_shares_and_vfs_are_predicted_as_they_are_reserved() -> None:
    world = World()
    world.node("n1", 1, 2)
    world.show("a", share("40Gi", 50) | vfs(1))
    world.show("b", share("40Gi", 50) | vfs(1))
    world.show("c", share("40Gi", 50) | vfs(1))
    assert [bool(world.filter(name).fitting) for name in "abc"] == [True, True, False]
    for name in "ab":
        reserve(world, name, "n1")
    assert OfBinding.DEVICES_TAKEN in not_bound(world, "c", "n1")


def gpus_of(reserved: Reservation) -> list[str]:
    return [gpu["uuid"] for gpu in msgspec.json.decode(reserved.assignment)["containers"]["main"]["gpus"]]


def test_predicted_devices_are_reserved_without_another_search(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World.of(n1=2)
    for name in "ab":
        world.ask(name)
    world.show("b")  # a new version, by a change of the status
    monkeypatch.setattr("central.search.fit.find_filters", None)
    assert gpus_of(reserve(world, "b", "n1")) == [gpu_uuid("n1", 1)]


def test_a_card_that_was_cordoned_after_the_prediction_is_not_reserved() -> None:
    world = World.of(n1=2)
    world.ask("a")
    world.report("n1", 2, cordon=gpu_uuid("n1", 0))
    assert gpus_of(reserve(world, "a", "n1")) == [gpu_uuid("n1", 1)]


def test_devices_that_were_predicted_for_another_request_are_not_reserved() -> None:
    world = World.of(n1=2)
    world.ask("a")
    world.show("a", {"lading.dev/gpu": "2"})
    assert len(gpus_of(reserve(world, "a", "n1"))) == 2


def test_a_reservation_takes_the_place_of_the_prediction() -> None:
    world = World.of(n1=2)
    world.bind("before", "n1")  # the first card
    world.ask("a")  # predicted on the second
    world.deleted("before")
    reserve(world, "a", "n1")  # on the first: it is free again, and comes first
    assert world.ask("b").fitting == ["n1"]
    assert isinstance(world.scheduler.reserve(uid_of("b"), "n1"), Reservation)


# policy fragmentation


def sized(world: World, name: str, gpus: int, cpu: str = "64", memory: str = "256Gi") -> None:
    world.node(name, gpus)
    world.readiness(name, True, allocatable={"cpu": cpu, "memory": memory})


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
    world = expecting(half=1, whole=1)
    for name in ("n1", "n2", "n3"):
        sized(world, name, 1)
    world.bind("a", "n2", share(core=50), requests=SMALL)
    assert world.ask("b", limits=share(core=50), requests=SMALL).fitting == ["n1", "n2", "n3"]
    assert predicted(world, "b") == "n2"  # the started card, not a whole one
    assert world.scheduler.prioritize(decoded(world.pods["b"]), ["n1", "n2", "n3"]) == "n2"
    assert world.scheduler.prioritize(decoded(world.pods["b"]), ["n1", "n3"]) == "n1"


def test_the_card_of_a_share_is_chosen_as_the_node_is() -> None:
    world = expecting(third=3, half=2)
    sized(world, "n1", 2)
    for name, core in (("a", 50), ("b", 30)):
        world.bind(name, "n1", share(core=core), requests=SMALL)
    world.ask("c", limits=share(core=40), requests=SMALL)
    claim = world.ledger.own_claim(uid_of("c"), Claim.PREDICTED)
    assert claim is not None
    # On the card with 50 % free, 10 % would remain, which no pod requests; the card with 70 % free keeps 30 %, as b requests.
    assert [*claim.taken.gpus] == [gpu_uuid("n1", 1)]
    assert world.ledger.capacity("n1").cards[0].free_core == 50
    reserve(world, "c", "n1")
    held = world.ledger.own_claim(uid_of("c"), Claim.RESERVED)
    assert held is not None
    assert held.taken == claim.taken


def test_a_node_whose_cpu_other_pods_need_is_avoided() -> None:
    world = expecting(whole=1)
    sized(world, "n1", 2, cpu="8")
    sized(world, "n2", 2, cpu="64")
    world.ask("a", limits=share(core=50), requests={"cpu": "6", "memory": "1Gi"})
    assert predicted(world, "a") == "n2"


def test_the_cpu_of_a_prediction_counts_until_the_prediction_ends() -> None:
    world = expecting(whole=1)
    sized(world, "n1", 2)
    world.ask("a", requests=SMALL)
    assert world.ledger.capacity("n1").cpu_milli == 60_000
    world.ledger.expire(world.now + PREDICTION_S)
    assert world.ledger.capacity("n1").cpu_milli == 64_000


def test_a_node_that_is_short_of_cpu_by_the_ledger_is_named_where_kube_scheduler_has_no_other() -> None:
    world = expecting(whole=1)
    sized(world, "n1", 1, cpu="1")
    assert world.ask("a", requests=SMALL).fitting == ["n1"]
    assert predicted(world, "a") == "n1"


def test_a_pod_may_request_the_policy_by_annotation() -> None:
    world = World(forecast=Forecast({PodKind(core_percent=50): 1.0, PodKind(gpus=1): 1.0}, learns=False))
    for name in ("n1", "n2"):
        world.node(name, 1)
    world.bind("a", "n2", share(core=50))
    world.ask("b", limits=share(core=50), annotations={POLICY: "fragmentation"})
    assert predicted(world, "b") == "n2"


def test_pods_without_devices_go_where_cards_lose_the_least() -> None:
    world = expecting(whole=1)
    sized(world, "n1", 2, cpu="8")  # the two cards need all of this cpu
    sized(world, "n2", 2, cpu="64")
    beside = pod("a", {}, version=world.next_version(), requests=SMALL)
    assert world.scheduler.prioritize(decoded(beside), ["n1", "n2"]) == "n2"
    assert world.scheduler.prioritize(decoded(beside), ["n1", "n2", "without-devices"]) is None
    binpack = World()
    sized(binpack, "n1", 1)
    assert binpack.scheduler.prioritize(decoded(beside), ["n1"]) is None


def test_cpu_of_a_pod_without_devices_counts_where_it_was_named() -> None:
    world = expecting(whole=1)
    sized(world, "n1", 1, cpu="8")
    sized(world, "n2", 1)
    world.bind("a", "n1", requests=SMALL)  # n1 has nothing to lose, and cpu for one more pod
    shown = {name: world.show(name, {}, requests=SMALL) for name in ("b", "c", "d")}
    assert world.scheduler.prioritize(shown["b"], ["n1", "n2"]) == "n1"
    assert world.scheduler.prioritize(shown["b"], ["n1", "n2"]) == "n1"  # the pod's own cpu does not count
    assert world.scheduler.prioritize(shown["c"], ["n1", "n2"]) == "n2"
    world.deleted("b")
    assert world.scheduler.prioritize(shown["d"], ["n1", "n2"]) == "n1"
    world.now += PREDICTION_S
    world.ledger.expire(world.now)
    assert world.ledger.capacity("n1").cpu_milli == 4000
    world.show("c", {}, requests=SMALL, node="n1")
    assert world.ledger.capacity("n1").cpu_milli == 0


def test_each_pod_is_learned_once() -> None:
    world = World(policy=Policy.FRAGMENTATION)
    sized(world, "n1", 1)
    world.show("a", requests=SMALL)
    for _ in range(3):
        world.filter("a")
    beside = pod("b", {}, version=world.next_version(), requests=SMALL)
    world.scheduler.prioritize(decoded(beside), ["n1"])
    assert world.scheduler.forecast.learned == 2


def test_refusals_are_counted_by_the_reason_of_most_nodes() -> None:
    world = World.of(n1=1, n2=1)
    world.bind("a", "n1")
    world.bind("b", "n2")
    world.show("c")
    for _ in range(2):  # kube-scheduler asks again
        world.filter("c")
    assert world.pending_pod("c").refused_for is Missing.TOO_FEW_FREE_GPUS
    world.show("c", annotations={"changed": "yes"})
    assert world.pending_pod("c").refused_for is Missing.TOO_FEW_FREE_GPUS
    world.ask("d", limits={"lading.dev/gpu-core": "500"})
    world.filter("a", "n2")
    assert world.scheduler.counts.refused == {
        Missing.TOO_FEW_FREE_GPUS: 2,
        OfPod.REQUEST_MALFORMED: 1,
        OfPod.BOUND_ELSEWHERE: 1,
    }


# more nodes than one request has time for

EXACT = {"lading.dev/gpu": "1", "lading.dev/rdma": "1"}  # not by counting


@pytest.mark.parametrize("policy", [Policy.BINPACK, Policy.FRAGMENTATION])
def test_nodes_that_were_not_judged_in_time_are_refused_for_that_and_judged_later(policy: Policy) -> None:
    world = World(policy=policy, slice_s=0.0)
    world.node("n1", 1, vfs=1)
    world.node("n2", 2, vfs=1)
    answer = world.ask("a", "n1", "n2", limits=EXACT)
    (fits,), failed = answer.fitting, answer.never
    assert failed == {({"n1", "n2"} - {fits}).pop(): Missing.NOT_REACHED.shown}
    exhaust(world.scheduler.filter_steps(decoded(world.pods["a"])))
    assert set(world.filter("a", "n1", "n2").fitting) == {"n1", "n2"}


@pytest.mark.parametrize("policy", [Policy.BINPACK, Policy.FRAGMENTATION])
def test_a_node_that_changed_after_it_was_judged_is_judged_again_before_it_is_named(policy: Policy) -> None:
    world = World(policy=policy, slice_s=0.0)
    world.node("n1", 1, vfs=1)
    world.show("a", EXACT)
    exhaust(world.scheduler.filter_steps(decoded(world.pods["a"])))
    world.bind("b", "n1")
    assert world.filter("a", "n1").fails == {"n1": Missing.TOO_FEW_FREE_GPUS.shown}


def test_no_victims_are_searched_before_all_nodes_were_judged() -> None:
    world = World(slice_s=0.0)
    for name in ("n1", "n2"):
        world.node(name, 1, vfs=1)
        world.bind(f"on-{name}", name)
    world.ask("a", "n1", "n2", limits=EXACT, priority=1)
    assert (world.is_refused("a"), world.refused) == (True, [])
    world.filter("a", "n1", "n2")
    assert world.refused == ["a"]


def test_a_pod_whose_binding_failed_is_held_for_as_long_as_any_other(world: World) -> None:
    world.ask("a")
    world.scheduler.release(reserve(world, "a", "n1"))
    world.now = PREDICTION_S
    world.filter("a")
    claim = world.ledger.own_claim(uid_of("a"), Claim.PREDICTED)
    assert claim is not None
    assert claim.until == 2 * PREDICTION_S
