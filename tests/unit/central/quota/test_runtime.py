"""Test what each quota may use: every worked case of Koordinator's unit tests and design pages, in cards and in milli-cpu."""

import pytest

from central.quota.model import ROOT
from central.quota.runtime import Sibling, divide
from central.request.cpu_memory import CPU
from lading.vocabulary import RESOURCE_GPU
from tests.unit.central.quota.trees import Of, runtimes

FOUR = [Sibling("n1", 40, 5, 10), Sibling("n2", 60, 20, 15), Sibling("n3", 50, 40, 20), Sibling("n4", 80, 70, 15)]
TEN = [f"borrower-{number}" for number in range(10)]


def scaled(siblings: list[Sibling], scale: int) -> list[Sibling]:
    return [one._replace(weight=one.weight * scale, amount=one.amount * scale, min=one.min * scale) for one in siblings]


@pytest.mark.parametrize(
    ("total", "siblings", "expected"),
    [
        pytest.param(100, FOUR, [5, 20, 35, 40], id="1-proportions"),
        pytest.param(100, [*FOUR[:3], FOUR[3]._replace(weight=0)], [5, 20, 40, 15], id="2-weight-0-gets-its-min"),
        pytest.param(96, [Sibling("t1", 96, 96, 50), Sibling("t2", 96, 96, 40)], [53, 43], id="5-equal-weights"),
        pytest.param(100, [Sibling("t1", 96, 96, 60), Sibling("t2", 96, 40, 40, lends=False)], [60, 40], id="6-does-not-lend"),
        pytest.param(50, [Sibling("1", 40, 30, 10), Sibling("2", 40, 30, 0)], [30, 20], id="13-one-min"),
    ],
)
@pytest.mark.parametrize(("scale", "unit"), [(1, 1), (1000, 1000)])
def test_siblings_divide_a_total(total: int, siblings: list[Sibling], expected: list[int], scale: int, unit: int) -> None:
    result = divide(total * scale, scaled(siblings, scale), unit=unit)
    assert list(result.values()) == [amount * scale for amount in expected]


@pytest.mark.parametrize("reversed_order", [False, True])
def test_4_units_that_proportions_leave_go_to_the_first_by_name(reversed_order: bool) -> None:
    mins = [8] * 8 + [7] * 2
    borrowers = [Sibling(name, 1, 100, least) for name, least in zip(TEN, mins, strict=True)]
    siblings = [Sibling("donor", 1, 0, 3), *borrowers]
    result = divide(81, siblings[::-1] if reversed_order else siblings)
    assert result["donor"] == 0
    assert [result[name] for name in TEN] == [9, 9, 9, 8, 8, 8, 8, 8, 7, 7]
    assert sum(result.values()) == 81


KEEPS = [
    Of("root60", 60, 100, lends=False),
    Of("c1", 20, 100, parent="root60", lends=False),
    Of("c2", 20, 100, parent="root60", lends=False),
]
LENDS = [Of("root60", 60, 100), Of("c1", 20, 100, parent="root60", lends=False), Of("c2", 20, 100, parent="root60")]
P = [Of("p", 300), *(Of(name, 100, parent="p") for name in "abc")]
A_AND_B = [
    *(Of("A", 20, 100), Of("A1", 10, 10, parent="A"), Of("A2", 10, 10, parent="A"), Of("B", 80, 100)),
    *(Of("B1", 20, 40, parent="B"), Of("B2", 40, 70, parent="B")),
]
SUB = [Of("test1", 176, 300), Of("sub", 100, 500, parent="test1")]
CARDS = [Of("a", 8, 16, 16), Of("b", 8, 16, 16)]


@pytest.mark.parametrize(
    ("total", "quotas", "amount", "expected"),
    [
        pytest.param(100, KEEPS, {}, {"root60": 60, "c1": 20, "c2": 20}, id="7-keeps"),
        pytest.param(100, KEEPS, {"c1": 40}, {"root60": 60, "c1": 40, "c2": 20}, id="7-keeps-40"),
        pytest.param(100, KEEPS, {"c1": 60}, {"root60": 80, "c1": 60, "c2": 20}, id="7-keeps-60"),
        pytest.param(100, LENDS, {}, {"root60": 20, "c1": 20, "c2": 0}, id="8-lends"),
        pytest.param(100, LENDS, {"c1": 40}, {"root60": 40, "c1": 40, "c2": 0}, id="8-lends-40"),
        pytest.param(100, LENDS, {"c1": 60}, {"root60": 60, "c1": 60, "c2": 0}, id="8-lends-60"),
        pytest.param(600, P, dict.fromkeys("abc", 200), {"p": 600, "a": 200, "b": 200, "c": 200}, id="9-enough"),
        pytest.param(200, P, {"a": 200, "c": 200}, {"p": 200, "a": 100, "b": 0, "c": 100}, id="10-one-asks-nothing"),
        pytest.param(
            100,
            A_AND_B,
            dict.fromkeys(["A1", "A2", "B1", "B2"], 100),
            {"A": 20, "A1": 10, "A2": 10, "B": 80, "B1": 27, "B2": 53},
            id="11-two-levels",
        ),
        pytest.param(350, SUB, {"sub": 400}, {"test1": 300, "sub": 300}, id="12-a-child-with-a-larger-max"),
        pytest.param(16, CARDS, {"a": 16}, {"a": 16, "b": 0}, id="14-lent"),
        pytest.param(16, CARDS, {"a": 16, "b": 6}, {"a": 10, "b": 6}, id="14-taken-back"),
        pytest.param(16, CARDS, {"a": 16, "b": 12}, {"a": 8, "b": 8}, id="14-both"),
    ],
)
def test_a_tree_divides_a_total(total: int, quotas: list[Of], amount: dict[str, int], expected: dict[str, int]) -> None:
    assert runtimes(total, quotas, amount, RESOURCE_GPU) == expected
    in_cards = runtimes(total, quotas, amount, RESOURCE_GPU, 1000, 1000)
    assert in_cards == {name: amount * 1000 for name, amount in expected.items()}


def test_9_mins_that_are_more_than_there_is_are_reduced_in_proportion() -> None:
    amount = dict.fromkeys("abc", 200)
    assert runtimes(200, P, amount, CPU, 1000) == {"p": 200_000, "a": 66_667, "b": 66_667, "c": 66_666}


def test_cards_stay_whole_where_all_amounts_are() -> None:
    three = [Of(name, 0, 16, 1) for name in "abc"]
    amount = dict.fromkeys("abc", 8)
    assert runtimes(16, three, amount, RESOURCE_GPU, 1000, 1000) == {"a": 6000, "b": 5000, "c": 5000}
    assert runtimes(16, three, amount, CPU, 1000) == {"a": 5334, "b": 5333, "c": 5333}


def test_a_quota_without_the_resource_in_its_max_has_no_runtime() -> None:
    assert runtimes(16, [Of("a", 4)], {"a": 4}, RESOURCE_GPU) == {"a": 4}
    assert ROOT not in runtimes(16, [Of("a", 4)], {"a": 4}, RESOURCE_GPU)
