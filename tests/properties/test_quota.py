"""Check the runtime of quotas: no device is divided twice, order does not matter, and no requested device is left unused."""

from hypothesis import given
from hypothesis import strategies as st

from central.quota.model import ROOT, QuotaId
from central.quota.runtime import Divided, Sibling, divide, sum_requests
from lading.vocabulary import RESOURCE_GPU
from tests.unit.central.quota.trees import Of, divide_down, runtimes, tree_of

AMOUNTS = st.integers(0, 40)
SIBLINGS = st.lists(
    st.builds(Sibling, st.text("abcdef", min_size=1, max_size=3), AMOUNTS, AMOUNTS, AMOUNTS, st.booleans()),
    max_size=8,
    unique_by=lambda one: one.name,
)


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[Of], dict[str, int]]:
    """Draw a tree of two levels that the webhook accepts, and the requests of the leaves' pods."""
    quotas, by_quota = [], {}
    for top in draw(st.lists(st.sampled_from("ABCDE"), unique=True, min_size=1)):
        children = draw(st.lists(st.tuples(AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS, st.booleans()), max_size=4))
        mins = [min(least, most) for least, most, *_ in children]
        own_min = draw(st.integers(sum(mins), sum(mins) + 10))
        own_max = draw(st.integers(own_min, own_min + 60))
        quotas.append(Of(top, own_min, own_max, draw(AMOUNTS), lends=draw(st.booleans())))
        for number, (least, (_, most, weight, requested, lends)) in enumerate(zip(mins, children, strict=True)):
            quotas.append(Of(f"{top}{number}", least, most, weight, parent=top, lends=lends))
            by_quota[f"{top}{number}"] = requested
        if not children:
            by_quota[top] = draw(AMOUNTS)
    return quotas, by_quota


@given(total=st.integers(0, 200), siblings=SIBLINGS, seed=st.randoms(use_true_random=False))
def test_the_order_makes_no_difference(total: int, siblings: list[Sibling], seed: object) -> None:
    shuffled = siblings[:]
    seed.shuffle(shuffled)  # type: ignore[attr-defined]
    assert divide(total, shuffled) == divide(total, siblings)


@given(total=st.integers(0, 200), siblings=SIBLINGS)
def test_all_that_is_asked_for_is_divided_and_no_more_than_there_is(total: int, siblings: list[Sibling]) -> None:
    result = divide(total, siblings)
    assert sum(result.values()) <= total
    hungry = [one for one in siblings if result[one.name] < one.amount and one.weight]
    assert not hungry or sum(result.values()) == total


@given(total=st.integers(0, 200), siblings=SIBLINGS)
def test_each_has_its_min_or_what_it_asks_for(total: int, siblings: list[Sibling]) -> None:
    result = divide(total, siblings)
    if sum(one.min for one in siblings) <= total:
        assert all(result[one.name] >= min(one.min, one.amount) for one in siblings)
    assert all(result[one.name] <= max(one.amount, 0 if one.lends else one.min) for one in siblings)


@given(total=st.integers(0, 200), made=trees(), seed=st.randoms(use_true_random=False))
def test_children_have_no_more_than_their_parent(total: int, made: tuple[list[Of], dict[str, int]], seed: object) -> None:
    quotas, by_quota = made
    result = runtimes(total, quotas, by_quota, RESOURCE_GPU)
    for parent in {ROOT, *(one.name for one in quotas)}:
        together = sum(result[one.name] for one in quotas if one.parent == parent)
        assert together <= result.get(parent, total)
    shuffled = quotas[:]
    seed.shuffle(shuffled)  # type: ignore[attr-defined]
    assert runtimes(total, shuffled, by_quota, RESOURCE_GPU) == result
    assert all(result[one.name] <= one.max for one in quotas)


@given(total=st.integers(0, 40), siblings=SIBLINGS)
def test_thousandths_of_whole_cards_are_divided_as_whole_cards(total: int, siblings: list[Sibling]) -> None:
    milli = [one._replace(amount=one.amount * 1000, min=one.min * 1000) for one in siblings]
    assert divide(total * 1000, milli, unit=1000) == {name: amount * 1000 for name, amount in divide(total, siblings).items()}


@given(made=trees(), data=st.data())
def test_what_is_kept_current_is_what_the_whole_tree_gives(made: tuple[list[Of], dict[str, int]], data: st.DataObject) -> None:
    quotas, by_quota = made
    tree = tree_of(quotas, RESOURCE_GPU)
    kept = Divided(tree)
    now: dict[QuotaId, int] = {}
    steps = data.draw(
        st.lists(st.tuples(st.sampled_from(sorted(by_quota)), AMOUNTS, st.none() | st.integers(0, 200)), max_size=12)
    )
    total = 0
    for name, amount, new_total in steps:
        quota = QuotaId(name)
        kept.add_request(quota, RESOURCE_GPU, amount - now.get(quota, 0))
        now[quota] = amount
        if new_total is not None:
            total = new_total
            kept.set_total(ROOT, {RESOURCE_GPU: total})
        before = dict(kept.runtime[RESOURCE_GPU])
        grown = kept.refresh()
        asking = sum_requests(tree, RESOURCE_GPU, now)
        assert {quota: requested for quota, requested in kept.requested[RESOURCE_GPU].items() if requested} == {
            quota: requested for quota, requested in asking.requested.items() if requested
        }
        assert kept.limited[RESOURCE_GPU] == asking.limited
        expected = divide_down(tree, RESOURCE_GPU, {ROOT: total}, asking.limited, 1000)
        assert kept.runtime[RESOURCE_GPU] == expected
        assert grown == {quota for quota, amount in expected.items() if amount > before.get(quota, 0)}
