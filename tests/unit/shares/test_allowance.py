from hypothesis import given
from hypothesis.strategies import integers, lists, tuples

from shares.allowance import Allowance

INTERVAL_NS, MOST = 10, 5


def test_as_many_as_allowed_may_be_used_at_once_and_then_one_in_each_interval() -> None:
    allowance = Allowance(INTERVAL_NS, MOST)
    for used in range(MOST):
        assert allowance.ready_ns <= 1000, used
        allowance.use(1, 1000)
    assert allowance.ready_ns == 1010
    allowance.use(1, 1010)
    assert allowance.ready_ns == 1020


def test_more_than_allowed_is_paid_back_before_the_next_use() -> None:
    allowance = Allowance(INTERVAL_NS, MOST)
    allowance.use(MOST + 20, 1000)
    assert allowance.ready_ns == 1000 + 21 * INTERVAL_NS


@given(lists(tuples(integers(0, 30), integers(1, 3)), max_size=50))
def test_no_span_has_more_than_its_intervals_and_the_number_at_once(steps: list[tuple[int, int]]) -> None:
    allowance, now_ns, used = Allowance(INTERVAL_NS, MOST), 0, list[tuple[int, int]]()
    for passes_ns, number in steps:
        now_ns += passes_ns
        if now_ns >= allowance.ready_ns:
            allowance.use(number, now_ns)
            used.append((now_ns, number))
    for first, (began_ns, _) in enumerate(used):
        for last in range(first, len(used)):
            allowed = MOST + (used[last][0] - began_ns) / INTERVAL_NS
            assert sum(number for _, number in used[first:last]) < allowed
