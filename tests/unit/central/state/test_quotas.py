"""Test quotas and their state: what counts, which pods are refused, and which may try again."""

import random
from collections.abc import Mapping
from typing import Any

import pytest

from central.ledger.model import Claim
from central.loop.steps import exhaust
from central.quota.amounts import model_key
from central.quota.model import FLAT, LABEL_PREEMPTIBLE, LABEL_QUOTA, ROOT, Quota, QuotaDialect, QuotaId
from central.quota.quota_snapshot import QuotaSnapshot
from central.quota.runtime import sum_requests
from central.quota.tree import MOST_LEVELS
from central.request.reasons import OfPod
from central.state.quotas import Quotas
from central.view.quotas import view_quotas
from lading.vocabulary import RESOURCE_GPU, RESOURCE_RDMA
from tests.fakes.capacities import MODEL
from tests.fakes.kube_objects import WHOLE, decoded, grant, share, vfs
from tests.unit.central.quota.trees import divide_down, quota
from tests.unit.central.world import World, uid_of

GPU = RESOURCE_GPU


def cards(name: str, least: float = 0, most: float = 100, **options: Any) -> Quota:
    return quota(name, min={GPU: int(least * 1000)}, max={GPU: int(most * 1000)}, **options)


def of(team: str, **more: str) -> dict[str, str]:
    return {LABEL_QUOTA: team, **more}


def gpus(count: int) -> dict[str, str]:
    return {GPU: str(count)}


class Teams:
    """Create a cluster with quotas whose pods were counted."""

    def __init__(self, *quotas: Quota, nodes: int = 2, cards_each: int = 8, vfs_each: int = 0) -> None:
        self.world = World()
        for number in range(nodes):
            self.world.node(f"n{number}", cards_each, vfs_each)
        self.set(*quotas)
        self.world.requeued()

    def set(self, *quotas: Quota) -> None:
        for one in quotas:
            self.world.quotas.set_quota(f"uid-{one.id}", one)
        exhaust(self.world.quotas.scan())

    def ask(self, name: str, team: str, limits: Mapping[str, str] = WHOLE, **options: Any) -> str:
        """Filter a pod. Return the text of its refusal, or nothing."""
        labels = options.pop("labels", {})
        answer = self.world.ask(name, limits=limits, labels=of(team, **labels), **options)
        return "" if answer.fitting else next(iter({**answer.fails, **answer.never}.values()))

    def run(self, name: str, team: str, limits: Mapping[str, str] = WHOLE, node: str = "n0", **options: Any) -> None:
        self.world.bind(name, node, limits, labels=of(team, **options.pop("labels", {})), **options)

    def used(self, team: str, key: str = GPU) -> int:
        snapshot = self.world.quotas.snapshot()
        assert snapshot is not None
        return snapshot.used_of(QuotaId(team), key)

    def runtime(self, team: str) -> int | None:
        snapshot = self.world.quotas.snapshot()
        assert snapshot is not None
        return snapshot.runtime_of(snapshot.tree.quotas[QuotaId(team)], GPU)


# ---- without quotas


@pytest.fixture
def one_card() -> Teams:
    """Give quota `team` a max of one card."""
    return Teams(cards("team", 0, 1))


def test_without_a_quota_nothing_is_counted() -> None:
    teams = Teams()
    assert teams.ask("a", "team") == ""
    assert teams.world.quotas.snapshot() is None
    assert teams.world.quotas.admits([teams.world.pending_pod("a")]) is None


def test_the_first_quota_counts_what_runs_already() -> None:
    teams = Teams()
    teams.run("a", "team", gpus(4))
    assert teams.ask("b", "team") == ""
    teams.set(cards("team", 0, 5))
    assert teams.used("team") == 5000  # b is predicted
    assert "6 of 5 GPUs" in teams.ask("c", "team")


def test_all_pods_are_admitted_after_the_last_quota_is_removed() -> None:
    teams = Teams(cards("team", 0, 0))
    assert "1 of 0 GPUs" in teams.ask("a", "team")
    assert teams.world.requeued() == []
    teams.world.quotas.remove_quota(QuotaDialect.KOORDINATOR, "uid-team")
    exhaust(teams.world.quotas.scan())
    assert teams.world.requeued() == ["a"]
    assert teams.ask("a", "team") == ""


# ---- who is refused


