"""Test who may be on one card: pairs of pods by their labels."""

import pytest

from central.assignment.sharing import UNLABELLED, AffinityGroup, Labels, groups_of, together, union
from central.request.model import Sharing


def of(namespace: str = "a", affinity: str = "", anti: str = "", exclusion: str = "") -> Labels:
    return (Sharing(namespace=namespace, affinity=affinity, anti_affinity=anti, exclusion=exclusion),)


@pytest.mark.parametrize(
    ("one", "other", "may"),
    [
        *((UNLABELLED, UNLABELLED, True), (of(anti="x"), UNLABELLED, True), (of(anti="x"), of(anti="y"), True)),
        *((of(anti="x"), of(anti="x"), False), (of(anti="x"), of(exclusion="x"), False)),
        (of("a", anti="x"), of("b", anti="x"), True),
        (of(exclusion="x"), UNLABELLED, False),
        (of(exclusion="x"), of(exclusion="y"), False),
        (of(exclusion="x"), of(exclusion="x"), True),
        (of("a", exclusion="x"), of("b", exclusion="x"), False),
        (of(exclusion="x", anti="y"), of(exclusion="x", anti="y"), False),
        (of(affinity="x"), of(affinity="y"), True),
        (of(affinity="x"), of(exclusion="x"), False),
        # A pod whose claims differ in their labels has them all.
        (of(exclusion="x") + of(exclusion="y"), of(exclusion="x"), False),
        (of(anti="x") + of(anti="y"), of(anti="y"), False),
    ],
)
def test_which_labels_may_share_a_card(one: Labels, other: Labels, may: bool) -> None:
    assert together(one, other) is may
    assert together(other, one) is may


def test_groups_are_of_a_namespace() -> None:
    assert groups_of([*of("a", affinity="x"), *of("b", affinity="x"), *of("a", anti="y")]) == (
        AffinityGroup("a", "x"),
        AffinityGroup("b", "x"),
    )


def test_the_labels_of_two_claims_are_joined_in_one_order() -> None:
    x, y = of(exclusion="x"), of(exclusion="y")
    assert union(x, y) == union(y, x) == (*x, *y)
    assert union(x, x) == union(x, UNLABELLED) == union(UNLABELLED, x) == x
