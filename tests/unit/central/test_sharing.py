"""Test sharing constraints through filter, bind and watch: races, other nodes, a restart, an edited annotation, requeueing,
eviction."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from central.decide.scheduler import PREDICTION_S, NotBound, Reservation
from central.decide.why_pod import why_pending
from central.ledger.model import Claim
from central.request.describe import describe_request
from central.request.pod import Pod
from central.search.placement import Missing
from lading.vocabulary import ASSIGNMENT, GpuUuid
from tests.fakes.kube_objects import decoded, gpu_uuid, share
from tests.unit.central.world import World, uid_of

TEN, FIFTY = share("10Gi"), share("50Gi")


@pytest.fixture
def world() -> World:
    """Create two nodes with two cards each."""
    return World.of(n1=2, n2=2)


def labels(**rules: str) -> dict[str, str]:
    return {f"lading.dev/share-{rule.replace('_', '-')}": label for rule, label in rules.items()}


def create(world: World, name: str, limits: Mapping[str, str] = TEN, *, priority: int = 0, **rules: Any) -> Pod:
    return world.show(name, limits, annotations=labels(**rules), priority=priority)


def bind(world: World, name: str, node: str, limits: Mapping[str, str] = TEN, *, priority: int = 0, **rules: Any) -> str:
    """Bind the pod, and return the UUID of its card."""
    world.bind(name, node, limits, annotations=labels(**rules), priority=priority)
    return card_of(world, name)


def card_of(world: World, name: str) -> str:
    (uuid,) = world.scheduler.ledger.pod(uid_of(name)).taken.gpus  # type: ignore[union-attr]
    return uuid


def predicted(world: World, name: str) -> tuple[str, set[GpuUuid]]:
    claim = world.ledger.own_claim(uid_of(name), Claim.PREDICTED)
    return (claim.node, set(claim.taken.gpus)) if claim else ("", set())


# affinity


def test_the_second_pod_of_a_group_follows_the_first_that_is_filtered_at_the_same_moment(world: World) -> None:
    for name in ("a", "b"):
        create(world, name, affinity="x")
    world.filter("a", "n2")
    answer = world.filter("b", "n1", "n2")
    assert (answer.fitting, answer.fails) == (["n2"], {"n1": Missing.GROUP_ELSEWHERE.shown})
    assert predicted(world, "a") == predicted(world, "b")
    assert world.scheduler.prioritize(decoded(world.pods["b"]), ["n1", "n2"]) == "n2"


def test_two_whose_predictions_are_over_do_not_open_two_cards(world: World) -> None:
    for name, node in (("a", "n1"), ("b", "n2")):
        create(world, name, affinity="x")
        world.filter(name, node)
        world.ledger.expire(world.now + PREDICTION_S)
    assert isinstance(world.scheduler.reserve(uid_of("a"), "n1"), Reservation)
    refused = world.scheduler.reserve(uid_of("b"), "n2")
    assert isinstance(refused, NotBound)


def test_a_group_is_pulled_to_its_node_even_if_kube_scheduler_does_not_name_it(world: World) -> None:
    bind(world, "a", "n1", affinity="x")
    create(world, "b", affinity="x")
    answer = world.filter("b", "n2")
    assert (answer.fitting, answer.fails) == ([], {"n2": Missing.GROUP_ELSEWHERE.shown})
    assert world.is_refused("b")
    assert world.refused == ["b"]
    assert world.scheduler.prioritize(decoded(world.pods["b"]), ["n2"]) is None


def test_a_full_card_is_waited_for(world: World) -> None:
    bind(world, "a", "n1", FIFTY, affinity="x")
    create(world, "b", FIFTY, affinity="x")
    answer = world.filter("b", "n1", "n2")
    assert answer.fails == {"n1": Missing.GROUP_FULL.shown, "n2": Missing.GROUP_ELSEWHERE.shown}
    world.deleted("a")
    assert set(world.filter("b", "n1", "n2").fitting) == {"n1", "n2"}


def test_a_group_on_a_node_that_is_not_ready_waits_for_it(world: World) -> None:
    bind(world, "a", "n1", affinity="x")
    world.readiness("n1", False)
    create(world, "b", affinity="x")
    answer = world.filter("b", "n1", "n2")
    assert answer.never == {"n1": Missing.UNREACHABLE.shown}
    assert answer.fails == {"n2": Missing.GROUP_ELSEWHERE.shown}


@pytest.mark.parametrize(("rule", "at_home"), [("affinity", {"n1"}), ("anti_affinity", {"n2"})])
def test_a_namespace_has_its_own_labels(rule: str, at_home: set[str]) -> None:
    world = World.of(n1=1, n2=1)
    text: dict[str, Any] = {rule: "x"}
    bind(world, "a", "n1", **text)
    create(world, "b", **text)
    assert set(world.filter("b", "n1", "n2").fitting) == at_home
    world.pods["b"]["metadata"]["namespace"] = "other"
    world.pods["b"]["metadata"]["resourceVersion"] = str(world.next_version())
    assert set(world.filter("b", "n1", "n2").fitting) == {"n1", "n2"}


# anti-affinity and exclusion


def test_pods_with_one_anti_affinity_are_separate_also_before_they_are_bound() -> None:
    world = World.of(n1=2)
    for name in "abc":
        create(world, name, anti_affinity="x")
    assert [world.filter(name, "n1").fitting for name in "abc"] == [["n1"], ["n1"], []]
    assert not predicted(world, "a")[1] & predicted(world, "b")[1]


def test_an_exclusive_card_is_closed_to_all_others() -> None:
    world = World.of(n1=1)
    bind(world, "a", "n1", exclusion="x")
    create(world, "b")
    create(world, "c", exclusion="y")
    create(world, "d", exclusion="x")
    for name, fits in (("b", []), ("c", []), ("d", ["n1"])):
        answer = world.filter(name, "n1")
        assert (name, answer.fitting) == (name, fits)
        assert answer.fails == ({} if fits else {"n1": Missing.KEPT_OFF.shown})


def test_nodes_that_differ_in_labels_only_are_distinguished() -> None:
    world = World.of(n1=1, n2=1)
    bind(world, "a", "n1", exclusion="x")
    bind(world, "b", "n2")
    create(world, "c")
    create(world, "d", exclusion="x")
    assert [world.filter(name, "n1", "n2").fitting for name in "cd"] == [["n2"], ["n1"]]


def test_a_share_by_hand_is_a_sharer_without_labels() -> None:
    world = World.of(n1=1)
    by_hand = {"pod": "uid-x", "container": "main", "gpus": [{"uuid": gpu_uuid("n1", 0), "memoryMiB": 100}]}
    world.report("n1", 1, grants=[by_hand])
    create(world, "a", exclusion="x")
    create(world, "b", anti_affinity="x")
    assert (world.filter("a", "n1").fitting, world.filter("b", "n1").fitting) == ([], ["n1"])


# labels in force


def test_labels_survive_a_restart(world: World) -> None:
    bind(world, "a", "n1", affinity="x", exclusion="x")
    again = World.of(n1=2, n2=2)
    again.pods = world.pods
    again.version = world.version
    again.pod_feed.replaced([decoded(shown) for shown in world.pods.values()], str(again.next_version()))
    assert again.ledger.capacity("n1").cards == world.ledger.capacity("n1").cards
    create(again, "b", affinity="x", exclusion="x")
    create(again, "c")
    assert again.filter("b", "n1", "n2").fitting == ["n1"]
    assert again.filter("c", "n1", "n2").fitting == ["n1", "n2"]
    assert predicted(again, "c")[1] != {card_of(world, "a")}


@pytest.mark.parametrize("edited", [{}, labels(exclusion="y"), labels(affinity="z"), labels(exclusion="not a label")])
def test_an_annotation_that_is_edited_after_the_binding_changes_nothing(edited: dict[str, str]) -> None:
    world = World.of(n1=1)
    bind(world, "a", "n1", affinity="x", exclusion="x")
    before = world.ledger.capacity("n1").cards
    text = world.pods["a"]["metadata"]["annotations"][ASSIGNMENT]
    world.show("a", TEN, node="n1", annotations={**edited, ASSIGNMENT: text})
    assert world.ledger.capacity("n1").cards == before
    create(world, "b", exclusion="y")
    assert world.filter("b", "n1").fitting == []


def test_an_annotation_that_is_edited_before_is_what_counts() -> None:
    world = World.of(n1=1)
    create(world, "a", exclusion="x")
    world.filter("a", "n1")
    create(world, "a", exclusion="y")
    world.filter("a", "n1")
    reserved = world.scheduler.reserve(uid_of("a"), "n1")
    assert isinstance(reserved, Reservation)
    assert msgspec.json.decode(reserved.assignment)["sharing"] == {"exclusion": "y"}


def test_a_pod_for_which_room_is_made_and_that_fits_elsewhere_gives_its_group_one_card() -> None:
    world = World.of(n1=1, n2=1)
    create(world, "a", affinity="x")
    world.filter("a", "n1")
    capacity_made = world.ledger.own_claim(uid_of("a"), Claim.PREDICTED)
    assert capacity_made is not None
    world.ledger.claims.forget_prediction(uid_of("a"))
    world.ledger.claims.nominate(uid_of("a"), "n1", capacity_made.taken, 100.0)
    world.filter("a", "n2")  # where it fits now
    create(world, "b", affinity="x")
    assert world.filter("b", "n1", "n2").fitting == ["n2"]
    assert predicted(world, "a") == predicted(world, "b")


# requeued pods and victims


def test_a_group_whose_last_pod_ends_is_requeued_for_room_that_was_there_all_the_time() -> None:
    world = World.of(n1=1, n2=1)
    bind(world, "a", "n1", affinity="x")
    bind(world, "other", "n1", FIFTY)
    create(world, "b", share("60Gi"), affinity="x")
    assert world.filter("b", "n1", "n2").fitting == []
    world.requeued()
    world.deleted("a")  # on n1 there is still too little
    assert world.requeued() == ["b"]
    assert world.filter("b", "n1", "n2").fitting == ["n2"]


def test_room_elsewhere_does_not_wake_a_group() -> None:
    world = World.of(n1=1, n2=1)
    bind(world, "a", "n1", FIFTY, affinity="x")
    bind(world, "other", "n2", FIFTY)
    create(world, "b", FIFTY, affinity="x")
    world.filter("b", "n1", "n2")
    world.requeued()
    world.deleted("other")
    assert world.requeued() == []
    world.deleted("a")
    assert world.requeued() == ["b"]


@pytest.mark.parametrize(("one", "other"), [("x", "x"), ("x", "y")])
def test_a_pod_that_labels_keep_off_is_requeued_when_the_sharer_ends(one: str, other: str) -> None:
    world = World.of(n1=1)
    bind(world, "a", "n1", anti_affinity="x", exclusion=one)
    create(world, "b", anti_affinity="x", exclusion=other)
    assert world.filter("b", "n1").fitting == []
    world.requeued()
    world.deleted("a")
    assert world.requeued() == ["b"]


def test_preemption_makes_room_on_the_groups_card_only() -> None:
    world = World.of(n1=1, n2=1)
    bind(world, "a", "n1", affinity="x", priority=100)
    bind(world, "low1", "n1", FIFTY, priority=1)
    bind(world, "low2", "n2")  # where there is room, but not for this group
    create(world, "b", FIFTY, affinity="x", priority=50)
    pod = world.pending_pod("b")
    world.filter("b", "n1", "n2")
    result = world.plan(pod, ["n1", "n2"])
    assert result is not None
    assert (result.node, [victim.name for victim in result.victims]) == ("n1", ["low1"])
    assert world.plan(pod, ["n2"]) is None
    deleted = {name: [uid_of(low)] for name, low in (("n1", "low1"), ("n2", "low2"))}
    assert world.preempt(decoded(world.pods["b"]), deleted) == ["n1"]


def test_a_kept_off_pod_of_higher_priority_has_the_sharer_evicted() -> None:
    world = World.of(n1=1)
    bind(world, "a", "n1", exclusion="x")
    create(world, "b", priority=50)
    world.filter("b", "n1")
    result = world.plan(world.pending_pod("b"), ["n1"])
    assert result is not None
    assert [victim.name for victim in result.victims] == ["a"]


# in words


def test_why_names_the_card_the_node_and_the_pods_of_the_group(world: World) -> None:
    card = bind(world, "a", "n1", FIFTY, affinity="x")
    create(world, "b", FIFTY, affinity="x", exclusion="y")
    world.filter("b", "n1", "n2")
    text = why_pending(world.scheduler, world.pending_pod("b"), world.now)
    details: dict[str, Any] = {node.node: (node.reason, node.detail) for node in text.nodes}
    assert details["n1"][0] == Missing.GROUP_FULL.value
    assert card in details["n1"][1]
    assert details["n2"][0] == Missing.GROUP_ELSEWHERE.value
    assert all(word in details["n2"][1] for word in ("x", card, "n1", "default/a"))
    assert all(word in describe_request(world.pending_pod("b").request) for word in ("share-affinity x", "share-exclusion y"))