def test_a_pod_beyond_its_quota_is_refused_on_every_node_for_good(one_card: Teams) -> None:
    one_card.run("a", "team")
    answer = one_card.world.ask("b", labels=of("team"))
    reason = "quota team: 2 of 1 GPUs: its max (quota-exceeded)"
    assert (list(answer.fitting), answer.fails, answer.never) == ([], {}, {"n0": reason, "n1": reason})
    pod = one_card.world.pending_pod("b")
    assert pod.refused_for is OfPod.QUOTA_EXCEEDED
    assert one_card.world.scheduler.counts.refused == {OfPod.QUOTA_EXCEEDED: 1}
    assert one_card.world.refused == ["b"]  # pods of its own quota might go for it


def test_between_filter_and_bind_a_pod_counts_too(one_card: Teams) -> None:
    assert one_card.ask("a", "team") == ""
    assert "2 of 1 GPUs" in one_card.ask("b", "team")
    one_card.world.now += 60
    one_card.world.ledger.expire(one_card.world.now)
    assert one_card.ask("b", "team") == ""


def test_an_admitted_pod_is_admitted_again(one_card: Teams) -> None:
    for _ in range(3):
        assert one_card.ask("a", "team") == ""


def test_a_quota_that_shrank_meanwhile_refuses_the_binding(one_card: Teams) -> None:
    assert one_card.ask("a", "team") == ""
    one_card.set(cards("team", 0, 0))
    refused = one_card.world.scheduler.reserve(uid_of("a"), "n0")
    assert "1 of 0 GPUs" in getattr(refused, "why", "")
    assert one_card.world.ledger.reservations() == ()


def test_lent_cards_are_returned_when_the_lender_requests_them() -> None:
    """Lend and take back 16 cards of two quotas with min 8 and max 16."""
    teams = Teams(cards("a", 8, 16), cards("b", 8, 16))
    for number in range(4):
        teams.run(f"a{number}", "a", gpus(3), node=f"n{number % 2}")
    assert (teams.runtime("a"), teams.runtime("b")) == (12_000, 0)
    assert teams.ask("a-first", "a") == ""
    teams.world.deleted("a-first")
    for number in range(6):
        teams.ask(f"b{number}", "b")
    assert (teams.runtime("a"), teams.runtime("b")) == (10_000, 6000)
    assert "13 of 10 GPUs: what it may use now" in teams.ask("a-more", "a")


def test_a_pod_that_waits_counts_as_asked_for_before_it_is_placed() -> None:
    teams = Teams(cards("a", 8, 16), cards("b", 8, 16))
    teams.world.show("b", gpus(4), labels=of("b"))
    teams.world.show("a", gpus(16), labels=of("a"))
    assert (teams.runtime("a"), teams.runtime("b")) == (12_000, 4000)
    teams.world.deleted("b")
    assert teams.runtime("a") == 16_000


# ---- what counts


def test_shares_models_and_vfs() -> None:
    limits = {GPU: 2000, model_key(MODEL): 1500, RESOURCE_RDMA: 3}
    teams = Teams(quota("team", max=limits), vfs_each=8)
    teams.run("a", "team", share(core=30) | vfs(2))
    assert (teams.used("team"), teams.used("team", model_key(MODEL)), teams.used("team", RESOURCE_RDMA)) == (300, 300, 2)
    assert teams.ask("b", "team") == ""
    assert "2.3 of 2 GPUs: its max" in teams.ask("d", "team")
    teams.set(quota("team", max=limits | {GPU: 3000}))
    assert f"2.3 of 1.5 GPUs {model_key(MODEL).split('/')[1]}: its max" in teams.ask("d", "team")
    assert "4 of 3 VFs: its max" in teams.ask("c", "team", vfs(2))


def test_cpu_and_memory_of_pods_with_devices() -> None:
    teams = Teams(quota("team", max={"cpu": 4000, "memory": 1024}))
    teams.world.readiness("n0", True, allocatable={"cpu": "60", "memory": "10Gi"})
    exhaust(teams.world.quotas.scan())
    teams.run("a", "team", requests={"cpu": "3", "memory": "512Mi"})
    assert (teams.used("team", "cpu"), teams.used("team", "memory")) == (3000, 512)
    assert "5 of 4 cores" in teams.ask("b", "team", requests={"cpu": "2"})


