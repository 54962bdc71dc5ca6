"""Test isolations through filter, bind and watch: other nodes, a restart, an edited annotation, requeueing, eviction."""

import json
from typing import Any

from central.decide.why_pod import why_pending
from central.ledger.model import CardCapacity
from central.search.placement import Missing
from lading.devices.isolation import IsolationName
from tests.fakes.kube_objects import decoded, gpu_uuid, share
from tests.unit.central.world import World, uid_of

TEN, FIFTY = share("10Gi"), share("50Gi", 30)
BOTH = ("none", "tokens")


def world(*, gpus: int = 1, **offered: tuple[str, ...]) -> World:
    made = World()
    for name, isolations in offered.items():
        made.node(name, gpus, isolations=isolations)
    return made


def create(made: World, name: str, limits: dict[str, str] = TEN, *, priority: int = 0, **options: str) -> None:
    made.show(name, limits, annotations=annotations(options), priority=priority)


def annotations(text: dict[str, str]) -> dict[str, str]:
    return {f"lading.dev/{key.replace('_', '-')}": value for key, value in text.items()}


def bind(
    made: World, name: str, node: str, limits: dict[str, str] = TEN, *, priority: int = 0, **options: str
) -> dict[str, Any]:
    """Return what its assignment says of its card."""
    reserved = made.bind(name, node, limits, annotations=annotations(options), priority=priority)
    (gpu,) = json.loads(reserved.assignment)["containers"]["main"]["gpus"]
    return {key: gpu[key] for key in ("isolation", "core_limit_percent") if key in gpu}


def card_of(made: World, node: str) -> CardCapacity:
    (card,) = made.ledger.capacity(node).cards
    return card


def test_only_nodes_that_offer_it_fit() -> None:
    made = world(n1=(), n2=BOTH, n3=("tokens",))
    create(made, "a", isolation="tokens")
    answer = made.filter("a")
    assert (set(answer.fitting), answer.never) == ({"n2", "n3"}, {"n1": Missing.NO_ISOLATION.shown})
    create(made, "b", isolation="mps")
    assert set(made.filter("b").never) == {"n1", "n2", "n3"}
    made.deleted("a")
    create(made, "c")
    assert set(made.filter("c").fitting) == {"n1", "n2", "n3"}


def test_a_card_has_one_isolation_until_the_last_of_its_pods_ends() -> None:
    made = world(n1=BOTH)
    assert bind(made, "a", "n1", isolation="tokens") == {"isolation": "tokens"}
    create(made, "b")
    assert made.filter("b").fails == {"n1": Missing.OTHER_ISOLATION.shown}
    (reason,) = why_pending(made.scheduler, made.pending_pod("b"), now=0.0).nodes
    assert (reason.reason, "none" in reason.detail) == (Missing.OTHER_ISOLATION, True)
    bind(made, "c", "n1", isolation="tokens")
    made.deleted("a")
    assert made.filter("b").fails == {"n1": Missing.OTHER_ISOLATION.shown}
    made.deleted("c")
    assert made.filter("b").fitting == ["n1"]


def test_the_default_is_that_of_the_node_and_is_written() -> None:
    made = world(n1=("tokens", "none"), n2=BOTH, n3=())
    assert bind(made, "a", "n1") == {"isolation": "tokens"}
    assert bind(made, "b", "n2") == {"isolation": "none"}
    assert bind(made, "c", "n3") == {}
    assert [card_of(made, name).isolations for name in ("n1", "n2", "n3")] == [("tokens",), (), ()]


def test_the_limit_is_written() -> None:
    made = world(n1=())
    assert bind(made, "a", "n1", FIFTY, gpu_core_limit="60") == {"core_limit_percent": 60}
    record = made.ledger.pod(uid_of("a"))
    assert record is not None
    assert record.taken is not None
    assert next(iter(record.taken.gpus.values())).core_percent == 30  # the share counts, not its limit


def test_the_isolation_of_a_bound_pod_is_that_of_its_assignment() -> None:
    made = world(n1=BOTH)
    bind(made, "a", "n1", isolation="tokens")
    shown = made.pods["a"]["metadata"]["annotations"]
    made.show("a", TEN, node="n1", annotations={**shown, "lading.dev/isolation": "none"})
    assert card_of(made, "n1").isolations == ("tokens",)


def test_after_a_restart_it_is_known_from_annotations_and_from_grants() -> None:
    made = world(n1=BOTH, n2=BOTH)
    bind(made, "a", "n1", isolation="tokens")
    again = World()
    again.node("n1", isolations=BOTH)
    again.pod_feed.changed(decoded(made.pods["a"]))
    assert card_of(again, "n1") == card_of(made, "n1")
    by_hand = {"uuid": gpu_uuid("n2", 0), "memoryMiB": 10, "coreLimitPercent": 60, "isolation": "tokens"}
    grants = [{"pod": "other", "container": "c", "gpus": [by_hand]}]
    again.node("n2", isolations=BOTH, grants=grants)
    assert card_of(again, "n2").isolations == ("tokens",)


def test_an_assignment_without_one_is_what_the_node_says_it_granted() -> None:
    """Check an assignment without an isolation, which may have been written before the node was configured."""
    made = world(n1=())
    bind(made, "a", "n1")
    granted = {"uuid": gpu_uuid("n1", 0), "memoryMiB": 10240, "isolation": "tokens"}
    grants = [{"pod": uid_of("a"), "container": "main", "gpus": [granted]}]
    made.report("n1", isolations=("tokens",), grants=grants)
    assert card_of(made, "n1").isolations == ("tokens",)


def test_an_isolation_that_this_version_does_not_know_is_not_given() -> None:
    made = world(n1=("later", "tokens"), n2=("later",))
    assert made.ledger.capacity("n1").offered == (IsolationName.TOKENS,)
    assert made.ledger.capacity("n2").offered == (IsolationName.NONE,)
    assert bind(made, "a", "n2") == {}  # so that the node gives its default


def test_pods_are_requeued_by_the_end_of_shares_and_by_a_node_that_offers_more() -> None:
    made = world(n1=BOTH)
    bind(made, "a", "n1", isolation="tokens")
    create(made, "b", isolation="none")
    create(made, "c", isolation="mps")
    for name in ("b", "c"):
        made.filter(name)
    made.requeued()
    made.report("n1", isolations=(*BOTH, "mps"))
    assert made.requeued() == []  # the card is not free
    made.deleted("a")
    assert set(made.requeued()) == {"b", "c"}


def test_pods_with_another_isolation_are_evicted_for_one_of_higher_priority() -> None:
    made = world(n1=BOTH)
    for name in ("a", "b"):
        bind(made, name, "n1", isolation="tokens")
    create(made, "important", priority=10)
    assert made.filter("important").fails == {"n1": Missing.OTHER_ISOLATION.shown}
    plan = made.plan(made.pending_pod("important"), ["n1"])
    assert plan is not None
    assert {victim.name for victim in plan.victims} == {"a", "b"}
    create(made, "alike", priority=10, isolation="mps")
    assert made.plan(made.pending_pod("alike"), ["n1"]) is None
