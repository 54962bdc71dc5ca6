"""Check whether pods stay within their quota, and in which order quotas may borrow."""

from collections.abc import Mapping
from typing import Any

import pytest

from central.quota.amounts import unit_of
from central.quota.checks import QuotaRefusal, check, lendable, turn_key
from central.quota.model import FLAT, ROOT, Quota, QuotaDialect, QuotaId
from central.quota.quota_snapshot import QuotaSnapshot
from central.quota.runtime import sum_requests
from central.quota.tree import build
from central.request.reasons import OfPod
from lading.vocabulary import RESOURCE_GPU, RESOURCE_RDMA
from tests.unit.central.quota.trees import divide_down, quota

GPU = RESOURCE_GPU
CARD = 1000


def snapshot(
    quotas: list[Quota], total: int, used: Mapping[str, int], waiting: Mapping[str, int] | None = None, fixed: int = 0
) -> QuotaSnapshot:
    """Return the state of quotas of cards. `waiting`: the requests of pods that hold nothing."""
    tree = build(quotas)
    up: dict[QuotaId, dict[str, int]] = {}
    for name, amount in used.items():
        for step in tree.paths[QuotaId(name)]:
            up[step] = {GPU: up.get(step, {}).get(GPU, 0) + amount * CARD}
    requests = {QuotaId(name): (used.get(name, 0) + (waiting or {}).get(name, 0)) * CARD for name in {*used, *(waiting or {})}}
    asking = sum_requests(tree, GPU, requests)
    flat_min = sum(one.min.get(GPU, 0) for one in quotas if one.parent == FLAT)
    totals = {ROOT: {GPU: total * CARD}, FLAT: {GPU: flat_min}}
    by_group = {group: amounts[GPU] for group, amounts in totals.items()}
    return QuotaSnapshot(
        tree=tree,
        used=up,
        fixed={QuotaId(name): {GPU: fixed * CARD} for name in used},
        requested={GPU: asking.requested},
        limited={GPU: asking.limited},
        runtime={GPU: divide_down(tree, GPU, by_group, asking.limited, unit_of(GPU))},
        totals=totals,
    )


def cards(name: str, least: int = 0, most: int = 16, weight: int = 1, **options: Any) -> Quota:
    return quota(name, min={GPU: least * CARD}, max={GPU: most * CARD}, weights={GPU: weight * CARD}, **options)


def ask(
    now: QuotaSnapshot, name: str, gpus: int, *, gang: bool = False, preemptible: bool = True, own: int = 0
) -> QuotaRefusal | None:
    held = {GPU: own * CARD} if own else {}
    return check(now, QuotaId(name), {GPU: gpus * CARD, RESOURCE_RDMA: 1}, gang=gang, preemptible=preemptible, own=held)


def test_within_its_runtime() -> None:
    now = snapshot([cards("a", 8), cards("b", 8)], 16, {"a": 9}, {"a": 7})
    assert ask(now, "a", 7) is None  # b asks for nothing


def test_the_numbers_are_reported() -> None:
    now = snapshot([cards("a", 8), cards("b", 8)], 16, {"a": 8, "b": 6}, {"a": 4})
    refused = ask(now, "a", 4)
    assert refused is not None
    assert (refused.code, refused.quota) == (OfPod.QUOTA_EXCEEDED, "a")
    assert refused.shown == "quota a: 12 of 10 GPUs: what it may use now (quota-exceeded)"


def test_amounts_that_a_pod_holds_already_count_once() -> None:
    now = snapshot([cards("a", 8), cards("b", 8)], 16, {"a": 10, "b": 6})
    assert ask(now, "a", 4, own=4) is None
    assert ask(now, "a", 5, own=4) is not None


@pytest.mark.parametrize(("used", "fits"), [(3, True), (4, False)])
def test_a_max_above_the_quota_holds_too(used: int, fits: bool) -> None:
    top = cards("top", 0, 5, is_parent=True)
    below = [cards(name, 0, 10, parent="top") for name in "ab"]
    refused = ask(snapshot([top, *below], 16, {"a": used}, {"b": 2}), "b", 2)
    assert (refused is None) == fits
    if refused is not None:
        assert refused.shown == "quota top: 6 of 5 GPUs: its max (quota-exceeded)"


def test_pods_that_are_never_preempted_stay_within_the_min() -> None:
    now = snapshot([cards("a", 4)], 16, {"a": 6}, {"a": 4}, fixed=3)
    assert ask(now, "a", 1, preemptible=False) is None
    refused = ask(now, "a", 2, preemptible=False)
    assert refused is not None
    assert refused.why == "quota a: 5 of 4 GPUs: its min, for pods that are never preempted"
    assert ask(now, "a", 2) is None


def test_a_quota_that_cannot_be_used_refuses_its_pods() -> None:
    now = snapshot([cards("a", 8, 4), cards("top", 0, 5, is_parent=True), cards("b", 0, 5, parent="top")], 16, {})
    for name, reason in {
        "a": "quota a is refused: min 8 GPUs is more than max 4 GPUs",
        "top": "quota top is divided among other quotas; name one of them in the label of the pod",
    }.items():
        refused = ask(now, name, 1)
        assert refused is not None
        assert (refused.code, refused.why) == (OfPod.QUOTA_INVALID, reason)


def test_no_quota_no_limit() -> None:
    assert ask(snapshot([cards("a", 8)], 1, {}), "koordinator-default-quota", 100) is None


# ---- gangs borrow as a whole


THREE = [cards(name, weight=16) for name in "abc"]