def test_cpu_of_nodes_with_devices_is_divided() -> None:
    teams = Teams(quota("team", max={"cpu": 100_000}))
    teams.world.readiness("n0", True, allocatable={"cpu": "6", "memory": "1Gi"})
    teams.world.readiness("no-devices", True, allocatable={"cpu": "60", "memory": "1Gi"})
    exhaust(teams.world.quotas.scan())
    snapshot = teams.world.quotas.snapshot()
    assert snapshot is not None
    assert snapshot.totals[ROOT] == {GPU: 16_000, model_key(MODEL): 16_000, "cpu": 6000, "memory": 1024}


def test_a_grant_of_an_ended_pod_counts_until_it_is_released(one_card: Teams) -> None:
    one_card.world.bind("a", "n0", labels=of("team"))
    one_card.world.report("n0", 8, grants=[grant("uid-a", "n0", 0)])
    one_card.world.show("a", labels=of("team"), node="n0", phase="Succeeded", annotations={})
    assert one_card.used("team") == 1000
    one_card.world.report("n0", 8)
    assert one_card.used("team") == 0


def test_a_pod_of_no_quota_is_not_there_for_the_tree() -> None:
    teams = Teams(cards("team", 0, 16))
    teams.world.bind("outside", "n0", gpus(4))
    teams.world.show("a", gpus(16), labels=of("team"))
    assert teams.runtime("team") == 12_000


# ---- who may try again


def test_free_quota_requeues_the_first_in_line_and_no_more_than_fit() -> None:
    teams = Teams(cards("team", 0, 2), cards("other", 0, 2))
    for name in ("a", "b"):
        teams.run(name, "team")
    for name, priority in {"c": 0, "d": 10, "e": 5}.items():
        teams.ask(name, "team", priority=priority)
    teams.run("x", "other")
    assert teams.world.requeued() == []
    teams.world.deleted("a")
    assert teams.world.requeued() == ["d"]
    assert teams.world.requeued() == []  # once for this room
    assert teams.ask("d", "team") == ""
    teams.world.deleted("b")
    assert teams.world.requeued() == ["e"]


def test_free_devices_requeue_no_pod_that_waits_for_its_quota() -> None:
    teams = Teams(cards("team", 0, 1), cards("other", 0, 100), nodes=1, cards_each=2)
    teams.run("a", "team")
    teams.run("x", "other")
    assert "2 of 1 GPUs" in teams.ask("b", "team", priority=100)
    assert "too-few-free-gpus" in teams.ask("y", "other")
    teams.world.deleted("x")
    assert teams.world.requeued() == ["y"]


def test_a_larger_max_requeues_as_many_pods_as_fit(one_card: Teams) -> None:
    one_card.run("a", "team")
    for name in "bcd":
        one_card.ask(name, "team")
    one_card.set(cards("team", 0, 3))
    assert one_card.world.requeued() == ["b", "c"]


def test_a_larger_runtime_requeues_a_pod() -> None:
    teams = Teams(cards("a", 8, 16), cards("b", 8, 16))
    for number in range(8):
        teams.run(f"a{number}", "a", node="n0")
    for number in range(8):
        teams.ask(f"b{number}", "b")
    assert "9 of 8 GPUs" in teams.ask("a-more", "a")
    teams.world.requeued()
    teams.world.deleted("b7")
    assert teams.world.requeued() == ["a-more"]


def test_a_new_node_requeues_a_pod() -> None:
    teams = Teams(cards("team", 0, 16), nodes=1, cards_each=1)
    teams.run("a", "team")
    assert "2 of 1 GPUs: what it may use now" in teams.ask("b", "team")
    teams.world.node("n1", 1)
    exhaust(teams.world.quotas.scan())
    assert teams.world.requeued() == ["b"]


def test_a_pod_that_is_deleted_is_not_requeued(one_card: Teams) -> None:
    one_card.run("a", "team")
    one_card.ask("b", "team")
    one_card.world.deleted("b")
    one_card.world.deleted("a")
    assert one_card.world.requeued() == []


def test_a_pod_that_changes_still_waits_for_its_quota(one_card: Teams) -> None:
    one_card.run("a", "team")
    one_card.ask("b", "team")
    one_card.world.show("b", labels=of("team"), priority=3)
    assert one_card.world.pending_pod("b").quota is not None
    assert one_card.world.pending.refused_requests() == []
    one_card.world.deleted("a")
    assert one_card.world.requeued() == ["b"]


# ---- turns and gangs


def three() -> list[Quota]:
    return [cards(name, 0, 16, weights={GPU: 1}) for name in ("a", "b", "c")]


