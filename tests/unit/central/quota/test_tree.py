"""Test contradictory quotas, which are refused with a message, and which quota a pod has."""

import random

import pytest

from central.quota.model import BUILT_IN, DEFAULT, FLAT, ROOT, SYSTEM, Owner, Quota, QuotaDialect, QuotaId
from central.quota.tree import MOST_LEVELS, build
from lading.vocabulary import RESOURCE_GPU
from tests.unit.central.quota.trees import quota

GPU = RESOURCE_GPU


def flat(namespace: str, name: str = "quota", created: str = "") -> Quota:
    return Quota(
        id=QuotaId(f"{namespace}/{name}"),
        dialect=QuotaDialect.SCHEDULER_PLUGINS,
        namespace=namespace,
        name=name,
        parent=FLAT,
        created=created,
    )


def test_a_tree_has_groups_from_the_top_and_paths_from_the_leaf() -> None:
    top = quota("top", is_parent=True, max={GPU: 8000}, min={GPU: 4000})
    leaf = quota("leaf", parent="top", max={GPU: 9000}, min={GPU: 4000})  # a max above its parent's is allowed
    tree = build([leaf, top])
    assert not tree.problems
    assert list(tree.groups.items()) == [(ROOT, ("top",)), ("top", ("leaf",))]
    assert tree.paths[QuotaId("leaf")] == ("leaf", "top")
    assert [one.id for one in tree.leaves_first()] == ["leaf", "top"]


MAX = {GPU: 8000}


@pytest.mark.parametrize(
    ("quotas", "refused", "why"),
    [
        ([quota("a", min={GPU: 9000}, max=MAX)], "a", "min 9 GPUs is more than max 8 GPUs"),
        ([quota("a", min={GPU: 9000})], "a", "min has lading.dev/gpu, and max does not; add it to max"),
        ([quota("a", parent="b")], "a", "its parent b does not exist"),
        ([quota("a", parent="b"), quota("b", parent="c")], "a", "a parent of it, c, does not exist"),
        ([quota("a", parent="b"), quota("b", parent="a")], "a", "its parents form a circle: b is below a"),
        ([quota("a", parent="a")], "a", "its parents form a circle: a is below a"),
        (
            [quota("p", max=MAX), quota("a", parent="p", max=MAX)],
            "a",
            "its parent p is not marked as a parent; set its label is-parent to true",
        ),
        ([quota("p", problem="no"), quota("a", parent="p", max=MAX)], "a", "its parent p is refused"),
        (
            [quota("p", max=MAX, is_parent=True), quota("a", parent="p", max={"cpu": 1000})],
            "a",
            "max has other resources than that of its parent p: cpu, lading.dev/gpu; write the same",
        ),
        (
            [
                quota("p", max=MAX, min={GPU: 6000}, is_parent=True),
                quota("a", parent="p", max=MAX, min={GPU: 4000}, created="2026-01-02T00:00:00Z"),
                quota("b", parent="p", max=MAX, min={GPU: 3000}, created="2026-01-01T00:00:00Z"),
            ],
            "a",
            "min 4 GPUs, with the min of the older children of its parent p, is 7 GPUs; the parent has min 6 GPUs",
        ),
        (
            [quota("p", max=MAX, is_parent=True), quota("a", parent="p", max=MAX, tree="t")],
            "a",
            "it is of tree 't', and its parent p of tree ''; write the same tree-id",
        ),
        (
            [quota("a", created="1"), quota("a", created="2", namespace="other")],
            "other/a",
            "namespace quotas has an older quota a; names are unique in the cluster",
        ),
        (
            [flat("team", "a", "2"), flat("team", "b", "1")],
            "team/a",
            "namespace team has an older quota team/b; there is one in a namespace",
        ),
    ],
)
def test_a_contradiction_is_refused_in_words(quotas: list[Quota], refused: str, why: str) -> None:
    tree = build(quotas)
    assert tree.problems[QuotaId(refused)] == why
    assert refused not in tree.quotas
    random.Random(1).shuffle(quotas)  # noqa: S311
    assert build(quotas) == tree


def test_mins_of_the_first_level_may_be_more_than_there_is() -> None:
    assert not build([quota("a", min=MAX, max=MAX), quota("b", min=MAX, max=MAX)]).problems
    root = quota("root", total={GPU: 8000}, is_parent=True, tree="t")
    below = [quota(name, parent="root", min=MAX, max=MAX, tree="t") for name in "ab"]
    tree = build([root, *below])
    assert not tree.problems
    assert tree.group_of(QuotaId("a")) == "root"


@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        (Owner("team", "b"), ["b"]),
        (Owner("team", "absent"), ["team"]),  # until the quota appears
        (Owner("team"), ["team"]),
        (Owner("other"), ["team"]),  # the older one; here: without a date
        (Owner("elsewhere"), [DEFAULT]),
        (Owner("kube-system"), [SYSTEM]),
        (Owner("flat"), [DEFAULT, "flat/quota"]),
        (Owner("team", "broken"), ["broken"]),  # pods of a broken quota are refused, and do not start without a limit
    ],
)
def test_a_pod_finds_its_quota(owner: Owner, expected: list[str]) -> None:
    quotas = [
        quota("team", namespace="team", namespaces=("other",)),
        quota("b", namespaces=("other", "team"), created="2026-01-01T00:00:00Z"),
        quota("team-x", namespace="elsewhere"),
        quota("broken", problem="no"),
        flat("flat"),
    ]
    tree = build([*quotas[:1], *quotas[2:], quotas[1]])
    assert list(tree.quotas_of(owner)) == expected


def test_without_quotas_no_pod_has_one() -> None:
    assert build([]).quotas_of(Owner("team", "a")) == ()
    assert build([flat("team")]).quotas_of(Owner("other")) == ()
    assert build([quota(name) for name in BUILT_IN]).quotas_of(Owner("other")) == (DEFAULT,)


def test_koordinators_object_of_the_whole_cluster_is_not_a_quota() -> None:
    tree = build([quota(str(ROOT), min={GPU: 1}), quota("a", max=MAX)])
    assert (list(tree.quotas), list(tree.problems)) == (["a"], [])


def test_a_tree_has_a_limited_depth() -> None:
    """Check that each quota below the last level is refused, in any order of reading, and no quota above."""
    chain = [quota("q0", max=MAX, is_parent=True)]
    chain += [quota(f"q{n}", parent=f"q{n - 1}", max=MAX, is_parent=True) for n in range(1, 3000)]
    for quotas in (chain, chain[::-1]):
        tree = build(quotas)
        assert tree.quotas.keys() == {f"q{n}" for n in range(MOST_LEVELS)}
        assert len(tree.problems) == 3000 - MOST_LEVELS
        assert "at most 16 levels" in tree.problems[QuotaId(f"q{MOST_LEVELS}")]
