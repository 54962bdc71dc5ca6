"""Test which pods a preemptor may evict with quotas: pods of its own quota, if it then fits in the quota."""

from typing import Any

from central.decide.preempt import can_preempt
from central.decide.why_pod import why_pending
from central.quota.model import FLAT, LABEL_PREEMPTIBLE, QuotaDialect, QuotaId
from lading.vocabulary import RESOURCE_GPU
from tests.fakes.kube_objects import WHOLE
from tests.unit.central.quota.trees import quota
from tests.unit.central.state.test_quotas import Teams, cards, gpus
from tests.unit.central.world import uid_of


def victims(teams: Teams, name: str) -> set[str] | None:
    """Return the pods that central would evict; None: it would evict no pod."""
    world = teams.world
    plan = world.plan(world.pending_pod(name), world.ledger.nodes())
    return None if plan is None else {victim.name for victim in plan.victims}


def flat(namespace: str, least: int, most: int) -> Any:
    amounts = {"min": {RESOURCE_GPU: least * 1000}, "max": {RESOURCE_GPU: most * 1000}}
    return quota(f"{namespace}/q", dialect=QuotaDialect.SCHEDULER_PLUGINS, namespace=namespace, parent=QuotaId(FLAT), **amounts)


def test_victims_are_pods_of_the_same_quota() -> None:
    teams = Teams(cards("a"), cards("b"), nodes=1, cards_each=2)
    teams.run("of-b", "b", priority=-5)
    teams.run("of-a", "a")
    assert teams.ask("high", "a", priority=10) != ""
    assert victims(teams, "high") == {"of-a"}
    teams.world.deleted("of-a")
    teams.run("same", "a", priority=10)
    assert victims(teams, "high") is None
    assert not can_preempt(teams.world.scheduler, teams.world.pending_pod("high"))


def test_a_pod_that_is_not_preemptible_is_no_victim() -> None:
    teams = Teams(cards("a", 4, 4), nodes=1, cards_each=1)
    teams.run("fixed", "a", labels={LABEL_PREEMPTIBLE: "false"})
    assert teams.ask("high", "a", priority=10) != ""
    assert victims(teams, "high") is None


def test_a_pod_without_a_quota_evicts_pods_without_a_quota() -> None:
    teams = Teams(cards("a"), nodes=1, cards_each=2)
    teams.run("of-a", "a", priority=-5)
    teams.world.bind("without", "n0")
    teams.world.show("high", priority=10)
    teams.world.filter("high")
    assert victims(teams, "high") == {"without"}
    assert teams.ask("of-a-too", "a", priority=10) != ""
    assert victims(teams, "of-a-too") == {"of-a"}


def test_a_pod_beyond_its_quota_evicts_pods_until_it_fits_in_the_quota() -> None:
    """Leave 2 of 4 cards free while the quota is used up."""
    teams = Teams(cards("a", 0, 2), nodes=1, cards_each=4)
    teams.run("low", "a", priority=1)
    teams.run("lower", "a")
    assert "3 of 2 GPUs: its max" in teams.ask("high", "a", priority=10)
    assert teams.world.refused == ["high"]
    assert victims(teams, "high") == {"lower"}
    assert "4 of 2 GPUs" in teams.ask("two", "a", gpus(2), priority=10)
    assert victims(teams, "two") == {"low", "lower"}


def test_no_pod_is_evicted_for_a_pod_that_its_quota_would_still_refuse() -> None:
    teams = Teams(cards("a", 0, 2), nodes=1, cards_each=2)
    teams.run("low", "a", gpus(2))
    assert "5 of 2 GPUs" in teams.ask("three", "a", gpus(3), priority=10)
    assert victims(teams, "three") is None
    parent = cards("all", 0, 3, is_parent=True)
    tree = Teams(parent, cards("a", 0, 3, parent="all"), cards("b", 0, 3, parent="all"), nodes=1, cards_each=8)
    tree.run("of-a", "a")
    tree.run("of-b", "b", gpus(2))
    assert "5 of 3 GPUs: its max" in tree.ask("two", "a", gpus(2), priority=10)
    assert victims(tree, "two") is None


def test_a_pod_beyond_the_runtime_of_its_quota_evicts_pods_of_the_quota() -> None:
    """Let both quotas request more than half of 8 cards: each may use 4."""
    teams = Teams(cards("a", 0, 8), cards("b", 0, 8), nodes=1, cards_each=8)
    teams.run("of-b", "b", gpus(4))
    for number in range(4):
        teams.run(f"a{number}", "a", priority=number)
    assert "what it may use now" in teams.ask("high", "a", priority=10)
    assert victims(teams, "high") == {"a0"}


def test_scheduler_plugins_quotas_over_and_within_their_min() -> None:
    teams = Teams(flat("a", 2, 4), flat("b", 2, 4), nodes=1, cards_each=4)
    teams.world.bind("of-a", "n0", namespace="a")
    teams.world.bind("of-b", "n0", gpus(3), namespace="b", priority=-5)
    for name in ("within", "over"):
        teams.world.show(name, WHOLE if name == "within" else gpus(2), namespace="a", priority=10)
        teams.world.filter(name)
    assert victims(teams, "within") is None
    text = why_pending(teams.world.scheduler, teams.world.pending_pod("within"), 0.0).preempts
    assert text == "no pod by priority, because quota a/q is within its min: what others borrowed is taken back"
    teams.world.deleted("of-a")
    teams.world.bind("two", "n0", namespace="a")
    assert victims(teams, "over") is None  # 2 more are over the min, and its own pods hold too little
    teams.world.deleted("of-b")
    teams.world.bind("more", "n0", gpus(3), namespace="a")
    assert victims(teams, "within") == {"two"}


def test_the_preemption_of_kube_scheduler_follows_the_same_rule() -> None:
    teams = Teams(cards("a"), cards("b"), nodes=2, cards_each=1)
    teams.run("of-a", "a", node="n0")
    teams.run("of-b", "b", node="n1")
    shown = teams.world.show("high", labels={"quota.scheduling.koordinator.sh/name": "a"}, priority=10)
    teams.world.filter("high")
    requested = {"n0": [uid_of("of-a")], "n1": [uid_of("of-b")]}
    assert teams.world.preempt(shown, requested) == ["n0"]


def test_the_reason_names_the_pods_that_may_be_evicted() -> None:
    teams = Teams(cards("a"), nodes=1, cards_each=1)
    teams.run("low", "a")
    teams.ask("high", "a", priority=10)
    reason = why_pending(teams.world.scheduler, teams.world.pending_pod("high"), 0.0)
    assert reason.preempts == "only pods of lower priority of its quota a"
    teams.world.show("without")
    result = why_pending(teams.world.scheduler, teams.world.pending_pod("without"), 0.0)
    assert result.preempts == "only pods of lower priority without a quota"
    assert why_pending(Teams().world.scheduler, teams.world.pending_pod("high"), 0.0).preempts == ""


def test_priorities_are_counted_as_pods_come_and_go_and_quotas_change() -> None:
    teams = Teams(cards("a"), cards("b"), nodes=1, cards_each=8)
    teams.run("low", "a", priority=1)
    teams.run("lower", "a")
    teams.ask("high", "a", gpus(7), priority=10)

    def lowest() -> int | None:
        return teams.world.scheduler.preemption([teams.world.pending_pod("high")]).lowest

    assert lowest() == 0
    teams.world.deleted("lower")
    assert lowest() == 1
    teams.world.show("low", labels={"quota.scheduling.koordinator.sh/name": "b"}, node="n0", priority=1)
    teams.world.deleted("low")
    assert lowest() is None