def test_pods_that_are_larger_than_their_share_take_turns() -> None:
    teams = Teams(*three())
    for name in ("a", "a2", "b", "b2", "c"):
        teams.world.show(name, gpus(8), labels=of(name[0]))
    teams.run("a", "a", gpus(8), node="n0")
    teams.run("b", "b", gpus(8), node="n1")
    assert "quota-turn" in teams.ask("c", "c", gpus(8))
    teams.world.deleted("a")
    assert "quota-turn" in teams.ask("b2", "b", gpus(8))  # it asks first, and b has 8 cards
    assert "quota-turn" in teams.ask("a2", "a", gpus(8))  # quota a uses as few cards as c, and c waits longer
    assert teams.world.requeued() == ["c"]
    assert teams.ask("c", "c", gpus(8)) == ""
    assert teams.world.scheduler.counts.refused[OfPod.QUOTA_TURN] == 3


def test_a_gang_is_checked_as_a_whole() -> None:
    teams = Teams(*three())
    for name in ("m0", "m1", "m2", "m3"):
        teams.world.show(name, gpus(2), labels=of("a"))
    for name in "bc":
        teams.world.show(name, gpus(8), labels=of(name))
    gang = [teams.world.pending_pod(f"m{number}") for number in range(4)]
    assert teams.world.quotas.admits(gang, gang=True) is None  # 8 of 6
    teams.run("b", "b", gpus(8), node="n0")
    teams.run("c", "c", gpus(8), node="n1")
    refused = teams.world.quotas.admits(gang, gang=True)
    assert refused is not None
    assert refused.code is OfPod.QUOTA_TURN


def test_a_question_to_quotas_changes_nothing_until_its_answer_is_recorded() -> None:
    teams = Teams(cards("a", 0, 1))
    teams.run("first", "a", gpus(1))
    teams.world.show("second", gpus(1), labels=of("a"))
    waiting = [teams.world.pending_pod("second")]
    refusal = teams.world.quotas.admits(waiting)
    assert refusal is not None
    teams.world.deleted("first")
    assert teams.world.requeued() == []
    teams.run("third", "a", gpus(1))
    teams.world.quotas.record(waiting, refusal)
    teams.world.deleted("third")
    assert teams.world.requeued() == ["second"]


def test_a_gang_of_two_quotas_is_refused_by_either() -> None:
    teams = Teams(cards("a", 0, 4), cards("b", 0, 1))
    teams.world.show("m0", gpus(2), labels=of("a"))
    teams.world.show("m1", gpus(2), labels=of("b"))
    refused = teams.world.quotas.admits([teams.world.pending_pod(name) for name in ("m0", "m1")], gang=True)
    assert refused is not None
    assert refused.shown == "quota b: 2 of 1 GPUs: its max (quota-exceeded)"


# ---- scheduler-plugins


def test_the_quota_of_a_namespace() -> None:
    flat = Quota(
        id=QuotaId("default/q"),
        dialect=QuotaDialect.SCHEDULER_PLUGINS,
        namespace="default",
        name="q",
        parent=FLAT,
        min={GPU: 1000},
        max={GPU: 4000},
    )
    teams = Teams(flat)
    teams.run("a", "")
    assert "quota default/q: 2 of 1 GPUs: the mins of the quotas of all namespaces together" in teams.ask("b", "")
    teams.world.deleted("a")
    assert teams.world.requeued() == ["b"]


# ---- the sums


