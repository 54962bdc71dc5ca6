"""Test sharing constraints through filter, bind and watch: races, other nodes, a restart, an edited annotation, requeueing,
eviction."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from central.controllers.requeue import Requeuer
from central.decide.scheduler import PREDICTION_S, NotBound, Reservation
from central.decide.why_pod import describe_request, why_pending
from central.ledger.model import Claim
from central.request.pod import Pod
from central.search.placement import Missing
from lading.vocabulary import ASSIGNMENT, GpuUuid
from tests.fakes.kube_objects import decoded, gpu_uuid, share
from tests.fakes.simulated_time import run_simulated
from tests.unit.central.world import World, uid_of

TEN, FIFTY = share("10Gi"), share("50Gi")


def world(*, gpus: int = 2, nodes: tuple[str, ...] = ("n1", "n2")) -> World:
    made = World()
    for name in nodes:
        made.node(name, gpus)
    return made


def labels(**rules: str) -> dict[str, str]:
    return {f"lading.dev/share-{rule.replace('_', '-')}": label for rule, label in rules.items()}


def create(made: World, name: str, limits: Mapping[str, str] = TEN, *, priority: int = 0, **rules: Any) -> Pod:
    return made.show(name, limits, annotations=labels(**rules), priority=priority)


def bind(made: World, name: str, node: str, limits: Mapping[str, str] = TEN, *, priority: int = 0, **rules: Any) -> str:
    """Bind the pod, and return the UUID of its card."""
    create(made, name, limits, priority=priority, **rules)
    made.filter(name, node)
    reserved = made.scheduler.reserve(uid_of(name), node)
    assert isinstance(reserved, Reservation), reserved
    made.scheduler.confirm(reserved)
    given = {**labels(**rules), ASSIGNMENT: reserved.assignment}
    made.show(name, limits, node=node, annotations=given, priority=priority)
    return card_of(made, name)


def card_of(made: World, name: str) -> str:
    (uuid,) = made.scheduler.ledger.pod(uid_of(name)).taken.gpus  # type: ignore[union-attr]
    return uuid


def predicted(made: World, name: str) -> tuple[str, set[GpuUuid]]:
    claim = made.ledger.own_claim(uid_of(name), Claim.PREDICTED)
    return (claim.node, set(claim.taken.gpus)) if claim else ("", set())


# affinity


def test_the_second_pod_of_a_group_follows_the_first_that_is_filtered_at_the_same_moment() -> None:
    made = world()
    for name in ("a", "b"):
        create(made, name, affinity="x")
    made.filter("a", "n2")
    answer = made.filter("b", "n1", "n2")
    assert (answer.fitting, answer.fails) == (["n2"], {"n1": Missing.GROUP_ELSEWHERE.shown})
    assert predicted(made, "a") == predicted(made, "b")
    assert made.scheduler.prioritize(decoded(made.pods["b"]), ["n1", "n2"]) == "n2"


def test_two_whose_predictions_are_over_do_not_open_two_cards() -> None:
    made = world()
    for name, node in (("a", "n1"), ("b", "n2")):
        create(made, name, affinity="x")
        made.filter(name, node)
        made.ledger.expire(made.now + PREDICTION_S)
    assert isinstance(made.scheduler.reserve(uid_of("a"), "n1"), Reservation)
    refused = made.scheduler.reserve(uid_of("b"), "n2")
    assert isinstance(refused, NotBound)


def test_a_group_is_pulled_to_its_node_even_if_kube_scheduler_does_not_name_it() -> None:
    made = world()
    bind(made, "a", "n1", affinity="x")
    create(made, "b", affinity="x")
    answer = made.filter("b", "n2")
    assert (answer.fitting, answer.fails) == ([], {"n2": Missing.GROUP_ELSEWHERE.shown})
    assert made.is_refused("b")
    assert made.refused == ["b"]
    assert made.scheduler.prioritize(decoded(made.pods["b"]), ["n2"]) is None


def test_a_full_card_is_waited_for() -> None:
    made = world()
    bind(made, "a", "n1", FIFTY, affinity="x")
    create(made, "b", FIFTY, affinity="x")
    answer = made.filter("b", "n1", "n2")
    assert answer.fails == {"n1": Missing.GROUP_FULL.shown, "n2": Missing.GROUP_ELSEWHERE.shown}
    made.deleted("a")
    assert set(made.filter("b", "n1", "n2").fitting) == {"n1", "n2"}


def test_a_group_on_a_node_that_is_not_ready_waits_for_it() -> None:
    made = world()
    bind(made, "a", "n1", affinity="x")
    made.readiness("n1", False)
    create(made, "b", affinity="x")
    answer = made.filter("b", "n1", "n2")
    assert answer.never == {"n1": Missing.UNREACHABLE.shown}
    assert answer.fails == {"n2": Missing.GROUP_ELSEWHERE.shown}


@pytest.mark.parametrize(("rule", "at_home"), [("affinity", {"n1"}), ("anti_affinity", {"n2"})])
def test_a_namespace_has_its_own_labels(rule: str, at_home: set[str]) -> None:
    made = world(gpus=1)
    text: dict[str, Any] = {rule: "x"}
    bind(made, "a", "n1", **text)
    create(made, "b", **text)
    assert set(made.filter("b", "n1", "n2").fitting) == at_home
    made.pods["b"]["metadata"]["namespace"] = "other"
    made.pods["b"]["metadata"]["resourceVersion"] = str(made.next_version())
    assert set(made.filter("b", "n1", "n2").fitting) == {"n1", "n2"}


# anti-affinity and exclusion


def test_pods_with_one_anti_affinity_are_separate_also_before_they_are_bound() -> None:
    made = world(gpus=2, nodes=("n1",))
    for name in "abc":
        create(made, name, anti_affinity="x")
    assert [made.filter(name, "n1").fitting for name in "abc"] == [["n1"], ["n1"], []]
    assert not predicted(made, "a")[1] & predicted(made, "b")[1]


def test_an_exclusive_card_is_closed_to_all_others() -> None:
    made = world(gpus=1, nodes=("n1",))
    bind(made, "a", "n1", exclusion="x")
    create(made, "b")
    create(made, "c", exclusion="y")
    create(made, "d", exclusion="x")
    for name, fits in (("b", []), ("c", []), ("d", ["n1"])):
        answer = made.filter(name, "n1")
        assert (name, answer.fitting) == (name, fits)
        assert answer.fails == ({} if fits else {"n1": Missing.KEPT_OFF.shown})


def test_nodes_that_differ_in_labels_only_are_distinguished() -> None:
    made = world(gpus=1)
    bind(made, "a", "n1", exclusion="x")
    bind(made, "b", "n2")
    create(made, "c")
    create(made, "d", exclusion="x")
    assert [made.filter(name, "n1", "n2").fitting for name in "cd"] == [["n2"], ["n1"]]


def test_a_share_by_hand_is_a_sharer_without_labels() -> None:
    made = world(gpus=1, nodes=("n1",))
    by_hand = {"pod": "uid-x", "container": "main", "gpus": [{"uuid": gpu_uuid("n1", 0), "memoryMiB": 100}]}
    made.report("n1", 1, grants=[by_hand])
    create(made, "a", exclusion="x")
    create(made, "b", anti_affinity="x")
    assert (made.filter("a", "n1").fitting, made.filter("b", "n1").fitting) == ([], ["n1"])


# labels in force


def test_labels_survive_a_restart() -> None:
    made = world()
    bind(made, "a", "n1", affinity="x", exclusion="x")
    again = world()
    again.pods = made.pods
    again.version = made.version
    again.pod_feed.replaced([decoded(shown) for shown in made.pods.values()], str(again.next_version()))
    assert again.ledger.capacity("n1").cards == made.ledger.capacity("n1").cards
    create(again, "b", affinity="x", exclusion="x")
    create(again, "c")
    assert again.filter("b", "n1", "n2").fitting == ["n1"]
    assert again.filter("c", "n1", "n2").fitting == ["n1", "n2"]
    assert predicted(again, "c")[1] != {card_of(made, "a")}


@pytest.mark.parametrize("edited", [{}, labels(exclusion="y"), labels(affinity="z"), labels(exclusion="not a label")])
def test_an_annotation_that_is_edited_after_the_binding_changes_nothing(edited: dict[str, str]) -> None:
    made = world(gpus=1, nodes=("n1",))
    bind(made, "a", "n1", affinity="x", exclusion="x")
    before = made.ledger.capacity("n1").cards
    text = made.pods["a"]["metadata"]["annotations"][ASSIGNMENT]
    made.show("a", TEN, node="n1", annotations={**edited, ASSIGNMENT: text})
    assert made.ledger.capacity("n1").cards == before
    create(made, "b", exclusion="y")
    assert made.filter("b", "n1").fitting == []


def test_an_annotation_that_is_edited_before_is_what_counts() -> None:
    made = world(gpus=1, nodes=("n1",))
    create(made, "a", exclusion="x")
    made.filter("a", "n1")
    create(made, "a", exclusion="y")
    made.filter("a", "n1")
    reserved = made.scheduler.reserve(uid_of("a"), "n1")
    assert isinstance(reserved, Reservation)
    assert msgspec.json.decode(reserved.assignment)["sharing"] == {"exclusion": "y"}


def test_a_pod_for_which_room_is_made_and_that_fits_elsewhere_gives_its_group_one_card() -> None:
    made = world(gpus=1)
    create(made, "a", affinity="x")
    made.filter("a", "n1")
    capacity_made = made.ledger.own_claim(uid_of("a"), Claim.PREDICTED)
    assert capacity_made is not None
    made.ledger.claims.forget_prediction(uid_of("a"))
    made.ledger.claims.nominate(uid_of("a"), "n1", capacity_made.taken, 100.0)
    made.filter("a", "n2")  # where it fits now
    create(made, "b", affinity="x")
    assert made.filter("b", "n1", "n2").fitting == ["n2"]
    assert predicted(made, "a") == predicted(made, "b")


# requeued pods and victims


def requeued(waker: Requeuer) -> list[str]:
    return [pod.name for pod in run_simulated(waker.scan())]


def test_a_group_whose_last_pod_ends_is_requeued_for_room_that_was_there_all_the_time() -> None:
    made = world(gpus=1)
    waker = Requeuer(made.scheduler, lambda _: asyncio.sleep(0), clock=lambda: made.now, log=made.records.log)
    bind(made, "a", "n1", affinity="x")
    bind(made, "other", "n1", FIFTY)
    create(made, "b", share("60Gi"), affinity="x")
    assert made.filter("b", "n1", "n2").fitting == []
    requeued(waker)
    made.deleted("a")  # on n1 there is still too little
    assert requeued(waker) == ["b"]
    assert made.filter("b", "n1", "n2").fitting == ["n2"]


def test_room_elsewhere_does_not_wake_a_group() -> None:
    made = world(gpus=1)
    waker = Requeuer(made.scheduler, lambda _: asyncio.sleep(0), clock=lambda: made.now, log=made.records.log)
    bind(made, "a", "n1", FIFTY, affinity="x")
    bind(made, "other", "n2", FIFTY)
    create(made, "b", FIFTY, affinity="x")
    made.filter("b", "n1", "n2")
    requeued(waker)
    made.deleted("other")
    assert requeued(waker) == []
    made.deleted("a")
    assert requeued(waker) == ["b"]


@pytest.mark.parametrize(("one", "other"), [("x", "x"), ("x", "y")])
def test_who_was_kept_off_is_requeued_when_the_sharer_ends(one: str, other: str) -> None:
    made = world(gpus=1, nodes=("n1",))
    waker = Requeuer(made.scheduler, lambda _: asyncio.sleep(0), clock=lambda: made.now, log=made.records.log)
    bind(made, "a", "n1", anti_affinity="x", exclusion=one)
    create(made, "b", anti_affinity="x", exclusion=other)
    assert made.filter("b", "n1").fitting == []
    requeued(waker)
    made.deleted("a")
    assert requeued(waker) == ["b"]


def test_preemption_makes_room_on_the_groups_card_only() -> None:
    made = world(gpus=1)
    bind(made, "a", "n1", affinity="x", priority=100)
    bind(made, "low1", "n1", FIFTY, priority=1)
    bind(made, "low2", "n2")  # where there is room, but not for this group
    create(made, "b", FIFTY, affinity="x", priority=50)
    pod = made.pending_pod("b")
    made.filter("b", "n1", "n2")
    result = made.plan(pod, ["n1", "n2"])
    assert result is not None
    assert (result.node, [victim.name for victim in result.victims]) == ("n1", ["low1"])
    assert made.plan(pod, ["n2"]) is None
    deleted = {name: [uid_of(low)] for name, low in (("n1", "low1"), ("n2", "low2"))}
    assert made.preempt(decoded(made.pods["b"]), deleted) == ["n1"]


def test_a_kept_off_pod_of_higher_priority_has_the_sharer_evicted() -> None:
    made = world(gpus=1, nodes=("n1",))
    bind(made, "a", "n1", exclusion="x")
    create(made, "b", priority=50)
    made.filter("b", "n1")
    result = made.plan(made.pending_pod("b"), ["n1"])
    assert result is not None
    assert [victim.name for victim in result.victims] == ["a"]


# in words


def test_why_names_the_card_the_node_and_the_pods_of_the_group() -> None:
    made = world()
    card = bind(made, "a", "n1", FIFTY, affinity="x")
    create(made, "b", FIFTY, affinity="x", exclusion="y")
    made.filter("b", "n1", "n2")
    text = why_pending(made.scheduler, made.pending_pod("b"), made.now)
    details: dict[str, Any] = {node.node: (node.reason, node.detail) for node in text.nodes}
    assert details["n1"][0] == Missing.GROUP_FULL.value
    assert card in details["n1"][1]
    assert details["n2"][0] == Missing.GROUP_ELSEWHERE.value
    assert all(word in details["n2"][1] for word in ("x", card, "n1", "default/a"))
    assert all(word in describe_request(made.pending_pod("b")) for word in ("share-affinity x", "share-exclusion y"))