def test_gangs_that_are_larger_than_their_share_borrow_by_turns() -> None:
    """Use three quotas without min, a gang of 8 each, and 16 cards: two gangs run, and the third one waits for its turn."""
    waiting = dict.fromkeys("abc", 8)
    assert ask(snapshot(THREE, 16, {}, waiting), "a", 8, gang=True) is None
    assert ask(snapshot(THREE, 16, {"a": 8}, {"b": 8, "c": 8}), "b", 8, gang=True) is None
    full = snapshot(THREE, 16, {"a": 8, "b": 8}, {"c": 8, "a": 8})
    refused = ask(full, "c", 8, gang=True)
    assert refused is not None
    assert refused.code is OfPod.QUOTA_TURN
    assert refused.why == (
        "quota c: 8 GPUs together are more than its 5; it may borrow them when they are free and it is its turn"
    )
    one_ended = snapshot(THREE, 16, {"b": 8}, {"b": 8, "c": 8})
    assert sorted("bc", key=lambda name: turn_key(one_ended, QuotaId(name))) == ["c", "b"]
    assert ask(one_ended, "c", 8, gang=True) is None


def test_a_single_pod_that_is_larger_than_its_share_borrows_too() -> None:
    waiting = dict.fromkeys("abc", 8)
    assert ask(snapshot(THREE, 16, {}, waiting), "a", 8) is None
    now = snapshot(THREE, 16, {"a": 8}, waiting)
    assert ask(now, "b", 8) is None
    refused = check(now, QuotaId("b"), {GPU: 8000}, has_turn=lambda quota: False)
    assert refused is not None
    assert refused.code is OfPod.QUOTA_TURN
    assert check(now, QuotaId("b"), {GPU: 5000}, has_turn=lambda quota: False) is None  # within what it may use


def test_a_gang_does_not_borrow_what_another_is_guaranteed_and_asks_for() -> None:
    quotas = [cards("a", 8), cards("b", 8)]
    now = snapshot(quotas, 16, {"a": 8}, {"a": 6, "b": 4})
    assert lendable(now, QuotaId("a"), GPU) == 4000
    assert ask(now, "a", 4, gang=True) is None
    refused = ask(now, "a", 6, gang=True)
    assert refused is not None
    assert refused.shown == "quota a: 14 of 12 GPUs: what it may use now (quota-exceeded)"


def test_a_gang_borrows_what_lies_idle_also_where_it_is_smaller_than_its_share() -> None:
    """Let three quotas run a gang of 4 each on 16 cards, with runtimes of 6, 5 and 5: one more gang of 4 would use the rest."""
    now = snapshot(THREE, 16, dict.fromkeys("abc", 4), dict.fromkeys("abc", 4))
    assert ask(now, "a", 4, gang=True) is None
    alone = ask(now, "a", 4)
    assert alone is not None
    assert alone.shown == "quota a: 8 of 6 GPUs: what it may use now (quota-exceeded)"


def test_the_min_of_quotas_beside_a_parent_is_not_lent() -> None:
    quotas = [cards("top", 8, 16, is_parent=True), cards("a", 4, parent="top"), cards("b", 4, parent="top"), cards("other", 4)]
    now = snapshot(quotas, 16, {"a": 4}, {"a": 8, "b": 3, "other": 2})
    assert lendable(now, QuotaId("a"), GPU) == (16 - 4 - 3 - 2) * CARD


# ---- turns


@pytest.mark.parametrize(
    ("quotas", "used", "expected"),
    [
        ([cards("a", 8), cards("b", 4)], {"a": 4, "b": 3}, "ab"),  # a half of it before three quarters
        ([cards("a", weight=1), cards("b", weight=4)], {"a": 2, "b": 4}, "ba"),
        ([cards("a", 8), cards("b", 0, weight=0, most=0)], {"a": 8}, "ba"),
    ],
)
def test_the_quota_that_uses_the_least_of_its_own_comes_first(quotas: list[Quota], used: dict[str, int], expected: str) -> None:
    now = snapshot(quotas, 16, used)
    assert "".join(sorted("ab", key=lambda name: turn_key(now, QuotaId(name)))) == expected


def test_parents_are_compared_first() -> None:
    quotas = [
        cards("left", 8, is_parent=True),
        cards("a", 4, parent="left"),
        cards("b", 4, parent="left"),
        cards("right", 8, is_parent=True),
        cards("c", 8, parent="right"),
    ]
    now = snapshot(quotas, 16, {"a": 6, "c": 4})  # b uses nothing, but its parent uses 6 of 8
    assert sorted("abc", key=lambda name: turn_key(now, QuotaId(name))) == ["c", "b", "a"]


# ---- scheduler-plugins


def flat(namespace: str, least: int, most: int) -> Quota:
    return Quota(
        id=QuotaId(f"{namespace}/q"),
        dialect=QuotaDialect.SCHEDULER_PLUGINS,
        namespace=namespace,
        name="q",
        parent=FLAT,
        min={GPU: least * CARD},
        max={GPU: most * CARD},
    )


@pytest.mark.parametrize(
    ("namespace", "gpus", "why"),
    [
        ("a", 2, None),
        ("a", 3, "quota a/q: 7 of 6 GPUs: its max"),
        ("b", 7, "quota b/q: 11 of 10 GPUs: the mins of the quotas of all namespaces together"),
    ],
)
def test_scheduler_plugins_quotas_borrow_from_one_another(namespace: str, gpus: int, why: str | None) -> None:
    """Check the KEP's example: A (4, 6) and B (6, 8), in a larger cluster too."""
    now = snapshot([flat("a", 4, 6), flat("b", 6, 8)], 100, {"a/q": 4})
    refused = ask(now, f"{namespace}/q", gpus)
    assert (refused.why if refused else None) == why