def test_the_kept_sums_equal_a_new_count() -> None:
    draw = random.Random(11)  # noqa: S311
    top = cards("top", 8, 14, is_parent=True)
    quotas = [top, cards("a", 4, 10, parent="top"), cards("b", 2, 14, parent="top"), cards("c", 2, 6)]
    teams = Teams(*quotas, nodes=3, cards_each=8)
    names = ["a", "b", "c", "absent"]
    for number in range(400):
        name = f"p{draw.randrange(30)}"
        match draw.randrange(6):
            case 0:
                teams.world.deleted(name)
            case 1:
                teams.set(cards("c", draw.randrange(3), draw.randrange(3, 9)))
            case 2:
                teams.world.now += draw.random() * 4
                teams.world.ledger.expire(teams.world.now)
            case _ if name not in teams.world.pods:
                limits = draw.choice([WHOLE, gpus(2), gpus(3), share(core=30)])
                labels = {LABEL_PREEMPTIBLE: draw.choice(["true", "false"])}
                teams.ask(name, draw.choice(names), limits, labels=labels)
            case _ if teams.world.pending.get(uid_of(name)) is not None and not teams.world.is_refused(name):
                claim = teams.world.ledger.own_claim(uid_of(name), Claim.PREDICTED)
                if claim is not None:
                    teams.world.scheduler.reserve(uid_of(name), claim.node)
        kept, fresh = teams.world.quotas.snapshot(), counted_anew(teams.world)
        assert kept is not None
        assert without_nothing(kept.used) == without_nothing(fresh.used), number
        assert without_nothing(kept.fixed) == without_nothing(fresh.fixed)
        assert kept.runtime == fresh.runtime
        requested = {quota: kept.requested_of(quota, GPU) for quota in kept.tree.quotas if not kept.tree.groups.get(quota)}
        limited = sum_requests(kept.tree, GPU, requested).limited
        assert kept.runtime[GPU] == divide_down(kept.tree, GPU, {ROOT: kept.totals[ROOT].get(GPU, 0)}, limited, 1000)


def counted_anew(world: World) -> QuotaSnapshot:
    changed = world.pending.changed
    anew = Quotas(world.ledger, world.pending)
    world.pending.changed = changed
    for (_, uid), one in world.quotas.quotas.items():
        anew.set_quota(uid, one)
    exhaust(anew.scan())
    snapshot = anew.snapshot()
    assert snapshot is not None
    return snapshot


def without_nothing(sums: Mapping[QuotaId, Mapping[str, int]]) -> dict[QuotaId, dict[str, int]]:
    return {quota: dict(amounts) for quota, amounts in sums.items() if amounts}


@pytest.mark.parametrize("preemptible", ["true", "false"])
def test_a_pod_that_is_never_preempted_stays_within_the_min(preemptible: str) -> None:
    teams = Teams(cards("team", 1, 8))
    labels = {LABEL_PREEMPTIBLE: preemptible}
    teams.run("a", "team", labels=labels)
    assert ("never preempted" in teams.ask("b", "team", labels=labels)) == (preemptible == "false")


def relabelled(teams: Teams, name: str, **labels: str) -> None:
    """Show the bound pod with other labels."""
    shown = teams.world.pods[name]
    annotations = shown["metadata"]["annotations"]
    teams.world.show(name, node=shown["spec"]["nodeName"], annotations=annotations, labels=labels)


def test_a_bound_pod_counts_where_it_was_admitted() -> None:
    teams = Teams(cards("a", most=1), cards("b", most=1))
    teams.run("p", "a")
    relabelled(teams, "p", **of("b"))
    assert (teams.used("a"), teams.used("b")) == (1000, 0)
    assert "quota-exceeded" in teams.ask("q", "a")
    relabelled(teams, "p", **of("a", **{LABEL_PREEMPTIBLE: "false"}))
    assert teams.world.quotas.counted(uid_of("p")).owner.preemptible


def test_a_bound_pod_without_a_label_stays_in_the_quota_of_its_namespace() -> None:
    teams = Teams(cards("a"), cards("b", namespaces=("default",)))
    teams.world.bind("p", "n0", WHOLE)
    relabelled(teams, "p", **of("a"))
    assert (teams.used("a"), teams.used("b")) == (0, 1000)


def test_another_leader_counts_a_pod_where_it_was_admitted() -> None:
    teams = Teams(cards("a"), cards("b"))
    teams.run("p", "a")
    relabelled(teams, "p", **of("b"))
    other = Teams(cards("a"), cards("b"))
    other.world.pod_feed.changed(decoded(teams.world.pods["p"]))
    assert (other.used("a"), other.used("b")) == (1000, 0)


def test_a_pod_that_was_bound_before_the_first_quota_counts_by_its_labels() -> None:
    teams = Teams()
    teams.run("p", "a")
    teams.set(cards("a"), cards("b"))
    assert teams.used("a") == 1000
    relabelled(teams, "p", **of("b"))
    assert (teams.used("a"), teams.used("b")) == (0, 1000)


def test_a_deep_tree_is_shown() -> None:
    chain = [cards(f"q{n}", parent=f"q{n - 1}" if n else ROOT, is_parent=True) for n in range(1000)]
    view = view_quotas(Teams(*chain).world.quotas)
    assert len(view.quotas) == len(chain)
    assert max(one.level for one in view.quotas) == MOST_LEVELS - 1
